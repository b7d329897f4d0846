import { Machine } from './machine.js'
import { serverOf } from './postgres.js'
import { settingsOf } from './settings.js'
import { systemClock } from './time.js'

/** @import { Database, ElectorOptions } from '../index.js' */

export class Elector extends Machine {
  /**
   * @param {Database} db
   * @param {string} election
   * @param {ElectorOptions} [options]
   */
  constructor(db, election, options = {}) {
    const settings = settingsOf(election, options)
    const server = serverOf(db, settings.ttl === undefined ? 2 : 1)
    super(settings, { clock: systemClock, server, random: Math.random })
  }
}

export { LeadershipError, PoolerError } from './errors.js'
export { follow, leader } from './follow.js'
