// What drives a state machine: a queue of what has happened, a timer, and a connection.
import { clearTimeout, setTimeout } from 'node:timers' // not those that a test replaces
import { clock } from './clock.js'
import { ElectorMachine } from './elector.js'
import { failedBy, LeaderElectionError } from './errors.js'
import { Lease } from './lease.js'
import { callback, checked, done, must, settingsOf } from './options.js'
import { failure, Source } from './pg.js'
import { Session } from './session.js'
import { isAbort, makeTerm } from './term.js'

/** @import { Database, ElectorOptions, Job, Logger } from '../index.js' */

const DIAGNOSE = `
  SELECT
    (SELECT nspname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
     WHERE proname = 'le_version' ORDER BY p.oid LIMIT 1),
    current_database()`

const LONGEST_TIMER = 2 ** 31 - 1

/**
 * @param {Logger} logger which harms nothing if it fails
 * @param {'info' | 'error'} level
 * @param {any[]} what
 */
async function log(logger, level, ...what) {
  try {
    await logger[level](...what)
  } catch {
    // there is nothing left to tell it
  }
}

export class Driver {
  /** @type {any[][]} */
  #queue = []
  #busy = false
  /** @type {NodeJS.Timeout | undefined} */
  #timer
  /** @type {Awaited<ReturnType<Source['connect']>> | undefined} */
  #connection
  #giveUp = new AbortController()

  /**
   * @param {any} machine
   * @param {{ opens: boolean, statement: (kind: string, term: any, argument: any, wait: number) => any[] }} way
   * @param {Source} source
   * @param {any} settings
   * @param {Record<string, (...args: any[]) => void>} actions
   */
  constructor(machine, way, source, { election, onError, logger }, actions) {
    this.machine = machine
    this.way = way
    this.source = source
    /** @type {Record<string, (...args: any[]) => any>} */
    this.actions = {
      ask: (...args) => this.#ask(...args),
      close: () => this.#close(),
      error: async (error) => {
        error.election = election
        try {
          await (onError ? onError(error) : logger.error(error))
        } catch (failed) {
          log(logger, 'error', error.message, failedBy('callback', 'error', failed).message)
        }
      },
      ...actions,
    }
  }

  /** Note an event, or that time has passed. */
  post = (/** @type {any[]} */ ...event) => {
    this.#queue.push(event)
    if (this.#busy) return
    this.#busy = true
    try {
      for (let next = this.#queue.shift(); next; next = this.#queue.shift()) {
        const actions = this.machine.step(clock(), ...next)
        for (const [kind, ...args] of actions) this.actions[kind](...args)
      }
    } finally {
      this.#busy = false
    }
    clearTimeout(this.#timer)
    const rest = this.machine.wakeup() - clock()
    // timers stand still while the machine is suspended, so look at the clock each second
    if (rest !== Infinity) this.#timer = setTimeout(this.post, Math.min(1000, Math.ceil(rest)))
  }

  async #ask(serial, kind, argument, wait) {
    const { signal } = (this.#giveUp = new AbortController())
    const { opens } = this.way
    const { tenure } = this.machine
    try {
      if (kind === 'open' || !opens) {
        const opened = await this.source.connect(signal)
        if (signal.aborted) return opened.close()
        if (opens) opened.onEnd = (error) => this.post('broken', failure(error))
        this.#connection = opened
      }
      this.post('begun', serial)
      const connection = this.#connection
      if (signal.aborted || !connection) return
      const statement = this.way.statement(kind, tenure, argument, wait)
      const row = await connection.query(statement, LONGEST_TIMER)
      if (signal.aborted) return
      if (!opens) {
        this.#connection = undefined
        connection.release()
      }
      this.post('answer', serial, ...row)
    } catch (error) {
      if (!signal.aborted) this.post('failed', serial, failure(error))
    }
  }

  #close() {
    this.#giveUp.abort()
    this.#connection?.close()
    this.#connection = undefined
  }
}

/**
 * @param {AbortSignal | undefined} signal
 * @param {() => void} action
 */
export function onAbort(signal, action) {
  if (signal?.aborted) action()
  else signal?.addEventListener('abort', action, { once: true })
  return () => signal?.removeEventListener('abort', action)
}

/** Say more of a permanent error, and leave no leader behind a pooler. */
export async function explain(error, source, { election, identity, schema, seats, prefix }) {
  try {
    if (error.kind === 'pooler') {
      const name = seats ? `ANY (${prefix}le_seats($1::text, $3::int))` : '$1::text'
      const expel = `SELECT pg_terminate_backend(pid) FROM ${prefix}le_leaders WHERE identity = $2::text AND name = ${name}`
      const statement = [expel, election, identity, ...(seats ? [seats] : [])]
      // it can run in the session that it ends, or in one that another elector ends
      for (let tries = 0; tries < 10; tries++) {
        const result = await source.ask(...statement).catch((failed) => failed)
        if (!result.severity) break
      }
    } else if (error.kind === 'extension') {
      const [found, database] = await source.ask(DIAGNOSE)
      if (!found)
        error.message = `leader_election is not installed in database "${database}": run CREATE EXTENSION leader_election, or install the SQL edition`
      else if (found !== schema)
        error.message = `leader_election is in schema "${found}": set the option schema to it, or add it to search_path`
    }
  } catch {
    // then it says what the server has said
  }
  return error
}

export class Elector {
  #settings
  #source
  #machine
  #driver
  /** @type {Job | undefined} */
  #job
  /** @type {any} */
  #present
  /** @type {any} */
  #end

  /**
   * @param {Database} db
   * @param {string} election
   * @param {ElectorOptions} [options]
   */
  constructor(db, election, options = {}) {
    const settings = settingsOf(election, options)
    const way = settings.ttl ? new Lease(settings) : new Session(settings)
    this.#settings = settings
    this.#source = new Source(db, settings.application)
    this.#machine = new ElectorMachine(way, clock, settings)
    this.#driver = new Driver(this.#machine, way, this.#source, settings, this.#actions())
    this.election = election
    this.identity = settings.identity
    for (const name of ['state', 'health', 'terms', 'confirmations', 'errors']) {
      Object.defineProperty(this, name, { enumerable: true, get: () => this.#machine[name] })
    }
  }

  healthHandler = (/** @type {unknown} */ _request, /** @type {any} */ response) => {
    const { health } = this.#machine
    response.statusCode = health === 'waiting' || health === 'leading' ? 200 : 503
    response.end(health)
  }

  stop = () => this.#driver.post('stop')

  /**
   * @param {Job} job
   * @param {{ signal?: AbortSignal }} [options]
   */
  async run(job, options = {}) {
    await this.#drive(job, checked(options, ['signal']).signal, 'run')
  }

  /**
   * @param {Job} job
   * @param {{ wait?: number, signal?: AbortSignal }} [options]
   */
  async tryRun(job, options = {}) {
    const { signal, wait = 0 } = checked(options, ['signal', 'wait'])
    try {
      const { value } = await this.#drive(job, signal, 'try', wait)
      return { ran: true, value }
    } catch (/** @type {any} */ error) {
      if (error.kind !== 'denied') throw error.kind === 'job' ? error.cause : error
      signal?.throwIfAborted()
      return { ran: false, value: undefined }
    }
  }

  async #drive(job, signal, ...begin) {
    callback('job', job)
    must(!this.#job, 'an elector can run only once', 'ERR_INVALID_STATE')
    this.#job = job
    const forget = onAbort(signal, () => this.stop())
    try {
      return await new Promise((resolve, reject) => {
        this.#end = { resolve, reject }
        this.#driver.post(...begin)
      })
    } catch (error) {
      throw await explain(error, this.#source, this.#settings)
    } finally {
      forget()
      this.#source.close()
    }
  }

  /** @returns {Record<string, (...args: any[]) => void>} */
  #actions() {
    const { onElected, onOusted, prefix } = this.#settings
    return {
      elected: (tenure) => {
        this.#present = makeTerm(tenure, prefix, this.#driver.post)
        this.#call('elected', onElected)
      },
      job: () => this.#call('job', this.#job),
      cancel: (error) => this.#present.cancel(error),
      ousted: (_tenure, reason) => {
        this.#present.cancel() // for what the job has left behind
        this.#call('ousted', onOusted, reason)
      },
      end: (error) => (error ? this.#end.reject(error) : this.#end.resolve(this.#present ?? {})),
    }
  }

  async #call(what, callback, ...args) {
    const { term } = this.#present
    const { election, token, signal } = term
    const kind = what === 'job' ? what : 'callback'
    const text = `${what}: leader of "${election}", token ${token}`
    if (kind === 'callback') log(this.#settings.logger, 'info', text, ...args)
    let failed
    try {
      const value = done(await callback?.(term, ...args))
      if (kind === 'job') this.#present.value = value
    } catch (cause) {
      // a job that has only stopped has not failed, but has no value for tryRun either
      const isLost = signal.reason instanceof LeaderElectionError
      const isTried = kind === 'job' && this.#machine.once && !isLost
      if (isTried || !isAbort(signal, cause)) failed = failedBy(kind, what, cause)
    }
    this.#driver.post('done', what, failed)
  }
}
