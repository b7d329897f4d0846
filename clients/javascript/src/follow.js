// Followers: the state machine, which is pure as that of an elector is, and what is around it.
import { clock } from './clock.js'
import { ElectorMachine } from './elector.js'
import { permanent } from './errors.js'
import { settingsOf } from './options.js'
import { failure, LIMIT, Source } from './pg.js'
import { Driver, explain, onAbort } from './run.js'
import { SETTINGS } from './session.js'

/** @import { Database, FollowOptions, Leader } from '../index.js' */

const ROUND = 30_000

/** Observes instead of bidding. */
export class FollowMachine extends ElectorMachine {
  #told = ''
  #version

  /** @override */
  bid() {
    this.send('observe', this.#version, this.way.limit, ROUND)
  }

  /** @override */
  answered({ kind }, version, ...leader) {
    this.#version = kind === 'open' ? null : version
    if (kind === 'observe') {
      this.failures = 0
      if (JSON.stringify(leader) !== this.#told) this.do('told', ...leader)
      this.#told = JSON.stringify(leader)
    }
    this.bid()
  }
}

const observe = (prefix) =>
  `CALL ${prefix}le_observe($1::text, version => $2::bigint, timeout => '${ROUND} ms')`

/** @returns {Leader | null} */
const leaderOf = (token, identity, value) => (token === null ? null : { token, identity, value })

/**
 * @param {Database} db
 * @param {string} election
 * @param {{ schema?: string | undefined }} [options]
 */
export async function leader(db, election, options = {}) {
  const settings = settingsOf(election, options, ['schema'])
  const source = new Source(db, settings.application)
  try {
    const [, ...leader] = await source.ask(observe(settings.prefix), election, null)
    return leaderOf(...leader)
  } catch (error) {
    throw await explain(permanent(failure(error)) ?? failure(error), source, settings)
  } finally {
    source.close()
  }
}

/**
 * @param {Database} db
 * @param {string} election
 * @param {FollowOptions} [options]
 */
export function follow(db, election, options = {}) {
  const settings = settingsOf(election, options, ['schema', 'signal', 'onError', 'logger'])
  const { signal, prefix, application } = settings
  const source = new Source(db, application)
  const statement = (kind, _term, version) =>
    kind === 'open' ? [SETTINGS, application] : [observe(prefix), election, version]
  const way = { opens: true, limit: LIMIT, statement }
  /** @type {ReadableStreamDefaultController<Leader | null> | undefined} */
  let stream
  let forget = () => {}
  const end = async (/** @type {any} */ error) => {
    forget()
    if (error) stream?.error(await explain(error, source, settings))
    else stream?.close()
    source.close()
  }
  const machine = new FollowMachine(/** @type {any} */ (way), clock, settings)
  const told = (...leader) => stream?.enqueue(leaderOf(...leader))
  const driver = new Driver(machine, way, source, settings, { told, end })
  const stop = () => driver.post('stop')
  const changes = {
    pull(controller) {
      if (stream) return
      stream = controller
      driver.post('run')
      forget = onAbort(signal, stop)
    },
    cancel() {
      stream = undefined
    },
  }
  const values = new ReadableStream(changes, { highWaterMark: 0 }).values()
  const leave = /** @type {any} */ (values).return.bind(values)
  values.return = () => {
    stop() // as that of a stream waits for the next change
    return leave()
  }
  return values
}
