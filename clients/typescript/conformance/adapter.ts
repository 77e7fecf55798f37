/** The program that the conformance suite runs: this client, doing what a scripted job says. */

import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  complete,
  type FollowUp,
  fail,
  type LeasedJob,
  Problem,
  release,
  SETTLED,
  Stopped,
  type Submission,
  Worker,
} from "fencepost";

/** A job body as the protocol has it. */
type Body = Readonly<Record<string, unknown>>;

interface Settings {
  readonly url: string;
  readonly events: string;
  readonly role: "worker" | "producer";
  readonly api_key?: string;
  readonly worker?: Readonly<Record<string, unknown>> & { readonly queues: string[] };
  readonly produce?: readonly ({ submit: Body } | { submit_many: Body[] })[];
}

/** One step of a scripted job: an object with one of these members, and what belongs to it. */
interface Step {
  readonly sleep?: number;
  readonly hold?: true;
  readonly stubborn?: number;
  readonly progress?: { readonly percent?: number; readonly message?: string };
  readonly checkpoint?: unknown;
  readonly submit?: Body;
  readonly name?: string;
  readonly verify?: true;
  readonly return?: unknown;
  readonly complete?: { readonly result?: unknown; readonly enqueue?: Body[] };
  readonly fail?: Body & { readonly message: string };
  readonly raise?: string;
  readonly release?: Body;
  readonly settled?: true;
}

const settings = JSON.parse(process.env.CONFORMANCE ?? "{}") as Settings;
const key = settings.api_key === undefined ? {} : { apiKey: settings.api_key };

function tell(event: string, members: Body = {}): void {
  appendFileSync(settings.events, `${JSON.stringify({ event, ...members })}\n`);
}

/** Rename the protocol's members to this client's. */
function camel(members: Body): Record<string, unknown> {
  const rename = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(members).map(([name, value]) => [rename(name), value]));
}

function submission(body: Body): Submission {
  const { backoff, parent } = body;
  const nested = {
    ...(backoff ? { backoff: camel(backoff as Body) } : {}),
    ...(parent ? { parent: camel(parent as Body) } : {}),
  };
  return { ...camel(body), ...nested } as unknown as Submission;
}

async function scripted(job: LeasedJob<{ readonly steps: readonly Step[] }>): Promise<unknown> {
  const id = { job_id: job.id, lease_version: job.leaseVersion };
  tell("started", id);
  const noticed = () => tell("stopped", { ...id, reason: job.stopReason });
  job.signal.addEventListener("abort", noticed, { once: true });
  try {
    for (const step of job.payload.steps) {
      if (isFinal(step)) {
        const value = finish(step);
        tell("ended", { ...id, how: "returned" });
        return value;
      }
      await perform(step, job, id);
    }
    tell("ended", { ...id, how: "returned" });
    return null;
  } catch (thrown) {
    tell("ended", { ...id, how: "raised" });
    throw thrown;
  } finally {
    job.signal.removeEventListener("abort", noticed);
  }
}

function isFinal(step: Step): boolean {
  return ["return", "complete", "fail", "raise", "release", "settled"].some((name) =>
    Object.hasOwn(step, name),
  );
}

function finish(step: Step): unknown {
  if (step.raise !== undefined) throw new Error(step.raise);
  if (step.settled) return SETTLED;
  if (step.release) return release(camel(step.release));
  if (step.fail) return fail(step.fail.message, camel(step.fail));
  if (step.complete) {
    const enqueue = (step.complete.enqueue ?? []).map(submission) as FollowUp[];
    return complete(step.complete.result, { enqueue });
  }
  return step.return;
}

async function perform(step: Step, job: LeasedJob, id: Body): Promise<void> {
  if (step.sleep !== undefined) await untilStopped(job, sleep(step.sleep * 1000, undefined, { ref: false }));
  if (step.hold) await untilStopped(job, new Promise(() => undefined));
  if (step.stubborn !== undefined) await sleep(step.stubborn * 1000);
  if (step.progress) job.progress(step.progress.percent, step.progress.message);
  try {
    if (Object.hasOwn(step, "checkpoint")) await job.saveCheckpoint(step.checkpoint);
    if (step.verify) await job.verify();
    if (step.submit) {
      const { kind, payload, ...options } = submission(step.submit);
      await job.submit(step.name ?? "child", kind, payload, options);
    }
  } catch (refusal) {
    if (!(refusal instanceof Problem)) throw refusal;
    tell("error", { ...id, code: refusal.code });
    throw refusal;
  }
}

/** Wait, and throw Stopped as soon as the handler has to stop. */
function untilStopped(job: LeasedJob, wait: Promise<unknown>): Promise<unknown> {
  const { signal } = job;
  const stopped = new Promise<never>((_, reject) => {
    const stop = () => reject(signal.reason instanceof Stopped ? signal.reason : new Error("no reason"));
    signal.addEventListener("abort", stop, { once: true });
    if (signal.aborted) stop();
  });
  return Promise.race([wait, stopped]);
}

async function work(): Promise<void> {
  const worker = new Worker(settings.url, {
    ...(camel(settings.worker ?? {}) as { queues: string[] }),
    ...key,
    queues: settings.worker?.queues ?? [],
    handlers: { scripted },
  });
  const end = worker.run();
  tell("ready");
  await end;
}

async function produce(): Promise<void> {
  const client = new Client(settings.url, key);
  for (const step of settings.produce ?? []) {
    try {
      if ("submit" in step) {
        const { kind, payload, ...options } = submission(step.submit);
        const { job, created } = await client.submit(kind, payload, options);
        tell("submitted", { id: job.id, created });
      } else {
        const submitted = await client.submitMany(step.submit_many.map(submission));
        for (const { job, created } of submitted) tell("submitted", { id: job.id, created });
      }
    } catch (refusal) {
      if (!(refusal instanceof Problem)) throw refusal;
      tell("refused", { code: refusal.code, status: refusal.status });
    }
  }
  tell("done");
}

await (settings.role === "worker" ? work() : produce());
