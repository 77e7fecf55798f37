/** The lease call: asks for as many jobs as there are free slots, and waits for them. */

import { type Answer, type Call, isNoWeather, repeat, type Service, type Weather } from "./calls.js";
import { problemOf } from "./errors.js";
import { Lease } from "./leases.js";
import { now, sleep } from "./pauses.js";
import { randomKey } from "./random.js";
import { isObject, type Wire } from "./wire.js";

/** The answer to a call that waits comes later than this; a server that does not hold calls is not flooded. */
const EMPTY_PAUSE_MS = 100;
const TIMEOUT_SECONDS = 10;

/** A job as it was leased, and the lease on it. */
export interface Grant {
  readonly job: Wire;
  readonly lease: Lease;
}

export interface LeasingSettings {
  readonly workerId: string;
  readonly queues: readonly string[];
  readonly leaseSeconds: number;
  readonly waitSeconds: number;
  readonly weather: Weather;
}

/** Makes the calls that a worker leases with, one at a time. */
export class Leasing {
  readonly #service: Service;
  readonly #settings: LeasingSettings;

  constructor(service: Service, settings: LeasingSettings) {
    this.#service = service;
    this.#settings = settings;
  }

  /**
   * Lease up to this many jobs. None is no error: ask again.
   *
   * Throws the Problem of a refusal, which is a mistake in the set-up, and the signal's reason.
   */
  async lease(maxJobs: number, signal: AbortSignal): Promise<Grant[]> {
    const { leaseSeconds, weather } = this.#settings;
    let call = this.#call(maxJobs);
    let sentAt = now();
    const answer = await repeat(
      this.#service,
      () => {
        if (now() - sentAt > leaseSeconds * 1000) {
          // What the first try was granted has run out by now.
          call = this.#call(maxJobs);
          sentAt = now();
        }
        return call;
      },
      { signal, weather, isAnswer },
    );
    if (answer.status >= 300) throw problemOf(answer.status, answer.body);
    const { jobs, server_time: serverTime } = answer.body as { jobs: Wire[]; server_time: string };
    if (jobs.length === 0) {
      const pause = sentAt + EMPTY_PAUSE_MS - now();
      await sleep(Math.max(answer.retryAfterSeconds * 1000, pause, 0), signal);
    }
    return jobs.map((job) => ({ job, lease: leaseOf(job, sentAt, serverTime) }));
  }

  #call(maxJobs: number): Call {
    const { workerId, queues, leaseSeconds, waitSeconds } = this.#settings;
    return {
      method: "POST",
      path: "/v1/leases",
      body: this.#service.json.stringify({
        worker_id: workerId,
        queues,
        max_jobs: maxJobs,
        wait_seconds: waitSeconds,
        lease_seconds: leaseSeconds,
        request_id: randomKey(),
      }),
      timeoutSeconds: waitSeconds + TIMEOUT_SECONDS,
    };
  }
}

function isAnswer(answer: Answer): boolean {
  if (answer.status >= 300) return isNoWeather(answer);
  return isObject(answer.body) && Array.isArray(answer.body.jobs);
}

/** The lease counts from when the call was sent, the deadline from the server's clock in the answer. */
function leaseOf(job: Wire, sentAt: number, serverTime: string): Lease {
  const deadlineAt = job.deadline_at;
  const left = typeof deadlineAt === "string" ? Date.parse(deadlineAt) - Date.parse(serverTime) : Infinity;
  return new Lease({
    jobId: job.id as string,
    version: job.lease_version as number,
    lengthMs: (job.lease_seconds as number) * 1000,
    sentAt,
    deadlineAt: now() + left,
  });
}
