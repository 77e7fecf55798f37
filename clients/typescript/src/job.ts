/** What a handler gets: the leased job, and what it can do under its lease. */

import { accepted, type Call, repeat, type Service } from "./calls.js";
import type { CallOptions, Client } from "./client.js";
import { JobNotFound, LeaseLost, leaseLost, Stopped, type StopReason } from "./errors.js";
import { type Connection, completeJob, holdLease } from "./fences.js";
import type { Heartbeats } from "./heartbeats.js";
import type { Lease, Leases } from "./leases.js";
import { SETTLED, type Settled } from "./outcomes.js";
import { now } from "./pauses.js";
import { checkProgress, stepKey } from "./steps.js";
import type { AttemptOutcome, JobError, JobOptions, Parent, Submitted } from "./types.js";
import { isObject, readError, readParent, type Wire } from "./wire.js";

const CALL_SECONDS = 10;
const RETRY_SECONDS = 30;

/** How the attempt before this one ended. */
export interface PreviousAttempt {
  readonly attempt: number;
  readonly outcome: AttemptOutcome;
  readonly error: JobError | null;
}

/** What the jobs of one worker share. */
export interface Crew {
  readonly service: Service;
  readonly client: Client;
  readonly leases: Leases;
  readonly heartbeats: Heartbeats;
}

/** A job under a lease. `Payload` is what the producer sends; nobody checks that. */
// biome-ignore lint/suspicious/noExplicitAny: a handler says what its payload is; unknown would be cast in each.
export class LeasedJob<Payload = any> {
  readonly id: string;
  readonly kind: string;
  readonly queue: string;
  readonly payload: Payload;
  readonly metadata: Readonly<Record<string, string>>;
  readonly priority: number;
  /** From 1. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** The fencing token. It belongs beside everything the handler writes. */
  readonly leaseVersion: number;
  /** When the attempt ends, heartbeats or not. */
  readonly deadlineAt: string | null;
  /** What an earlier attempt stored last; null when none did. */
  readonly checkpoint: unknown;
  readonly previous: PreviousAttempt | null;
  readonly parent: Parent | null;
  readonly createdAt: string;
  readonly runAt: string;
  readonly traceparent: string | null;
  readonly tracestate: string | null;

  readonly #lease: Lease;
  readonly #crew: Crew;
  #seq = 0;

  /** Made by the worker. */
  constructor(wire: Wire, lease: Lease, crew: Crew) {
    const previous = wire.previous;
    this.id = wire.id as string;
    this.kind = wire.kind as string;
    this.queue = wire.queue as string;
    this.payload = wire.payload as Payload;
    this.metadata = wire.metadata as Record<string, string>;
    this.priority = wire.priority as number;
    this.attempt = wire.attempt as number;
    this.maxAttempts = wire.max_attempts as number;
    this.leaseVersion = wire.lease_version as number;
    this.deadlineAt = (wire.deadline_at ?? null) as string | null;
    this.checkpoint = wire.checkpoint ?? null;
    this.previous = isObject(previous)
      ? ({ ...previous, error: readError(previous.error) } as unknown as PreviousAttempt)
      : null;
    this.parent = readParent(wire.parent);
    this.createdAt = wire.created_at as string;
    this.runAt = wire.run_at as string;
    this.traceparent = (wire.traceparent ?? null) as string | null;
    this.tracestate = (wire.tracestate ?? null) as string | null;
    this.#lease = lease;
    this.#crew = crew;
  }

  /** Aborted when the handler has to stop; the reason is a Stopped. Pass it on to whatever takes a signal. */
  get signal(): AbortSignal {
    this.#crew.leases.expire(this.#lease);
    return this.#lease.signal;
  }

  /** Why the handler has to stop; undefined while it has not. After a cancel it can still become `lease_lost`. */
  get stopReason(): StopReason | undefined {
    this.#crew.leases.expire(this.#lease);
    return this.#lease.stopReason;
  }

  /** Throw Stopped when the handler has to stop: for loops that await nothing a signal could end. */
  throwIfStopped(): void {
    const reason = this.stopReason;
    if (reason !== undefined) throw new Stopped(reason);
  }

  /** Report that the handler gets on. Waits for nothing; the next heartbeat carries it, within a second. */
  progress(percent?: number, message?: string): void {
    checkProgress(percent, message);
    if (this.#isOver()) return;
    this.#seq += 1;
    this.#lease.add({ progress: { seq: this.#seq, percent, message } });
    this.#crew.heartbeats.progressMade();
  }

  /**
   * Store a value for the next attempt, should there be one. Returns when it is stored.
   *
   * Throws LeaseLost, or a Problem when the service refuses the value. Of several at once the last one is
   * stored, and all return then.
   */
  saveCheckpoint(value: unknown): Promise<void> {
    const earlier = this.#lease.report.checkpoint;
    const promise = new Promise<void>((resolve, reject) => {
      if (this.#isOver()) {
        reject(this.#lease.loss);
        return;
      }
      this.#lease.add({
        checkpoint: {
          // Written here and now: what the handler does with the value afterwards does not count.
          text: this.#crew.service.json.stringify(value ?? null),
          stored: () => {
            earlier?.stored();
            resolve();
          },
          refused: (failure) => {
            earlier?.refused(failure);
            reject(failure);
          },
        },
      });
      this.#crew.heartbeats.checkpointMade();
    });
    // A handler that does not wait for it shall not end the process when the lease is lost.
    promise.catch(() => undefined);
    return promise;
  }

  /** A key for another service that takes idempotency keys. Every attempt has the same for the same step. */
  idempotencyKey(step: string): string {
    return stepKey(this.id, step);
  }

  /**
   * Create a child job, once for this job and `name` however many attempts there are, and only while the lease
   * is held. Throws LeaseLost.
   */
  submit(name: string, kind: string, payload?: unknown, options: JobOptions = {}): Promise<Submitted> {
    const parent = { jobId: this.id, leaseVersion: this.leaseVersion };
    const idempotencyKey = this.idempotencyKey(name);
    return this.#underLease(({ signal }) =>
      this.#crew.client.submit(kind, payload, { ...options, parent, idempotencyKey, signal }),
    );
  }

  /** Ask whether the lease is held. Throws LeaseLost or JobNotFound. Nothing keeps it held afterwards. */
  verify(): Promise<void> {
    const { service } = this.#crew;
    const call: Call = {
      method: "POST",
      path: `/v1/jobs/${this.id}/verify`,
      body: service.json.stringify({ lease_version: this.leaseVersion }),
      timeoutSeconds: CALL_SECONDS,
    };
    return this.#underLease(async ({ signal }) => {
      accepted(await repeat(service, call, { signal, until: now() + RETRY_SECONDS * 1000 }));
    });
  }

  /**
   * Keep the lease until your transaction ends: neither the reaper nor another worker passes before the commit.
   *
   * The connection is one to the PostgreSQL of the service, with the transaction open. Throws LeaseLost: roll
   * back and stop.
   */
  holdLease(connection: Connection): Promise<void> {
    return this.#underLease(() => holdLease(connection, this.id, this.leaseVersion));
  }

  /**
   * Complete the job in your own transaction. After the commit return what this returns, `SETTLED`.
   *
   * Throws LeaseLost: roll back and stop.
   */
  completeIn(connection: Connection, result?: unknown): Promise<Settled> {
    const text = this.#crew.service.json.stringify(result ?? null);
    return this.#underLease(async () => {
      await completeJob(connection, this.id, this.leaseVersion, text);
      return SETTLED;
    });
  }

  #isOver(): boolean {
    this.#crew.leases.expire(this.#lease);
    return this.#lease.loss !== undefined;
  }

  /** Do what needs the lease. A refusal for a lost lease stops the handler as well. */
  async #underLease<Result>(act: (options: Required<CallOptions>) => Promise<Result>): Promise<Result> {
    if (this.#lease.loss !== undefined || this.#isOver()) throw this.#lease.loss;
    try {
      return await act({ signal: this.#lease.lossSignal });
    } catch (failure) {
      if (failure instanceof LeaseLost) this.#crew.leases.lose(this.#lease, failure);
      if (failure instanceof JobNotFound) {
        const loss = leaseLost(this.id, this.leaseVersion, "unknown", failure.detail);
        this.#crew.leases.lose(this.#lease, loss);
      }
      throw failure;
    }
  }
}
