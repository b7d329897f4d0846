import { failedBy } from './errors.js'
import { must } from './options.js'
import { isPool } from './pg.js'

/** @import { Term } from '../index.js' */

/** The function of a term, and of its copies, that reports an error as one of the elector's. */
export const report = Symbol('report')

/** Whether a job that has failed so has only stopped. Never raises an error. */
export function isAbort({ aborted, reason }, cause) {
  try {
    return aborted && (cause === reason || cause?.name === 'AbortError')
  } catch {
    return false
  }
}

/**
 * What the job is given, and how to cancel it.
 *
 * @param {any} tenure of the state machine
 * @param {string} prefix of functions
 * @param {(...event: any[]) => void} post
 * @returns {{ term: Term, cancel: (reason?: Error) => void }}
 */
export function makeTerm(tenure, prefix, post) {
  const { election, token } = tenure
  const controller = new AbortController()
  /** @type {Term} */
  const term = Object.freeze({
    election,
    token,
    signal: controller.signal,
    isLeading: () => tenure.isLeading(),
    heartbeat: () => tenure.heartbeat(),
    guard: async (transaction) => {
      must(!isPool(transaction), 'guard needs the client that is in the transaction')
      const text = `SELECT ${prefix}le_assert_leader($1::text, $2::bigint)`
      await transaction.query(text, [election, token])
    },
    proclaim: async (value) => {
      must(value === null || typeof value === 'string', 'value must be a string, or null')
      await new Promise((resolve, reject) => {
        post('proclaim', { tenure, value, resolve, reject })
      })
    },
    [report]: (cause) => post('report', failedBy('job', 'the task', cause)),
  })
  return { term, cancel: (reason) => controller.abort(reason) }
}
