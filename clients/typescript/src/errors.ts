/**
 * What can go wrong, as one small tree:
 *
 *     FencepostError
 *     ├── Problem                  the service refused: status, code, detail, requestId, errors
 *     │   ├── LeaseLost            the lease is not held any more: stop, somebody else may have the job
 *     │   ├── JobNotFound
 *     │   └── IdempotencyKeyReused
 *     ├── Unavailable              no answer came in time; nobody knows whether the call was done
 *     ├── NotFinished              waiting for a job took longer than the caller wanted to wait
 *     └── Stopped                  the handler was told to stop: the reason of its AbortSignal
 */

import type { Job, JobState } from "./types.js";

/** The root of everything that this package throws on purpose. */
export class FencepostError extends Error {
  override readonly name: string = "FencepostError";
}

/** One place of a request that is not acceptable. */
export interface Fault {
  /** A JSON pointer into the request; for a parameter or a header, `/` and its name. */
  readonly pointer: string;
  readonly message: string;
}

/** A refusal of the service (RFC 9457). Decide by `code`; the sentence in `detail` may change. */
export class Problem extends FencepostError {
  override readonly name: string = "Problem";
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  /** Stands in the service's log beside every answer of 500 or above; null when the answer had none. */
  readonly requestId: string | null;
  readonly errors: readonly Fault[];
  /** The whole answer, with the members that only some codes have. */
  readonly body: Readonly<Record<string, unknown>>;

  constructor(status: number, body: Readonly<Record<string, unknown>>) {
    const code = textOf(body.code) ?? `http_${status}`;
    const detail = textOf(body.detail) ?? `The service answered ${status}.`;
    super(`${code}: ${detail}`);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.requestId = textOf(body.request_id);
    this.errors = Array.isArray(body.errors) ? (body.errors as Fault[]) : [];
    this.body = body;
  }
}

/** What ended the version that was shown; `unknown` when it was never granted or its record is gone. */
export type LossReason =
  | "expired"
  | "stalled"
  | "deadline_exceeded"
  | "failed"
  | "released"
  | "cancelled"
  | "finished"
  | "unknown";

/** The job is not running under the shown version. Nothing was changed, and nothing more may be sent. */
export class LeaseLost extends Problem {
  override readonly name: string = "LeaseLost";

  /** The job, where it is known: a loss that the worker's own clock or PostgreSQL tells has it from the lease. */
  get jobId(): string | null {
    return textOf(this.body.job_id);
  }

  get presentedVersion(): number | null {
    return numberOf(this.body.presented_version);
  }

  /** What the job is at now; null when nobody said. */
  get currentVersion(): number | null {
    return numberOf(this.body.current_version);
  }

  get jobState(): JobState | null {
    return textOf(this.body.job_state) as JobState | null;
  }

  get reason(): LossReason {
    return (textOf(this.body.reason) ?? "unknown") as LossReason;
  }
}

/** No job has this id, or its retention is over. */
export class JobNotFound extends Problem {
  override readonly name: string = "JobNotFound";
}

/** The idempotency key belongs to another request; `body.job_id` names its job. */
export class IdempotencyKeyReused extends Problem {
  override readonly name: string = "IdempotencyKeyReused";
}

/** No answer came in time: the call may or may not have been done. `cause` is the last failure. */
export class Unavailable extends FencepostError {
  override readonly name: string = "Unavailable";
}

/** The job was not finished within the time that `Client.wait` was given. */
export class NotFinished extends FencepostError {
  override readonly name: string = "NotFinished";
  /** The job as it was last seen. */
  readonly job: Job;

  constructor(job: Job) {
    super(`job ${job.id} is still ${job.state}`);
    this.job = job;
  }
}

/** Why a handler has to stop. */
export type StopReason =
  /** Somebody else may have the job: nothing is sent any more, whatever the handler returns. */
  | "lease_lost"
  /** A person or the producer asked for it. The lease is still held; a result that is returned counts. */
  | "cancelled"
  /** The worker shuts down. A result that is returned counts, anything else gives the job back. */
  | "shutdown";

/** The reason of a job's AbortSignal. */
export class Stopped extends FencepostError {
  override readonly name: string = "Stopped";
  readonly reason: StopReason;

  constructor(reason: StopReason) {
    super(`the handler has to stop: ${reason}`);
    this.reason = reason;
  }
}

/** Make the error for a refusal, of the class that its code asks for. */
export function problemOf(status: number, body: unknown): Problem {
  const members = typeof body === "object" && body !== null ? (body as Record<string, unknown>) : {};
  switch (members.code) {
    case "lease_lost":
      return new LeaseLost(status, members);
    case "job_not_found":
      return new JobNotFound(status, members);
    case "idempotency_key_reused":
      return new IdempotencyKeyReused(status, members);
    default:
      return new Problem(status, members);
  }
}

/** Make the error for a loss that no HTTP answer told. */
export function leaseLost(jobId: string, version: number, reason: LossReason, detail: string): LeaseLost {
  return new LeaseLost(409, {
    code: "lease_lost",
    detail,
    job_id: jobId,
    presented_version: version,
    reason,
  });
}

function textOf(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}
