import assert from "node:assert/strict";
import { test } from "node:test";
import { type Job, threadHandler } from "fencepost";
import { client, newQueue, withWorker } from "./support.js";

const compute = threadHandler(new URL("./computing.js", import.meta.url));

/** Have a thread do something with a job. */
async function done(
  payload: unknown,
  act: (jobId: string) => Promise<unknown> = async () => undefined,
): Promise<Job> {
  const queue = newQueue();
  const { job } = await client.submit("compute", payload, { queue, maxAttempts: 1 });
  return withWorker({ queues: [queue], handlers: { compute }, leaseSeconds: 1 }, async () => {
    await act(job.id);
    return client.wait(job.id);
  });
}

test("a handler in a thread completes its job", async () => {
  const job = await done({ return: 42 });
  assert.deepEqual([job.state, job.result], ["succeeded", [42, 1, `${job.id}:step`]]);
});

test("a thread that computes for longer than a lease keeps it", async () => {
  const job = await done({ computeMs: 2_500, return: 1 });
  assert.deepEqual([job.state, job.attempt, job.leaseVersion], ["succeeded", 1, 1]);
});

test("progress and checkpoints come out of a thread", async () => {
  const job = await done({ checkpoint: { row: 3 } });
  assert.deepEqual([job.state, job.checkpoint], ["succeeded", { row: 3 }]);
});

test("a refused checkpoint is an error in the thread", async () => {
  const job = await done({ checkpoint: "x".repeat(70_000) });
  assert.deepEqual([job.state, job.error?.type], ["dead", "FencepostError"]);
});

test("an error in a thread fails the attempt under its own name", async () => {
  const job = await done({ throw: "no such picture" });
  assert.deepEqual([job.error?.type, job.error?.message], ["PictureError", "no such picture"]);
});

test("a Fail in a thread says what happens next", async () => {
  const job = await done({ fail: "never" });
  assert.deepEqual([job.state, job.error?.type], ["dead", "hopeless"]);
});

test("a thread that ends by itself fails the attempt", async () => {
  const job = await done({ exit: 3 });
  assert.match(job.error?.message ?? "", /ended with code 3/);
});

test("what comes out of a thread is what JSON makes of it there", async () => {
  const job = await done({ json: true });
  const value = { at: "1970-01-01T00:00:00.000Z", at2: "http://a.test/", bytes: Buffer.from("hi").toJSON() };
  assert.deepEqual([job.result, job.checkpoint], [value, value]);
});

test("a result that cannot be copied fails the attempt", async () => {
  const job = await done({ uncopyable: true });
  assert.equal(job.error?.type, "DataCloneError");
});

test("a thread that never looks up is terminated by a cancel", async () => {
  const job = await done({ computeMs: 3_600_000 }, async (jobId) => {
    while ((await client.get(jobId)).state !== "running")
      await new Promise((resolve) => setTimeout(resolve, 20));
    await client.cancel(jobId);
  });
  assert.equal(job.state, "cancelled");
});
