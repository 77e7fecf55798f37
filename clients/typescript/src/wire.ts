/** Between the protocol's JSON and the types of this package. Opaque values pass through untouched. */

import { finite } from "./ranges.js";
import type { FollowUp, Job, JobError, Parent, PartialBackoff, Submission } from "./types.js";

/** A JSON object as it came. */
export type Wire = Readonly<Record<string, unknown>>;

/** How JSON is read and written; replace both to keep numbers that JavaScript cannot hold. */
export interface Json {
  readonly parse: (text: string) => unknown;
  readonly stringify: (value: unknown) => string;
}

export function isObject(value: unknown): value is Wire {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Read the answer that shows one job. */
export function readJob(wire: Wire): Job {
  const lease = wire.lease;
  return {
    ...camel(wire),
    backoff: camel(wire.backoff),
    lease: isObject(lease) ? { ...camel(lease), progress: orNull(lease.progress) } : null,
    error: readError(wire.error),
    parent: readParent(wire.parent),
  } as unknown as Job;
}

export function readParent(wire: unknown): Parent | null {
  return orNull(wire) as Parent | null;
}

export function readError(wire: unknown): JobError | null {
  return orNull(wire) as JobError | null;
}

/** Write a job to create; members that were left out stay undefined, and JSON leaves them out. */
export function writeJob(job: Submission | FollowUp): Wire {
  const parent = "parent" in job ? job.parent : undefined;
  return {
    kind: job.kind,
    queue: job.queue,
    payload: job.payload,
    priority: finite("priority", job.priority),
    run_at: job.runAt instanceof Date ? job.runAt.toISOString() : job.runAt,
    delay_seconds: finite("delaySeconds", job.delaySeconds),
    max_attempts: finite("maxAttempts", job.maxAttempts),
    backoff: job.backoff && writeBackoff(job.backoff),
    max_runtime_seconds: finite("maxRuntimeSeconds", job.maxRuntimeSeconds),
    progress_timeout_seconds: finite("progressTimeoutSeconds", job.progressTimeoutSeconds),
    metadata: job.metadata,
    parent: parent && { job_id: parent.jobId, lease_version: parent.leaseVersion },
  };
}

function writeBackoff(backoff: PartialBackoff): Wire {
  return {
    type: backoff.type,
    base_seconds: finite("baseSeconds", backoff.baseSeconds),
    factor: finite("factor", backoff.factor),
    max_seconds: finite("maxSeconds", backoff.maxSeconds),
    jitter: finite("jitter", backoff.jitter),
  };
}

function orNull(wire: unknown): Wire | null {
  return isObject(wire) ? camel(wire) : null;
}

/** Rename the members of one object, and of none inside it. */
function camel(wire: unknown): Wire {
  if (!isObject(wire)) return {};
  return Object.fromEntries(Object.entries(wire).map(([name, value]) => [camelName(name), value]));
}

const camelNames = new Map<string, string>();

/** The names are few, so each is worked out once. Opaque values never come here. */
function camelName(name: string): string {
  const known = camelNames.get(name);
  if (known !== undefined) return known;
  const made = name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  camelNames.set(name, made);
  return made;
}
