/** Producers and workers for Fencepost. */

export type { Connection } from "./fences.js";
export { LeasedJob, type PreviousAttempt } from "./job.js";
export type { Log } from "./log.js";
export {
  Complete,
  complete,
  Fail,
  type FailOptions,
  fail,
  Release,
  release,
  SETTLED,
  Settled,
} from "./outcomes.js";
export * from "./producer.js";
export type { ThreadJob } from "./thread.js";
export { threadHandler } from "./threads.js";
export { type Handler, Worker, type WorkerOptions } from "./worker.js";
