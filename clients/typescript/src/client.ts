/** The producer: creates jobs and looks after them. Runs in Node and in browsers. */

import { type Answer, accepted, type Call, isNoWeather, repeat, Service, type Weather } from "./calls.js";
import { NotFinished, Problem } from "./errors.js";
import { now } from "./pauses.js";
import { randomKey } from "./random.js";
import { checkRange } from "./ranges.js";
import type { Job, Submission, SubmitOptions, Submitted } from "./types.js";
import { isObject, type Json, readJob, type Wire, writeJob } from "./wire.js";

const POLL_SECONDS = 20;
const FINISHED: readonly string[] = ["succeeded", "dead", "cancelled"];
const UNFINISHED: readonly string[] = ["scheduled", "ready", "running"];

export interface ClientOptions {
  readonly apiKey?: string | undefined;
  /** How long one try may take. 10 when left out. */
  readonly timeoutSeconds?: number | undefined;
  /** How long a call is repeated while there is no answer, a 5xx or a 429. 30 when left out, 0 for one try. */
  readonly retrySeconds?: number | undefined;
  /** Another reader and writer of JSON, for numbers that JavaScript cannot hold. `JSON` when left out. */
  readonly json?: Json | undefined;
}

/** What every call of the client can be given. */
export interface CallOptions {
  /** Ends the call; what it asked for may have been done all the same. */
  readonly signal?: AbortSignal | undefined;
}

/** A producer's view of the service. */
export class Client {
  readonly #service: Service;
  readonly #timeoutSeconds: number;
  readonly #retrySeconds: number;

  constructor(url: string | URL, options: ClientOptions = {}) {
    checkRange("timeoutSeconds", options.timeoutSeconds, 0, Number.POSITIVE_INFINITY);
    checkRange("retrySeconds", options.retrySeconds, 0, Number.POSITIVE_INFINITY);
    this.#service = new Service(url, options);
    this.#timeoutSeconds = options.timeoutSeconds ?? 10;
    this.#retrySeconds = options.retrySeconds ?? 30;
  }

  /**
   * Create a job.
   *
   * Safe to lose the answer of: without an `idempotencyKey` a random one is made before the first try. Throws
   * IdempotencyKeyReused, LeaseLost (with a `parent`), another Problem, or Unavailable.
   */
  async submit(
    kind: string,
    payload?: unknown,
    options: SubmitOptions & CallOptions = {},
  ): Promise<Submitted> {
    const idempotencyKey = options.idempotencyKey ?? randomKey();
    const body = writeJob({ ...options, kind, payload });
    const answer = await this.#post("/v1/jobs", body, { ...options, idempotencyKey });
    return { job: readJob(accepted(answer)), created: answer.status === 201 };
  }

  /** Create many jobs in one transaction: all of them or none. The answer is in the order of the items. */
  async submitMany(submissions: readonly Submission[], options: CallOptions = {}): Promise<Submitted[]> {
    const jobs = submissions.map((each) => ({
      ...writeJob(each),
      idempotency_key: each.idempotencyKey ?? randomKey(),
    }));
    const isAnswer = (answer: Answer) => areJobs(answer, jobs.length);
    const answer = accepted(await this.#post("/v1/jobs/batch", { jobs }, { ...options, isAnswer }));
    return (answer.jobs as { job: Wire; created: boolean }[]).map(({ job, created }) => ({
      job: readJob(job),
      created,
    }));
  }

  /** Read a job; with `waitSeconds` (up to 30) the answer is held until it is finished or the time is over. */
  get(
    jobId: string,
    options: CallOptions & { readonly waitSeconds?: number | undefined } = {},
  ): Promise<Job> {
    return this.#read(jobId, options.waitSeconds ?? 0, options);
  }

  /** Wait until a job is finished. Throws NotFinished after `timeoutSeconds`; without it there is no limit. */
  async wait(
    jobId: string,
    options: CallOptions & { readonly timeoutSeconds?: number | undefined } = {},
  ): Promise<Job> {
    const { timeoutSeconds = Number.POSITIVE_INFINITY } = options;
    checkRange("timeoutSeconds", timeoutSeconds, Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY);
    const end = now() + timeoutSeconds * 1000;
    for (;;) {
      const waitSeconds = Math.min(POLL_SECONDS, Math.max(0, (end - now()) / 1000));
      const job = await this.#read(jobId, waitSeconds, options);
      if (FINISHED.includes(job.state)) return job;
      if (now() >= end) throw new NotFinished(job);
    }
  }

  /**
   * Cancel a job. One that runs stays `running` until its holder has heard of it and ended; with `force` it is
   * cancelled at once and the lease is void. Throws a Problem `already_finished`.
   */
  async cancel(
    jobId: string,
    options: CallOptions & {
      readonly reason?: string | undefined;
      readonly force?: boolean | undefined;
    } = {},
  ): Promise<Job> {
    const body = { reason: options.reason, force: options.force };
    return readJob(accepted(await this.#post(`${jobPath(jobId)}/cancel`, body, options)));
  }

  /** Bring a dead or cancelled job back. Throws a Problem `not_redrivable` in any other state. */
  async redrive(
    jobId: string,
    options: CallOptions & { readonly runAt?: Date | string | undefined } = {},
  ): Promise<Job> {
    const { runAt } = options;
    const body = { run_at: runAt instanceof Date ? runAt.toISOString() : runAt };
    let unanswered = 0;
    const weather: Weather = {
      foul: () => {
        unanswered += 1;
      },
      fair: () => undefined,
    };
    const answer = await this.#post(`${jobPath(jobId)}/redrive`, body, { ...options, weather });
    try {
      return readJob(accepted(answer));
    } catch (refusal) {
      // The answer to an earlier try was lost, and that try may have been the redrive.
      const mayBeDone = unanswered > 0 && refusal instanceof Problem && refusal.code === "not_redrivable";
      if (mayBeDone && UNFINISHED.includes(String(refusal.body.job_state))) return this.get(jobId, options);
      throw refusal;
    }
  }

  async #read(jobId: string, waitSeconds: number, options: CallOptions): Promise<Job> {
    // Without an exponent: the query takes numbers as JSON writes them, but a wait of 1e-7 seconds is none.
    const query = waitSeconds > 0 ? `?wait_seconds=${waitSeconds.toFixed(3)}` : "";
    const call: Call = {
      method: "GET",
      path: jobPath(jobId) + query,
      timeoutSeconds: this.#timeoutSeconds + waitSeconds,
    };
    return readJob(accepted(await this.#send(call, { ...options, heldSeconds: waitSeconds })));
  }

  #post(path: string, body: Wire, options: SendOptions): Promise<Answer> {
    const { idempotencyKey } = options;
    const call: Call = {
      method: "POST",
      path,
      body: this.#service.json.stringify(body),
      timeoutSeconds: this.#timeoutSeconds,
      ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
    };
    return this.#send(call, options);
  }

  #send(call: Call, { heldSeconds = 0, isAnswer = isJob, signal, weather }: SendOptions): Promise<Answer> {
    return repeat(this.#service, call, {
      until: now() + (heldSeconds + this.#retrySeconds) * 1000,
      isAnswer,
      signal,
      weather,
    });
  }
}

interface SendOptions extends CallOptions {
  readonly idempotencyKey?: string;
  /** How long the service may hold the answer. */
  readonly heldSeconds?: number;
  readonly weather?: Weather;
  /** Whether this answers the call; a refusal or a job when left out. */
  readonly isAnswer?: (answer: Answer) => boolean;
}

/** Whether this is a refusal or a job. A success that is none comes from something else than the service. */
function isJob(answer: Answer): boolean {
  if (answer.status >= 300) return isNoWeather(answer);
  return isObject(answer.body) && typeof answer.body.id === "string";
}

function areJobs(answer: Answer, count: number): boolean {
  if (answer.status >= 300) return isNoWeather(answer);
  return isObject(answer.body) && Array.isArray(answer.body.jobs) && answer.body.jobs.length === count;
}

function jobPath(jobId: string): string {
  return `/v1/jobs/${encodeURIComponent(jobId)}`;
}
