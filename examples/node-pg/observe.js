// Who leads? The long poll: node-postgres. Prints `SECONDS IDENTITY observed TOKEN LEADER` at each change.
//
// Use it to follow the leader (its identity, and the value that it has published, such as its address), as a proxy or a
// dashboard does. It costs a connection that waits, and no polling. While nobody leads, TOKEN is negative and LEADER
// is -. Tokens are strings here, as node-postgres returns bigint so.
//
//     DATABASE_URL=postgres://me@127.0.0.1:5432/app node observe.js ELECTION IDENTITY
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const [election, identity] = process.argv.slice(2)
const stop = new AbortController()
process.once('SIGTERM', () => stop.abort())

function say(event, text) {
  console.log(`${(Date.now() / 1000).toFixed(3)} ${identity} ${event} ${String(text).replace(/\s+/g, ' ')}`)
}

let known = { token: null, identity: null, value: null }

async function observe(client) {
  // Hand in all that the last call returned; the answer comes when that has changed, or after 30 s
  const { rows } = await client.query({
    text: `CALL le_observe($1, $2, '30 s', $3, $4, $5)`,
    values: [election, known.token, known.token, known.identity, known.value],
  })
  const state = rows[0]
  if (Object.keys(state).some((key) => state[key] !== known[key])) {
    say('observed', `${state.token} ${state.identity ?? '-'}`)
  }
  known = state
}

while (!stop.signal.aborted) {
  const client = new pg.Client({
    connectionString: process.env.DATABASE_URL, keepAlive: true, connectionTimeoutMillis: 5000,
    query_timeout: 35_000, // the server's host may have vanished: that is an error, too
  })
  const leave = () => client.end() // breaks the connection, as it waits for an answer
  stop.signal.addEventListener('abort', leave)
  client.on('error', () => {}) // the call that waits fails as well, and is reported
  try {
    await client.connect()
    while (!stop.signal.aborted) await observe(client)
  } catch (error) {
    if (!stop.signal.aborted) say('error', error.message)
  }
  stop.signal.removeEventListener('abort', leave)
  await client.end()
  await sleep(500, null, { signal: stop.signal }).catch(() => {})
}
