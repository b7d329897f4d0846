import { LeadershipError } from './errors.js'

/** @import { OustedReason, Term } from '../index.js' */
/** @import { PoolerError } from './errors.js' */
/** @import { Clock, Way, Won } from './ports.js' */

/** One term of an elector: until when it is confirmed, and why it ends. */
export class Tenure {
  /** Has the server said that another leads, or has the connection ended? */
  lost = false
  /** The error that ends the elector, if it is found to be behind a pooler. @type {PoolerError | undefined} */
  pooler
  /** @type {OustedReason | undefined} */
  reason
  #clock
  #way
  #until
  #beatUntil
  #beat = false
  #cancelJob = new AbortController()
  #quiet = new AbortController()
  #cancelTimer = () => {}

  /**
   * @param {Clock} clock
   * @param {Way} way
   * @param {Won} won
   */
  constructor(clock, way, won) {
    this.won = won
    this.#clock = clock
    this.#way = way
    this.#until = won.asked + way.validity
    this.#beatUntil = won.asked + way.beatValidity
    /** @type {Term} */
    this.term = Object.freeze({
      election: won.election,
      token: won.token,
      signal: this.#cancelJob.signal,
      heartbeat: () => {
        this.#beat = true
      },
      isLeading: () => !this.#cancelJob.signal.aborted && this.isValid(),
    })
  }

  /** Aborted when there is nothing more to confirm: the job has stopped, or leadership is over. */
  get quiet() {
    return this.#quiet.signal
  }

  /** Does the last confirmation hold? */
  isValid() {
    return this.#clock.now() < this.#validUntil()
  }

  #validUntil() {
    return Math.min(this.#until, this.#beatUntil)
  }

  /** Why the validity has passed. */
  get doubt() {
    return this.#beatUntil < this.#until
      ? 'the job has not called heartbeat'
      : 'no confirmation has come in time'
  }

  /** Has the job called `heartbeat` since this was last asked? */
  takeBeat() {
    const beat = this.#beat
    this.#beat = false
    return beat
  }

  /**
   * The server has confirmed leadership, and been asked at that time.
   *
   * @param {number} asked
   * @param {boolean} beat
   */
  confirmed(asked, beat) {
    this.#until = asked + this.#way.validity
    if (beat) this.#beatUntil = asked + this.#way.beatValidity
  }

  /**
   * Call `doubt` when the validity of the last confirmation has passed.
   *
   * @param {() => void} doubt
   */
  watch(doubt) {
    if (this.quiet.aborted) return
    const rest = this.#validUntil() - this.#clock.now()
    // timers stand still while the machine is suspended, so look at the clock each second
    if (rest > 0)
      this.#cancelTimer = this.#clock.after(Math.min(rest, 1000), () => this.watch(doubt))
    else doubt()
  }

  /** Ask no more. */
  hush() {
    this.#cancelTimer()
    this.#quiet.abort()
  }

  /**
   * Tell the job to stop. What ends the term first is the reason, but a resignation that leadership
   * does not live to see is none.
   *
   * @param {OustedReason} reason
   * @param {string} [detail]
   * @param {Error} [cause]
   */
  end(reason, detail, cause) {
    const ended = this.reason
    const error = new LeadershipError(this.won.election, reason, detail, cause)
    const over = reason === 'lost' || reason === 'in doubt'
    if (ended === undefined || (ended === 'resigned' && over)) this.reason = reason
    this.#cancelJob.abort(error)
    return error
  }
}
