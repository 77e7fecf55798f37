import assert from "node:assert/strict";
import { test } from "node:test";
import { IdempotencyKeyReused, JobNotFound, LeaseLost, NotFinished, Problem } from "fencepost";
import { client, newQueue, post, withWorker } from "./support.js";

const NOBODY = "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d";

test("a job is created as it was asked for", async () => {
  const queue = newQueue();
  const { job, created } = await client.submit(
    "mail",
    { to: "ada" },
    {
      queue,
      priority: -5,
      delaySeconds: 60,
      maxAttempts: 3,
      backoff: { type: "fixed", baseSeconds: 1 },
      maxRuntimeSeconds: 90,
      progressTimeoutSeconds: 30,
      metadata: { team: "a" },
    },
  );
  assert.equal(created, true);
  assert.equal(job.state, "scheduled");
  assert.deepEqual(job, await client.get(job.id));
  assert.deepEqual(
    [job.queue, job.priority, job.maxAttempts, job.maxRuntimeSeconds, job.progressTimeoutSeconds],
    [queue, -5, 3, 90, 30],
  );
  assert.deepEqual(job.backoff, { type: "fixed", baseSeconds: 1, factor: 2, maxSeconds: 3600, jitter: 0.1 });
  assert.deepEqual(job.metadata, { team: "a" });
  assert.deepEqual(job.payload, { to: "ada" });
});

test("the same key makes one job, and another request under it is refused", async () => {
  const options = { queue: newQueue(), idempotencyKey: `key-${newQueue()}` };
  const first = await client.submit("mail", 1, options);
  const second = await client.submit("mail", 1, options);
  assert.deepEqual([first.created, second.created], [true, false]);
  assert.equal(second.job.id, first.job.id);
  await assert.rejects(
    client.submit("mail", 2, options),
    (failure) => failure instanceof IdempotencyKeyReused && failure.body.job_id === first.job.id,
  );
});

test("many jobs come back in the order of the items", async () => {
  const queue = newQueue();
  const idempotencyKey = `key-${queue}`;
  const items = [1, 2, 3].map((payload) => ({ kind: "mail", payload, queue }));
  const submitted = await client.submitMany([...items, { kind: "mail", queue, idempotencyKey }]);
  assert.deepEqual(
    submitted.map(({ job }) => job.payload),
    [1, 2, 3, null],
  );
  const again = await client.submitMany([{ kind: "mail", queue, idempotencyKey }]);
  assert.deepEqual([again[0]?.created, again[0]?.job.id], [false, submitted[3]?.job.id]);
});

test("a malformed job is a Problem that names the place", async () => {
  await assert.rejects(client.submit("mail", null, { queue: "no blanks" }), (failure) => {
    assert.ok(failure instanceof Problem);
    assert.equal(failure.status, 422);
    assert.equal(failure.errors[0]?.pointer, "/queue");
    return true;
  });
});

test("a job that is not there is JobNotFound", async () => {
  await assert.rejects(client.get(NOBODY), JobNotFound);
});

test("a child of a lease that is not held is refused", async () => {
  const parent = { jobId: NOBODY, leaseVersion: 3 };
  await assert.rejects(
    client.submit("mail", null, { queue: newQueue(), parent }),
    (failure) => failure instanceof LeaseLost && failure.presentedVersion === 3 && failure.jobId === NOBODY,
  );
});

test("waiting returns the finished job", async () => {
  const queue = newQueue();
  const { job } = await client.submit("double", 21, { queue });
  const done = await withWorker({ queues: [queue], handlers: { double: (it) => it.payload * 2 } }, () =>
    client.wait(job.id),
  );
  assert.deepEqual([done.state, done.result], ["succeeded", 42]);
});

test("waiting ends when the time is over", async () => {
  const { job } = await client.submit("mail", null, { queue: newQueue() });
  await assert.rejects(
    client.wait(job.id, { timeoutSeconds: 0.2 }),
    (failure) => failure instanceof NotFinished && failure.job.state === "ready",
  );
});

test("a cancelled job can be brought back", async () => {
  const { job } = await client.submit("mail", null, { queue: newQueue() });
  const cancelled = await client.cancel(job.id, { reason: "not needed" });
  assert.equal(cancelled.state, "cancelled");
  assert.equal(cancelled.error?.message, "not needed");
  const redriven = await client.redrive(job.id, { runAt: new Date(Date.now() + 3_600_000) });
  assert.equal(redriven.state, "scheduled");
  await assert.rejects(
    client.redrive(job.id),
    (failure) => failure instanceof Problem && failure.code === "not_redrivable",
  );
});

test("numbers beyond 2^53 survive with another reader and writer of JSON", async () => {
  const queue = newQueue();
  const { job } = await client.submit("mail", null, { queue });
  const [leased] = (await post("/v1/leases", { worker_id: "w", queues: [queue] })).jobs as [
    { lease_version: number },
  ];
  await fetch(`${process.env.FENCEPOST_URL}/v1/jobs/${job.id}/complete`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: `{"lease_version": ${leased.lease_version}, "result": 9007199254740993}`,
  });
  assert.equal((await client.get(job.id)).result, 9007199254740992, "what JSON.parse makes of it");
  const parse = (text: string) => JSON.parse(text.replaceAll("9007199254740993", '"9007199254740993"'));
  const exact = new (await import("fencepost")).Client(process.env.FENCEPOST_URL ?? "", {
    json: { parse, stringify: JSON.stringify },
  });
  assert.equal((await exact.get(job.id)).result, "9007199254740993");
});
