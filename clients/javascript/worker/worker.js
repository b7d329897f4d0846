// The worker of the acceptance test: node worker.js WAY ELECTION IDENTITY, with DATABASE_URL.
//
// WAY is session, heartbeat or lease. Prints what happens to stdout, a line for each event. SIGTERM
// stops it.
import { setTimeout as sleep } from 'node:timers/promises'
import { Elector } from 'leader-election-pg'

const [way, election, identity] = process.argv.slice(2)
const options = { session: {}, heartbeat: { heartbeat: 5000 }, lease: { ttl: 3000 } }[way]
const db = process.env.DATABASE_URL
if (!options || !election || !identity || !db) {
  console.error('usage: DATABASE_URL=... node worker.js session|heartbeat|lease ELECTION IDENTITY')
  process.exit(2)
}

/**
 * @param {string} event
 * @param {string | number} detail
 */
function say(event, detail) {
  const line = String(detail).replace(/\s+/g, ' ')
  process.stdout.write(`${(Date.now() / 1000).toFixed(3)} ${identity} ${event} ${line}\n`)
}

const elector = new Elector(db, election, {
  ...options,
  identity,
  logger: { info() {}, error() {} },
  onOusted: (term) => say('ousted', term.token),
  onError: (error) => say('error', error.message),
})
process.once('SIGTERM', () => elector.stop())

await elector.run(async (term) => {
  say('elected', term.token)
  while (term.isLeading()) {
    await sleep(100, undefined, { signal: term.signal })
    term.heartbeat()
  }
})
