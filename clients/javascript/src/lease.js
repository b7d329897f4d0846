// Leading by a lease: each statement may use another connection.

/** @import { Settings } from './options.js' */

export class Lease {
  opens = false
  round = 0

  /** @param {Settings & { ttl: number }} settings */
  constructor(settings) {
    const { ttl } = settings
    this.settings = settings
    this.interval = ttl / 3
    this.between = Math.min(1000, ttl / 3)
    this.limit = Math.min(5000, ttl / 3)
    this.patience = Math.min(5000, ttl / 5)
    this.validity = (ttl * 2) / 3
    this.retry = Math.min(1000, ttl / 10)
  }

  /**
   * The text and the values of a statement.
   *
   * @param {string} kind
   * @param {any} term
   * @param {any} argument
   * @returns {any[]}
   */
  statement(kind, term, argument) {
    const { election, identity, ttl, seats, prefix } = this.settings
    const { election: name, token } = term ?? {}
    const bid = seats
      ? `CALL ${prefix}le_campaign(${prefix}le_seats($1::text, $4::int), timeout => '0', ttl => $2::interval, identity => $3::text)`
      : `SELECT ${prefix}le_lease($1::text, $2::interval, identity => $3::text, token => $4::bigint)`
    const statements = {
      bid: [bid, election, `${ttl} ms`, identity, seats ?? argument],
      confirm: [`SELECT ${prefix}le_renew($1::text, $2::bigint)`, name, token],
      resign: [`SELECT ${prefix}le_resign($1::text, $2::bigint)`, name, token],
    }
    return statements[kind]
  }
}
