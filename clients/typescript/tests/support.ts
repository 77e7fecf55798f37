/** What tests of a real service share. Its address comes from the one who runs them. */

import assert from "node:assert/strict";
import { Client, type Log, Worker, type WorkerOptions } from "fencepost";

const { FENCEPOST_URL } = process.env;
assert.ok(FENCEPOST_URL, "FENCEPOST_URL names the service to test against");

export const url: string = FENCEPOST_URL;
export const client = new Client(url);
export const quiet: Log = { info: () => undefined, warn: () => undefined, error: () => undefined };

let queues = 0;

/** A queue that no other test has. */
export function newQueue(): string {
  queues += 1;
  return `test-${process.pid}-${queues}`;
}

/** Run a worker while something is done, and end it in order. */
export async function withWorker<Result>(
  options: WorkerOptions,
  act: (worker: Worker) => Promise<Result>,
): Promise<Result> {
  const worker = new Worker(url, { signals: false, log: quiet, ...options });
  const end = worker.run();
  try {
    return await act(worker);
  } finally {
    worker.stop();
    await end;
  }
}

/** A promise, and what settles it. */
export function promised<Value>(): { promise: Promise<Value>; resolve: (value: Value) => void } {
  let resolve: (value: Value) => void = () => undefined;
  const promise = new Promise<Value>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/** End, by throwing, when the handler has to stop. */
export function untilStopped(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    if (signal.aborted) reject(signal.reason);
  });
}

/** Speak to the service as some other worker would. */
export async function post(path: string, body: unknown): Promise<Record<string, unknown>> {
  const headers = { "content-type": "application/json" };
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  return (await response.json()) as Record<string, unknown>;
}
