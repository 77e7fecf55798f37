import assert from "node:assert/strict";
import { test } from "node:test";
import { type LeasedJob, LeaseLost } from "fencepost";
import pg from "pg";
import { client, newQueue, withWorker } from "./support.js";

const { FENCEPOST_DATABASE_URL: database } = process.env;
assert.ok(database, "FENCEPOST_DATABASE_URL names the database of the service");

/** Run a transaction of the application's own. */
async function transaction<Result>(act: (connection: pg.Client) => Promise<Result>): Promise<Result> {
  const connection = new pg.Client(database);
  await connection.connect();
  try {
    await connection.query("BEGIN");
    const result = await act(connection);
    await connection.query("COMMIT");
    return result;
  } finally {
    await connection.end();
  }
}

/** Have a handler do something with a job, and return what became of it. */
async function done(charge: (job: LeasedJob) => Promise<unknown>) {
  const queue = newQueue();
  const { job } = await client.submit("charge", null, { queue, maxAttempts: 1 });
  return withWorker({ queues: [queue], handlers: { charge }, leaseSeconds: 1 }, () => client.wait(job.id));
}

test("a job is completed in the transaction that does its work", async () => {
  const job = await done((leased) =>
    transaction(async (connection) => {
      await leased.holdLease(connection);
      return leased.completeIn(connection, { charged: 10 });
    }),
  );
  assert.deepEqual([job.state, job.result], ["succeeded", { charged: 10 }]);
});

test("what was rolled back has not completed the job", async () => {
  const job = await done((leased) =>
    transaction(async (connection) => {
      await leased.completeIn(connection);
      throw new Error("the account is closed");
    }),
  );
  assert.deepEqual([job.state, job.error?.message], ["dead", "the account is closed"]);
});

test("a lost lease is refused inside the transaction, and stops the handler", async () => {
  let refusal: unknown;
  let reason: unknown;
  const job = await done(async (leased) => {
    await client.cancel(leased.id, { force: true });
    refusal = await transaction((connection) => leased.holdLease(connection)).catch((failure) => failure);
    reason = leased.stopReason;
  });
  assert.ok(refusal instanceof LeaseLost);
  assert.deepEqual(
    [refusal.jobId, refusal.presentedVersion, refusal.jobState, refusal.reason],
    [job.id, 1, "cancelled", "cancelled"],
  );
  assert.equal(reason, "lease_lost");
});

test("a completion under a lost lease is refused as well", async () => {
  let refusal: unknown;
  await done(async (leased) => {
    await client.cancel(leased.id, { force: true });
    refusal = await transaction((connection) => leased.completeIn(connection)).catch((failure) => failure);
  });
  assert.ok(refusal instanceof LeaseLost);
});

test("any other error of the database is left as it is", async () => {
  const job = await done((leased) =>
    transaction(async (connection) => {
      await connection.query("SELECT 1 / 0").catch(() => undefined);
      await leased.holdLease(connection);
    }),
  );
  assert.match(job.error?.message ?? "", /current transaction is aborted/);
});
