/** What producers need, in Node and in browsers: nothing here or below imports a module of Node. */

export { type CallOptions, Client, type ClientOptions } from "./client.js";
export {
  type Fault,
  FencepostError,
  IdempotencyKeyReused,
  JobNotFound,
  LeaseLost,
  type LossReason,
  NotFinished,
  Problem,
  Stopped,
  type StopReason,
  Unavailable,
} from "./errors.js";
export type {
  AttemptOutcome,
  Backoff,
  FollowUp,
  Job,
  JobError,
  JobOptions,
  JobState,
  LeaseView,
  Parent,
  PartialBackoff,
  Progress,
  Submission,
  SubmitOptions,
  Submitted,
} from "./types.js";
export type { Json } from "./wire.js";
