import { onAbort, sleep, within } from './time.js'

/** @import { Job, Task } from '../index.js' */
/** @import { Clock, Connection, Server } from './ports.js' */

/**
 * Make a job of a task that is to be done once for each point in time.
 *
 * @param {number} interval
 * @param {Task} task
 * @param {{ clock: Clock, server: Server, deadline: number, report: (error: unknown) => void }} world
 * @returns {Job}
 */
export function every(interval, task, { clock, server, deadline, report }) {
  if (!Number.isInteger(interval) || interval < 1000) {
    throw new TypeError(
      `the interval must be a whole number of milliseconds, from 1000: ${interval}`,
    )
  }
  if (typeof task !== 'function') throw new TypeError('the task must be a function')

  /** @param {Connection} connection @param {string} text @param {unknown[]} values */
  const ask = (connection, text, values = []) =>
    within(clock, deadline, text, (signal) => connection.query(text, values, signal))

  /** Which time is due, by the server's clock. @param {Connection} connection */
  async function dueTime(connection) {
    const { rows } = await ask(
      connection,
      `SELECT (extract(epoch FROM date_bin($1::interval, clock_timestamp(), '2000-01-01 00:00+00'))
               * 1000)::bigint AS due`,
      [`${interval} ms`],
    )
    return Number(rows[0].due)
  }

  /** @param {Connection} connection @param {number} due @param {import('../index.js').Term} term */
  async function doOnce(connection, due, term) {
    const time = new Date(due)
    await ask(connection, 'BEGIN')
    const { rows } = await ask(
      connection,
      'SELECT le_once($1::text, $2::timestamptz, $3::bigint) AS due',
      [term.election, time.toISOString(), term.token],
    )
    if (rows[0].due) await task(connection.client, time, term)
    const { command } = await ask(connection, 'COMMIT')
    if (command !== 'COMMIT') {
      throw new Error(
        `the task of ${time.toISOString()} was rolled back: a statement in it has failed`,
      )
    }
  }

  return async (term) => {
    /** @type {Connection | undefined} */
    let connection
    let done = NaN
    const forget = onAbort(term.signal, () => {
      if (term.signal.reason?.reason !== 'resigned') connection?.close() // what it does is in vain
    })
    try {
      while (!term.signal.aborted) {
        term.heartbeat()
        try {
          connection ??= await within(clock, deadline, 'opening a connection', (signal) =>
            server.connect(signal),
          )
          const due = await dueTime(connection)
          if (due !== done && !term.signal.aborted) {
            await doOnce(connection, due, term)
            done = due
            term.heartbeat()
          }
        } catch (error) {
          connection?.close() // and so rolls back
          connection = undefined
          report(error)
        }
        await sleep(clock, 1000, term.signal)
      }
    } finally {
      forget()
      connection?.release()
    }
  }
}
