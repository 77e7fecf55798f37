/** The leases that this process holds, and the clock by which it stops believing in them. */

import { setMaxListeners } from "node:events";
import { type LeaseLost, type LossReason, leaseLost, Stopped, type StopReason } from "./errors.js";
import type { Log } from "./log.js";
import { now } from "./pauses.js";

const OWN_ENDS: readonly LossReason[] = ["finished", "failed", "released"];

/** What a handler has reported and no heartbeat has delivered yet. */
export interface Report {
  readonly progress?: ProgressReport;
  readonly checkpoint?: Checkpoint;
}

export interface ProgressReport {
  readonly seq: number;
  readonly percent: number | undefined;
  readonly message: string | undefined;
}

/** A value to store, and those who wait until it is. */
export interface Checkpoint {
  /** JSON, written when it was handed over. */
  readonly text: string;
  readonly stored: () => void;
  readonly refused: (failure: unknown) => void;
}

/** One grant of one job, from the lease call to the answer of its end. All times are monotonic milliseconds. */
export class Lease {
  readonly jobId: string;
  readonly version: number;
  /** When the attempt ends, renewed or not; Infinity without a deadline. */
  readonly deadlineAt: number;
  /** The handler has ended and its end is being sent: the clock does not change that any more. */
  isEnding = false;

  // Made when somebody asks for their signals: most handlers are over before that.
  #stopping: AbortController | undefined;
  #losing: AbortController | undefined;
  readonly #lengthMs: number;
  #report: Report = {};
  #renewedAt: number;
  #loss: LeaseLost | undefined;
  #stopReason: StopReason | undefined;

  constructor(facts: {
    readonly jobId: string;
    readonly version: number;
    readonly lengthMs: number;
    /** When the call that granted it was sent. */
    readonly sentAt: number;
    readonly deadlineAt: number;
  }) {
    this.jobId = facts.jobId;
    this.version = facts.version;
    this.#lengthMs = facts.lengthMs;
    this.#renewedAt = facts.sentAt;
    this.deadlineAt = facts.deadlineAt;
  }

  /** Aborted when the handler has to stop, with a Stopped. */
  get signal(): AbortSignal {
    if (this.#stopping === undefined) {
      this.#stopping = new AbortController();
      // A handler may hand it to as many calls as it likes; Node would warn of a leak from the eleventh on.
      setMaxListeners(0, this.#stopping.signal);
    }
    if (this.#stopReason !== undefined) this.#stopping.abort(new Stopped(this.#stopReason));
    return this.#stopping.signal;
  }

  /** Aborted when the lease is over, with the loss. */
  get lossSignal(): AbortSignal {
    this.#losing ??= new AbortController();
    if (this.#loss !== undefined) this.#losing.abort(this.#loss);
    return this.#losing.signal;
  }

  /** When the lease is over unless it is renewed. */
  get overAt(): number {
    return Math.min(this.#renewedAt + this.#lengthMs, this.deadlineAt);
  }

  get renewedAt(): number {
    return this.#renewedAt;
  }

  /** Set once the lease is over; nothing may be sent under it then. */
  get loss(): LeaseLost | undefined {
    return this.#loss;
  }

  /** The latest reason: a lease can be lost after its handler was told of a cancel. */
  get stopReason(): StopReason | undefined {
    return this.#stopReason;
  }

  /** Count a heartbeat that was answered ok from when it was sent. */
  renew(sentAt: number): void {
    this.#renewedAt = Math.max(this.#renewedAt, sentAt);
  }

  /** Not delivered yet; a later report replaces an earlier one. */
  get report(): Report {
    return this.#report;
  }

  add(report: Report): void {
    this.#report = { ...this.#report, ...report };
  }

  /** Take away what was delivered or refused, unless something newer has replaced it. */
  reported(sent: Report): void {
    const { progress, checkpoint } = this.#report;
    this.#report = {
      ...(progress && progress !== sent.progress ? { progress } : {}),
      ...(checkpoint && checkpoint !== sent.checkpoint ? { checkpoint } : {}),
    };
  }

  /** Tell the handler to stop. */
  stop(reason: StopReason): void {
    if (this.#loss === undefined && this.#stopReason !== reason) this.#stopFor(reason);
  }

  /** The lease is over: stop the handler, and whoever waits for a checkpoint. Returns false when it was already. */
  lose(loss: LeaseLost): boolean {
    if (this.#loss !== undefined) return false;
    // First: whoever is told of the stop may look at the lease again.
    this.#loss = loss;
    this.#stopFor("lease_lost");
    this.#losing?.abort(loss);
    this.#report.checkpoint?.refused(loss);
    this.#report = {};
    return true;
  }

  #stopFor(reason: StopReason): void {
    this.#stopReason = reason;
    this.#stopping?.abort(new Stopped(reason));
  }
}

/** All held leases. Kept by job and version: a job may be granted again while its first handler still runs. */
export class Leases {
  readonly #held = new Set<Lease>();
  readonly #newest = new Map<string, Lease>();
  readonly #log: Log;
  #timer: NodeJS.Timeout | undefined;
  #timerAt = Number.POSITIVE_INFINITY;

  constructor(log: Log) {
    this.#log = log;
  }

  /** Those that may still be renewed or ended. */
  get held(): Lease[] {
    return [...this.#held].filter((lease) => this.isHeld(lease));
  }

  isHeld(lease: Lease): boolean {
    return this.#held.has(lease) && lease.loss === undefined;
  }

  /** Take a grant in. Returns false for one that is known already, or older than one that is. */
  add(lease: Lease): boolean {
    const known = this.#newest.get(lease.jobId);
    if (known !== undefined && known.version >= lease.version) return false;
    if (known !== undefined) {
      this.lose(known, leaseLost(known.jobId, known.version, "unknown", "the job has been granted again"));
    }
    this.#newest.set(lease.jobId, lease);
    this.#held.add(lease);
    this.#watch(lease.overAt);
    return true;
  }

  /** The end was answered, or the handler of a lost lease has stopped. */
  remove(lease: Lease): void {
    this.#held.delete(lease);
    if (this.#newest.get(lease.jobId) === lease) this.#newest.delete(lease.jobId);
    if (this.#held.size === 0) this.#unwatch();
  }

  lose(lease: Lease, loss: LeaseLost): void {
    if (!lease.lose(loss)) return;
    // A heartbeat that comes after the end of the same attempt was accepted tells of that end.
    if (lease.isEnding && OWN_ENDS.includes(loss.reason)) return;
    const { jobId, version: leaseVersion } = lease;
    this.#log.warn("fencepost: lease lost", { jobId, leaseVersion, reason: loss.reason });
  }

  /** Stop the handler if its lease is over by the clock. A process that was stopped finds out here. */
  expire(lease: Lease): void {
    if (lease.isEnding || lease.loss !== undefined || now() < lease.overAt) return;
    const reason = now() < lease.deadlineAt ? "expired" : "deadline_exceeded";
    this.lose(
      lease,
      leaseLost(lease.jobId, lease.version, reason, "the lease is over by the worker's clock"),
    );
  }

  expireAll(): void {
    for (const lease of this.#held) this.expire(lease);
  }

  /** Keep one timer for all: renewals only move what it waits for further away. */
  #watch(at: number): void {
    if (at >= this.#timerAt) return;
    this.#unwatch();
    this.#timerAt = at;
    this.#timer = setTimeout(
      () => {
        this.#unwatch();
        this.expireAll();
        const running = this.held.filter((lease) => !lease.isEnding);
        if (running.length > 0) this.#watch(Math.min(...running.map((lease) => lease.overAt)));
      },
      Math.max(1, at - now()),
    );
    // A handler that did not stop keeps its lease here; the program may end all the same.
    this.#timer.unref();
  }

  #unwatch(): void {
    clearTimeout(this.#timer);
    this.#timerAt = Number.POSITIVE_INFINITY;
  }
}
