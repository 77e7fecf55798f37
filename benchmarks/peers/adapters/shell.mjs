// The command line of every Node adapter: the same operations and events as shell.py.
import { createRequire } from 'node:module'
import readline from 'node:readline'

// The packages live in the work folder, not in this repository.
export const require = createRequire(process.env.PEER_NODE_MODULES + '/')
export const URL_ = process.env.PEER_URL
export const CONF = JSON.parse(process.env.PEER_CONF || '{}')

const STOP_MS = 5000
const now = () => Number(process.hrtime.bigint())
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const times = (n, make) => Array.from({ length: n }, (_, i) => make(i))
const emit = (event, members = {}) => process.stdout.write(JSON.stringify({ event, at: now(), ...members }) + '\n')

async function open (queue, clients) {
  await queue.openProducer(clients)
  await Promise.all(times(clients, () => queue.enqueueOne({ i: -1 })))
}

async function enqueue (queue, { n, clients }) {
  await open(queue, clients)
  let next = 0
  const startedAt = now()
  await Promise.all(times(clients, async () => { while (next < n) await queue.enqueueOne({ i: next++ }) }))
  emit('RESULT', { seconds: (now() - startedAt) / 1e9, n })
}

async function bulk (queue, { n, batch, delay_seconds: delaySeconds }) {
  await queue.openProducer(1)
  const startedAt = now()
  for (let start = 0; start < n; start += batch) {
    const payloads = times(Math.min(batch, n - start), i => ({ i: start + i }))
    await queue.enqueueMany(payloads, delaySeconds)
  }
  emit('RESULT', { seconds: (now() - startedAt) / 1e9, n })
}

async function pace (queue, { n, per_second: perSecond, clients }) {
  await open(queue, clients)
  await sleep(500)
  const underWay = []
  const startedAt = performance.now()
  for (let i = 0; i < n;) {
    // A timer has whole milliseconds; what has become due by now is sent at once.
    for (; i < n && startedAt + i * 1000 / perSecond <= performance.now(); i++) {
      underWay.push(queue.enqueueOne({ i, t: now() }))
    }
    await sleep(startedAt + i * 1000 / perSecond - performance.now())
  }
  const seconds = (performance.now() - startedAt) / 1000
  await Promise.all(underWay)
  emit('RESULT', { seconds, n })
}

function counter ({ n }) {
  return () => { if (--n === 0) emit('HANDLED') }
}

function watch ({ n }) {
  const milliseconds = []
  return payload => {
    const at = now()
    if (payload.t == null) return
    milliseconds.push((at - payload.t) / 1e6)
    if (milliseconds.length === n) emit('WATCHED', { milliseconds })
  }
}

async function work (queue, handler) {
  const askedToStop = new Promise(resolve => {
    const lines = readline.createInterface({ input: process.stdin })
    lines.on('line', line => { if (line.trim() === 'stop') resolve() })
    lines.on('close', resolve)
  })
  await queue.prepareWorker(handler)
  emit('START')
  await queue.work()
  emit('READY')
  await askedToStop
  await Promise.race([queue.stop(), sleep(STOP_MS)]).catch(error => console.error(error))
}

export async function main (queue) {
  const [operation, text] = process.argv.slice(2)
  const given = JSON.parse(text)
  const operations = {
    setup: async () => { await queue.setup(); emit('RESULT') },
    enqueue: () => enqueue(queue, given),
    bulk: () => bulk(queue, given),
    pace: () => pace(queue, given),
    drain: () => work(queue, counter(given)),
    watch: () => work(queue, watch(given))
  }
  await operations[operation]()
  process.stdout.write('', () => process.exit(0))
}
