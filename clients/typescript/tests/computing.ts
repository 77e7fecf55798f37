/** The module that the tests of threads run. */

import { fail, type ThreadJob } from "fencepost";

class PictureError extends Error {}

export default async function compute(job: ThreadJob): Promise<unknown> {
  const { payload } = job;
  if ("throw" in payload) throw new PictureError(payload.throw);
  if ("fail" in payload) return fail(payload.fail, { type: "hopeless", retryable: false });
  if ("exit" in payload) process.exit(payload.exit);
  if ("uncopyable" in payload) return { no: 1n, nor: () => undefined };
  if ("json" in payload) {
    const value = {
      at: new Date(0),
      at2: new URL("http://a.test/"),
      bytes: Buffer.from("hi"),
      is: () => undefined,
    };
    await job.saveCheckpoint(value);
    return value;
  }
  if ("checkpoint" in payload) {
    job.progress(10, "begun");
    await job.saveCheckpoint(payload.checkpoint);
  }
  // The event loop of this thread stands still meanwhile, and that of the worker goes on.
  const end = performance.now() + (payload.computeMs ?? 0);
  while (performance.now() < end);
  return [payload.return, job.leaseVersion, job.idempotencyKey("step")];
}
