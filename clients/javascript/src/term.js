import { LostError, safely } from './errors.js'
import { literal, must } from './options.js'

/** @import { OustedReason, Term } from '../index.js' */

/** What `every` needs of a term, and of its copies. */
export const internals = Symbol('internals')

/** The first value of the first row that a statement returns as text, whatever makes rows. */
export async function ask(connection, text) {
  must(typeof connection?.query === 'function', 'this needs a client, or what runs a query as one')
  const result = await connection.query(text)
  const [row] = result.rows ?? result
  must(row, 'no transaction is open there', 'ERR_INVALID_STATE')
  const [value] = Object.values(row)
  must(typeof value === 'string', 'query must return rows of a text', 'ERR_INVALID_RETURN_VALUE')
  return value
}

/**
 * Makes a text of what a statement returns, and lets it do nothing where no transaction is open: the
 * one that a simple query has for itself begins at the same time.
 */
const WITHIN = '::text WHERE now() <> statement_timestamp()'

/** Whether a job that has failed so has only stopped. Never raises an error. */
export const isAbort = ({ aborted, reason }, cause) =>
  aborted && safely(() => cause === reason || cause?.name === 'AbortError', false)

/** What the state machine knows of a term. */
export class Tenure {
  /** Why the job is to stop, or has stopped. @type {OustedReason | undefined} */
  reason
  /** How leadership has ended: "", "in doubt", "lost" or "pooler". */
  over = ''
  /** Whether the role may not use the token. */
  refused = false
  confirmedUntil = -Infinity
  beatenUntil = Infinity
  beats = 0
  /** How many of the beats the server knows. */
  carried = 0
  /** When elected was called. */
  began = Infinity
  due = Infinity
  reportAt = Infinity

  /** @param {number} [beatLength] of a lease */
  constructor(election, token, clock, beatLength) {
    Object.assign(this, { election, token })
    this.clock = clock
    this.beatLength = beatLength
  }

  heartbeat() {
    this.beats += 1
    const now = this.clock()
    // what has passed does not come back, though no timer has run yet
    if (this.beatLength && now < this.beatenUntil) this.beatenUntil = now + this.beatLength
  }

  validUntil() {
    return Math.min(this.confirmedUntil, this.beatenUntil)
  }

  isLeading() {
    return !this.reason && this.clock() < this.validUntil()
  }
}

/**
 * What the job is given, and how to cancel it.
 *
 * @param {any} tenure of the state machine
 * @param {string} prefix of functions
 * @param {(event: string, error: Error) => void} post
 * @returns {{ term: Term, cancel: (reason?: Error) => void }}
 */
export function makeTerm(tenure, prefix, post) {
  const { election, token } = tenure
  const controller = new AbortController()
  const name = literal(election)
  /** @type {Term} */
  const term = Object.freeze({
    election,
    token,
    signal: controller.signal,
    isLeading: () => tenure.isLeading(),
    heartbeat: () => tenure.heartbeat(),
    guard: async (transaction) => void (await ask(transaction, term.guardSql() + WITHIN)),
    once: async (transaction, due) =>
      (await ask(transaction, term.onceSql(due) + WITHIN)) === 'true',
    guardSql: () => `SELECT ${prefix}le_assert_leader(${name}, ${token})`,
    onceSql(due) {
      const time = due?.valueOf() // of a Date, or what is like one
      must(typeof time === 'number', 'due must be a time')
      must(Number.isFinite(time), 'due must be a time', 'ERR_OUT_OF_RANGE')
      return `SELECT ${prefix}le_once(${name}, to_timestamp(${time / 1000}), ${token})`
    },
    proclaim: async (connection, value) => {
      must(value === null || typeof value === 'string', 'value must be a string, or null')
      const text = value === null ? 'NULL' : literal(value)
      const statement = `SELECT ${prefix}le_proclaim(${name}, ${text}, ${token})::text`
      if ((await ask(connection, statement)) !== 'true')
        throw new LostError('over', 'the term is over')
    },
    [internals]: { prefix, tenure, post },
  })
  return { term, cancel: (reason) => controller.abort(reason) }
}
