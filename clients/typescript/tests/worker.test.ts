import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  complete,
  fail,
  type Job,
  type LeasedJob,
  LeaseLost,
  Problem,
  release,
  type StopReason,
  Worker,
} from "fencepost";
import { client, newQueue, post, promised, quiet, untilStopped, url, withWorker } from "./support.js";

/** Wait until the job looks as it should. */
async function seen(jobId: string, is: (job: Job) => boolean): Promise<Job> {
  const end = Date.now() + 30_000;
  for (;;) {
    const job = await client.get(jobId);
    if (is(job)) return job;
    assert.ok(Date.now() < end, `the job did not come to be as expected: ${JSON.stringify(job)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test("a job's result is what its handler returns", async () => {
  const queue = newQueue();
  const { job } = await client.submit("mail", { to: "ada" }, { queue, metadata: { team: "a" } });
  const handlers = {
    mail: async (leased: LeasedJob<{ to: string }>) => {
      assert.deepEqual([leased.id, leased.kind, leased.queue], [job.id, "mail", queue]);
      assert.deepEqual([leased.attempt, leased.maxAttempts, leased.leaseVersion], [1, 10, 1]);
      assert.deepEqual([leased.metadata, leased.previous, leased.checkpoint], [{ team: "a" }, null, null]);
      return { sentTo: leased.payload.to };
    },
  };
  const done = await withWorker({ queues: [queue], handlers }, () => client.wait(job.id));
  assert.deepEqual([done.state, done.result], ["succeeded", { sentTo: "ada" }]);
});

test("many jobs of several queues are all done once, never more at a time than slots", async () => {
  const queues = [newQueue(), newQueue(), newQueue()];
  const jobs = await client.submitMany(
    Array.from({ length: 600 }, (_, place) => ({ kind: "count", queue: queues[place % 3] as string })),
  );
  const runs = new Map<string, number>();
  let [running, most] = [0, 0];
  const count = async (job: LeasedJob) => {
    running += 1;
    most = Math.max(most, running);
    runs.set(job.id, (runs.get(job.id) ?? 0) + 1);
    await new Promise((resolve) => setImmediate(resolve));
    running -= 1;
  };
  await withWorker({ queues, handlers: { count }, concurrency: 50 }, async () => {
    for (const { job } of jobs) assert.equal((await client.wait(job.id)).state, "succeeded");
  });
  assert.equal(runs.size, 600);
  assert.ok([...runs.values()].every((times) => times === 1));
  assert.ok(most <= 50, `${most} at a time`);
});

test("an error fails the attempt, and the next one knows of it", async () => {
  const queue = newQueue();
  const { job } = await client.submit("flaky", null, {
    queue,
    backoff: { type: "fixed", baseSeconds: 0 },
  });
  const flaky = (leased: LeasedJob) => {
    if (leased.attempt === 1) throw new TypeError("the first time");
    return leased.previous;
  };
  const done = await withWorker({ queues: [queue], handlers: { flaky } }, () => client.wait(job.id));
  const previous = done.result as { outcome: string; error: { type: string; message: string } };
  assert.deepEqual(
    [previous.outcome, previous.error.type, previous.error.message],
    ["failed", "TypeError", "the first time"],
  );
});

test("a failure that is not retryable makes the job dead", async () => {
  const queue = newQueue();
  const { job } = await client.submit("mail", null, { queue });
  const mail = () => fail("no such address", { retryable: false, type: "unknown_address", details: [1] });
  const done = await withWorker({ queues: [queue], handlers: { mail } }, () => client.wait(job.id));
  assert.equal(done.state, "dead");
  assert.deepEqual(done.error, { type: "unknown_address", message: "no such address", details: [1] });
});

test("a released job comes again with its attempt given back", async () => {
  const queue = newQueue();
  const { job } = await client.submit("mail", null, { queue });
  const mail = (leased: LeasedJob) =>
    leased.leaseVersion === 1 ? release({ reason: "busy" }) : leased.attempt;
  const done = await withWorker({ queues: [queue], handlers: { mail } }, () => client.wait(job.id));
  assert.equal(done.result, 1);
});

test("follow-up jobs are created with the completion", async () => {
  const queue = newQueue();
  const { job } = await client.submit("first", null, { queue });
  const second = promised<LeasedJob>();
  const handlers = {
    first: () => complete("done", { enqueue: [{ kind: "second", payload: 2, queue }] }),
    second: (leased: LeasedJob) => second.resolve(leased),
  };
  await withWorker({ queues: [queue], handlers }, async () => {
    const child = await second.promise;
    assert.deepEqual(child.parent, { jobId: job.id, leaseVersion: 1 });
    assert.equal(child.payload, 2);
  });
});

test("a kind that nobody handles fails as unknown_kind, whatever objects inherit", async () => {
  const queue = newQueue();
  const { job } = await client.submit("constructor", null, { queue, maxAttempts: 1 });
  const done = await withWorker({ queues: [queue], handlers: {} }, () => client.wait(job.id));
  assert.equal(done.error?.type, "unknown_kind");
});

test("a catch-all takes every other kind", async () => {
  const queue = newQueue();
  const { job } = await client.submit("anything", null, { queue });
  const catchAll = (leased: LeasedJob) => leased.kind;
  const done = await withWorker({ queues: [queue], catchAll }, () => client.wait(job.id));
  assert.equal(done.result, "anything");
});

test("results that cannot be stored end their jobs, and no others", async () => {
  const queue = newQueue();
  const [large, bigint, fine] = await client.submitMany([
    { kind: "large", queue },
    { kind: "bigint", queue },
    { kind: "fine", queue },
  ]);
  const handlers = { large: () => "x".repeat(300_000), bigint: () => 1n, fine: () => 1 };
  await withWorker({ queues: [queue], handlers }, async () => {
    for (const refused of [large, bigint]) {
      const done = await client.wait(refused?.job.id ?? "");
      assert.deepEqual([done.state, done.error?.type], ["dead", "result_refused"]);
    }
    assert.equal((await client.wait(fine?.job.id ?? "")).state, "succeeded");
  });
});

test("a failure keeps its own words when its details have no JSON", async () => {
  const queue = newQueue();
  const { job } = await client.submit("card", null, { queue, maxAttempts: 1 });
  const card = () => fail("no such card", { type: "card", details: 1n });
  const done = await withWorker({ queues: [queue], handlers: { card } }, () => client.wait(job.id));
  assert.deepEqual([done.error?.type, done.error?.message], ["card", "no such card"]);
});

test("progress and checkpoints reach the service while the handler runs", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const goOn = promised<void>();
  const long = async (leased: LeasedJob) => {
    leased.progress(10, "begun");
    leased.progress(40, "further");
    await leased.saveCheckpoint({ row: 500 });
    assert.deepEqual((await client.get(leased.id)).checkpoint, { row: 500 });
    await goOn.promise;
  };
  await withWorker({ queues: [queue], handlers: { long } }, async () => {
    const running = await seen(job.id, (it) => it.lease?.progress?.percent === 40);
    assert.deepEqual(running.lease?.progress, { seq: 2, percent: 40, message: "further" });
    goOn.resolve();
    assert.equal((await client.wait(job.id)).state, "succeeded");
  });
});

test("a checkpoint that is refused is the handler's, and the others keep their leases", async () => {
  const queue = newQueue();
  const [bad, good] = await client.submitMany([
    { kind: "bad", queue },
    { kind: "good", queue },
  ]);
  const handlers = {
    bad: (job: LeasedJob) => job.saveCheckpoint("x".repeat(70_000)).catch((refusal: Problem) => refusal.code),
    good: (job: LeasedJob) => job.saveCheckpoint("small"),
  };
  await withWorker({ queues: [queue], handlers }, async () => {
    assert.equal((await client.wait(bad?.job.id ?? "")).result, "too_large");
    assert.equal((await client.wait(good?.job.id ?? "")).checkpoint, "small");
  });
});

test("progress out of range is refused where it is said", async () => {
  const queue = newQueue();
  const { job } = await client.submit("wrong", null, { queue, maxAttempts: 1 });
  const wrong = (leased: LeasedJob) => leased.progress(101);
  const done = await withWorker({ queues: [queue], handlers: { wrong } }, () => client.wait(job.id));
  assert.equal(done.error?.type, "RangeError");
});

test("a message that is no text is refused where it is said, and not the checkpoint with it", async () => {
  const queue = newQueue();
  const { job } = await client.submit("torn", null, { queue, maxAttempts: 1 });
  const torn = async (leased: LeasedJob) => {
    assert.throws(() => leased.progress(1, "\ud83e"), RangeError);
    assert.throws(() => leased.progress(1, "a\0b"), RangeError);
    await leased.saveCheckpoint(1);
  };
  const done = await withWorker({ queues: [queue], handlers: { torn } }, () => client.wait(job.id));
  assert.deepEqual([done.state, done.checkpoint], ["succeeded", 1]);
});

test("many calls at once under one lease are no leak", async () => {
  const warnings: Error[] = [];
  const note = (warning: Error) => warnings.push(warning);
  process.on("warning", note);
  const queue = newQueue();
  const { job } = await client.submit("many", null, { queue });
  const many = async (leased: LeasedJob) => {
    await Promise.all(Array.from({ length: 30 }, () => leased.verify()));
    await Promise.all(Array.from({ length: 30 }, () => sleep(1, undefined, { signal: leased.signal })));
  };
  const done = await withWorker({ queues: [queue], handlers: { many } }, () => client.wait(job.id));
  process.off("warning", note);
  assert.deepEqual([done.state, warnings], ["succeeded", []]);
});

test("a cancel reaches the handler, and its stopping makes the job cancelled", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const long = (leased: LeasedJob) => untilStopped(leased.signal);
  const done = await withWorker({ queues: [queue], handlers: { long }, leaseSeconds: 1 }, async () => {
    await seen(job.id, (it) => it.state === "running");
    await client.cancel(job.id);
    return client.wait(job.id);
  });
  assert.deepEqual([done.state, done.error?.type], ["cancelled", "cancelled"]);
});

test("a lost lease stops the handler, and nothing it does counts", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const after = promised<{ reason: StopReason | undefined; refusals: unknown[] }>();
  const long = async (leased: LeasedJob) => {
    await untilStopped(leased.signal).catch(() => undefined);
    const attempts = [leased.verify(), leased.submit("child", "mail"), leased.saveCheckpoint(1)];
    const refusals = (await Promise.allSettled(attempts)).map((it) => it.status === "rejected" && it.reason);
    after.resolve({ reason: leased.stopReason, refusals });
    return "too late";
  };
  await withWorker({ queues: [queue], handlers: { long }, leaseSeconds: 1 }, async () => {
    await seen(job.id, (it) => it.state === "running");
    await client.cancel(job.id, { force: true });
    const { reason, refusals } = await after.promise;
    assert.equal(reason, "lease_lost");
    assert.ok(refusals.every((refusal) => refusal instanceof LeaseLost && refusal.reason === "cancelled"));
  });
  const { state, result } = await client.get(job.id);
  assert.deepEqual([state, result], ["cancelled", null]);
});

test("a refusal under the lease stops the handler before any heartbeat tells", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const reason = promised<StopReason | undefined>();
  const long = async (leased: LeasedJob) => {
    await client.cancel(leased.id, { force: true });
    await assert.rejects(leased.verify(), LeaseLost);
    reason.resolve(leased.signal.aborted ? leased.stopReason : undefined);
  };
  await withWorker({ queues: [queue], handlers: { long } }, async () => {
    assert.equal(await reason.promise, "lease_lost");
  });
  assert.equal((await client.get(job.id)).state, "cancelled");
});

test("a child job is created once, however many attempts there are", async () => {
  const [queue, children] = [newQueue(), newQueue()];
  const { job } = await client.submit("parent", null, { queue, backoff: { type: "fixed", baseSeconds: 0 } });
  const parent = async (leased: LeasedJob) => {
    const { job: child, created } = await leased.submit("mail", "child", null, { queue: children });
    if (leased.attempt === 1) throw new Error("once more");
    return [child.idempotencyKey, created];
  };
  const done = await withWorker({ queues: [queue], handlers: { parent } }, () => client.wait(job.id));
  assert.deepEqual(done.result, [`${job.id}:mail`, false]);
});

test("a worker that is stopped gives back what it could not finish", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const started = promised<void>();
  const long = (leased: LeasedJob) => {
    started.resolve();
    return untilStopped(leased.signal);
  };
  await withWorker({ queues: [queue], handlers: { long }, drainSeconds: 0.1 }, () => started.promise);
  const given = await client.get(job.id);
  assert.deepEqual([given.state, given.attempt], ["ready", 0]);
});

test("a handler that does not stop loses its job to the next worker", async () => {
  const queue = newQueue();
  const { job } = await client.submit("stubborn", null, { queue });
  const [started, goOn] = [promised<void>(), promised<void>()];
  const stubborn = () => {
    started.resolve();
    return goOn.promise;
  };
  const options = { queues: [queue], handlers: { stubborn }, drainSeconds: 0.1, graceSeconds: 0.1 };
  await withWorker(options, () => started.promise);
  assert.equal((await client.get(job.id)).state, "ready");
  goOn.resolve();
  const { jobs } = (await post("/v1/leases", { worker_id: "next", queues: [queue] })) as { jobs: unknown[] };
  assert.equal(jobs.length, 1);
});

test("a handler may finish while the worker drains", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const [started, goOn] = [promised<void>(), promised<void>()];
  const long = async () => {
    started.resolve();
    await goOn.promise;
    return "done";
  };
  await withWorker({ queues: [queue], handlers: { long } }, async (worker) => {
    await started.promise;
    worker.stop();
    goOn.resolve();
  });
  assert.equal((await client.get(job.id)).result, "done");
});

test("a second stop does not wait for the handlers", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const started = promised<void>();
  const long = (leased: LeasedJob) => {
    started.resolve();
    return untilStopped(leased.signal);
  };
  await withWorker({ queues: [queue], handlers: { long }, drainSeconds: 3600 }, async (worker) => {
    await started.promise;
    worker.stop();
  });
  assert.equal((await client.get(job.id)).state, "ready");
});

test("a drain without end waits for the handler", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const started = promised<void>();
  const long = async (leased: LeasedJob) => {
    started.resolve();
    await new Promise((resolve) => setTimeout(resolve, 300));
    return leased.stopReason ?? "in peace";
  };
  const options = { queues: [queue], handlers: { long }, drainSeconds: Number.POSITIVE_INFINITY };
  const worker = new Worker(url, { ...options, signals: false, log: quiet });
  const end = worker.run();
  await started.promise;
  worker.stop();
  await end;
  assert.equal((await client.get(job.id)).result, "in peace");
});

test("a mistake in the set-up ends the worker with the refusal", async () => {
  const worker = new Worker(url, { queues: ["no blanks"], catchAll: () => null, signals: false, log: quiet });
  await assert.rejects(worker.run(), (failure) => failure instanceof Problem && failure.status === 422);
});

test("a worker runs once, and with at least one slot", async () => {
  const options = { queues: [newQueue()], catchAll: () => null, signals: false, log: quiet };
  const worker = new Worker(url, options);
  worker.stop();
  await worker.run();
  await assert.rejects(worker.run(), /runs once/);
  assert.throws(() => new Worker(url, { ...options, concurrency: 0 }), RangeError);
  assert.throws(() => new Worker(url, { ...options, drainSeconds: Number.NaN }), RangeError);
});
