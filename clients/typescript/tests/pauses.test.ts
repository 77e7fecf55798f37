import assert from "node:assert/strict";
import { test } from "node:test";
import { endedWithin, pauseMs, sleep } from "../src/pauses.js";

test("pauses double from a tenth of a second to ten seconds", () => {
  const wholes = [0, 1, 2, 6, 7, 1000].map((tries) => pauseMs(tries, 0, () => 1));
  assert.deepEqual(wholes, [100, 200, 400, 6400, 10_000, 10_000]);
});

test("a pause is drawn between half and whole", () => {
  assert.equal(
    pauseMs(3, 0, () => 0),
    400,
  );
  assert.equal(
    pauseMs(3, 0, () => 0.5),
    600,
  );
});

test("Retry-After sets the least", () => {
  assert.equal(
    pauseMs(0, 2, () => 1),
    2000,
  );
  assert.equal(
    pauseMs(9, 2, () => 0),
    5000,
  );
});

test("a sleep that no timer can wait for does not end at once", async () => {
  for (const ms of [Number.POSITIVE_INFINITY, 30 * 86_400_000]) {
    const controller = new AbortController();
    const slept = sleep(ms, controller.signal);
    setTimeout(() => controller.abort(new Error("it still sleeps")), 50);
    await assert.rejects(slept, /it still sleeps/);
  }
});

test("an abort ends a sleep at once with its reason", async () => {
  const controller = new AbortController();
  const slept = sleep(3_600_000, controller.signal);
  controller.abort(new Error("enough"));
  await assert.rejects(slept, /enough/);
  await assert.rejects(sleep(3_600_000, controller.signal), /enough/);
});

test("waiting for a promise ends with it, however it ends", async () => {
  await endedWithin(Promise.resolve(), 3_600_000);
  await endedWithin(Promise.reject(new Error("no matter")), 3_600_000);
  await endedWithin(new Promise(() => undefined), 1);
  await endedWithin(new Promise(() => undefined), 3_600_000, AbortSignal.abort());
});
