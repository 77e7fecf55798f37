/** Waiting for an abort: one listener a signal, since Node warns of a leak from the eleventh on. */

interface Waiting {
  readonly acts: Set<() => void>;
  readonly listener: () => void;
}

const waiting = new WeakMap<AbortSignal, Waiting>();

/** Call when the signal is aborted; at once if it is already. Returns what takes that back. */
export function onAbort(signal: AbortSignal, act: () => void): () => void {
  if (signal.aborted) {
    act();
    return () => undefined;
  }
  const { acts } = waiting.get(signal) ?? listenTo(signal);
  acts.add(act);
  return () => {
    acts.delete(act);
    if (acts.size === 0) leave(signal);
  };
}

function listenTo(signal: AbortSignal): Waiting {
  const acts = new Set<() => void>();
  const listener = () => {
    for (const act of [...acts]) act();
  };
  const made = { acts, listener };
  waiting.set(signal, made);
  signal.addEventListener("abort", listener, { once: true });
  return made;
}

/** A signal with a listener is kept alive by Node, and may be another one for each call. */
function leave(signal: AbortSignal): void {
  const left = waiting.get(signal);
  if (left !== undefined) signal.removeEventListener("abort", left.listener);
  waiting.delete(signal);
}
