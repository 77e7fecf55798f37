/** The process of the test of a handler that never ends. */

import { Worker } from "fencepost";
import { quiet, url } from "./support.js";

const worker = new Worker(url, {
  queues: [process.argv[2] ?? ""],
  leaseSeconds: 600,
  drainSeconds: 0,
  graceSeconds: 0,
  signals: false,
  log: quiet,
  handlers: {
    stuck: () => {
      worker.stop();
      return new Promise(() => undefined);
    },
  },
});
await worker.run();
