import { PoolerError, asError } from './errors.js'
import { every } from './every.js'
import { LeaseWay } from './lease.js'
import { SessionWay } from './session.js'
import { Tenure } from './tenure.js'
import { onAbort, pauseAfterErrors, sleep } from './time.js'

/** @import { ElectorState, Job, Task } from '../index.js' */
/** @import { Clock, Server, Way } from './ports.js' */
/** @import { Settings } from './settings.js' */

/**
 * The state machine of an elector. It knows the world only by a clock, a server, and a source of
 * random numbers.
 */
export class Machine {
  #settings
  #clock
  #server
  #random
  /** @type {Way} */
  #way
  /** @type {ElectorState} */
  #state = 'stopped'
  #hasRun = false
  #errors = 0 // in a row
  #halt = new AbortController()

  /**
   * @param {Settings} settings
   * @param {{ clock: Clock, server: Server, random: () => number }} world
   */
  constructor(settings, { clock, server, random }) {
    this.#settings = settings
    this.#clock = clock
    this.#server = server
    this.#random = random
    this.#way =
      settings.ttl === undefined
        ? new SessionWay(clock, server, settings)
        : new LeaseWay(clock, server, settings, settings.ttl)
  }

  get state() {
    return this.#state
  }

  get election() {
    return this.#settings.election
  }

  get identity() {
    return this.#settings.identity
  }

  stop() {
    this.#halt.abort(new Error('the elector is stopped'))
  }

  /**
   * @param {Job} job
   * @param {{ signal?: AbortSignal }} [options]
   */
  async run(job, { signal } = {}) {
    if (typeof job !== 'function') throw new TypeError('the job must be a function')
    if (this.#hasRun) throw new Error('an elector can run only once')
    this.#hasRun = true
    const forget = onAbort(signal, () => this.stop())
    try {
      while (!this.#halt.signal.aborted) {
        const pause = await this.#attempt(job)
        this.#state = 'paused'
        await sleep(this.#clock, pause, this.#halt.signal)
      }
    } finally {
      forget()
      this.#server.close()
      this.#state = 'stopped'
    }
  }

  /**
   * @param {number} interval
   * @param {Task} task
   */
  every(interval, task) {
    return every(interval, task, {
      clock: this.#clock,
      server: this.#server,
      deadline: this.#way.deadline,
      report: (error) => this.#report(error),
    })
  }

  /**
   * Campaign, and lead if elected. Returns how long to pause.
   *
   * @param {Job} job
   */
  async #attempt(job) {
    const halt = this.#halt.signal
    this.#state = 'waiting'
    try {
      const won = await this.#way.campaign(halt, () => (this.#errors = 0))
      if (won === null) return 0
      const tenure = new Tenure(this.#clock, this.#way, won)
      return await (halt.aborted ? this.#resign(tenure) : this.#lead(tenure, job))
    } catch (error) {
      if (error instanceof PoolerError) throw error
      if (error !== halt.reason) this.#report(error)
      return this.#pauseAfterError()
    } finally {
      this.#way.close()
    }
  }

  /**
   * Run the job until it has stopped, and resign.
   *
   * @param {Tenure} tenure
   * @param {Job} job
   */
  async #lead(tenure, job) {
    const { term } = tenure
    const halt = this.#halt.signal
    this.#state = 'leading'
    const forget = onAbort(halt, () => tenure.end('resigned'))
    const cancelTimeout = this.#watchJob(tenure)
    this.#way.watch((cause) => this.#lose(tenure, cause))
    tenure.watch(() => this.#doubt(tenure))
    this.#call('onElected', this.#settings.onElected, term)
    const keeping = this.#keep(tenure)
    await this.#work(tenure, job)
    cancelTimeout()
    forget()
    tenure.hush()
    const reason = tenure.reason ?? 'resigned'
    this.#call('onOusted', this.#settings.onOusted, term, reason)
    await keeping
    this.#way.watch(() => {})
    if (tenure.pooler) await this.#leavePooler(tenure, tenure.pooler)
    if (!tenure.lost) await this.#resign(tenure)
    return reason === 'job returned' ? 500 + 500 * this.#random() : this.#pauseAfterError()
  }

  /**
   * Report the job if it takes longer to stop than the stop timeout. Returns a function that
   * prevents it.
   *
   * @param {Tenure} tenure
   */
  #watchJob(tenure) {
    const { stopTimeout } = this.#settings
    let cancel = () => {}
    const forget = onAbort(tenure.term.signal, () => {
      this.#state = 'stopping'
      cancel = this.#clock.after(stopTimeout, () => {
        const { election } = tenure.term
        this.#report(
          new Error(
            `the job of "${election}" has not stopped ${stopTimeout} ms after it was told to`,
          ),
        )
      })
    })
    return () => {
      forget()
      cancel()
    }
  }

  /**
   * Do the job. Never fails.
   *
   * @param {Tenure} tenure
   * @param {Job} job
   */
  async #work(tenure, job) {
    const { term } = tenure
    if (term.signal.aborted) return
    try {
      await job(term)
      tenure.end('job returned')
    } catch (cause) {
      if (!isCancellation(cause, term.signal)) {
        const { message } = asError(cause)
        this.#report(new Error(`the job of "${term.election}" has failed: ${message}`, { cause }))
      }
      tenure.end('job failed')
    }
  }

  /**
   * Confirm leadership by the timer, until the job has stopped or leadership is over. Never fails.
   *
   * @param {Tenure} tenure
   */
  async #keep(tenure) {
    const { quiet, won } = tenure
    let next = won.asked + this.#way.period
    while (!quiet.aborted) {
      const now = this.#clock.now()
      if (now < next) {
        await sleep(this.#clock, next - now, quiet)
      } else {
        const answered = await this.#confirm(tenure, now)
        next = answered ? now + this.#way.period : this.#clock.now() + this.#way.retry
      }
    }
  }

  /**
   * Ask whether this elector still leads. False if there is no answer, or nothing to ask.
   *
   * @param {Tenure} tenure
   * @param {number} asked
   */
  async #confirm(tenure, asked) {
    const beat = tenure.takeBeat()
    const answer = this.#way.confirm(tenure.won, beat)
    if (answer === null) return false
    try {
      const leads = await answer
      if (!leads) this.#lose(tenure)
      else if (!tenure.isValid()) this.#doubt(tenure)
      else tenure.confirmed(asked, beat)
      return true
    } catch (error) {
      if (beat) tenure.term.heartbeat() // the server may not know of it
      if (error instanceof PoolerError) tenure.pooler = error
      if (this.#way.errorIsLoss) this.#lose(tenure, asError(error))
      else this.#report(error)
      return false
    }
  }

  /**
   * Leadership is lost: cancel the job, and report it once.
   *
   * @param {Tenure} tenure
   * @param {Error} [cause]
   */
  #lose(tenure, cause) {
    if (tenure.lost) return
    const news = cause !== undefined || !tenure.quiet.aborted
    tenure.lost = true
    tenure.hush()
    const error = tenure.end('lost', cause?.message ?? 'the server says so', cause)
    if (news && !tenure.pooler) this.#report(error)
  }

  /**
   * The validity of the last confirmation has passed: cancel the job, and report it once.
   *
   * @param {Tenure} tenure
   */
  #doubt(tenure) {
    if (tenure.quiet.aborted) return
    tenure.hush()
    this.#report(tenure.end('in doubt', tenure.doubt))
  }

  /** @param {Tenure} tenure */
  async #resign(tenure) {
    try {
      await this.#way.resign(tenure.won)
    } catch (error) {
      this.#report(error)
    }
    return 0
  }

  /**
   * @param {Tenure} tenure
   * @param {PoolerError} error
   */
  async #leavePooler(tenure, error) {
    await this.#way.cleanUp(tenure.won).catch((failure) => this.#report(failure))
    throw error
  }

  #pauseAfterError() {
    return pauseAfterErrors(++this.#errors, this.#random)
  }

  /**
   * Call a callback, if there is one, and report it if it fails.
   *
   * @template {unknown[]} A
   * @param {string} name
   * @param {((...args: A) => unknown) | undefined} callback
   * @param {A} args
   */
  #call(name, callback, ...args) {
    attempt(callback, args, (cause) => {
      this.#report(new Error(`${name} has failed: ${asError(cause).message}`, { cause }))
    })
  }

  /** @param {unknown} error */
  #report(error) {
    attempt(this.#settings.onError, [asError(error)], (failure) => {
      console.error(`leader election "${this.election}": onError has failed:`, failure, error)
    })
  }
}

/**
 * Call a function that is not ours. A promise that it returns is not waited for.
 *
 * @param {((...args: any[]) => unknown) | undefined} callback
 * @param {unknown[]} args
 * @param {(error: unknown) => void} failed
 */
function attempt(callback, args, failed) {
  try {
    Promise.resolve(callback?.(...args)).catch(failed)
  } catch (error) {
    failed(error)
  }
}

/**
 * Has a job failed only because it was told to stop? Functions that take an AbortSignal fail with its
 * reason, or with an AbortError.
 *
 * @param {any} error
 * @param {AbortSignal} signal
 */
function isCancellation(error, signal) {
  return signal.aborted && (error === signal.reason || error?.name === 'AbortError')
}
