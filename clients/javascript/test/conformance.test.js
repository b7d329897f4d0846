// Runs the cases of ../../conformance on the state machines.
import assert from 'node:assert/strict'
import { appendFileSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { ElectorMachine } from '../src/elector.js'
import { LeaderElectionError } from '../src/errors.js'
import { due } from '../src/every.js'
import { FollowMachine } from '../src/follow.js'
import { Lease } from '../src/lease.js'
import { settingsOf } from '../src/options.js'
import { Session } from '../src/session.js'

const ORIGIN = Date.UTC(2000, 0)
const TIMES = ['heartbeat', 'ttl', 'stopTimeout', 'once']
const WORDS = { none: null, true: true, false: false, empty: '' }

const ms = (seconds) => Math.round(Number(seconds) * 1000)

const kindOf = ({ kind, code }) => (kind === 'server' ? code : kind)

function valueOf(word) {
  if (word in WORDS) return WORDS[word]
  if (word.startsWith('"')) return word.slice(1, -1).replaceAll('\\0', '\0')
  const [, repeated, times] = /^(.)\*(\d+)$/u.exec(word) ?? []
  if (repeated) return repeated.repeat(Number(times))
  return /^-?\d+(\.\d+)?$/.test(word) ? Number(word) : word
}

/** The clock, the server and the program of a case. */
class World {
  time = 0
  random = 1
  token = 6
  held = new Set()
  starved = new Set()
  shown = new Set('job cancel ousted error end told refused'.split(' '))
  out = []
  inbox = []
  asked // the statement that waits for an answer of the case
  givenUp

  given(kind, ...rest) {
    if (kind === 'every' || kind === 'schedule') {
      const [period, shift = 0] = rest[0].split('+').map(ms)
      const next = (last) => (Math.floor((last - ORIGIN - shift) / period) + 1) * period + shift
      this.schedule = kind === 'every' ? period : (last) => new Date(next(last) + ORIGIN)
      this.last = ms(rest[2]) + ORIGIN
      return
    }
    const random = () => this.random
    let begin = ['run']
    if (kind === 'follow') {
      this.machine = new FollowMachine({ opens: true, limit: 5000 }, () => this.time, {}, random)
    } else {
      const options = {}
      for (let i = 0; i < rest.length; i += 2) {
        const name = rest[i] === 'stop_timeout' ? 'stopTimeout' : rest[i]
        options[name] = TIMES.includes(name) ? ms(rest[i + 1]) : valueOf(rest[i + 1])
      }
      const { election = 'e', once, ...others } = options
      if (once !== undefined) begin = ['try', once]
      let settings
      try {
        settings = settingsOf(election, others)
      } catch (error) {
        const name = error.message.split(' ')[0]
        return this.show('refused', `refused ${name === 'stopTimeout' ? 'stop_timeout' : name}`)
      }
      this.seats = settings.seats
      const way = kind === 'lease' ? new Lease(settings) : new Session(settings)
      this.machine = new ElectorMachine(way, () => this.time, settings, random)
    }
    this.step(...begin)
  }

  /** Let the machine take a step, and then all that follows from it at once. */
  step(...event) {
    this.inbox.push(event)
    for (let next = this.inbox.shift(); next; next = this.inbox.shift()) {
      for (const action of this.machine.step(this.time, ...next)) this.act(...action)
    }
  }

  act(kind, ...args) {
    const [first, second] = args
    if (kind === 'ask') return this.ask(...args)
    if (kind === 'close' && this.asked) {
      this.givenUp = this.asked
      this.asked = undefined
    }
    const texts = {
      elected: () => `elected ${first.token}`,
      job: () => `job ${first.token}${this.seats ? ` ${first.election}` : ''}`,
      cancel: () => 'cancel',
      ousted: () => `ousted ${second}`,
      error: () => `error ${kindOf(first)}`,
      end: () => (first ? `end ${kindOf(first)}` : 'end'),
      told: () => `told ${args.map((item) => item ?? 'none').join(' ')}`,
      close: () => 'close',
    }
    this.show(kind, texts[kind]())
    if (['elected', 'ousted'].includes(kind) && !this.held.has(kind))
      this.inbox.push(['done', kind])
    if (kind === 'cancel' && !this.held.has('job')) this.inbox.push(['done', 'job'])
  }

  ask(serial, kind, argument) {
    const what = kind === 'beat' ? 'confirm' : kind
    if (!this.starved.has(what)) this.inbox.push(['begun', serial])
    if (this.held.has(what) || this.starved.has(what)) this.asked = serial
    else this.inbox.push(['answer', serial, ...this.usual(kind)])
    const word = what === 'confirm' ? null : argument
    this.show(what, [kind, ...((word ?? null) === null ? [] : [word])].join(' '))
  }

  usual(kind) {
    if (kind === 'bid') return [++this.token, ...(this.seats ? ['e/2'] : [])]
    if (kind === 'open') return [11]
    return kind === 'confirm' || kind === 'beat' ? [true, 11] : [true]
  }

  show(what, text) {
    if ([this.shown, this.held, this.starved].some((set) => set.has(what))) {
      this.out.push(`${this.time} ${text}`)
    }
  }

  advance(until, inclusive) {
    for (let steps = 0; ; steps++) {
      assert.ok(steps < 10_000, 'the machine takes no rest')
      const wakeup = Math.max(this.machine?.wakeup() ?? Infinity, this.time)
      if (wakeup > until || (wakeup === until && !inclusive)) break
      this.time = wakeup
      this.step()
    }
    this.time = Math.max(this.time, until)
  }

  arrive(kind, ...rest) {
    const { machine, asked, givenUp } = this
    if (kind === 'late') return this.step('answer', givenUp, ...rest.slice(1).map(valueOf))
    if (['answer', 'fails', 'broken'].includes(kind)) {
      assert.ok(asked || kind === 'broken', 'no statement waits for an answer')
      this.asked = undefined
    }
    const [code, , ...hint] = rest
    const events = {
      answer: () => ['answer', asked, ...rest.map(valueOf)],
      fails: () => [
        'failed',
        asked,
        new LeaderElectionError('server', 'fails', { code, hint: hint.join(' ') }),
      ],
      broken: () => ['broken', new LeaderElectionError('broken', 'the connection has ended')],
      stop: () => ['stop'],
      heartbeat: () => machine.tenure.heartbeat() ?? [],
    }
    if (kind === 'asleep') {
      this.time = ms(rest[1])
    } else if (events[kind]) {
      this.step(...events[kind]())
    } else {
      assert.ok(['elected', 'job', 'ousted'].includes(kind), kind)
      const failed = new LeaderElectionError(kind === 'job' ? 'job' : 'callback', 'fails')
      this.step('done', kind, rest[0] === 'fails' ? failed : undefined)
    }
  }

  check(what, ...rest) {
    if (what === 'due') {
      const [found, next] = due(this.schedule, this.last, this.time + ORIGIN)
      this.last = next
      assert.equal(found && found - ORIGIN, rest[0] === 'none' ? null : ms(rest[0]))
    } else if (what === 'leading' || what === 'not') {
      assert.equal(Boolean(this.machine.tenure?.isLeading()), what === 'leading')
    } else {
      assert.equal(String(this.machine[what]), rest.join(' '))
    }
  }
}

function run(lines) {
  const world = new World()
  const settings = lines.filter((line) => !/^\d/.test(line)).map((line) => line.split(' '))
  for (const [what, ...words] of settings) {
    if (what === 'random') world.random = Number(words[0])
    for (const word of words)
      ({ hold: world.held, starve: world.starved, show: world.shown })[what]?.add(word)
  }
  world.given(...settings.find(([what]) => what === 'given').slice(1))
  for (const line of lines.slice(settings.length)) {
    const [time, mark, ...words] = line.split(' ')
    world.advance(ms(time), mark === '>')
    if (mark === '>') {
      assert.equal(world.out.shift(), `${ms(time)} ${words.join(' ')}`, line)
      continue
    }
    assert.deepEqual(world.out, [], `before ${line}`)
    if (mark === '<') world.arrive(...words)
    else world.check(...words)
  }
  assert.deepEqual(world.out, [], 'at the end')
}

const table = readFileSync(new URL('../../conformance/cases.txt', import.meta.url), 'utf8')
for (const block of table.split('\n\n').filter((text) => text.startsWith('== '))) {
  const [title, ...lines] = block.trimEnd().split('\n')
  const name = title.slice(3)
  test(`case ${name}`, () => {
    run(lines.slice(lines.findIndex((line) => line.startsWith('given '))))
    const report = process.env.CONFORMANCE_REPORT
    if (report) appendFileSync(report, `case ${name}: passed\n`)
  })
}
