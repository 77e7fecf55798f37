/** The clock that only goes forward, and waiting. */

import { onAbort } from "./aborts.js";

const FIRST_MS = 100;
const LONGEST_MS = 10_000;
/** Some 25 days. A timer for longer would end at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Milliseconds on the monotonic clock. It goes on while the process is stopped. */
export function now(): number {
  return performance.now();
}

/** How long to wait before trying again: doubled from 0.1 s to 10 s, drawn between half and whole. */
export function pauseMs(tries: number, retryAfterSeconds: number, random: () => number): number {
  const whole = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(tries, 30));
  return Math.max(whole * (0.5 + random() / 2), retryAfterSeconds * 1000);
}

/** What a timer can wait of this; Infinity is as long as one can. */
export function timerMs(ms: number): number {
  return Math.min(ms, LONGEST_TIMER_MS);
}

/** Wait, for 25 days at most. An abort ends it at once, and throws the signal's reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const timer = setTimeout(() => {
      forget?.();
      resolve();
    }, timerMs(ms));
    const forget =
      signal &&
      onAbort(signal, () => {
        clearTimeout(timer);
        reject(signal.reason);
      });
  });
}

/** Wait until the promise has ended, however it did, the time is over or the signal comes. Never throws. */
export async function endedWithin(
  promise: Promise<unknown>,
  ms: number,
  signal?: AbortSignal,
): Promise<void> {
  const enough = new AbortController();
  const stop = () => enough.abort();
  const forget = signal && onAbort(signal, stop);
  promise.then(stop, stop);
  await sleep(ms, enough.signal).catch(() => undefined);
  forget?.();
}
