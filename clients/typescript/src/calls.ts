/** HTTP: one call, and the same call again until it is answered. */

import { onAbort } from "./aborts.js";
import type { ClientOptions } from "./client.js";
import { type FencepostError, type Problem, problemOf, Unavailable } from "./errors.js";
import { now, pauseMs, sleep, timerMs } from "./pauses.js";
import type { Json } from "./wire.js";

const MIN_TIMEOUT_SECONDS = 0.05;

/** A request that can be sent again as it is. */
export interface Call {
  readonly method: "GET" | "POST";
  /** From `/v1` on. */
  readonly path: string;
  readonly body?: string;
  readonly idempotencyKey?: string;
  readonly timeoutSeconds: number;
}

export interface Answer {
  readonly status: number;
  readonly body: unknown;
  /** 0 when the answer has no Retry-After. */
  readonly retryAfterSeconds: number;
}

/** What is told when answers stop coming, and when they come again. */
export interface Weather {
  foul(failure: FencepostError): void;
  fair(): void;
}

export interface RepeatOptions {
  /** Ends it at once; the signal's reason is thrown. */
  readonly signal?: AbortSignal | undefined;
  /** The monotonic time at which to give up and throw the last failure. */
  readonly until?: number;
  readonly weather?: Weather | undefined;
  /** Whether this answers the call; anything but a 408, a 429 and a 5xx when left out. */
  readonly isAnswer?: (answer: Answer) => boolean;
}

/** The service at one address. */
export class Service {
  readonly json: Json;
  readonly #url: string;
  readonly #headers: Readonly<Record<string, string>>;

  constructor(url: string | URL, options: Pick<ClientOptions, "apiKey" | "json">) {
    const { protocol, href } = new URL(url);
    if (!/^https?:$/.test(protocol)) throw new TypeError(`the service has an http address, not ${href}`);
    this.#url = href.replace(/\/+$/, "");
    this.#headers = options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` };
    this.json = options.json ?? JSON;
    // Throws here what no request can be made of: later it would look like a service that is away.
    new Request(this.#url, { headers: this.#headers });
  }

  /** Send a call once. Throws Unavailable when no answer can be had, and the signal's reason when aborted. */
  async send(call: Call, signal?: AbortSignal): Promise<Answer> {
    const { method, body = null } = call;
    const headers = this.#headersOf(call);
    // AbortSignal.any would hold on to each call for as long as a signal of the whole worker lives.
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(), timerMs(call.timeoutSeconds * 1000));
    const forget = signal && onAbort(signal, () => limit.abort(signal.reason));
    try {
      const response = await fetch(this.#url + call.path, { method, headers, body, signal: limit.signal });
      return this.#read(response, await response.text());
    } catch (failure) {
      if (signal?.aborted) throw signal.reason;
      throw new Unavailable(`no answer to ${call.method} ${call.path}`, { cause: failure });
    } finally {
      clearTimeout(timer);
      forget?.();
    }
  }

  #headersOf(call: Call): Record<string, string> {
    const headers: Record<string, string> = { ...this.#headers };
    if (call.body !== undefined) headers["content-type"] = "application/json";
    if (call.idempotencyKey !== undefined) headers["idempotency-key"] = headerText(call.idempotencyKey);
    return headers;
  }

  /** Read an answer. A success that is no JSON throws: it comes from something else than the service. */
  #read(response: Response, text: string): Answer {
    let body: unknown = null;
    try {
      if (text !== "") body = this.json.parse(text);
    } catch (failure) {
      if (response.ok) throw failure;
    }
    return {
      status: response.status,
      body,
      retryAfterSeconds: secondsOf(response.headers.get("retry-after")),
    };
  }
}

/** Thrown by a function that is asked for the next try, when what it would say does not hold any more. */
export class Outdated extends Error {}

/**
 * Send a call again and again until it is answered. Throws the last failure at `until`.
 *
 * A function is asked for the call before each try, and ends the repeats with what it throws.
 */
export async function repeat(
  service: Service,
  call: Call | (() => Call),
  options: RepeatOptions = {},
): Promise<Answer> {
  const { signal, until = Number.POSITIVE_INFINITY, weather, isAnswer = isNoWeather } = options;
  for (let tries = 0; ; tries += 1) {
    const next = typeof call === "function" ? call() : call;
    // The first try has its time; the others share what is left.
    const left = tries === 0 ? Number.POSITIVE_INFINITY : (until - now()) / 1000;
    const timeoutSeconds = Math.min(next.timeoutSeconds, Math.max(MIN_TIMEOUT_SECONDS, left));
    const answer = await answerOrFailure(service, { ...next, timeoutSeconds }, signal);
    if (!(answer instanceof Unavailable) && isAnswer(answer)) {
      weather?.fair();
      return answer;
    }
    const failure = answer instanceof Unavailable ? answer : failureOf(answer);
    weather?.foul(failure);
    const least = answer instanceof Unavailable ? 0 : answer.retryAfterSeconds;
    const pause = pauseMs(tries, least, Math.random);
    if (now() + pause >= until) throw failure;
    await sleep(pause, signal);
  }
}

/** False for an answer that asks for a repeat, or that says nothing about whether the call was done. */
export function isNoWeather({ status }: Answer): boolean {
  return status !== 408 && status !== 429 && status < 500;
}

async function answerOrFailure(
  service: Service,
  call: Call,
  signal?: AbortSignal,
): Promise<Answer | Unavailable> {
  try {
    return await service.send(call, signal);
  } catch (failure) {
    if (failure instanceof Unavailable) return failure;
    throw failure;
  }
}

function failureOf({ status, body }: Answer): Problem | Unavailable {
  return status >= 300 ? problemOf(status, body) : new Unavailable("the answer is not one of this service");
}

/** Write a key as the service reads it back: quoted (RFC 8941) where the bare text would be read otherwise. */
function headerText(key: string): string {
  if (!/^[\x20-\x7e]+$/.test(key)) throw new RangeError("an idempotency key is printable ASCII text");
  return /^[" ]| $/.test(key) ? `"${key.replace(/["\\]/g, "\\$&")}"` : key;
}

/** Read Retry-After, which is a number of seconds or a date. */
function secondsOf(text: string | null): number {
  if (text === null) return 0;
  const seconds = /^\d+(\.\d+)?$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : 0;
}

/** Whether the request itself is what is wrong: one item of many may be to blame for it. */
export function isUnacceptable({ status }: Answer): boolean {
  return status === 400 || status === 413 || status === 422;
}

/** Return the answer's body as an object, or throw what the refusal says. */
export function accepted(answer: Answer): Readonly<Record<string, unknown>> {
  if (answer.status >= 300) throw problemOf(answer.status, answer.body);
  return (answer.body ?? {}) as Readonly<Record<string, unknown>>;
}
