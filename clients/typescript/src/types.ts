/**
 * What is sent and what comes back, in the words of the protocol. Members are written in camel case here
 * (`lease_version` is `leaseVersion`); values are passed on untouched. Times are RFC 3339 texts in UTC, since
 * a `Date` would lose their microseconds.
 */

export type JobState = "scheduled" | "ready" | "running" | "succeeded" | "dead" | "cancelled";

/** How an earlier attempt ended. */
export type AttemptOutcome =
  | "succeeded"
  | "failed"
  | "lease_expired"
  | "stalled"
  | "deadline_exceeded"
  | "released"
  | "cancelled";

export interface Backoff {
  readonly type: "exponential" | "linear" | "fixed";
  readonly baseSeconds: number;
  readonly factor: number;
  readonly maxSeconds: number;
  readonly jitter: number;
}

/** What is left out is the service's default. */
export type PartialBackoff = { readonly [Member in keyof Backoff]?: Backoff[Member] | undefined };

export interface JobError {
  readonly type: string | null;
  readonly message: string;
  readonly details: unknown;
}

/** The lease under which a job was created. */
export interface Parent {
  readonly jobId: string;
  readonly leaseVersion: number;
}

export interface Progress {
  readonly seq: number;
  readonly percent: number | null;
  readonly message: string | null;
}

/** Who holds a running job. */
export interface LeaseView {
  readonly workerId: string;
  readonly leaseVersion: number;
  readonly grantedAt: string;
  readonly expiresAt: string;
  readonly deadlineAt: string | null;
  readonly progress: Progress | null;
  readonly cancelRequested: boolean;
}

/** A job as anybody can read it. */
export interface Job {
  readonly id: string;
  readonly queue: string;
  readonly kind: string;
  readonly state: JobState;
  readonly priority: number;
  readonly payload: unknown;
  readonly metadata: Readonly<Record<string, string>>;
  readonly runAt: string;
  readonly createdAt: string;
  readonly finishedAt: string | null;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly backoff: Backoff;
  readonly maxRuntimeSeconds: number | null;
  readonly progressTimeoutSeconds: number | null;
  /** Of the last grant; 0 before the first. A worker never takes its token from here. */
  readonly leaseVersion: number;
  readonly lease: LeaseView | null;
  readonly result: unknown;
  readonly error: JobError | null;
  readonly checkpoint: unknown;
  readonly parent: Parent | null;
  readonly idempotencyKey: string | null;
}

/** What a follow-up job can be given beside its kind and payload; the service's defaults fill in the rest. */
export interface JobOptions {
  /** `"default"` when left out. */
  readonly queue?: string | undefined;
  /** Lower is sooner. 0 when left out. */
  readonly priority?: number | undefined;
  /** When it is due; not together with `delaySeconds`. */
  readonly runAt?: Date | string | undefined;
  readonly delaySeconds?: number | undefined;
  /** 10 when left out. */
  readonly maxAttempts?: number | undefined;
  readonly backoff?: PartialBackoff | undefined;
  /** The hard limit of one attempt; heartbeats cannot extend it. */
  readonly maxRuntimeSeconds?: number | undefined;
  /** How long the handler may go without reporting progress. */
  readonly progressTimeoutSeconds?: number | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
}

/** What `submit` can be given. */
export interface SubmitOptions extends JobOptions {
  /** The job is created only while this lease is held. */
  readonly parent?: Parent | undefined;
  /** A random one when left out, so that the client's own repeats make one job. */
  readonly idempotencyKey?: string | undefined;
}

/** A job to create on completion of another. */
export interface FollowUp extends JobOptions {
  readonly kind: string;
  readonly payload?: unknown;
}

/** One item of `submitMany`. */
export interface Submission extends SubmitOptions {
  readonly kind: string;
  readonly payload?: unknown;
}

/** The answer to a submission. */
export interface Submitted {
  readonly job: Job;
  /** False when the idempotency key was known: the job is the one of the first call, as it is now. */
  readonly created: boolean;
}
