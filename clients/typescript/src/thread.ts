/** What runs in the thread of a job. threads.ts starts it, and ends it. */

import { parentPort, workerData } from "node:worker_threads";
import { FencepostError } from "./errors.js";
import { type Ending, endOf } from "./outcomes.js";
import { checkProgress, stepKey } from "./steps.js";
import type { FromThread, JobFacts, ToThread } from "./threads.js";

/** The job, as a handler in a thread has it. There is no signal: a thread that has to stop is terminated. */
export interface ThreadJob extends JobFacts {
  /** Report that the handler gets on. Waits for nothing. */
  progress(percent?: number, message?: string): void;
  /** Store a value for the next attempt, should there be one. Returns when it is stored. */
  saveCheckpoint(value: unknown): Promise<void>;
  /** A key for another service that takes idempotency keys. Every attempt has the same for the same step. */
  idempotencyKey(step: string): string;
}

interface Start {
  readonly module: string;
  readonly facts: JobFacts;
}

type Saved = (refusal: string | undefined) => void;

const waiting = new Map<number, Saved>();

function tell(message: FromThread): void {
  parentPort?.postMessage(message);
}

/**
 * Make of a value what JSON makes of it, here: a copy on its way to another thread would lose every `toJSON`.
 *
 * What has no JSON goes as it is, a bigint for one: the worker may have a writer for it.
 */
function asJson<Value>(value: Value): Value {
  try {
    const text = JSON.stringify(value);
    return text === undefined ? value : JSON.parse(text);
  } catch {
    return value;
  }
}

function jobOf(facts: JobFacts): ThreadJob {
  let checkpoints = 0;
  return {
    ...facts,
    progress: (percent, message) => {
      checkProgress(percent, message);
      tell({ says: "progress", percent, message });
    },
    saveCheckpoint: (value) =>
      new Promise((resolve, reject) => {
        checkpoints += 1;
        tell({ says: "checkpoint", number: checkpoints, value: asJson(value) });
        waiting.set(checkpoints, (refusal) => {
          if (refusal === undefined) resolve();
          else reject(new FencepostError(refusal));
        });
      }),
    idempotencyKey: (step) => stepKey(facts.id, step),
  };
}

async function handle({ module, facts }: Start): Promise<Ending> {
  try {
    const { default: handler } = (await import(module)) as { default: (job: ThreadJob) => unknown };
    return { returned: await handler(jobOf(facts)) };
  } catch (thrown) {
    return { thrown };
  }
}

parentPort?.on("message", ({ number, refusal }: ToThread) => {
  waiting.get(number)?.(refusal);
  waiting.delete(number);
});

const ending = await handle(workerData as Start);
try {
  tell({ says: "end", end: asJson(endOf(ending, undefined)) });
} catch (failure) {
  // What it returned cannot be copied out of the thread.
  tell({ says: "end", end: endOf({ thrown: failure }, undefined) });
}
