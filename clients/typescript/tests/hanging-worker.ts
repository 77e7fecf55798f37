/** The process of the test of a worker whose only slot hangs, with nothing else that goes on. */

import { Worker } from "fencepost";
import { client, quiet, url } from "./support.js";

const worker = new Worker(url, {
  queues: [process.argv[2] ?? ""],
  concurrency: 1,
  leaseSeconds: 1,
  drainSeconds: 0,
  graceSeconds: 0,
  log: quiet,
  catchAll: async (job) => {
    await client.cancel(job.id, { force: true });
    await job.verify().catch(() => console.log(job.stopReason));
    return new Promise(() => undefined);
  },
});
await worker.run();
