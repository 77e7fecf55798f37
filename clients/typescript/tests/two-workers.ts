/** The process of the test of two workers: the handler of one never ends, that of the other takes its time. */

import { Worker } from "fencepost";
import { quiet, url } from "./support.js";

const [stuckQueue = "", slowQueue = ""] = process.argv.slice(2);
const stuck = new Worker(url, {
  queues: [stuckQueue],
  drainSeconds: 0,
  graceSeconds: 0,
  log: quiet,
  catchAll: () => {
    console.log("started");
    return new Promise(() => undefined);
  },
});
const slow = new Worker(url, {
  queues: [slowQueue],
  log: quiet,
  catchAll: async () => {
    console.log("started");
    await stuckIsOver;
    await new Promise((resolve) => setTimeout(resolve, 200));
    return "in peace";
  },
});
const stuckIsOver = stuck.run();
await slow.run();
