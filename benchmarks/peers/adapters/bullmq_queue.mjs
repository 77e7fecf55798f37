// BullMQ on Redis.
import { CONF, URL_, main, require } from './shell.mjs'
const { Queue, Worker } = require('bullmq')
const Redis = require('ioredis')

const address = new URL(URL_)
const connection = { host: address.hostname, port: Number(address.port) }
let queues = []
let next = 0
let handler, worker

await main({
  async setup () {
    const client = new Redis({ ...connection })
    await client.flushall()
    client.disconnect()
  },
  async openProducer (clients) {
    queues = Array.from({ length: clients }, () => new Queue('bench', { connection }))
    await Promise.all(queues.map(queue => queue.waitUntilReady()))
  },
  enqueueOne: payload => queues[next++ % queues.length].add('bench', payload),
  enqueueMany: payloads => queues[0].addBulk(payloads.map(data => ({ name: 'bench', data }))),
  async prepareWorker (handle) { handler = handle },
  async work () {
    worker = new Worker('bench', async job => { handler(job.data) }, { connection, concurrency: CONF.concurrency })
    await worker.waitUntilReady()
  },
  stop: () => worker.close()
})
