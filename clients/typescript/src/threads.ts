/** Handlers that compute: each job in a thread of its own, so that the heartbeats go on beside it. */

import { Worker as Thread } from "node:worker_threads";
import type { LeasedJob } from "./job.js";
import { Decided, type End } from "./outcomes.js";

/** What a thread gets of its job. */
export type JobFacts = Pick<
  LeasedJob,
  | "id"
  | "kind"
  | "queue"
  | "payload"
  | "metadata"
  | "attempt"
  | "maxAttempts"
  | "leaseVersion"
  | "deadlineAt"
  | "checkpoint"
>;

/** What a thread says. */
export type FromThread =
  | { readonly says: "progress"; readonly percent: number | undefined; readonly message: string | undefined }
  | { readonly says: "checkpoint"; readonly number: number; readonly value: unknown }
  | { readonly says: "end"; readonly end: End | undefined };

/** The answer to a checkpoint: it was stored, unless there is a refusal. */
export interface ToThread {
  readonly number: number;
  readonly refusal: string | undefined;
}

/**
 * Make a handler that runs the default export of a module in a thread of its own, with a ThreadJob.
 *
 * The thread is terminated as soon as the handler has to stop, in the middle of whatever it computes. To start
 * one takes some tens of milliseconds: this is for jobs that compute for longer than that.
 */
export function threadHandler(module: URL): (job: LeasedJob) => Promise<unknown> {
  return async (job) => {
    const thread = new Thread(new URL("./thread.js", import.meta.url), {
      workerData: { module: module.href, facts: factsOf(job) },
    });
    try {
      return await ended(job, thread);
    } finally {
      await thread.terminate();
    }
  };
}

/** Wait for the thread's end, or for whatever ends it before. */
function ended(job: LeasedJob, thread: Thread): Promise<Decided> {
  return new Promise((resolve, reject) => {
    const { signal } = job;
    const stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop, { once: true });
    if (signal.aborted) stop();
    thread.on("error", reject);
    thread.on("exit", (code) => reject(new Error(`the thread ended with code ${code} before its handler`)));
    thread.on("message", (message: FromThread) => {
      switch (message.says) {
        case "end":
          resolve(new Decided(message.end));
          break;
        case "progress":
          job.progress(message.percent, message.message);
          break;
        case "checkpoint": {
          const answer = (refusal?: Error) =>
            thread.postMessage({ number: message.number, refusal: refusal?.message } satisfies ToThread);
          job.saveCheckpoint(message.value).then(() => answer(), answer);
        }
      }
    });
  });
}

function factsOf(job: LeasedJob): JobFacts {
  const { id, kind, queue, payload, metadata, attempt, maxAttempts, leaseVersion, deadlineAt, checkpoint } =
    job;
  return { id, kind, queue, payload, metadata, attempt, maxAttempts, leaseVersion, deadlineAt, checkpoint };
}
