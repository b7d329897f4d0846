import pg from 'pg'
import { onAbort } from './time.js'

/** @import { Database } from '../index.js' */
/** @import { Connection, Server } from './ports.js' */

const BOOLEAN = 16
const LONGEST_TIMER = 2 ** 31 - 1

/** Whatever parsers the program has set for types: here, all but boolean is text. */
const types = {
  /** @param {number} oid @returns {(text: string) => any} */
  getTypeParser: (oid) => (oid === BOOLEAN ? (text) => text === 't' : (text) => text),
}

/**
 * A client of node-postgres, on which one statement runs at a time.
 *
 * @implements {Connection}
 */
class ClientConnection {
  /** @type {((cause: Error) => void) | undefined} */
  onEnd
  client
  /** Gives the client back; `broken`: not to be used again. @type {((broken: boolean) => void) | undefined} */
  #giveBack

  /**
   * @param {any} client
   * @param {(broken: boolean) => void} giveBack
   */
  constructor(client, giveBack) {
    this.client = client
    this.#giveBack = giveBack
    client.on('error', this.#ended)
    client.on('end', this.#ended)
  }

  #ended = (/** @type {Error} */ cause = new Error('the connection has ended')) => {
    this.onEnd?.(cause)
    this.onEnd = undefined
  }

  /**
   * Named statements are not used, so that any pooler will do.
   *
   * @param {string} text
   * @param {unknown[]} values
   * @param {AbortSignal} signal
   */
  async query(text, values, signal) {
    const forget = onAbort(signal, () => this.#destroy())
    try {
      // the deadline is ours, not the program's query_timeout
      return await this.client.query({ text, values, types, query_timeout: LONGEST_TIMER })
    } finally {
      forget()
    }
  }

  close() {
    if (!this.#finish(true)) return
    const { stream } = this.client.connection
    if (stream.destroySoon)
      stream.destroySoon() // a silent peer never closes its end
    else stream.destroy()
  }

  release() {
    if (!this.#finish(false)) return
    this.client.off('error', this.#ended)
    this.client.off('end', this.#ended)
  }

  #destroy() {
    this.client.connection.stream.destroy()
    this.#finish(true)
  }

  /**
   * Give the client back. False if that has been done.
   *
   * @param {boolean} broken
   */
  #finish(broken) {
    const giveBack = this.#giveBack
    this.onEnd = undefined
    this.#giveBack = undefined
    giveBack?.(broken)
    return giveBack !== undefined
  }
}

/** How many use a pool. @type {WeakMap<pg.Pool, number>} */
const users = new WeakMap()

/**
 * Connections out of a pool of the program.
 *
 * @implements {Server}
 */
class PoolServer {
  #pool
  #isUser = false

  /** @param {pg.Pool} pool */
  constructor(pool) {
    this.#pool = pool
  }

  /** @param {AbortSignal} signal */
  async connect(signal) {
    this.#use()
    const client = await this.#pool.connect()
    if (signal.aborted) {
      client.release()
      throw signal.reason
    }
    return new ClientConnection(client, (broken) => client.release(broken))
  }

  /** Without a listener, the loss of a connection that is idle in the pool would end the process. */
  #use() {
    if (this.#isUser) return
    this.#isUser = true
    const others = users.get(this.#pool) ?? 0
    users.set(this.#pool, others + 1)
    if (others === 0) this.#pool.on('error', ignore)
  }

  close() {
    if (!this.#isUser) return
    this.#isUser = false
    const others = (users.get(this.#pool) ?? 1) - 1
    users.set(this.#pool, others)
    if (others === 0) this.#pool.off('error', ignore)
  }
}

/**
 * Connections of our own. One that is released waits for the next `connect`.
 *
 * @implements {Server}
 */
class OwnServer {
  #config
  /** @type {any} */
  #idle

  /** @param {pg.ClientConfig} config */
  constructor(config) {
    this.#config = config
  }

  /** @param {AbortSignal} signal */
  async connect(signal) {
    const client = this.#takeIdle() ?? (await this.#open(signal))
    return new ClientConnection(client, (broken) => {
      if (broken) client.end().catch(ignore)
      else this.#keep(client)
    })
  }

  /** @param {AbortSignal} signal */
  async #open(signal) {
    /** @type {any} */
    const client = new pg.Client({ keepAlive: true, ...this.#config })
    client.on('error', () => this.#forget(client))
    client.on('end', () => this.#forget(client))
    const forget = onAbort(signal, () => client.connection.stream.destroy())
    try {
      await client.connect()
      signal.throwIfAborted()
      return client
    } catch (error) {
      client.connection.stream.destroy()
      throw error
    } finally {
      forget()
    }
  }

  /** @param {any} client */
  #keep(client) {
    this.close() // one is enough
    this.#idle = client
  }

  /** @param {any} client */
  #forget(client) {
    if (this.#idle === client) this.#idle = undefined
  }

  #takeIdle() {
    const client = this.#idle
    this.#idle = undefined
    return client
  }

  close() {
    const client = this.#takeIdle()
    if (client) new ClientConnection(client, () => client.end().catch(ignore)).close()
  }
}

function ignore() {}

/**
 * @param {any} db
 * @returns {db is pg.Pool}
 */
const isPool = (db) => typeof db?.connect === 'function' && typeof db.totalCount === 'number'

/**
 * @param {Database} db
 * @param {number} [least] how many connections must be there at a time
 * @returns {Server}
 */
export function serverOf(db, least = 1) {
  if (isPool(db)) {
    if (db.options.max < least) {
      throw new TypeError(`the pool must have at least ${least} connections for session scope`)
    }
    return new PoolServer(db)
  }
  if (typeof db === 'string') return new OwnServer({ connectionString: db })
  if (db !== null && typeof db === 'object' && !('connect' in db)) return new OwnServer(db)
  throw new TypeError(
    'the database must be a Pool, a connection string, or a configuration of node-postgres',
  )
}
