import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Service } from "../src/calls.js";
import { Heartbeats } from "../src/heartbeats.js";
import { Lease, Leases } from "../src/leases.js";
import { LoggedWeather } from "../src/log.js";
import { now } from "../src/pauses.js";
import { promised, quiet } from "./support.js";

test("heartbeats that are refused for the key are as without an answer, and never said to be back", async () => {
  const told: string[] = [];
  const seen = promised<void>();
  let beats = 0;
  const server = createServer((_, response) => {
    beats += 1;
    if (beats === 4) seen.resolve();
    response.writeHead(401, { "content-type": "application/json" }).end('{"code": "unauthorized"}');
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const log = { ...quiet, warn: (text: string) => told.push(text), info: (text: string) => told.push(text) };
  const leases = new Leases(log);
  const service = new Service(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, {});
  const heartbeats = new Heartbeats(service, leases, {
    leaseSeconds: 60,
    weather: new LoggedWeather(log),
    log,
  });
  const lease = new Lease({
    jobId: "a",
    version: 7,
    lengthMs: 60_000,
    sentAt: now(),
    deadlineAt: Number.POSITIVE_INFINITY,
  });
  leases.add(lease);
  heartbeats.checkpointMade();
  await seen.promise;
  heartbeats.stop();
  leases.remove(lease);
  server.closeAllConnections();
  server.close();
  assert.deepEqual(told, ["fencepost: the server is away"]);
});
