/** The worker: leases jobs, runs their handlers, and gives back what is left when it ends. */

import { hostname } from "node:os";
import process from "node:process";
import { onAbort } from "./aborts.js";
import { accepted, Service } from "./calls.js";
import { Client } from "./client.js";
import { Ends } from "./ends.js";
import { FencepostError, leaseLost } from "./errors.js";
import { Heartbeats } from "./heartbeats.js";
import { type Crew, LeasedJob } from "./job.js";
import { type Lease, Leases } from "./leases.js";
import { type Grant, Leasing } from "./leasing.js";
import { type Log, LoggedWeather } from "./log.js";
import { type End, type Ending, endOf, fail } from "./outcomes.js";
import { endedWithin, timerMs } from "./pauses.js";
import { randomKey } from "./random.js";
import { checkRange } from "./ranges.js";
import type { Json, Wire } from "./wire.js";

/** Does a job. What it returns is the result; what it throws fails the attempt. */
// biome-ignore lint/suspicious/noExplicitAny: a handler says what its payload is; unknown would be cast in each.
export type Handler<Payload = any> = (job: LeasedJob<Payload>) => unknown;

export interface WorkerOptions {
  /** 1 to 32. */
  readonly queues: readonly string[];
  /** By kind. */
  readonly handlers?: Readonly<Record<string, Handler>> | undefined;
  /** For every kind that `handlers` does not have. Without it such a job fails as `unknown_kind`. */
  readonly catchAll?: Handler | undefined;
  readonly apiKey?: string | undefined;
  /** How many jobs are held at once, 1 to 1,000. 10 when left out. */
  readonly concurrency?: number | undefined;
  /** How long a dead worker may keep a job, 1 to 3,600. 60 when left out. */
  readonly leaseSeconds?: number | undefined;
  /** How long a call for jobs waits, up to 30 and never more than a third of a lease. 20 when left out. */
  readonly waitSeconds?: number | undefined;
  /** How long handlers may go on after a signal. 20 when left out. */
  readonly drainSeconds?: number | undefined;
  /** How long handlers that were told to stop may take. 5 when left out. */
  readonly graceSeconds?: number | undefined;
  /** A name that no other worker has, here or anywhere. The host's and some random characters when left out. */
  readonly workerId?: string | undefined;
  /** Whether SIGTERM and SIGINT end the worker. True when left out; with false call `stop`. */
  readonly signals?: boolean | undefined;
  /** The console when left out. */
  readonly log?: Log | undefined;
  /** Another reader and writer of JSON, for numbers that JavaScript cannot hold. `JSON` when left out. */
  readonly json?: Json | undefined;
}

const ENDING_SIGNALS = ["SIGTERM", "SIGINT"] as const;
const END_SECONDS = 10;
/** For the last calls of all, when the grace is over already. */
const LAST_CALLS_SECONDS = 2;

/** The workers of this process that run, and whether one of them has left a handler that never stops. */
let running = 0;
let isExitDue = false;

/** Leases jobs of some queues and has their handlers do them, until it is told to end. */
export class Worker {
  readonly workerId: string;
  readonly #options: WorkerOptions;
  readonly #concurrency: number;
  readonly #log: Log;
  readonly #service: Service;
  readonly #leases: Leases;
  readonly #leasing: Leasing;
  readonly #heartbeats: Heartbeats;
  readonly #ends: Ends;
  readonly #crew: Crew;
  readonly #tasks = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  readonly #hurrying = new AbortController();
  #slotFreed: () => void = () => undefined;
  #hasRun = false;

  constructor(url: string | URL, options: WorkerOptions) {
    const { leaseSeconds = 60, waitSeconds = 20, log = console } = options;
    this.workerId = options.workerId ?? newWorkerId();
    this.#options = options;
    this.#concurrency = options.concurrency ?? 10;
    if (!(Number.isInteger(this.#concurrency) && this.#concurrency >= 1 && this.#concurrency <= 1000)) {
      throw new RangeError(`concurrency has to be a whole number from 1 to 1000, not ${this.#concurrency}`);
    }
    for (const name of ["leaseSeconds", "waitSeconds", "drainSeconds", "graceSeconds"] as const) {
      checkRange(name, options[name], 0, Number.POSITIVE_INFINITY);
    }
    this.#log = log;
    this.#service = new Service(url, options);
    const weather = new LoggedWeather(log);
    this.#leases = new Leases(log);
    const { workerId } = this;
    const { queues } = options;
    this.#leasing = new Leasing(this.#service, {
      workerId,
      queues,
      leaseSeconds,
      // The lease counts from before the call.
      waitSeconds: Math.min(waitSeconds, leaseSeconds / 3),
      weather,
    });
    this.#heartbeats = new Heartbeats(this.#service, this.#leases, { leaseSeconds, weather, log });
    this.#ends = new Ends(this.#service, this.#leases, { timeoutSeconds: END_SECONDS, weather, log });
    this.#crew = {
      service: this.#service,
      client: new Client(url, options),
      leases: this.#leases,
      heartbeats: this.#heartbeats,
    };
  }

  /**
   * Work until a signal, or `stop`. Returns after an orderly end; throws the Problem of a mistake in the set-up.
   *
   * A handler that does not stop in time ends with the process: its job is released, and if this worker handles
   * the signals it then exits, as soon as no other worker of the process runs.
   */
  async run(): Promise<void> {
    if (this.#hasRun) throw new Error("a worker runs once");
    this.#hasRun = true;
    const stop = () => this.stop();
    const handlesSignals = this.#options.signals ?? true;
    if (handlesSignals) for (const name of ENDING_SIGNALS) process.on(name, stop);
    running += 1;
    // Node ends a process in which nothing can happen any more: with a handler in each slot that hangs, say.
    const alive = setInterval(() => undefined, timerMs(Number.POSITIVE_INFINITY));
    try {
      const failure = await this.#workUntilStopped();
      await this.#drain();
      if (failure !== undefined) throw failure;
      isExitDue ||= handlesSignals && this.#tasks.size > 0;
    } finally {
      running -= 1;
      clearInterval(alive);
      for (const name of ENDING_SIGNALS) process.off(name, stop);
    }
    if (isExitDue && running === 0) process.exit();
  }

  /** Begin the orderly end. Called again, the handlers are told to stop at once. */
  stop(): void {
    if (this.#stopping.signal.aborted) this.#hurrying.abort();
    this.#stopping.abort();
  }

  /** Returns what it failed with, which no repeating would mend, or undefined. */
  async #workUntilStopped(): Promise<unknown> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const free = this.#concurrency - this.#tasks.size;
      if (free === 0) {
        await this.#freeSlot();
        continue;
      }
      try {
        await this.#start(await this.#leasing.lease(free, signal));
      } catch (failure) {
        if (signal.aborted) break;
        this.#log.error("fencepost: jobs cannot be leased, this worker ends", { failure: String(failure) });
        this.#stopping.abort();
        return failure;
      }
    }
    return undefined;
  }

  #freeSlot(): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        forget();
        this.#slotFreed = () => undefined;
        // Ends that were answered together free their slots together.
        setImmediate(resolve);
      };
      this.#slotFreed = wake;
      const forget = onAbort(this.#stopping.signal, wake);
    });
  }

  async #start(grants: readonly Grant[]): Promise<void> {
    if (this.#stopping.signal.aborted) {
      await this.#release(grants.map(({ lease }) => lease));
      return;
    }
    for (const grant of grants) {
      const { lease } = grant;
      if (!this.#leases.add(lease)) continue;
      this.#heartbeats.cover(lease);
      const task = this.#work(grant).finally(() => {
        this.#leases.remove(lease);
        this.#tasks.delete(task);
        this.#slotFreed();
      });
      this.#tasks.add(task);
    }
  }

  async #work({ job, lease }: Grant): Promise<void> {
    // The process may have been stopped since it sent the lease call.
    this.#leases.expire(lease);
    if (lease.loss !== undefined) return;
    const ending = await this.#handle(new LeasedJob(job, lease, this.#crew));
    this.#leases.expire(lease);
    if (lease.loss !== undefined) return;
    let end: End | undefined;
    try {
      end = endOf(ending, lease.stopReason);
    } catch (failure) {
      // What the handler returned is no follow-up job.
      end = endOf({ thrown: failure }, lease.stopReason);
    }
    if (end !== undefined) await this.#ends.send(lease, end);
  }

  async #handle(job: LeasedJob): Promise<Ending> {
    const { handlers = {}, catchAll } = this.#options;
    const handler = Object.hasOwn(handlers, job.kind) ? handlers[job.kind] : catchAll;
    if (handler === undefined) {
      return { thrown: fail(`this worker has no handler for ${job.kind}`, { type: "unknown_kind" }) };
    }
    try {
      return { returned: await handler(job) };
    } catch (thrown) {
      return { thrown };
    }
  }

  async #drain(): Promise<void> {
    const { drainSeconds = 20, graceSeconds = 5 } = this.#options;
    this.#log.info("fencepost: draining", { jobs: this.#tasks.size });
    await endedWithin(Promise.all(this.#tasks), drainSeconds * 1000, this.#hurrying.signal);
    for (const lease of this.#leases.held) if (!lease.isEnding) lease.stop("shutdown");
    await endedWithin(Promise.all(this.#tasks), graceSeconds * 1000);
    const left = this.#leases.held;
    this.#heartbeats.stop();
    this.#ends.stop();
    await this.#giveBack(left);
    this.#log.info("fencepost: drained", { unfinished: this.#tasks.size });
  }

  /** The last act: release what handlers hold that did not stop, and what was granted in answers never read. */
  async #giveBack(left: readonly Lease[]): Promise<void> {
    const unstoppable = left.filter((lease) => !lease.isEnding);
    for (const lease of unstoppable) {
      lease.lose(leaseLost(lease.jobId, lease.version, "released", "the worker has ended"));
    }
    await this.#release(unstoppable);
    const path = `/v1/leases?worker_id=${encodeURIComponent(this.workerId)}`;
    try {
      const call = { method: "GET", path, timeoutSeconds: LAST_CALLS_SECONDS } as const;
      const { leases } = accepted(await this.#service.send(call)) as { leases?: Wire[] };
      const listed = (leases ?? []).map((each) => ({
        jobId: each.job_id as string,
        version: each.lease_version as number,
      }));
      // An end whose answer was lost may still be accepted: that job is left to its lease.
      const isKnown = ({ jobId, version }: Pick<Lease, "jobId" | "version">) =>
        left.some((lease) => lease.jobId === jobId && lease.version === version);
      await this.#release(listed.filter((lease) => !isKnown(lease)));
    } catch (failure) {
      if (!(failure instanceof FencepostError)) throw failure;
    }
  }

  /** Give jobs back, with one try: what is not answered runs out by itself. */
  async #release(leases: readonly Pick<Lease, "jobId" | "version">[]): Promise<void> {
    if (leases.length === 0) return;
    const items = leases.map(({ jobId, version }) => ({ job_id: jobId, lease_version: version }));
    const body = this.#service.json.stringify({ items });
    const call = {
      method: "POST",
      path: "/v1/leases/release",
      body,
      timeoutSeconds: LAST_CALLS_SECONDS,
    } as const;
    await this.#service.send(call).catch(() => undefined);
  }
}

/** The host's name in the letters that a name may have, and what makes it this process's own. */
function newWorkerId(): string {
  const host = hostname()
    .replace(/[^A-Za-z0-9_.:-]/g, "-")
    .replace(/^[^A-Za-z0-9]+/, "")
    .slice(0, 80);
  return `${host || "worker"}-${randomKey().slice(0, 12)}`;
}
