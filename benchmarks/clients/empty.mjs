// An empty handler in TypeScript: node empty.mjs worker | loop URL QUEUE SLOTS JOBS
// `worker` runs the client's worker until SIGTERM; `loop` is the least that does the same with fetch.

import { Worker } from "../../clients/typescript/dist/src/index.js";

const [mode, url, queue, slots, jobs] = process.argv.slice(2);

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${path} was answered ${answer.status}`);
  return answer.json();
}

if (mode === "worker") {
  await new Worker(url, { queues: [queue], concurrency: Number(slots), catchAll: () => undefined }).run();
} else {
  const wish = { worker_id: "loop", queues: [queue], max_jobs: Number(slots), lease_seconds: 60 };
  for (let left = Number(jobs); left > 0; ) {
    const leased = (await post("/v1/leases", wish)).jobs;
    const items = leased.map(({ id, lease_version }) => ({ job_id: id, lease_version }));
    await post("/v1/leases/complete", { items });
    left -= leased.length;
  }
}
