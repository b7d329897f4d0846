// The state machine of an elector. It is pure: `step` gets the time and what has happened, and
// returns what is to be done. The cases of ../../conformance run on it.
import { LeaderElectionError, LostError, permanent, poolerError, silence } from './errors.js'
import { Tenure } from './term.js'

/** @import { ElectorState } from '../index.js' */
/** @typedef {{ serial: number, kind: string, asked: number, deadline: number, argument: any, begun: boolean }} Ask */

/** Insufficient privilege, as after the role was replaced. */
const DENIED = '42501'
/** A term of this length shows that the job works. */
const LASTING = 60_000

export class ElectorMachine {
  now = 0
  /** @type {any[][]} */
  actions = []
  /** The statement on its way. @type {Ask | undefined} */
  ask
  serial = 0
  /** Failures in a row. */
  failures = 0
  /** The end of a pause. */
  until = Infinity
  /** @type {ElectorState} */
  state = 'stopped'
  terms = 0
  confirmations = 0
  errors = 0
  /** The present term. @type {any} */
  tenure
  /** Failures of the job in a row. */
  #crashes = 0
  #phase = 'stopped'
  #stopping = false
  #toldNotYet = false
  /** Whether to run the job once, and until when to campaign for that. */
  once = false
  #lastBid = Infinity
  /** Of a job that is run once, if it is an error. @type {LeaderElectionError | undefined} */
  #result
  /** The token of a lease that could not be resigned. @type {number | null} */
  #token = null
  #pid

  /**
   * @param {import('./session.js').Session | import('./lease.js').Lease} way
   * @param {() => number} clock
   * @param {{ election: string, heartbeat?: number, stopTimeout: number }} settings
   * @param {() => number} [random]
   */
  constructor(way, clock, settings, random = Math.random) {
    this.way = way
    this.clock = clock
    this.settings = settings
    this.random = random
    this.beatLength = settings.heartbeat && (settings.heartbeat * 2) / 3
  }

  /**
   * Let time pass, and note an event. Returns the actions.
   *
   * @param {number} now
   * @param {string} [event]
   * @param {...any} args
   */
  step(now, event, ...args) {
    this.now = now
    this.actions = []
    this.#passTime()
    if (event) {
      this[event](...args)
      this.#passTime()
    }
    return this.actions
  }

  /** When `step` is to be called although nothing has happened. */
  wakeup() {
    const { due, reportAt } = this.tenure ?? { reportAt: Infinity }
    const times = [this.until, this.ask?.deadline ?? Infinity, reportAt]
    if (this.#holds()) times.push(this.tenure.validUntil(), this.ask ? Infinity : due)
    return Math.min(...times)
  }

  get health() {
    if (this.state === 'stopped') return 'stopped'
    if (this.failures > 0 || this.tenure?.over) return 'in doubt'
    if (!this.tenure || this.#phase === 'confirming') return 'waiting'
    return this.clock() < this.tenure.validUntil() ? 'leading' : 'in doubt'
  }

  #leads() {
    return ['elected', 'job', 'ousted'].includes(this.#phase)
  }

  #holds() {
    return this.#leads() && !this.tenure.over
  }

  report(error) {
    this.errors += 1
    this.do('error', error)
  }

  #enter(state, phase, until = Infinity) {
    this.state = state
    this.#phase = phase
    this.until = until
  }

  #passTime() {
    const { now, tenure, way } = this
    if (this.#holds()) this.#checkValidity()
    if (this.ask && now >= this.ask.deadline) {
      const { serial, kind, begun, asked, deadline } = this.ask
      this.failed(serial, silence(begun, deadline - asked, kind))
    }
    if (this.#phase === 'leaving' && !this.ask) this.#leave()
    if (now >= tenure?.reportAt) {
      tenure.reportAt = Infinity
      const isJob = this.#phase === 'job'
      const what = isJob ? 'the job has not stopped' : `${this.#phase} has not returned`
      const message = `${what} within ${this.settings.stopTimeout / 1000} s`
      this.report(new LeaderElectionError(isJob ? 'slow job' : 'callback', message))
    }
    if (now >= this.until) this.run()
    if (!this.ask && this.#holds() && now >= tenure.due) {
      const beat = way.opens && this.beatLength && tenure.beats !== tenure.carried
      this.send(beat ? 'beat' : 'confirm', tenure.beats, way.patience)
    }
  }

  do(...action) {
    this.actions.push(action)
  }

  send(kind, argument, limit, wait = 0) {
    const [serial, asked] = [++this.serial, this.now]
    this.ask = { serial, kind, argument, asked, deadline: asked + limit + wait, begun: false }
    this.do('ask', this.serial, kind, argument, wait)
  }

  /** Call a method for the statement with that number, if it was not given up. */
  #conclude(serial, method, ...args) {
    const { ask } = this
    if (ask?.serial !== serial) return
    this.ask = undefined
    this[method](ask, ...args)
  }

  answer(serial, ...row) {
    this.#conclude(serial, 'answered', ...row)
  }

  failed(serial, error) {
    this.#conclude(serial, 'unanswered', error)
  }

  begun(serial) {
    if (this.ask && this.ask.serial === serial) this.ask.begun = true
  }

  close() {
    this.ask = undefined
    this.do('close')
  }

  /** How long to pause after a failure, if there were so many before. */
  #backoff(most = 15_000, before = this.failures) {
    this.failures += 1
    return Math.min(most, 500 * 2 ** before) * (0.5 + this.random() / 2)
  }

  #checkValidity() {
    const { confirmedUntil, beatenUntil } = this.tenure
    if (this.now >= confirmedUntil) this.#lose('in doubt', 'no confirmation has come in time')
    else if (this.now >= beatenUntil) this.#lose('in doubt', 'no heartbeat has come in time')
  }

  // The campaign

  /** Campaign for one term, at most for so long. */
  try(wait) {
    this.once = true
    this.#lastBid = this.now + wait
    this.#result = new LeaderElectionError('denied', 'another one leads')
    this.run()
  }

  run() {
    if (this.#stopping) return this.#end()
    this.#enter('waiting', 'campaign')
    if (this.way.opens) this.send('open', null, this.way.limit)
    else this.bid()
  }

  bid() {
    const { limit, round } = this.way
    const longest = this.failures > 0 ? 1000 : round
    const rest = Math.max(0, this.#lastBid - this.now)
    this.send('bid', this.#token, limit, Math.min(round, longest, rest))
  }

  answered(ask, ...row) {
    if (ask.kind === 'open') {
      this.#pid = row[0]
      this.bid()
    } else if (ask.kind === 'bid') {
      this.#bidAnswered(ask, ...row)
    } else if (ask.kind === 'resign') {
      const yields = this.tenure.over && !this.way.opens
      this.#finish()
      if (yields) this.until += this.way.between // to those that bid at this interval
    } else if (!this.tenure.over) {
      this.#confirmAnswered(ask, ...row)
    }
  }

  #bidAnswered(ask, token, name = this.settings.election) {
    const { way, beatLength } = this
    this.failures = 0
    this.#toldNotYet = false
    this.#token = null
    if (token === null) {
      if (this.#stopping || this.now >= this.#lastBid) this.#finish()
      else if (way.opens) this.bid()
      else this.until = Math.min(ask.asked + way.between, this.#lastBid)
    } else if (way.opens) {
      this.tenure = new Tenure(name, token, this.clock)
      this.#phase = 'confirming'
      this.send(beatLength ? 'beat' : 'confirm', 0, way.limit)
    } else {
      this.tenure = new Tenure(name, token, this.clock, beatLength)
      if (beatLength) this.tenure.beatenUntil = ask.asked + beatLength
      this.#confirmed(ask)
      this.#lead()
    }
  }

  #failAttempt(ask, error) {
    this.close()
    this.tenure = undefined
    const judged = ['bid', 'observe'].includes(ask.kind) && ask.begun
    const replaced = judged && error.code === DENIED && this.#token !== null
    if (replaced) this.#token = null
    const cause = judged && !this.#stopping && !replaced && permanent(error)
    if (cause) return this.#end(cause)
    if (!this.#stopping && this.now >= this.#lastBid) return this.#end(error)
    const notYet = error.code === 'LE003' // no lease yet
    if (this.#stopping || !notYet || !this.#toldNotYet) this.report(error)
    if (this.#stopping) return this.#end()
    this.#toldNotYet = notYet
    const named = notYet && /(\d+) ms/.exec(error.hint ?? '')
    this.#pause(named ? Number(named[1]) : this.#backoff())
  }

  #pause(length) {
    this.#enter('paused', 'paused', Math.min(this.now + length, this.#lastBid))
  }

  // The term

  #confirmed({ kind, asked, argument }) {
    this.confirmations += 1
    const { tenure, way, beatLength } = this
    tenure.due = asked + way.interval
    tenure.confirmedUntil = asked + way.validity
    if (kind !== 'beat') return
    tenure.carried = argument
    tenure.beatenUntil = asked + beatLength
  }

  #confirmAnswered(ask, leads, pid) {
    if (this.way.opens && pid !== this.#pid) this.#lose('pooler')
    else if (leads) this.#confirmed(ask)
    else this.#lose('lost', 'the server says that this elector does not lead')
    if (this.#phase === 'confirming') this.#lead()
  }

  #lead() {
    const { tenure } = this
    if (!tenure.over) this.#checkValidity()
    if (tenure.over || this.#stopping) {
      tenure.reason ??= 'resigned'
      return this.#leave()
    }
    this.#enter('leading', 'elected')
    tenure.began = this.now
    this.#reportLater()
    this.terms += 1
    this.do('elected', tenure)
  }

  /** The callback of `what` has returned, or the job has; or it has failed. */
  done(what, error) {
    const { tenure } = this
    if (error && what === 'job' && this.once && !tenure.over) this.#result = error
    else if (error) this.report(error)
    tenure.reportAt = Infinity
    if (what === 'ousted') return this.#leave()
    if (what === 'job') this.#cancel(error ? 'job failed' : 'job returned')
    this.#phase = tenure.reason ? 'ousted' : 'job'
    if (this.#phase === 'job') this.#result = undefined
    else this.#reportLater()
    this.do(this.#phase, tenure, tenure.reason)
  }

  /** Report the job that is to stop, or a callback, if it takes long. */
  #reportLater() {
    this.tenure.reportAt = this.now + this.settings.stopTimeout
  }

  #cancel(reason, error) {
    const { tenure } = this
    if (tenure.reason) return
    tenure.reason = reason
    this.state = 'stopping'
    if (reason === 'job returned' || this.now >= tenure.began + LASTING) this.#crashes = 0
    if (this.#phase === 'job' && !reason.startsWith('job')) {
      this.do('cancel', error)
      this.#reportLater()
    }
  }

  #lose(kind, why, details) {
    const message = `leadership of "${this.tenure.election}" is ${kind}: ${why}`
    const error = kind === 'pooler' ? poolerError() : new LostError(kind, message, details)
    this.tenure.over = kind
    if (this.once && (this.#phase === 'job' || !this.tenure.reason)) this.#result = error
    else if (kind !== 'pooler') this.report(error)
    if (!this.way.opens && this.ask) this.close()
    this.#cancel(kind === 'in doubt' ? kind : 'lost', error)
  }

  #leave() {
    const { over } = this.tenure
    this.#enter('stopping', 'leaving')
    if (over && (over !== 'in doubt' || this.ask)) this.#finish()
    else if (!this.ask) this.send('resign', null, this.way.limit)
  }

  #finish() {
    const { reason, over } = this.tenure ?? {}
    this.tenure = undefined
    this.close()
    if (over === 'pooler') this.#end(poolerError())
    else if (this.#stopping || this.once) this.#end()
    else if (reason === 'job returned') this.#pause(500 + 500 * this.random())
    else if (reason === 'job failed') this.#pause(this.#backoff(60_000, this.#crashes++))
    else this.#pause(this.#backoff())
  }

  #end(error) {
    this.#enter('stopped', 'stopped')
    this.do('end', error ?? this.#result)
  }

  stop() {
    if (this.#stopping) return
    this.#stopping = true
    if (this.state === 'stopped') return
    if (this.#leads()) return this.#cancel('resigned')
    if (this.#phase === 'leaving' || (this.ask?.kind === 'bid' && !this.way.opens)) return
    this.tenure = undefined
    if (this.ask) this.close()
    this.#end()
  }

  // Errors

  broken(error) {
    if (this.ask) this.failed(this.ask.serial, error)
    else this.#connectionLost(error)
  }

  unanswered(ask, error) {
    const { way, tenure } = this
    if (tenure && ask.begun && error.code === DENIED) tenure.refused = true
    if (['open', 'bid', 'observe'].includes(ask.kind) || this.#phase === 'confirming') {
      this.#failAttempt(ask, error)
    } else if (ask.kind === 'resign' || (way.opens && this.#phase === 'leaving')) {
      this.report(error)
      this.#finish()
      this.#token = way.opens || tenure.refused ? null : tenure.token
    } else if (way.opens) {
      this.#connectionLost(error)
    } else {
      this.report(error)
      this.close()
      tenure.due = this.now + way.retry
    }
  }

  #connectionLost(error) {
    if (this.tenure?.over === 'in doubt') this.tenure.over = 'lost'
    else if (this.#holds()) this.#lose('lost', error.message, error)
  }
}
