/** One call beside the handlers that renews every held lease and delivers what the handlers report. */

import { type Answer, isUnacceptable, Outdated, repeat, type Service, type Weather } from "./calls.js";
import { FencepostError, LeaseLost, leaseLost, problemOf } from "./errors.js";
import type { Lease, Leases, Report } from "./leases.js";
import type { Log } from "./log.js";
import { now, pauseMs } from "./pauses.js";
import { isObject, type Wire } from "./wire.js";

/** A third of a lease: one beat may fail, and there are two more before the lease is over. */
const BEATS_A_LEASE = 3;
const PROGRESS_MS = 1_000;

/** A lease, and what of its handler's report goes with this call. */
interface Item {
  readonly lease: Lease;
  readonly report: Report;
}

/** Beats for as long as there are leases, and now and then earlier when a handler has something to report. */
export class Heartbeats {
  readonly #service: Service;
  readonly #leases: Leases;
  readonly #weather: Weather;
  readonly #log: Log;
  readonly #thirdMs: number;
  readonly #closing = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #dueAt = Number.POSITIVE_INFINITY;
  #isBeating = false;
  #failures = 0;

  constructor(
    service: Service,
    leases: Leases,
    settings: { readonly leaseSeconds: number; readonly weather: Weather; readonly log: Log },
  ) {
    this.#service = service;
    this.#leases = leases;
    this.#thirdMs = (settings.leaseSeconds * 1000) / BEATS_A_LEASE;
    this.#weather = settings.weather;
    this.#log = settings.log;
  }

  /** See to it that the lease is renewed a third after it was granted. */
  cover(lease: Lease): void {
    this.#bringForward(lease.renewedAt + this.#pause());
  }

  /** Deliver progress within a second. */
  progressMade(): void {
    this.#bringForward(now() + PROGRESS_MS);
  }

  /** Deliver a checkpoint at once: somebody waits for it. */
  checkpointMade(): void {
    this.#bringForward(now());
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#dueAt = Number.NEGATIVE_INFINITY;
    this.#closing.abort();
  }

  #beat(leases: readonly Lease[]): Promise<void> {
    return this.#deliver(leases.map((lease) => ({ lease, report: lease.report })));
  }

  /** Renew these with one call, and take in what it says. Throws what kept it from being accepted. */
  async #deliver(items: readonly Item[]): Promise<void> {
    // Of several tries the first counts: which of them was the one that renewed cannot be known.
    const sentAt = now();
    const answer = await this.#send(items, sentAt + this.#thirdMs);
    const reporting = items.filter(({ report }) => report.progress ?? report.checkpoint);
    if (isUnacceptable(answer) && reporting.length > 0) {
      await this.#deliverApart(items, reporting, answer);
      return;
    }
    if (answer.status !== 200) throw problemOf(answer.status, answer.body);
    const results = resultsOf(answer.body);
    items.forEach((item, place) => {
      this.#take(item, results[place] as Wire, sentAt);
    });
  }

  #send(items: readonly Item[], until: number): Promise<Answer> {
    const call = {
      method: "POST",
      path: "/v1/leases/heartbeat",
      body: `{"items":[${items.map((item) => this.#write(item)).join(",")}]}`,
      timeoutSeconds: this.#thirdMs / 1000,
    } as const;
    let tries = 0;
    const next = () => {
      tries += 1;
      if (tries > 1 && !items.every(({ lease }) => this.#leases.isHeld(lease))) throw new Outdated();
      return call;
    };
    return repeat(this.#service, next, {
      signal: this.#closing.signal,
      until,
      weather: this.#weather,
      isAnswer: (answer) => isResult(answer, items.length),
    });
  }

  #write({ lease, report: { progress, checkpoint } }: Item): string {
    const members = { job_id: lease.jobId, lease_version: lease.version, progress };
    const text = this.#service.json.stringify(members);
    return checkpoint === undefined ? text : `${text.slice(0, -1)},"checkpoint":${checkpoint.text}}`;
  }

  /** One report is not acceptable: renew all without any, then find it by sending each alone. */
  async #deliverApart(items: readonly Item[], reporting: readonly Item[], refusal: Answer): Promise<void> {
    if (items.length === 1) for (const item of reporting) this.#refuse(item, refusal);
    await this.#deliver(items.map(({ lease }) => ({ lease, report: {} })));
    if (items.length === 1) return;
    for (const { lease } of reporting) {
      if (lease.loss === undefined) await this.#beat([lease]);
    }
  }

  #refuse({ lease, report }: Item, refusal: Answer): void {
    const problem = problemOf(refusal.status, refusal.body);
    lease.reported(report);
    report.checkpoint?.refused(problem);
    const { jobId, version: leaseVersion } = lease;
    this.#log.warn("fencepost: a report was refused", { jobId, leaseVersion, detail: problem.detail });
  }

  #take({ lease, report }: Item, result: Wire, sentAt: number): void {
    if (result.status === "ok") {
      lease.renew(sentAt);
      lease.reported(report);
      report.checkpoint?.stored();
      if (result.cancel_requested === true && !lease.isEnding) lease.stop("cancelled");
    } else {
      this.#leases.lose(lease, lossOf(lease, result));
    }
  }

  #pause(): number {
    // Workers that started together shall not beat together.
    return this.#thirdMs * (0.9 + Math.random() / 10);
  }

  #bringForward(at: number): void {
    if (at >= this.#dueAt) return;
    this.#dueAt = at;
    if (!this.#isBeating) this.#arm();
  }

  #arm(): void {
    clearTimeout(this.#timer);
    if (Number.isFinite(this.#dueAt)) {
      this.#timer = setTimeout(() => void this.#beatAll(), Math.max(0, this.#dueAt - now()));
    }
  }

  async #beatAll(): Promise<void> {
    this.#isBeating = true;
    // A process that was stopped asks nobody about what is over anyway.
    this.#leases.expireAll();
    const leases = this.#leases.held;
    this.#dueAt = leases.length > 0 ? now() + this.#pause() : Number.POSITIVE_INFINITY;
    try {
      if (leases.length > 0) await this.#beat(leases);
      this.#failures = 0;
    } catch (failure) {
      if (this.#closing.signal.aborted) return;
      this.#dueAt = Math.min(this.#dueAt, now() + this.#afterFailure(failure));
    }
    this.#isBeating = false;
    this.#arm();
  }

  /** How long to wait after a beat that failed. */
  #afterFailure(failure: unknown): number {
    // It was about to be repeated, and some of its leases are over: the next one leaves them out.
    if (failure instanceof Outdated) return 0;
    if (!(failure instanceof FencepostError)) throw failure;
    this.#weather.foul(failure);
    this.#failures += 1;
    return pauseMs(this.#failures - 1, 0, Math.random);
  }
}

/** Whether this answers a call for many: a result for each item, or a refusal of what was sent. */
export function isResult(answer: Answer, count: number): boolean {
  return isUnacceptable(answer) || (answer.status === 200 && resultsOf(answer.body).length === count);
}

export function resultsOf(body: unknown): readonly unknown[] {
  return isObject(body) && Array.isArray(body.results) ? body.results : [];
}

/** Read what a result other than `ok` says of the loss. */
export function lossOf(lease: Lease, result: Wire): LeaseLost {
  if (result.status === "lease_lost") return new LeaseLost(409, { ...result, code: "lease_lost" });
  return leaseLost(lease.jobId, lease.version, "unknown", "there is no such job any more");
}
