// A leader by a lease: node-postgres, any Pool (ES modules, Node 18).
//
// Use it where connections come from a Pool or through PgBouncer in transaction mode, or to lead on when a connection or
// the server restarts. (Parameters are sent without naming a prepared statement, so any PgBouncer will do: do not add
// `name:` to the query.) Tokens are bigint, which node-postgres returns as strings, and takes as such.
//
//     DATABASE_URL=postgres://me@127.0.0.1:6432/app node lease.js ELECTION IDENTITY
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const [election, identity] = process.argv.slice(2)
const ttl = 3000 // ms: as long as the job may stand still when a program dies
const stop = new AbortController()
process.once('SIGTERM', () => stop.abort())

const pool = new pg.Pool({
  connectionString: process.env.DATABASE_URL, max: 2, keepAlive: true,
  connectionTimeoutMillis: ttl / 3, query_timeout: ttl / 3, // an answer that does not come is an error
})
pool.on('error', (error) => say('error', error.message)) // an idle connection was lost

function say(event, text) {
  console.log(`${(Date.now() / 1000).toFixed(3)} ${identity} ${event} ${String(text).replace(/\s+/g, ' ')}`)
}

const pause = (ms, signal) => sleep(ms, null, { signal }).catch(() => {})

async function doTheJob(term) {
  while (term.leads()) {
    await pause(100, term.over.signal) // work here; pass term.token along with what you write elsewhere
  }
}

// One stretch of leading: until we are told that it is over, or two thirds of a ttl from before we last asked.
class Term {
  over = new AbortController()

  constructor(token, asked) {
    this.token = token
    this.renewed(asked)
    say('elected', token)
    this.job = doTheJob(this)
      .catch((error) => say('error', error.message))
      .finally(() => { this.end(); say('ousted', token) })
  }

  renewed(asked) {
    this.leadsUntil = asked + (ttl * 2) / 3 // performance.now() is a monotonic clock
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.over.abort(), this.leadsUntil - performance.now())
  }

  leads() {
    return !this.over.signal.aborted && performance.now() < this.leadsUntil
  }

  end() {
    clearTimeout(this.timer)
    this.over.abort()
    return this.job
  }
}

let token = null
let term = null

async function ask(asked) {
  const { rows } = await pool.query(
    'SELECT le_lease($1, $2, $3, $4) AS token', [election, `${ttl} ms`, identity, token],
  )
  if (term && (rows[0].token !== term.token || !term.leads())) {
    await term.end()
    term = null
  }
  token = rows[0].token // null: somebody else leads
  if (token === null || performance.now() >= asked + (ttl * 2) / 3) return
  if (term) term.renewed(asked)
  else term = new Term(token, asked)
}

while (!stop.signal.aborted) {
  const asked = performance.now()
  try {
    await ask(asked)
    await pause(asked + ttl / 3 - performance.now(), stop.signal) // every ttl / 3, however long the answer took
  } catch (error) { // keep the token, and ask again soon: the lease may well run
    say('error', error.message)
    await pause(300, stop.signal)
  }
}
await term?.end()
if (token !== null) {
  await pool.query('SELECT le_resign($1, $2)', [election, token]).catch((error) => say('error', error.message))
}
await pool.end()
