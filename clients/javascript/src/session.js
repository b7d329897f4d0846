import { PoolerError } from './errors.js'
import { within } from './time.js'

/** @import { Clock, Connection, Server, Way, Won } from './ports.js' */
/** @import { Settings } from './settings.js' */

const ROUND = 300_000 // of a campaign: then the bid is repeated
const NEVER = new AbortController().signal
const SHARED_SESSION = 'LE005' // SQLSTATE: this session leads under another identity

/**
 * Lead in session scope: the term lives as long as the connection on which it was won.
 *
 * @implements {Way}
 */
export class SessionWay {
  retry
  errorIsLoss = true
  #clock
  #server
  #settings
  /** @type {Connection | undefined} */
  #connection
  /** The server process behind the connection. */
  #pid = 0
  #ownConnections = false

  /**
   * @param {Clock} clock
   * @param {Server} server
   * @param {Settings} settings
   */
  constructor(clock, server, settings) {
    const heartbeat = settings.heartbeat ?? Infinity
    this.#clock = clock
    this.#server = server
    this.#settings = settings
    this.period = Math.min(1000, heartbeat / 3)
    this.retry = this.period
    this.deadline = Math.min(5000, heartbeat / 3)
    this.validity = 6000
    this.beatValidity = (heartbeat * 2) / 3
  }

  /**
   * @param {AbortSignal} halt
   * @param {() => void} answered
   */
  async campaign(halt, answered) {
    /** @type {Won | undefined} */
    let won
    try {
      const own = await this.#open(halt)
      this.#connection = own.connection
      this.#pid = own.pid
      if (!this.#ownConnections) await this.#checkConnections(halt)
      won = await this.#bid(halt, answered)
      won.asked = this.#clock.now()
      if (!(await this.confirm(won, true)))
        throw new Error(`elected in "${won.election}", but no longer the leader when asked`)
      return won
    } catch (error) {
      if (won && error instanceof PoolerError) await this.cleanUp(won).catch(() => {})
      this.close()
      throw error
    }
  }

  /** @param {AbortSignal} halt */
  async #open(halt) {
    const connection = await within(
      this.#clock,
      this.deadline,
      'opening a connection',
      (signal) => this.#server.connect(signal),
      halt,
    )
    try {
      const row = await this.#ask('SELECT pg_backend_pid() AS pid', [], { connection, halt })
      return { connection, pid: Number(row.pid) }
    } catch (error) {
      connection.close()
      throw error
    }
  }

  /**
   * Two connections through a pooler in transaction mode share a server connection, if it is idle.
   *
   * @param {AbortSignal} halt
   */
  async #checkConnections(halt) {
    const other = await this.#open(halt)
    other.connection.close()
    if (other.pid === this.#pid) {
      throw new PoolerError(`two connections have the same server process ${other.pid}`)
    }
    this.#ownConnections = true
  }

  /**
   * @param {AbortSignal} halt
   * @param {() => void} answered
   * @returns {Promise<Won>}
   */
  async #bid(halt, answered) {
    const { election, seats, identity, heartbeat } = this.#settings
    const name = seats === undefined ? '$1::text' : 'le_seats($1::text, $4::integer)'
    const text = `CALL le_campaign(${name}, timeout => '${ROUND} ms', identity => $2::text, heartbeat => $3::interval)`
    const values = [election, identity, heartbeat === undefined ? null : `${heartbeat} ms`]
    if (seats !== undefined) values.push(String(seats))
    for (;;) {
      const row = await this.#ask(text, values, { halt, ms: ROUND + this.deadline }).catch(
        (error) => {
          if (error.code !== SHARED_SESSION) throw error
          throw new PoolerError('the session leads for another client', { cause: error })
        },
      )
      answered()
      if (row.token !== null) {
        return { election: row.name ?? election, token: Number(row.token), asked: 0 }
      }
    }
  }

  /**
   * @param {Won} won
   * @param {boolean} beat
   */
  async confirm({ election }, beat) {
    const { heartbeat, identity } = this.#settings
    const row =
      heartbeat !== undefined && beat
        ? await this.#ask(
            'SELECT le_heartbeat($1::text) AS leads, pg_backend_pid() AS pid',
            [election],
            { keep: true },
          )
        : await this.#ask(
            'SELECT le_am_leader($1::text, identity => $2::text) AS leads, pg_backend_pid() AS pid',
            [election, identity],
            { keep: true },
          )
    if (Number(row.pid) !== this.#pid) {
      throw new PoolerError(
        `the connection has changed its server process from ${this.#pid} to ${row.pid}`,
      )
    }
    return row.leads
  }

  /** @param {Won} won */
  async resign({ election }) {
    const { identity } = this.#settings
    const row = await this.#ask('SELECT le_resign($1::text, identity => $2::text) AS resigned', [
      election,
      identity,
    ])
    return row.resigned
  }

  /**
   * The term may be on a server connection that the pooler does not give us any more: depose it then.
   *
   * @param {Won} won
   */
  async cleanUp(won) {
    if (await this.resign(won)) return
    await this.#ask(
      `SELECT le_depose($1::text, 'led through a pooler in transaction mode')
         FROM le_leader($1::text) WHERE identity = $2 AND token = $3::bigint AND scope = 'session'`,
      [won.election, this.#settings.identity, won.token],
    )
  }

  /** @param {(cause: Error) => void} lost */
  watch(lost) {
    if (this.#connection) this.#connection.onEnd = lost
  }

  close() {
    this.#connection?.close()
    this.#connection = undefined
  }

  /**
   * With `keep`, a question that is not answered in time leaves the connection open: to close it
   * would give leadership up while the job still runs.
   *
   * @param {string} text
   * @param {unknown[]} values
   * @param {{ connection?: Connection, halt?: AbortSignal, ms?: number, keep?: boolean }} [options]
   */
  async #ask(text, values, { connection = this.#connection, halt, ms = this.deadline, keep } = {}) {
    if (!connection) throw new Error('the connection is closed')
    const { rows } = await within(
      this.#clock,
      ms,
      text,
      (signal) => connection.query(text, values, keep ? NEVER : signal),
      halt,
    )
    return rows[0] ?? {}
  }
}
