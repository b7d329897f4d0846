// A leader in session scope: node-postgres, one Client kept aside for leadership (ES modules, Node 18).
//
// Use it where the program can keep a connection of its own: straight to PostgreSQL, or through PgBouncer in session
// mode. Never on a client of a Pool, nor through PgBouncer in transaction mode: see lease.js for those.
// Tokens are bigint, which node-postgres returns as strings; to compare them, make Number of them.
//
//     DATABASE_URL=postgres://me@127.0.0.1:5432/app node campaign.js ELECTION IDENTITY
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const [election, identity] = process.argv.slice(2)
const stop = new AbortController()
process.once('SIGTERM', () => stop.abort())

function say(event, text) {
  console.log(`${(Date.now() / 1000).toFixed(3)} ${identity} ${event} ${String(text).replace(/\s+/g, ' ')}`)
}

const pause = (ms, signal) => sleep(ms, null, { signal }).catch(() => {})

async function doTheJob(token, signal) {
  while (!signal.aborted) {
    await pause(100, signal) // work here; pass the token along with what you write elsewhere
  }
}

// Wait to be elected. CALL answers with one row, which has the INOUT parameters.
async function campaign(client) {
  const leave = () => client.end() // breaks the connection, as it waits for an answer
  stop.signal.addEventListener('abort', leave)
  try {
    const { rows } = await client.query('CALL le_campaign($1, identity => $2)', [election, identity])
    return rows[0].token
  } finally {
    stop.signal.removeEventListener('abort', leave)
  }
}

// Does this session still lead? No answer in 5 s is one, too: a host that has vanished closes no connection.
async function stillLeads(client, over) {
  const watchdog = setTimeout(() => {
    over.abort(new Error('the server does not answer'))
    client.end() // breaks the connection, as it waits for an answer
  }, 5000)
  try {
    const { rows } = await client.query('SELECT le_am_leader($1, identity => $2) AS leads', [election, identity])
    return rows[0].leads
  } finally {
    clearTimeout(watchdog)
  }
}

// Do the job for as long as we lead. `over` is aborted when the connection is lost, and on SIGTERM.
async function lead(client, token, over) {
  say('elected', token)
  const job = doTheJob(token, over.signal).then(() => over.abort(), (error) => over.abort(error))
  try {
    while (!over.signal.aborted) {
      if (!await stillLeads(client, over)) throw new Error('this session does not lead any more')
      await pause(1000, over.signal)
    }
    await job
    if (stop.signal.aborted) await client.query('SELECT le_resign($1, identity => $2)', [election, identity])
    over.signal.throwIfAborted() // tells why
  } finally {
    over.abort()
    await job
    say('ousted', token)
  }
}

// Campaign and lead on one connection.
async function stand() {
  const client = new pg.Client({
    connectionString: process.env.DATABASE_URL, keepAlive: true, connectionTimeoutMillis: 5000,
  })
  const over = new AbortController()
  const stopped = () => over.abort()
  stop.signal.addEventListener('abort', stopped)
  client.on('error', (error) => over.abort(error))
  client.on('end', () => over.abort(new Error('the connection has ended')))
  try {
    await client.connect()
    const token = await campaign(client)
    await lead(client, token, over)
  } finally {
    stop.signal.removeEventListener('abort', stopped)
    await client.end()
  }
}

while (!stop.signal.aborted) {
  try {
    await stand()
  } catch (error) {
    if (!stop.signal.aborted) say('error', error.message)
  }
  await pause(500, stop.signal)
}
