// An Express server, of which one copy also does a job: DATABASE_URL=postgres://... node express.js
//
// At SIGTERM, the job stops, leadership is resigned, the requests that have begun are answered, and
// the process ends.
import express from 'express'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Elector } from 'leader-election-pg'
import pg from 'pg'

const pool = new pg.Pool({
  connectionString: process.env.DATABASE_URL,
  connectionTimeoutMillis: 5000,
})
pool.on('error', (error) => console.error(error.message))
pool.on('connect', (client) => client.on('error', () => {})) // its next query fails, too
const elector = new Elector(pool, 'mailer', { ttl: 15_000 })

const app = express()
app.get('/healthz', elector.healthHandler)
app.get('/', async (_request, response) => {
  const { rows } = await pool.query('SELECT count(*) FROM work_done')
  response.json({ done: Number(rows[0].count) })
})

async function sendNext(term) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await term.guard(client)
    await client.query('INSERT INTO work_done (token) VALUES ($1)', [term.token])
    await client.query('COMMIT')
    client.release()
  } catch (error) {
    client.release(true) // closes the connection, and with it the transaction
    throw error
  }
}

const server = app.listen(Number(process.env.PORT ?? 3000))
process.once('SIGTERM', () => elector.stop())
try {
  await elector.run(async (term) => {
    while (term.isLeading()) {
      await sendNext(term)
      await sleep(1000, undefined, { signal: term.signal })
    }
  })
} finally {
  server.close()
  server.closeIdleConnections()
  await once(server, 'close')
  await pool.end()
}
