/** @import { OustedReason } from '../index.js' */

export class PoolerError extends Error {
  /** @override */
  name = 'PoolerError'
  code = 'ERR_LEADER_ELECTION_POOLER'

  /**
   * @param {string} how
   * @param {ErrorOptions} [options]
   */
  constructor(how, options) {
    super(
      `${how}: session scope needs a connection of its own, not one through a pooler in transaction mode; lead by a lease (ttl) there`,
      options,
    )
  }
}

export class LeadershipError extends Error {
  /** @override */
  name = 'LeadershipError'
  code = 'ERR_LEADER_ELECTION_ENDED'

  /**
   * @param {string} election
   * @param {OustedReason} reason
   * @param {string} [detail]
   * @param {Error} [cause]
   */
  constructor(election, reason, detail, cause) {
    super(
      `leadership of "${election}" has ended: ${reason}${detail ? ` (${detail})` : ''}`,
      cause && { cause },
    )
    this.election = election
    this.reason = reason
  }
}

/** @param {unknown} error */
export const asError = (error) => (error instanceof Error ? error : new Error(String(error)))
