import assert from "node:assert/strict";
import { getEventListeners, once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Client, Problem, Unavailable } from "fencepost";

interface Seen {
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

/** Answer each request with the next of the answers, and tell what came. */
async function withAnswers(
  answers: readonly ((response: ServerResponse) => void)[],
  act: (url: string, seen: Seen[]) => Promise<void>,
): Promise<void> {
  const seen: Seen[] = [];
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const answer = answers[Math.min(seen.length, answers.length - 1)];
    seen.push({ headers: request.headers, body: Buffer.concat(chunks).toString() });
    answer?.(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    await act(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`, seen);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

function json(status: number, body: unknown, headers: Record<string, string> = {}) {
  return (response: ServerResponse) => {
    response.writeHead(status, { "content-type": "application/json", ...headers });
    response.end(JSON.stringify(body));
  };
}

const breakOff = (response: ServerResponse) => response.destroy();
const created = json(201, { id: "j", state: "ready" });

test("a call without an answer is sent again as it was, under the same key", async () => {
  await withAnswers([breakOff, json(503, {}), json(429, {}), json(408, {}), created], async (url, seen) => {
    const submitted = await new Client(url).submit("mail", { to: "ada" });
    assert.equal(submitted.created, true);
    assert.equal(seen.length, 5);
    assert.equal(new Set(seen.map(({ body }) => body)).size, 1);
    const keys = new Set(seen.map(({ headers }) => headers["idempotency-key"]));
    assert.equal(keys.size, 1);
    assert.match(String([...keys][0]), /^[0-9a-f]{32}$/);
  });
});

test("the last failure is thrown when the time is over", async () => {
  await withAnswers([json(503, { code: "unavailable", request_id: "r1" })], async (url) => {
    const refused = new Client(url, { retrySeconds: 0 }).submit("mail");
    await assert.rejects(refused, (failure) => {
      assert.ok(failure instanceof Problem);
      assert.equal(failure.code, "unavailable");
      assert.equal(failure.requestId, "r1");
      return true;
    });
  });
});

test("no answer at all is Unavailable, with the cause", async () => {
  await withAnswers([breakOff], async (url) => {
    const failed = new Client(url, { retrySeconds: 0.2 }).submit("mail");
    await assert.rejects(
      failed,
      (failure) => failure instanceof Unavailable && failure.cause instanceof Error,
    );
  });
});

test("a server that does not answer in time is Unavailable", async () => {
  await withAnswers([() => undefined], async (url) => {
    const failed = new Client(url, { timeoutSeconds: 0.1, retrySeconds: 0.1 }).get("j");
    await assert.rejects(failed, Unavailable);
  });
});

test("a refusal is not sent again", async () => {
  await withAnswers([json(422, { code: "invalid_request" })], async (url, seen) => {
    await assert.rejects(new Client(url).submit("mail"), Problem);
    assert.equal(seen.length, 1);
  });
});

test("Retry-After is waited for, and not beyond the limit", async () => {
  await withAnswers([json(503, {}, { "retry-after": "60" })], async (url, seen) => {
    await assert.rejects(new Client(url, { retrySeconds: 5 }).submit("mail"), Problem);
    assert.equal(seen.length, 1);
  });
});

test("a page of something that is not the service is no answer", async () => {
  const page = (response: ServerResponse) => response.end("<html>");
  await withAnswers([page, created], async (url, seen) => {
    await new Client(url).submit("mail");
    assert.equal(seen.length, 2);
  });
});

test("a success that is no job is no answer of the service", async () => {
  const elses = [json(200, { status: "up" }), (response: ServerResponse) => response.end()];
  await withAnswers([...elses, created], async (url, seen) => {
    const { job } = await new Client(url).submit("mail");
    assert.deepEqual([job.id, seen.length], ["j", 3]);
  });
  const two = json(201, { jobs: [{ created: true, job: { id: "j" } }] });
  await withAnswers([...elses, two], async (url, seen) => {
    const [first] = await new Client(url).submitMany([{ kind: "mail" }]);
    assert.deepEqual([first?.job.id, seen.length], ["j", 3]);
  });
});

test("many calls at once under one signal are no leak, and leave nothing behind", async () => {
  const warnings: Error[] = [];
  const note = (warning: Error) => warnings.push(warning);
  process.on("warning", note);
  await withAnswers([created], async (url) => {
    const client = new Client(url);
    const { signal } = new AbortController();
    await Promise.all(Array.from({ length: 30 }, () => client.submit("mail", null, { signal })));
    assert.deepEqual(getEventListeners(signal, "abort"), []);
  });
  await new Promise((resolve) => setImmediate(resolve));
  process.off("warning", note);
  assert.deepEqual(warnings, []);
});

test("a number that JSON has not is refused where it is given", async () => {
  const client = new Client("http://127.0.0.1:9");
  for (const options of [
    { delaySeconds: Number.NaN },
    { maxRuntimeSeconds: Number.POSITIVE_INFINITY },
    { backoff: { baseSeconds: Number.NaN } },
  ]) {
    await assert.rejects(client.submit("mail", null, options), RangeError);
    await assert.rejects(client.submitMany([{ kind: "mail", ...options }]), RangeError);
  }
  await assert.rejects(client.wait("j", { timeoutSeconds: Number.NaN }), RangeError);
  assert.throws(() => new Client("http://127.0.0.1", { timeoutSeconds: Number.NaN }), RangeError);
  assert.throws(() => new Client("http://127.0.0.1", { retrySeconds: -1 }), RangeError);
});

test("a time without end is as long as a timer can be", async () => {
  await withAnswers([created], async (url) => {
    const client = new Client(url, { timeoutSeconds: Number.POSITIVE_INFINITY, retrySeconds: 0 });
    assert.equal((await client.submit("mail")).job.id, "j");
  });
});

test("an abort ends a call at once with the signal's reason", async () => {
  await withAnswers([json(503, {})], async (url) => {
    const controller = new AbortController();
    const call = new Client(url).submit("mail", null, { signal: controller.signal });
    controller.abort(new Error("not needed any more"));
    await assert.rejects(call, /not needed any more/);
  });
});

test("an API key goes with every call", async () => {
  await withAnswers([created], async (url, seen) => {
    await new Client(url, { apiKey: "s3cret" }).submit("mail");
    assert.equal(seen[0]?.headers.authorization, "Bearer s3cret");
  });
});

test("a key that a header would change is quoted", async () => {
  await withAnswers([created], async (url, seen) => {
    const client = new Client(url);
    for (const idempotencyKey of ["plain:1", '"quoted\\"', "blank "]) {
      await client.submit("mail", null, { idempotencyKey });
    }
    const sent = seen.map(({ headers }) => headers["idempotency-key"]);
    assert.deepEqual(sent, ["plain:1", '"\\"quoted\\\\\\""', '"blank "']);
  });
});

test("what no request can be made of is the caller's mistake and not repeated", async () => {
  const client = new Client("http://127.0.0.1:9");
  await assert.rejects(client.submit("mail", null, { idempotencyKey: "ключ" }), RangeError);
  assert.throws(() => new Client("localhost:8000"), TypeError);
  assert.throws(() => new Client("http://user:secret@127.0.0.1"), TypeError);
  assert.throws(() => new Client("http://127.0.0.1", { apiKey: "two\nlines" }), TypeError);
});
