import { sleep, within } from './time.js'

/** @import { Clock, Server, Way, Won } from './ports.js' */
/** @import { Settings } from './settings.js' */

/**
 * Lead by a lease: the term lives until it has not been renewed for a ttl. Each statement may use
 * another connection.
 *
 * @implements {Way}
 */
export class LeaseWay {
  errorIsLoss = false
  beatValidity = Infinity
  #clock
  #server
  #settings
  #ttl
  /** The token of a lease that could not be resigned. @type {number | null} */
  #token = null

  /**
   * @param {Clock} clock
   * @param {Server} server
   * @param {Settings} settings
   * @param {number} ttl
   */
  constructor(clock, server, settings, ttl) {
    this.#clock = clock
    this.#server = server
    this.#settings = settings
    this.#ttl = `${ttl} ms`
    this.period = ttl / 3
    this.retry = Math.min(ttl / 10, 1000)
    this.deadline = Math.min(5000, ttl / 3)
    this.validity = (ttl * 2) / 3
  }

  /**
   * @param {AbortSignal} halt
   * @param {() => void} answered
   * @returns {Promise<Won | null>}
   */
  async campaign(halt, answered) {
    while (!halt.aborted) {
      const asked = this.#clock.now()
      const row = await this.#bid(halt)
      answered()
      if (row.token !== null) {
        const { election } = this.#settings
        return { election: row.name ?? election, token: Number(row.token), asked }
      }
      await sleep(this.#clock, asked + this.period - this.#clock.now(), halt)
    }
    return null
  }

  /** @param {AbortSignal} halt */
  async #bid(halt) {
    const { election, seats, identity } = this.#settings
    const row = await (seats === undefined
      ? this.#ask(
          'SELECT le_lease($1::text, $2::interval, identity => $3::text, token => $4::bigint) AS token',
          [election, this.#ttl, identity, this.#token],
          halt,
        )
      : this.#ask(
          `CALL le_campaign(le_seats($1::text, $4::integer), timeout => '0', ttl => $2::interval, identity => $3::text)`,
          [election, this.#ttl, identity, seats],
          halt,
        ))
    this.#token = null
    return row
  }

  /**
   * @param {Won} won
   * @param {boolean} beat
   */
  confirm({ election, token }, beat) {
    if (this.#settings.renewOnHeartbeat && !beat) return null
    return this.#ask('SELECT le_renew($1::text, $2::bigint) AS leads', [election, token]).then(
      (row) => row.leads,
    )
  }

  /** @param {Won} won */
  async resign({ election, token }) {
    this.#token = token
    await this.#ask('SELECT le_resign($1::text, $2::bigint)', [election, token])
    this.#token = null
  }

  watch() {} // a lease depends on no connection

  async cleanUp() {}

  close() {}

  /**
   * A statement that was sent is not halted, but waited for: it may have taken the lease.
   *
   * @param {string} text
   * @param {unknown[]} values
   * @param {AbortSignal} [halt]
   */
  async #ask(text, values, halt) {
    const due = this.#clock.now() + this.deadline
    const connection = await within(
      this.#clock,
      this.deadline,
      'opening a connection',
      (signal) => this.#server.connect(signal),
      halt,
    )
    try {
      const { rows } = await within(this.#clock, due - this.#clock.now(), text, (signal) =>
        connection.query(text, values, signal),
      )
      connection.release()
      return rows[0] ?? {}
    } catch (error) {
      connection.close() // the next one may lead to another server
      throw error
    }
  }
}
