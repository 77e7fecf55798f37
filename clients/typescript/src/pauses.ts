/** The clock that only goes forward, and waiting. */

const FIRST_MS = 100;
const LONGEST_MS = 10_000;

/** Milliseconds on the monotonic clock. It goes on while the process is stopped. */
export function now(): number {
  return performance.now();
}

/** How long to wait before trying again: doubled from 0.1 s to 10 s, drawn between half and whole. */
export function pauseMs(tries: number, retryAfterSeconds: number, random: () => number): number {
  const whole = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(tries, 30));
  return Math.max(whole * (0.5 + random() / 2), retryAfterSeconds * 1000);
}

/** Wait. An abort ends it at once, and throws the signal's reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const end = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, ms);
    signal?.addEventListener("abort", end, { once: true });
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
  signal?.addEventListener("abort", stop, { once: true });
  if (signal?.aborted) stop();
  promise.then(stop, stop);
  await sleep(ms, enough.signal).catch(() => undefined);
  signal?.removeEventListener("abort", stop);
}
