/** The process that the test of a paused worker stops and wakes. It says on stdout what happens. */

import { Worker } from "fencepost";
import { quiet, untilStopped, url } from "./support.js";

const worker = new Worker(url, {
  queues: [process.argv[2] ?? ""],
  leaseSeconds: 1,
  log: quiet,
  handlers: {
    long: async (job) => {
      console.log("started");
      await untilStopped(job.signal).catch(() => undefined);
      console.log(job.stopReason);
      const refusal = await job.submit("child", "long").catch((failure: Error) => failure.name);
      console.log(refusal);
      return "from the paused worker";
    },
  },
});
await worker.run();
