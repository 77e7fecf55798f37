// pg-boss; CONF.work is merged into the options of its worker, CONF.notify turns its LISTEN/NOTIFY on.
import { CONF, URL_, main, require } from './shell.mjs'
const { PgBoss } = require('pg-boss')

let boss, handler

async function open (max, options = {}) {
  boss = new PgBoss({ connectionString: URL_, max, schedule: false, ...options })
  boss.on('error', error => console.error(error))
  await boss.start()
}

await main({
  async setup () {
    await open(2, { supervise: false })
    await boss.createQueue('bench', { notify: false })
    await boss.stop({ graceful: false })
  },
  openProducer: clients => open(clients, { supervise: false, migrate: false }),
  enqueueOne: payload => boss.send('bench', payload),
  enqueueMany (payloads, delaySeconds) {
    const when = delaySeconds ? { startAfter: new Date(Date.now() + delaySeconds * 1000) } : {}
    return boss.insert('bench', payloads.map(data => ({ data, ...when })))
  },
  async prepareWorker (handle) {
    handler = handle
    await open(10, { useListenNotify: !!CONF.notify })
    if (CONF.notify) await boss.updateQueue('bench', { notify: true })
  },
  async work () {
    const options = { pollingIntervalSeconds: 0.5, burstWhenBatchFull: true, ...CONF.work }
    await boss.work('bench', options, async jobs => { for (const job of jobs) handler(job.data) })
  },
  stop: () => boss.stop({ graceful: true, timeout: 3000 })
})
