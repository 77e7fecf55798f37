/** How a handler ends, and what is sent for it. */

import { FencepostError, type StopReason } from "./errors.js";
import { checkRange } from "./ranges.js";
import type { FollowUp } from "./types.js";
import { type Wire, writeJob } from "./wire.js";

/** A year. A job whose end asks for more would run into the end of its lease: the end is refused. */
const LONGEST_DELAY_SECONDS = 31_536_000;

/** Success with follow-up jobs. A plain result needs no wrapping: just return it. */
export class Complete {
  readonly outcome = "complete";
  readonly result: unknown;
  readonly enqueue: readonly FollowUp[];

  constructor(result: unknown, enqueue: readonly FollowUp[]) {
    this.result = result;
    this.enqueue = enqueue;
  }
}

/** The job is given back, and its attempt too. Return it or throw it: both mean the same. */
export class Release {
  readonly outcome = "release";
  readonly delaySeconds: number | undefined;
  readonly reason: string | undefined;

  constructor(delaySeconds: number | undefined, reason: string | undefined) {
    checkRange("delaySeconds", delaySeconds, 0, LONGEST_DELAY_SECONDS);
    this.delaySeconds = delaySeconds;
    this.reason = reason;
  }
}

/** The handler has completed the job in a transaction of its own; nothing is sent. */
export class Settled {
  readonly outcome = "settled";
}

export interface FailOptions {
  /** False makes the job dead at once. True when left out. */
  readonly retryable?: boolean | undefined;
  /** Replaces the job's backoff. */
  readonly retryAfterSeconds?: number | undefined;
  /** For whoever reads the job: what kind of error this is. `Fail` when left out. */
  readonly type?: string | undefined;
  readonly details?: unknown;
}

/** A failure with a say in what happens next. Return it or throw it: both mean the same. */
export class Fail extends FencepostError {
  override readonly name: string = "Fail";
  readonly outcome = "fail";
  readonly options: FailOptions;

  constructor(message: string, options: FailOptions = {}) {
    super(message);
    checkRange("retryAfterSeconds", options.retryAfterSeconds, 0, LONGEST_DELAY_SECONDS);
    this.options = options;
  }
}

/** Succeed with a result, and create follow-up jobs in the same transaction. */
export function complete(
  result?: unknown,
  options: { readonly enqueue?: readonly FollowUp[] | undefined } = {},
): Complete {
  return new Complete(result, options.enqueue ?? []);
}

/** Fail. `fail("no such account", { retryable: false })` */
export function fail(message: string, options: FailOptions = {}): Fail {
  return new Fail(message, options);
}

/** Give the job back: it cannot be done now. The attempt does not count. */
export function release(
  options: { readonly delaySeconds?: number | undefined; readonly reason?: string | undefined } = {},
): Release {
  return new Release(options.delaySeconds, options.reason);
}

/** Return this after `LeasedJob.completeIn` and the commit. */
export const SETTLED = new Settled();

/** What is sent at the end of an attempt, beside the job's id and version. */
export interface End {
  readonly verb: "complete" | "fail" | "release";
  readonly members: Wire;
}

/** An end that was decided elsewhere, in a thread. */
export class Decided {
  readonly end: End | undefined;

  constructor(end: End | undefined) {
    this.end = end;
  }
}

/** How a handler's promise ended. */
export type Ending = { readonly returned: unknown } | { readonly thrown: unknown };

const STACK_CHARACTERS = 4_000;
const REDUCED_CHARACTERS = 1_000;

/**
 * Decide what to send. Undefined means nothing: the job has been settled elsewhere.
 *
 * Not for a lost lease, for which nothing is ever sent. A handler that was told to stop and fails, in whatever
 * way, has done as it was told: what it called was broken off. A result that it returns counts.
 */
export function endOf(ending: Ending, stopReason: StopReason | undefined): End | undefined {
  const outcome = "thrown" in ending ? ending.thrown : ending.returned;
  if (outcome instanceof Decided) return outcome.end;
  if (outcome instanceof Release) {
    return { verb: "release", members: { delay_seconds: outcome.delaySeconds, reason: outcome.reason } };
  }
  if ("thrown" in ending || outcome instanceof Fail) {
    if (stopReason === "shutdown") return { verb: "release", members: { reason: "the worker shut down" } };
    const type = stopReason === "cancelled" ? "cancelled" : undefined;
    return outcome instanceof Fail ? endOfFail(outcome, type) : endOfError(outcome, type);
  }
  if (outcome instanceof Complete) return endOfComplete(outcome);
  return outcome instanceof Settled ? undefined : { verb: "complete", members: { result: outcome } };
}

/** The end of a job whose result nobody takes: another try would give the same. */
export function resultRefused(detail: string): End {
  const error = { type: "result_refused", message: firstCharacters(detail) };
  return { verb: "fail", members: { error, retryable: false } };
}

/**
 * What to send instead of an end that was refused alone: for a result a failure that says why, for a report the
 * same one without what may be too much of it.
 */
export function reduced({ verb, members }: End, detail: string): End {
  if (verb === "complete") return resultRefused(detail);
  if (verb === "release") return { verb, members: { ...members, reason: undefined } };
  const { type, message } = members.error as { readonly type: unknown; readonly message: unknown };
  return { verb, members: { ...members, error: { type, message: firstCharacters(String(message)) } } };
}

/** Cut a message to what every service takes, never within a character. */
function firstCharacters(text: string): string {
  return [...text].slice(0, REDUCED_CHARACTERS).join("");
}

function endOfComplete({ result, enqueue }: Complete): End {
  const jobs = enqueue.length > 0 ? enqueue.map(writeJob) : undefined;
  return { verb: "complete", members: { result, enqueue: jobs } };
}

function endOfFail({ message, options }: Fail, type = String(options.type ?? "Fail")): End {
  return {
    verb: "fail",
    members: {
      error: { type, message, details: options.details },
      retryable: options.retryable,
      retry_after_seconds: options.retryAfterSeconds,
    },
  };
}

function endOfError(thrown: unknown, given: string | undefined): End {
  const { type, message, stack } = described(thrown);
  // Half a character at the end would have the service drop all of it.
  const details = stack
    ? { stack: stack.slice(0, STACK_CHARACTERS).replace(/\p{Surrogate}/gu, "\ufffd") }
    : undefined;
  const error = { type: given ?? type, message, details };
  return { verb: "fail", members: { error } };
}

/** Say what was thrown. Anything can be, also what throws when it is asked. */
function described(thrown: unknown): { type: string; message: string; stack?: string | undefined } {
  try {
    if (!(thrown instanceof Error)) return { type: typeof thrown, message: String(thrown) };
    return { type: typeName(thrown), message: String(thrown.message), stack: thrown.stack };
  } catch {
    return { type: typeof thrown, message: "what was thrown cannot be written down" };
  }
}

/** A subclass that did not name itself is better known by its class. */
function typeName(error: Error): string {
  const name = error.name === "Error" ? error.constructor.name : error.name;
  return name ? String(name) : "Error";
}
