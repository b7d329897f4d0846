// The driver: node-postgres.
import { once } from 'node:events'
import pg from 'pg'
import { failedBy, LeaderElectionError, safely, silence } from './errors.js'
import { must } from './options.js'

/** @import { Database } from '../index.js' */

/** Whatever parsers the program has set: here, a bigint is a number if it is exact as one. */
const PARSERS = {
  16: (text) => text === 't',
  20: (text) => (Number.isSafeInteger(Number(text)) ? Number(text) : text),
}
export const types = { getTypeParser: (oid) => PARSERS[oid] ?? String }

/** For what has no deadline of a state machine. */
export const LIMIT = 5000

const ignore = () => {}

/**
 * An error of node-postgres as one of this library.
 *
 * @param {any} error
 */
export function failure(error) {
  try {
    const { kind: own, message, code, severity, detail, hint } = error
    // an error of a connection to several addresses has the messages in its parts only
    const first = message || error.errors?.[0]?.message || code || 'the connection has ended'
    const parts = [first, detail && `DETAIL: ${detail}`, hint && `HINT: ${hint}`]
    const isServer = severity && typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code)
    const text = parts.filter(Boolean).join(' ')
    const details = isServer ? { code, hint: hint && String(hint) } : {}
    const kind = isServer ? 'server' : own === 'no-connection' ? own : 'broken'
    return new LeaderElectionError(kind, text, { ...details, cause: error })
  } catch {
    return failedBy('broken', 'the connection', error) // it is no error of the driver
  }
}

/** @returns {db is pg.Pool} */
function isPool(/** @type {any} */ db) {
  return typeof db?.connect === 'function' && typeof db.totalCount === 'number'
}

/** A client of a pool, on which one statement runs at a time. */
class Connection {
  /** Called when the connection ends though it was not closed. @type {(error: any) => void} */
  onEnd = ignore
  #ended = (error = {}) => this.onEnd(error)
  #release

  /** @param {any} client */
  constructor(client) {
    this.client = client
    this.#release = client.release
    // else a task could, and another one would then work in its transaction
    client.release = () => must(false, 'the task must not release its client', 'ERR_INVALID_STATE')
    client.on('error', this.#ended).on('end', this.#ended)
  }

  /**
   * The values of the first row. No statement has a name, so that any pooler will do.
   *
   * @param {any[]} statement the text, and the values
   * @param {number} [query_timeout] instead of the program's
   * @returns {Promise<any[]>}
   */
  async query([text, ...values], query_timeout = LIMIT) {
    const query = { text, values, rowMode: 'array', types, query_timeout }
    let status = 'I' // idle
    this.client.connection?.once?.('readyForQuery', (ready) => (status = ready.status))
    const { rows } = await this.client.query(query)
    // a rollback there would take back the lease
    must(status === 'I', 'the connection of the pool is in a transaction', 'ERR_INVALID_STATE')
    must(rows.length > 0, 'the server has returned no row', 'ERR_INVALID_RETURN_VALUE')
    return rows[0] ?? []
  }

  #giveBack(destroy = false) {
    Object.assign(this.client, { release: this.#release }).release(destroy)
  }

  /** Close it for good; at once if a statement is on its way. */
  close() {
    this.onEnd = ignore
    safely(() => this.#giveBack(true)) // a listener of the pool can fail
    safely(() => endSoon(this.client)) // another driver has no such socket
  }

  release() {
    this.client.off('error', this.#ended).off('end', this.#ended)
    this.#giveBack()
  }
}

/**
 * After what was written: a peer that is silent never closes its end. With a pipeline, `end` does not
 * destroy a socket that waits for such a peer to take the rest of a statement.
 */
const endSoon = ({ pipeline, connection: { stream } }) =>
  ((!pipeline && stream.destroySoon) || stream.destroy).call(stream)

/** Where connections come from: the program's pool, or one that is made here. */
export class Source {
  #pool
  /** Those of the pool that is made here. @type {Set<any>} */
  #clients = new Set()

  /**
   * @param {Database} db
   * @param {string} application
   */
  constructor(db, application) {
    this.#pool = isPool(db) ? db : this.#makePool(db, application)
    const isBinary = this.#pool.options?.binary ?? pg.defaults.binary
    must(!isBinary, 'the option binary is not supported', 'ERR_INVALID_ARG_VALUE')
    // without a listener, the loss of an idle connection would end the process
    if (this.#pool.listenerCount('error') === 0) this.#pool.on('error', ignore)
  }

  #makePool(db, application) {
    const config = typeof db === 'string' ? { connectionString: db } : db
    must(
      config !== null && typeof config === 'object' && !('connect' in config),
      'the database must be a Pool, a connection string, or a configuration',
    )
    const clients = this.#clients
    class Client extends pg.Client {
      constructor(/** @type {any} */ options) {
        super(options)
        clients.add(this)
        this.once('end', () => clients.delete(this))
      }
    }
    const defaults = { keepAlive: true, fallback_application_name: application }
    return new pg.Pool({ ...defaults, ...config, Client })
  }

  /** When `signal` aborts, by default after 5 s, give up, and leave no connection behind. */
  async connect(signal = AbortSignal.timeout(LIMIT)) {
    const client = this.#pool.connect()
    const aborted = once(signal, 'abort').then(() => Promise.reject(silence(false, LIMIT, 'open')))
    aborted.catch(ignore)
    try {
      return new Connection(await Promise.race([client, aborted]))
    } catch (error) {
      client.then((late) => late.release()).catch(ignore)
      for (const { connection } of this.#clients) connection.stream.destroy()
      throw error
    }
  }

  /** Ask once. @param {any[]} statement */
  async ask(...statement) {
    const connection = await this.connect()
    try {
      const row = await connection.query(statement)
      connection.release()
      return row
    } catch (error) {
      connection.close()
      throw error
    }
  }

  close() {
    if (this.#clients.size > 0) this.#pool.end().catch(ignore)
    this.#clients.forEach(endSoon)
  }
}
