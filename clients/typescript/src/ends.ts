/** The ends of attempts: gathered while a call is under way, sent together, repeated until answered. */

import { type Answer, type Call, repeat, type Service, type Weather } from "./calls.js";
import { type Problem, problemOf } from "./errors.js";
import { isResult, lossOf, resultsOf } from "./heartbeats.js";
import type { Lease, Leases } from "./leases.js";
import type { Log } from "./log.js";
import { type End, reduced, resultRefused } from "./outcomes.js";
import type { Wire } from "./wire.js";

const ITEMS_A_CALL = 250;
/** Below the service's limit for a body of many, however many bytes a character takes. */
const CHARACTERS_A_CALL = 4_000_000;

interface Item {
  readonly lease: Lease;
  readonly end: End;
  /** Written once, so that a repeat is the same byte for byte. */
  readonly text: string;
  /** It may have reached the service, and may be what ended the lease: only its own answer tells. */
  isSent: boolean;
  readonly answered: () => void;
}

/** Sends the ends of all attempts, each verb in calls of its own, one of each at a time. */
export class Ends {
  readonly #service: Service;
  readonly #leases: Leases;
  readonly #log: Log;
  readonly #lines: Readonly<Record<End["verb"], Line>>;
  readonly #timeoutSeconds: number;
  readonly #weather: Weather;
  readonly #closing = new AbortController();

  constructor(
    service: Service,
    leases: Leases,
    settings: { readonly timeoutSeconds: number; readonly weather: Weather; readonly log: Log },
  ) {
    this.#service = service;
    this.#leases = leases;
    this.#timeoutSeconds = settings.timeoutSeconds;
    this.#weather = settings.weather;
    this.#log = settings.log;
    const line = (verb: End["verb"]) => new Line((items) => this.#send(verb, items));
    this.#lines = { complete: line("complete"), fail: line("fail"), release: line("release") };
  }

  /** Send an end. Returns when it was answered, whatever the answer, or when the worker gives up on it. */
  send(lease: Lease, end: End): Promise<void> {
    lease.isEnding = true;
    return new Promise((answered) => {
      try {
        this.#add(lease, end, answered);
      } catch (failure) {
        // It has no JSON: a bigint, or a circle.
        const detail = failure instanceof Error ? failure.message : String(failure);
        try {
          // A failure keeps its own words, without its details.
          this.#add(lease, reduced(end, detail), answered);
        } catch {
          this.#add(lease, resultRefused(detail), answered);
        }
      }
    });
  }

  /** Give up on what is not answered yet. */
  stop(): void {
    this.#closing.abort();
  }

  #add(lease: Lease, end: End, answered: () => void): void {
    this.#lines[end.verb].add({ lease, end, text: this.#write(lease, end), isSent: false, answered });
  }

  #write(lease: Lease, { members }: End): string {
    return this.#service.json.stringify({ job_id: lease.jobId, lease_version: lease.version, ...members });
  }

  async #send(verb: End["verb"], gathered: readonly Item[]): Promise<void> {
    const isOver = ({ lease, isSent }: Item) => lease.loss !== undefined && !isSent;
    for (const item of gathered) if (isOver(item)) item.answered();
    const items = gathered.filter((item) => !isOver(item));
    if (items.length === 0) return;
    for (const item of items) item.isSent = true;
    try {
      const answer = await this.#answerTo(verb, items);
      if (answer.status === 200) this.#take(items, answer);
      else if (items.length > 1) for (const item of items) await this.#send(verb, [item]);
      else for (const item of items) this.#refused(item, problemOf(answer.status, answer.body));
    } catch (failure) {
      if (!this.#closing.signal.aborted) throw failure;
      for (const item of items) item.answered();
    }
  }

  /** Repeat until there are results or a refusal of what was sent: nothing else is an answer to an end. */
  #answerTo(verb: End["verb"], items: readonly Item[]): Promise<Answer> {
    const call: Call = {
      method: "POST",
      path: `/v1/leases/${verb}`,
      body: `{"items":[${items.map(({ text }) => text).join(",")}]}`,
      timeoutSeconds: this.#timeoutSeconds,
    };
    return repeat(this.#service, call, {
      signal: this.#closing.signal,
      weather: this.#weather,
      isAnswer: (answer) => isResult(answer, items.length),
    });
  }

  #take(items: readonly Item[], answer: Answer): void {
    const results = resultsOf(answer.body);
    items.forEach(({ lease, answered }, place) => {
      const result = results[place] as Wire;
      const isHeld = result.status === "ok" || result.status === "replayed";
      if (!isHeld) this.#leases.lose(lease, lossOf(lease, result));
      answered();
    });
  }

  /** Send what is left to say. With nothing left the lease runs out. */
  #refused({ lease, end, text, answered }: Item, { detail }: Problem): void {
    const facts = { jobId: lease.jobId, leaseVersion: lease.version, detail };
    this.#log.error("fencepost: the end of a job was refused", facts);
    const lesser = reduced(end, detail);
    if (this.#write(lease, lesser) !== text) {
      this.#add(lease, lesser, answered);
      return;
    }
    this.#log.error("fencepost: nothing is left to send for a job, its lease runs out", facts);
    answered();
  }
}

/** What waits for the call that is under way. */
class Line {
  readonly #send: (items: readonly Item[]) => Promise<void>;
  #waiting: Item[] = [];
  #isSending = false;

  constructor(send: (items: readonly Item[]) => Promise<void>) {
    this.#send = send;
  }

  add(item: Item): void {
    this.#waiting.push(item);
    if (this.#isSending) return;
    this.#isSending = true;
    // Handlers that end in the same turn of the event loop go together; nobody waits for a timer.
    setImmediate(() => void this.#sendAll());
  }

  async #sendAll(): Promise<void> {
    while (this.#waiting.length > 0) await this.#send(this.#take());
    this.#isSending = false;
  }

  #take(): Item[] {
    let characters = 0;
    const tooMany = this.#waiting.findIndex(({ text }, place) => {
      characters += text.length;
      return place > 0 && (place >= ITEMS_A_CALL || characters > CHARACTERS_A_CALL);
    });
    return this.#waiting.splice(0, tooMany === -1 ? this.#waiting.length : tooMany);
  }
}
