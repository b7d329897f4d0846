// A worker whose writes are fenced: DATABASE_URL=postgres://... node main.js
import { setTimeout as sleep } from 'node:timers/promises'
import { Elector } from 'leader-election-pg'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 5000 })
pool.on('connect', (client) => client.on('error', () => {})) // its next query fails, too

async function step(token) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await client.query("SELECT le_assert_leader('scheduler', $1)", [token])
    await client.query('INSERT INTO work_done (token) VALUES ($1)', [token])
    await client.query('COMMIT')
    client.release()
  } catch (error) {
    client.release(true) // closes the connection, and with it the transaction
    throw error
  }
}

const elector = new Elector(pool, 'scheduler')
process.once('SIGTERM', () => elector.stop())
await elector.run(async (term) => {
  while (term.isLeading()) {
    await step(term.token)
    await sleep(1000, null, { signal: term.signal })
  }
})
await pool.end()
