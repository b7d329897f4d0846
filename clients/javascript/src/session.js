// Leading in session scope: with a connection of its own, which is opened for each campaign.

/** @import { Settings } from './options.js' */

/** Run on each connection of its own: no timeout of the role then ends a wait. */
export const SETTINGS = `
  SELECT pg_backend_pid(),
         count(set_config(name, CASE name WHEN 'application_name' THEN $1::text
           WHEN 'client_connection_check_interval' THEN '5s' ELSE '0' END, false))
  FROM pg_settings
  WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout',
                 'idle_in_transaction_session_timeout', 'transaction_timeout')
     OR name = 'application_name' AND setting = ''
     OR name = 'client_connection_check_interval' AND setting = '0'`

export class Session {
  opens = true
  validity = 6000
  round = 300_000
  between = 0
  retry = Infinity

  /** @param {Settings} settings */
  constructor(settings) {
    const { heartbeat = Infinity } = settings
    this.settings = settings
    this.interval = Math.min(1000, heartbeat / 4)
    this.limit = this.patience = Math.min(5000, heartbeat / 3)
  }

  /**
   * The text and the values of a statement.
   *
   * @param {string} kind
   * @param {any} term
   * @param {any} argument
   * @param {number} wait of a bid, in the server
   * @returns {any[]}
   */
  statement(kind, term, argument, wait) {
    const { election, identity, heartbeat, seats, application, prefix } = this.settings
    const names = seats ? `${prefix}le_seats($1::text, $4::int)` : '$1::text'
    const bid = `CALL ${prefix}le_campaign(${names}, timeout => '${Math.ceil(wait)} ms', heartbeat => $2::interval, identity => $3::text)`
    const confirm = `SELECT ${prefix}le_am_leader($1::text, identity => $2::text), pg_backend_pid()`
    const beat = heartbeat ? `${heartbeat} ms` : null
    const name = term?.election
    const statements = {
      open: [SETTINGS, application],
      bid: [bid, election, beat, identity, ...(seats ? [seats] : [])],
      confirm: [confirm, name, identity],
      beat: [`SELECT ${prefix}le_heartbeat($1::text), pg_backend_pid()`, name],
      resign: [`SELECT ${prefix}le_resign($1::text, identity => $2::text)`, name, identity],
    }
    return statements[kind]
  }
}
