// Followers: the state machine, which is pure as that of an elector is, and what is around it.
import { Machine } from './elector.js'
import { permanent } from './errors.js'
import { settingsOf } from './options.js'
import { failure, Source } from './pg.js'
import { Driver, explain, onAbort } from './run.js'
import { SETTINGS } from './session.js'

/** @import { Database, FollowOptions, Leader } from '../index.js' */

const ROUND = 30_000
const LIMIT = 5000

export class FollowMachine extends Machine {
  #told = ''

  /** @override */
  passTime() {
    super.passTime()
    if (this.now >= this.until) this.run()
  }

  run() {
    this.until = Infinity
    this.send('open', null, LIMIT)
  }

  answered(ask, version, ...leader) {
    if (ask.kind === 'open') return this.send('observe', null, LIMIT, ROUND)
    this.failures = 0
    if (JSON.stringify(leader) !== this.#told) this.do('told', ...leader)
    this.#told = JSON.stringify(leader)
    this.send('observe', version, LIMIT, ROUND)
  }

  unanswered(ask, error) {
    const cause = ask.kind === 'observe' && permanent(error)
    if (cause) return this.stop(cause)
    this.close()
    this.do('error', error)
    this.until = this.now + this.backoff()
  }

  stop(/** @type {Error | undefined} */ error) {
    this.close()
    this.until = Infinity
    this.do('end', error)
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
  const way = { opens: true, statement }
  /** @type {ReadableStreamDefaultController<Leader | null> | undefined} */
  let stream
  let forget = () => {}
  const end = async (/** @type {any} */ error) => {
    forget()
    if (error) stream?.error(await explain(error, source, settings))
    else stream?.close()
    source.close()
  }
  const driver = new Driver(new FollowMachine(Math.random), way, source, settings, {
    told: (...leader) => stream?.enqueue(leaderOf(...leader)),
    end,
    fail: end,
  })
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
      stop()
    },
  }
  return new ReadableStream(changes, { highWaterMark: 0 }).values()
}
