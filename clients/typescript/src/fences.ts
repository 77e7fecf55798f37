/** The fence inside the caller's own transaction, on the PostgreSQL that Fencepost keeps its jobs in. */

import { LeaseLost, leaseLost } from "./errors.js";
import { isObject } from "./wire.js";

/** A connection with a transaction open: what `pg`'s Client and PoolClient have. Never a pool. */
export interface Connection {
  query(text: string, values: unknown[]): Promise<unknown>;
}

const HOLD_LEASE = "SELECT fencepost.hold_lease($1, $2)";
const COMPLETE = "SELECT fencepost.complete($1, $2, $3)";
const LEASE_LOST = "FP001";

/** Keep the lease from being passed on until the transaction ends. Throws LeaseLost: roll back and stop. */
export async function holdLease(connection: Connection, jobId: string, version: number): Promise<void> {
  await fenced(connection, HOLD_LEASE, jobId, version);
}

/** Complete the job as part of the transaction; `result` is JSON text. Throws LeaseLost: roll back and stop. */
export async function completeJob(
  connection: Connection,
  jobId: string,
  version: number,
  result: string,
): Promise<void> {
  await fenced(connection, COMPLETE, jobId, version, result);
}

async function fenced(
  connection: Connection,
  statement: string,
  jobId: string,
  version: number,
  ...more: string[]
): Promise<void> {
  try {
    await connection.query(statement, [jobId, version, ...more]);
  } catch (failure) {
    throw isObject(failure) && failure.code === LEASE_LOST ? lossOf(failure.detail, jobId, version) : failure;
  }
}

/** Read the DETAIL of the refusal, which has the members of the same refusal over HTTP. */
function lossOf(detail: unknown, jobId: string, version: number): LeaseLost {
  try {
    const members: unknown = JSON.parse(String(detail));
    if (isObject(members)) {
      return new LeaseLost(409, { detail: "the lease is not held", ...members, code: "lease_lost" });
    }
  } catch {
    // A proxy, or a setting of the server, has kept the detail back.
  }
  return leaseLost(jobId, version, "unknown", "the lease is not held");
}
