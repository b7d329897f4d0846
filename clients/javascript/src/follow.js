import { checkElection } from './settings.js'
import { serverOf } from './postgres.js'
import { asError } from './errors.js'
import { pauseAfterErrors, sleep, systemClock as clock, within } from './time.js'

/** @import { Database, FollowOptions, Leader } from '../index.js' */
/** @import { Connection } from './ports.js' */

const DEADLINE = 5000
const ROUND = 30_000

/**
 * @param {Database} db
 * @param {string} election
 */
export async function leader(db, election) {
  checkElection(election)
  const server = serverOf(db)
  try {
    const connection = await open(server)
    try {
      const answer = await leaderOf(connection, election)
      connection.release()
      return answer
    } catch (error) {
      connection.close()
      throw error
    }
  } finally {
    server.close()
  }
}

/**
 * @param {Database} db
 * @param {string} election
 * @param {FollowOptions} [options]
 */
export function follow(db, election, { signal = new AbortController().signal, onError } = {}) {
  checkElection(election)
  const report =
    onError ?? ((/** @type {Error} */ error) => console.error(`follow "${election}":`, error))
  return observe(serverOf(db), election, signal, report)
}

/**
 * @param {import('./ports.js').Server} server
 * @param {string} election
 * @param {AbortSignal} signal
 * @param {(error: Error) => void} report
 * @returns {AsyncGenerator<Leader | null, void, undefined>}
 */
async function* observe(server, election, signal, report) {
  /** @type {Connection | undefined} */
  let connection
  let version = null
  let last = ''
  let errors = 0
  try {
    while (!signal.aborted) {
      let present
      try {
        connection ??= await open(server, signal)
        const row = await ask(
          connection,
          `CALL le_observe($1::text, $2::bigint, timeout => '${ROUND} ms')`,
          [election, version],
          { ms: ROUND + DEADLINE, halt: signal },
        )
        version = row?.version
        present = await leaderOf(connection, election, signal)
        errors = 0
      } catch (error) {
        connection?.close()
        connection = undefined
        if (signal.aborted) return
        report(asError(error))
        await sleep(clock, pauseAfterErrors(++errors, Math.random), signal)
        continue
      }
      const now = JSON.stringify(present)
      if (now !== last) yield present
      last = now
    }
  } finally {
    connection?.close()
    server.close()
  }
}

/**
 * @param {import('./ports.js').Server} server
 * @param {AbortSignal} [halt]
 */
const open = (server, halt) =>
  within(clock, DEADLINE, 'opening a connection', (signal) => server.connect(signal), halt)

/**
 * @param {Connection} connection
 * @param {string} text
 * @param {unknown[]} values
 * @param {{ ms?: number, halt?: AbortSignal | undefined }} [options]
 */
async function ask(connection, text, values, { ms = DEADLINE, halt } = {}) {
  const start = (/** @type {AbortSignal} */ signal) => connection.query(text, values, signal)
  const { rows } = await within(clock, ms, text, start, halt)
  return rows[0]
}

/**
 * @param {Connection} connection
 * @param {string} election
 * @param {AbortSignal} [halt]
 * @returns {Promise<Leader | null>}
 */
async function leaderOf(connection, election, halt) {
  const row = await ask(
    connection,
    `SELECT identity, token, scope, value, extract(epoch FROM since) * 1000 AS since
       FROM le_leader($1::text)`,
    [election],
    { halt },
  )
  if (row === undefined) return null
  const { identity, token, scope, value, since } = row
  return { election, identity, token: Number(token), since: new Date(Number(since)), scope, value }
}
