import assert from "node:assert/strict";
import { test } from "node:test";
import { Stopped } from "fencepost";
import { leaseLost } from "../src/errors.js";
import { Lease, Leases } from "../src/leases.js";
import { now } from "../src/pauses.js";
import { quiet } from "./support.js";

function lease(facts: { version?: number; lengthMs?: number; sentAt?: number; deadlineAt?: number }): Lease {
  return new Lease({
    jobId: "a",
    version: 7,
    lengthMs: 60_000,
    sentAt: now(),
    deadlineAt: Number.POSITIVE_INFINITY,
    ...facts,
  });
}

test("a lease counts from when the call was sent that renewed it last", () => {
  const held = lease({ sentAt: 1_000, lengthMs: 5_000 });
  assert.equal(held.overAt, 6_000);
  held.renew(3_000);
  assert.equal(held.overAt, 8_000);
  held.renew(2_000);
  assert.equal(held.overAt, 8_000, "an answer that was overtaken takes nothing away");
});

test("a lease is over at its deadline, renewed or not", () => {
  const held = lease({ sentAt: 1_000, lengthMs: 5_000, deadlineAt: 4_000 });
  held.renew(3_500);
  assert.equal(held.overAt, 4_000);
});

test("a handler is stopped when its lease is over by the clock", () => {
  const leases = new Leases(quiet);
  const held = lease({ sentAt: now() - 61_000 });
  leases.add(held);
  leases.expire(held);
  assert.ok(held.signal.reason instanceof Stopped);
  assert.equal(held.signal.reason.reason, "lease_lost");
  assert.equal(held.loss?.reason, "expired");
  leases.remove(held);
});

test("a timer stops the handler of a lease that nobody renews", async () => {
  const leases = new Leases(quiet);
  const held = lease({ lengthMs: 20 });
  leases.add(held);
  await new Promise((resolve, reject) => {
    // It does not keep the process alive; a worker that runs does.
    const late = setTimeout(() => reject(new Error("no timer came")), 30_000);
    held.signal.addEventListener("abort", () => {
      clearTimeout(late);
      resolve(undefined);
    });
  });
  assert.equal(held.stopReason, "lease_lost");
  leases.remove(held);
});

test("an end that is under way is not stopped by the clock", () => {
  const leases = new Leases(quiet);
  const held = lease({ sentAt: now() - 61_000 });
  leases.add(held);
  held.isEnding = true;
  leases.expireAll();
  assert.equal(held.loss, undefined);
  leases.remove(held);
});

test("a job that is granted again is a new lease, and the old one is lost", () => {
  const leases = new Leases(quiet);
  const [old, young] = [lease({ version: 7 }), lease({ version: 9 })];
  assert.ok(leases.add(old));
  assert.ok(leases.add(young));
  assert.equal(old.stopReason, "lease_lost");
  assert.deepEqual(leases.held, [young]);
  leases.remove(old);
  assert.deepEqual(leases.held, [young]);
  leases.remove(young);
});

test("the same grant is not taken in twice", () => {
  const leases = new Leases(quiet);
  const held = lease({});
  assert.ok(leases.add(held));
  assert.equal(leases.add(lease({})), false);
  leases.remove(held);
});

test("an aborted signal keeps its first reason, stopReason has the last one", () => {
  const held = lease({});
  const { signal } = held;
  held.stop("cancelled");
  held.lose(leaseLost("a", 7, "cancelled", "forced"));
  assert.equal(signal.reason.reason, "cancelled");
  assert.equal(held.stopReason, "lease_lost");
  held.stop("shutdown");
  assert.equal(held.stopReason, "lease_lost");
});

test("a checkpoint that waits is refused when the lease is lost", () => {
  const held = lease({});
  let refusal: unknown;
  held.add({
    checkpoint: {
      text: "1",
      stored: () => assert.fail("it was never sent"),
      refused: (failure) => {
        refusal = failure;
      },
    },
  });
  const loss = leaseLost("a", 7, "expired", "too late");
  held.lose(loss);
  assert.equal(refusal, loss);
});

test("a report that came while another was on its way is kept", () => {
  const held = lease({});
  held.add({ progress: { seq: 1, percent: 10, message: undefined } });
  const sent = held.report;
  held.add({ progress: { seq: 2, percent: 20, message: undefined } });
  held.reported(sent);
  assert.equal(held.report.progress?.seq, 2);
  held.reported(held.report);
  assert.deepEqual(held.report, {});
});

test("a loss is told once, also when whoever is told looks at the lease again", () => {
  const told: string[] = [];
  const leases = new Leases({ ...quiet, warn: (message) => told.push(message) });
  const held = lease({ sentAt: now() - 61_000 });
  leases.add(held);
  held.signal.addEventListener("abort", () => leases.expire(held));
  leases.expire(held);
  assert.deepEqual(told, ["fencepost: lease lost"]);
  leases.remove(held);
});
