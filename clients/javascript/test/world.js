// A simulated clock and server, and an elector that lives in them. Nothing here waits.
import { setImmediate } from 'node:timers/promises'
import { Machine } from '../src/machine.js'
import { settingsOf } from '../src/settings.js'

export const silence = () => new Promise(() => {})

/** An answer that comes `ms` later. */
export const late = (world, ms, answer) => () =>
  new Promise((resolve) => world.clock.after(ms, () => resolve(answer)))

export const sqlError = (code, message = `error ${code}`) =>
  Object.assign(new Error(message), { code })

const KINDS = [
  'le_campaign',
  'le_am_leader',
  'le_heartbeat',
  'le_lease',
  'le_renew',
  'le_resign',
  'le_depose',
  'le_once',
  'date_bin',
  'BEGIN',
  'COMMIT',
  'pg_backend_pid',
]

export class World {
  /** What each kind of statement answers: a function of its values and connection. */
  answers = {
    connect: () => {},
    le_campaign: () => ({ token: '7' }),
    le_am_leader: (values, connection) => ({ leads: true, pid: connection.pid }),
    le_heartbeat: (values, connection) => ({ leads: true, pid: connection.pid }),
    le_lease: () => ({ token: '7' }),
    le_renew: () => ({ leads: true }),
    le_resign: () => ({ resigned: true }),
    le_depose: () => ({}),
    le_once: () => ({ due: true }),
    date_bin: () => ({ due: '0' }),
    BEGIN: () => ({}),
    COMMIT: () => ({}),
    pg_backend_pid: (values, connection) => ({ pid: connection.pid }),
  }
  /** All that has happened: [time, what, ...]. */
  log = []
  open = new Set()
  dice = 0.5
  #now = 0
  #timers = new Set()
  #pid = 100

  clock = {
    now: () => this.#now,
    after: (ms, action) => {
      const timer = { at: this.#now + Math.max(ms, 0), action }
      this.#timers.add(timer)
      return () => this.#timers.delete(timer)
    },
  }

  server = {
    connect: async (signal) => {
      this.note('connect')
      const connection = new SimulatedConnection(this, String(++this.#pid))
      await this.answers.connect(signal)
      if (signal.aborted) throw signal.reason
      this.open.add(connection)
      return connection
    },
    close: () => {},
  }

  note(...what) {
    this.log.push([this.#now, ...what])
  }

  /** The times at which something has happened. */
  times(what) {
    return this.log.filter((entry) => entry[1] === what).map(([time]) => time)
  }

  /** How often it has happened. */
  count(what) {
    return this.times(what).length
  }

  /** What has happened, without times, of these kinds only. */
  order(...kinds) {
    return this.log
      .map(([, ...what]) => what.join(' '))
      .filter((text) => kinds.some((kind) => text.startsWith(kind)))
  }

  get timers() {
    return this.#timers.size
  }

  /** Let all that is due now happen. */
  async settle() {
    for (let i = 0; i < 3; i++) await setImmediate()
  }

  /** Let time pass, and all timers run on time. */
  async advance(ms) {
    const end = this.#now + ms
    await this.settle()
    for (;;) {
      const [next] = [...this.#timers].sort((a, b) => a.at - b.at)
      if (next === undefined || next.at > end) break
      this.#timers.delete(next)
      this.#now = Math.max(this.#now, next.at)
      next.action()
      await this.settle()
    }
    this.#now = end
  }

  /** Let the clock go on, while the timers stand still. */
  jump(ms) {
    this.#now += ms
  }

  /** Start an elector. The job, if none is given, does nothing until it is cancelled. */
  async start(options = {}, job = untilCancelled) {
    const settings = settingsOf('e', {
      identity: 'me',
      onElected: (term) => this.note('elected', term.token),
      onOusted: (term, reason) => this.note('ousted', reason),
      onError: (error) => this.note('error', error.message),
      ...options,
    })
    this.elector = new Machine(settings, {
      clock: this.clock,
      server: this.server,
      random: () => this.dice,
    })
    this.running = this.elector.run(async (term) => {
      this.note('job')
      this.term = term
      term.signal.addEventListener('abort', () => this.note('cancelled', term.signal.reason.reason))
      try {
        return await job(term)
      } finally {
        this.note('job stopped')
      }
    })
    this.running.then(
      () => this.note('returned'),
      (error) => this.note('failed', error.name),
    )
    await this.settle()
  }

  get errors() {
    return this.log.filter((entry) => entry[1] === 'error').map((entry) => entry[2])
  }
}

export const untilCancelled = (term) =>
  new Promise((resolve) => {
    if (term.signal.aborted) resolve()
    term.signal.addEventListener('abort', () => resolve())
  })

class SimulatedConnection {
  onEnd
  client = { name: 'client' }

  constructor(world, pid) {
    this.world = world
    this.pid = pid
  }

  async query(text, values, signal) {
    const kind = KINDS.find((name) => text.includes(name)) ?? text
    this.world.note(kind, ...values.map(String))
    if (!this.world.open.has(this)) throw new Error('the connection is closed')
    signal.addEventListener('abort', () => this.close())
    const row = await this.world.answers[kind](values, this)
    const rows = row === undefined ? [] : [row]
    return { rows, command: row?.command ?? kind }
  }

  /** The server ends the connection. */
  break(message = 'terminated') {
    this.world.open.delete(this)
    this.onEnd?.(new Error(message))
  }

  close() {
    this.onEnd = undefined
    if (this.world.open.delete(this)) this.world.note('closed')
  }

  release() {
    this.world.open.delete(this)
  }
}
