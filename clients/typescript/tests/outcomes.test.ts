import assert from "node:assert/strict";
import { test } from "node:test";
import { complete, fail, release, SETTLED, Stopped } from "fencepost";
import { type End, endOf, reduced } from "../src/outcomes.js";

class PaymentRefused extends Error {}

function errorOf(end: End | undefined): Record<string, unknown> {
  assert.equal(end?.verb, "fail");
  return end.members.error as Record<string, unknown>;
}

test("what a handler returns is the result", () => {
  assert.deepEqual(endOf({ returned: { sent: true } }, undefined), {
    verb: "complete",
    members: { result: { sent: true } },
  });
});

test("a result that looks like an outcome is a result", () => {
  const returned = { outcome: "release", reason: "mine" };
  assert.deepEqual(endOf({ returned }, undefined)?.members, { result: returned });
});

test("follow-up jobs go with the completion, in the words of the protocol", () => {
  const end = endOf(
    { returned: complete(1, { enqueue: [{ kind: "mail", maxAttempts: 3, runAt: new Date(0) }] }) },
    undefined,
  );
  assert.deepEqual(JSON.parse(JSON.stringify(end)), {
    verb: "complete",
    members: {
      result: 1,
      enqueue: [{ kind: "mail", max_attempts: 3, run_at: "1970-01-01T00:00:00.000Z" }],
    },
  });
});

test("an error fails the attempt under its own name", () => {
  assert.equal(errorOf(endOf({ thrown: new TypeError("no text") }, undefined)).type, "TypeError");
  const error = errorOf(endOf({ thrown: new PaymentRefused("card") }, undefined));
  assert.equal(error.type, "PaymentRefused");
  assert.equal(error.message, "card");
  assert.match((error.details as { stack: string }).stack, /outcomes\.test/);
});

test("what is thrown and no error fails the attempt too", () => {
  assert.deepEqual(errorOf(endOf({ thrown: "just text" }, undefined)), {
    type: "string",
    message: "just text",
    details: undefined,
  });
});

test("what cannot say what it is fails the attempt all the same", () => {
  class Hopeless extends Error {
    override get message(): string {
      throw new Hopeless();
    }
  }
  for (const thrown of [
    new Hopeless(),
    Object.create(null),
    Object.assign(new Error(), { name: 5, message: {} }),
  ]) {
    const { type, message } = errorOf(endOf({ thrown }, undefined));
    assert.deepEqual([typeof type, typeof message], ["string", "string"]);
  }
  assert.equal(errorOf(endOf({ thrown: new (class extends Error {})() }, undefined)).type, "Error");
});

test("a stack is not cut within a character", () => {
  const thrown = Object.assign(new Error(), { stack: `.${"🦊".repeat(3_000)}` });
  const { stack } = errorOf(endOf({ thrown }, undefined)).details as { stack: string };
  assert.deepEqual([stack.length, /\p{Surrogate}/u.test(stack)], [4_000, false]);
});

test("a delay that the service would refuse is the handler's error, not the end of its lease", () => {
  for (const seconds of [-1, Number.NaN, Number.POSITIVE_INFINITY, 31_536_001]) {
    assert.throws(() => release({ delaySeconds: seconds }), RangeError);
    assert.throws(() => fail("later", { retryAfterSeconds: seconds }), RangeError);
  }
});

test("a Fail means the same returned and thrown", () => {
  const refusal = fail("no such account", { retryable: false, type: "unknown_account", details: { id: 7 } });
  const end = endOf({ returned: refusal }, undefined);
  assert.deepEqual(end, endOf({ thrown: refusal }, undefined));
  assert.deepEqual(end?.members, {
    error: { type: "unknown_account", message: "no such account", details: { id: 7 } },
    retryable: false,
    retry_after_seconds: undefined,
  });
});

test("a release gives the job back as the handler says, returned or thrown", () => {
  const busy = release({ delaySeconds: 5, reason: "busy" });
  for (const ending of [{ returned: busy }, { thrown: busy }]) {
    assert.deepEqual(endOf(ending, "shutdown"), {
      verb: "release",
      members: { delay_seconds: 5, reason: "busy" },
    });
  }
});

test("nothing is sent for a job that was settled elsewhere", () => {
  assert.equal(endOf({ returned: SETTLED }, undefined), undefined);
});

test("a handler that stops for a cancel fails as cancelled", () => {
  assert.equal(errorOf(endOf({ thrown: new Stopped("cancelled") }, "cancelled")).type, "cancelled");
});

test("a handler that stops for a shutdown gives the job back", () => {
  assert.equal(endOf({ thrown: new Stopped("shutdown") }, "shutdown")?.verb, "release");
});

test("a Fail of a handler that was told to stop is no more than its stopping", () => {
  const refusal = fail("the call was broken off", { retryable: false, type: "broken_off" });
  for (const ending of [{ returned: refusal }, { thrown: refusal }]) {
    assert.equal(endOf(ending, "shutdown")?.verb, "release");
    const { type, message } = errorOf(endOf(ending, "cancelled"));
    assert.deepEqual([type, message], ["cancelled", "the call was broken off"]);
  }
});

test("a result counts although the handler was told to stop", () => {
  assert.equal(endOf({ returned: 1 }, "cancelled")?.verb, "complete");
  assert.equal(endOf({ returned: 1 }, "shutdown")?.verb, "complete");
});

test("a refused end is reduced once, and then there is nothing left to send", () => {
  const written = ({ verb, members }: End) => JSON.stringify([verb, members]);
  const long = "🦊".repeat(1_500);
  const failure = { error: { type: "t", message: long, details: 1 }, retry_after_seconds: 9 };
  const ends: readonly (readonly [End, End])[] = [
    [
      { verb: "complete", members: { result: "too large" } },
      {
        verb: "fail",
        members: { error: { type: "result_refused", message: "it is too large" }, retryable: false },
      },
    ],
    [
      { verb: "fail", members: failure },
      {
        verb: "fail",
        members: { error: { type: "t", message: "🦊".repeat(1_000) }, retry_after_seconds: 9 },
      },
    ],
    [
      { verb: "release", members: { delay_seconds: 60, reason: "busy" } },
      { verb: "release", members: { delay_seconds: 60 } },
    ],
  ];
  for (const [refused, lesser] of ends) {
    const sent = reduced(refused, "it is too large");
    assert.equal(written(sent), written(lesser));
    assert.equal(written(reduced(sent, "still")), written(sent));
  }
});
