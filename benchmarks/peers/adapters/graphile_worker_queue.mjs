// Graphile Worker; CONF.worker is merged into its preset.
import { CONF, URL_, main, require } from './shell.mjs'
const { Logger, makeWorkerUtils, runMigrations, runTaskList } = require('graphile-worker')
const pg = require('pg')

const logger = new Logger(() => () => {})
const preset = { worker: { connectionString: URL_, concurrentJobs: 24, maxPoolSize: 25, logger, ...CONF.worker } }
let handler, pool, utils, running

await main({
  setup: () => runMigrations({ preset }),
  async openProducer (clients) {
    pool = new pg.Pool({ connectionString: URL_, max: clients, min: clients })
    utils = await makeWorkerUtils({ pgPool: pool, logger })
  },
  enqueueOne: payload => utils.addJob('bench', payload),
  enqueueMany (payloads, delaySeconds) {
    const when = delaySeconds ? { runAt: new Date(Date.now() + delaySeconds * 1000) } : {}
    return utils.addJobs(payloads.map(payload => ({ identifier: 'bench', payload, ...when })))
  },
  async prepareWorker (handle) {
    handler = handle
    pool = new pg.Pool({ connectionString: URL_, max: 25 })
    pool.on('error', () => {})
    pool.on('connect', client => client.on('error', () => {}))
  },
  async work () { running = runTaskList({ preset }, { bench: payload => handler(payload) }, pool) },
  stop: () => running.gracefulShutdown()
})
