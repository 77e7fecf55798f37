import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { client, newQueue, post } from "./support.js";

test("a worker that was paused for longer than its lease writes nothing when it wakes", async () => {
  const queue = newQueue();
  const { job } = await client.submit("long", null, { queue });
  const program = fileURLToPath(new URL("./paused-worker.js", import.meta.url));
  const paused = spawn(process.execPath, [program, queue], { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(paused, "exit");
  try {
    const lines = createInterface(paused.stdout)[Symbol.asyncIterator]();
    const said = async () => (await lines.next()).value as string;
    assert.equal(await said(), "started");

    paused.kill("SIGSTOP");
    const next = { worker_id: "next", queues: [queue], wait_seconds: 30, lease_seconds: 60 };
    const { jobs } = (await post("/v1/leases", next)) as { jobs: { lease_version: number }[] };
    assert.equal(jobs[0]?.lease_version, 2);

    paused.kill("SIGCONT");
    assert.equal(await said(), "lease_lost");
    assert.equal(await said(), "LeaseLost");
    paused.kill("SIGTERM");
    assert.deepEqual(await exited, [0, null]);

    assert.equal((await client.get(job.id)).leaseVersion, 2);
    await post(`/v1/jobs/${job.id}/complete`, { lease_version: 2, result: "from the next worker" });
    assert.equal((await client.get(job.id)).result, "from the next worker");
  } finally {
    paused.kill("SIGKILL");
  }
});

test("a program ends when its worker has, although a handler never does", async () => {
  const queue = newQueue();
  const { job } = await client.submit("stuck", null, { queue });
  const program = fileURLToPath(new URL("./stuck-worker.js", import.meta.url));
  const stuck = spawn(process.execPath, [program, queue], { stdio: ["ignore", "inherit", "inherit"] });
  const late = setTimeout(() => stuck.kill("SIGKILL"), 60_000);
  assert.deepEqual(await once(stuck, "exit"), [0, null]);
  clearTimeout(late);
  assert.equal((await client.get(job.id)).state, "ready");
});

test("a worker whose handler never ends leaves the other worker of its process time for its own", async () => {
  const [stuck, slow] = [newQueue(), newQueue()];
  const jobs = await client.submitMany([
    { kind: "any", queue: stuck },
    { kind: "any", queue: slow },
  ]);
  const program = fileURLToPath(new URL("./two-workers.js", import.meta.url));
  const both = spawn(process.execPath, [program, stuck, slow], { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(both, "exit");
  try {
    const lines = createInterface(both.stdout)[Symbol.asyncIterator]();
    for (const _ of jobs) assert.equal((await lines.next()).value, "started");
    both.kill("SIGTERM");
    assert.deepEqual(await exited, [0, null]);
    const ends = await Promise.all(jobs.map(({ job }) => client.get(job.id)));
    assert.deepEqual(
      ends.map(({ state }) => state),
      ["ready", "succeeded"],
    );
  } finally {
    both.kill("SIGKILL");
  }
});

test("a worker whose handlers all hang lives on until it is told to end", async () => {
  const queue = newQueue();
  await client.submit("any", null, { queue });
  const program = fileURLToPath(new URL("./hanging-worker.js", import.meta.url));
  const hanging = spawn(process.execPath, [program, queue], { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(hanging, "exit");
  try {
    const lines = createInterface(hanging.stdout)[Symbol.asyncIterator]();
    assert.equal((await lines.next()).value, "lease_lost");
    // Without anything to wait for it would end at once, and with another code.
    await Promise.race([exited, new Promise((resolve) => setTimeout(resolve, 1_000))]);
    hanging.kill("SIGTERM");
    assert.deepEqual(await exited, [0, null]);
  } finally {
    hanging.kill("SIGKILL");
  }
});
