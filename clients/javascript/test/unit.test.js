// What needs neither a server nor the table of cases.
import { Cron } from 'croner'
import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { clock } from '../src/clock.js'
import { ElectorMachine } from '../src/elector.js'
import { poolerError } from '../src/errors.js'
import { Lease } from '../src/lease.js'
import { settingsOf } from '../src/options.js'
import { Session } from '../src/session.js'
import { Source } from '../src/pg.js'
import { Driver, explain } from '../src/run.js'
import { due, inZone } from '../src/every.js'
import { Elector, every, follow, leader } from '../src/index.js'

// the errors of Node.js
const TYPE = { name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE' }
const VALUE = { name: 'TypeError', code: 'ERR_INVALID_ARG_VALUE' }
const RESULT = { name: 'TypeError', code: 'ERR_INVALID_RETURN_VALUE' }
const RANGE = { name: 'RangeError', code: 'ERR_OUT_OF_RANGE' }
const STATE = { name: 'Error', code: 'ERR_INVALID_STATE' }

test('T1 a wrong option raises an error of Node.js when the elector is made', async () => {
  for (const [error, election, options] of [
    [TYPE, 1],
    [VALUE, ''],
    [VALUE, 'a\0b'],
    [VALUE, '{a}'],
    [VALUE, 'é'.repeat(128)],
    [VALUE, 'e', { schema: '' }],
    [TYPE, 'e', { identity: 7 }],
    [TYPE, 'e', { ttl: '15 s' }],
    [RANGE, 'e', { ttl: 999 }],
    [RANGE, 'e', { heartbeat: NaN }],
    [TYPE, 'e', { stopTimeout: '5000' }],
    [RANGE, 'e', { stopTimeout: 0 }],
    [TYPE, 'e', { seats: '3' }],
    [RANGE, 'e', { seats: 0 }],
    [RANGE, 'e', { seats: 1.5 }],
    [VALUE, 'e', { tll: 15_000 }],
    [TYPE, 'e', { onError: 'log' }],
    [TYPE, 'e', { logger: 'console' }],
    [TYPE, 'e', null],
  ]) {
    assert.throws(() => new Elector('', election, options), error, `${election} ${options}`)
  }
  assert.throws(() => new Elector(new pg.Client(), 'e'), TYPE)
  for (const name of ['signal', 'wait', 'zone']) {
    assert.throws(() => new Elector('', 'e', { [name]: AbortSignal.abort() }), /is no option/)
  }
  assert.throws(() => follow('', 'e', { ttl: 15_000 }), VALUE)
  for (const [zone, error] of Object.entries({ 'Mars/Olympus': VALUE, '': VALUE, 1: TYPE })) {
    const schedule = () => null
    const options = { zone: error === TYPE ? 1 : zone }
    assert.throws(() => every('', schedule, () => {}, options), error)
  }
  assert.throws(() => every('', 1000, () => {}, { zone: 'UTC' }), VALUE)
  for (const interval of [999, NaN, Infinity, '60000']) {
    assert.throws(() => every('', interval, () => {}), interval === '60000' ? TYPE : RANGE)
  }
  assert.throws(() => new Elector({ binary: true }, 'e'), VALUE)
  new Elector('', 'e', { ttl: undefined, heartbeat: 1000.5 })
  for (const job of [undefined, {}, function* () {}, async function* () {}]) {
    await assert.rejects(new Elector('', 'e').run(job), TYPE)
    await assert.rejects(new Elector('', 'e').tryRun(job), TYPE)
    assert.throws(() => every('', 1000, job), TYPE)
    if (job) assert.throws(() => new Elector('', 'e', { onElected: job }), TYPE)
  }
  for (const wait of [-1, NaN, '5', null]) {
    const tried = new Elector('', 'e').tryRun(() => {}, { wait })
    const run = new Elector('', 'e').run(() => {}, { signal: wait })
    await assert.rejects(run, { ...TYPE, message: /^signal must be/ })
    const error = typeof wait === 'number' ? RANGE : TYPE
    await assert.rejects(tried, { ...error, message: /^wait must be/ })
  }
  for (const options of [AbortSignal.abort(), [], new Map(), new Date(), 5000, null]) {
    await assert.rejects(
      new Elector('', 'e').run(() => {}, options),
      TYPE,
    )
    await assert.rejects(
      new Elector('', 'e').tryRun(() => {}, options),
      TYPE,
    )
    await assert.rejects(leader('', 'e', options), TYPE)
    assert.throws(() => new Elector('', 'e', options), TYPE)
    assert.throws(() => follow('', 'e', options), TYPE)
    assert.throws(() => every('', 1000, () => {}, options), TYPE)
  }
  for (const inherited of [
    Object.create({ ttl: 5 }),
    new (class {
      get ttl() {
        return 5
      }
    })(),
  ]) {
    assert.throws(() => new Elector('', 'e', inherited), RANGE)
  }
  const elector = new Elector('', 'e')
  await elector.run(() => {}, { signal: AbortSignal.abort() })
  await assert.rejects(
    elector.run(() => {}),
    STATE,
  )
})

test('T2 two electors of one process have different identities', () => {
  const [one, two] = [new Elector('', 'e'), new Elector('', 'e')]
  assert.match(one.identity, /^.+:\d+:[0-9a-f]{4}$/)
  assert.notEqual(one.identity, two.identity)
})

const linux = process.platform === 'linux' ? {} : { skip: 'for Linux' }
test('T3 the clock is that of the time since the boot, with suspensions', linux, async () => {
  const { readFileSync } = await import('node:fs')
  const uptime = () => parseFloat(readFileSync('/proc/uptime', 'utf8')) * 1000
  const [before, now, after] = [uptime(), clock(), uptime()]
  assert.ok(before - 10 <= now && now <= after + 10, `${before} ${now} ${after}`)
})

/** Replace a function of node:fs, as hostile code can, while another one runs. */
async function replacing(name, replaced, during) {
  const own = fs[name]
  const use = (value) => {
    fs[name] = value
    syncBuiltinESMExports()
  }
  use(replaced)
  return during().finally(() => use(own))
}

test('T3 the clock of other platforms is not the one that a test replaces', async () => {
  const { now } = performance
  const { clock } = await replacing('openSync', assert.fail, () => import('../src/clock.js?other'))
  performance.now = () => NaN
  try {
    assert.ok(clock() > 0)
  } finally {
    performance.now = now
  }
})

test('T3 the clock goes on if it cannot be read any more', linux, async () => {
  for (const read of [() => 0, assert.fail]) {
    const before = clock()
    const during = await replacing('readSync', read, () => sleep(50).then(clock))
    assert.ok(before + 35 < during && during <= clock() + 10, `${before} ${during}`)
  }
})

const quiet = { info() {}, error() {} }

/** A pool whose server gives these answers. */
function poolOf(...answers) {
  const pool = new pg.Pool()
  const stream = { destroySoon() {} }
  const query = async () => ({ rows: [answers.shift()] })
  const release = () => pool.emit('released')
  pool.client = Object.assign(new EventEmitter(), { connection: { stream }, query, release })
  pool.connect = async () => pool.client
  return pool
}

/** A driver of an elector by a lease, whose server says once that it leads, and then nothing. */
function drive(settings, job) {
  const all = { ...settingsOf('e', { ttl: 1000 }), ...settings }
  const machine = new ElectorMachine(new Lease(all), clock, all)
  const answers = [[7]]
  const connection = {
    query: async () => answers.shift() ?? new Promise(() => {}),
    close() {},
    release() {},
  }
  const driver = new Driver(machine, new Lease(all), { connect: async () => connection }, all, {
    elected: () => driver.post('done', 'elected'),
    job,
    cancel: () => driver.post('done', 'job'),
    ousted: () => driver.post('stop') ?? driver.post('done', 'ousted'),
    end() {},
  })
  driver.post('run')
  return machine
}

for (const [how, onError] of [
  ['hangs', () => new Promise(() => {})],
  ['fails', () => Promise.reject(new Error('onError fails'))],
  ['throws', () => assert.fail('onError fails')],
]) {
  test(`T4 an error callback that ${how} does not keep the job from being cancelled`, async () => {
    const reported = []
    const logger = { info() {}, error: ({ message }) => reported.push(message) }
    const errors = []
    const machine = drive(
      { logger, onError: ({ kind }) => (errors.push(kind), onError()) },
      () => {},
    )
    const asked = performance.now()
    while (machine.tenure || machine.terms === 0) await sleep(10)
    assert.ok(performance.now() - asked < 2000)
    assert.ok(errors.includes('timeout') && errors.includes('in doubt'), errors.join())
    assert.equal(reported.length, how === 'hangs' ? 0 : errors.length)
    while (machine.state !== 'stopped') await sleep(10)
  })
}

test('T4 a logger that fails harms nothing', async () => {
  for (const fails of [() => assert.fail('logger'), () => Promise.reject(new Error('logger'))]) {
    const pool = poolOf([7], [true])
    const ousted = []
    const elector = new Elector(pool, 'e', {
      ttl: 1000,
      logger: { info: fails, error: fails },
      onOusted: (_term, reason) => ousted.push(reason),
    })
    await elector.run(() => {
      elector.stop()
      throw new Error('reported to the logger')
    })
    assert.deepEqual([ousted, elector.errors], [['resigned'], 1])
  }
})

test('a job may fail with anything', async () => {
  for (const cause of [undefined, Symbol('thrown'), Object.create(null)]) {
    const errors = []
    const logger = { info() {}, error: (error) => errors.push(error) }
    const elector = new Elector(poolOf([7], [true]), 'e', { ttl: 1000, logger })
    await elector.run(() => {
      elector.stop()
      throw cause
    })
    assert.deepEqual([errors.length, errors[0].kind, errors[0].cause], [1, 'job', cause])
  }
})

test('tryRun gives what the job returns or throws', async () => {
  const errors = []
  const once = (job, ...answers) => {
    const options = { ttl: 60_000, onError: ({ kind }) => errors.push(kind), logger: quiet }
    const elector = new Elector(poolOf(...answers, [true]), 'e', options)
    return elector.tryRun((term) => job(elector, term))
  }
  const ran = await once(async () => 'value', [7])
  assert.deepEqual(ran, { ran: true, value: 'value' })
  assert.deepEqual(await once(assert.fail, [null]), { ran: false, value: undefined })
  for (const cause of [undefined, null, new Error('its own'), { kind: 'denied' }]) {
    const failed = once(() => Promise.reject(cause), [7])
    assert.equal(await failed.catch((error) => (error === cause ? 'thrown' : error)), 'thrown')
  }
  // a job that was stopped has no value
  const stopped = once(
    (elector, { signal }) => {
      elector.stop()
      return sleep(60_000, undefined, { signal })
    },
    [7],
  )
  await assert.rejects(stopped, { name: 'AbortError' })
  assert.deepEqual(errors, [])
  const lost = new Elector(poolOf([7], [false]), 'e', { ttl: 1000, logger: quiet })
  const losing = lost.tryRun(({ signal }) => sleep(60_000, undefined, { signal }))
  await assert.rejects(losing, { name: 'LostError', kind: 'lost' })
  assert.equal(lost.errors, 0)
})

test('T5 an elector that was stopped does not run, and opens no connection', async () => {
  const pool = Object.assign(new pg.Pool(), { connect: () => assert.fail('connects') })
  for (const options of [{}, { ttl: 1000 }]) {
    const stopped = new Elector(pool, 'e', options)
    const { stop } = stopped // as in process.once('SIGTERM', elector.stop)
    stop()
    await stopped.run(() => assert.fail('runs'))
    const aborted = new Elector(pool, 'e', options)
    await aborted.run(() => assert.fail('runs'), { signal: AbortSignal.abort() })
    const once = new Elector(pool, 'e', options)
    const tried = once.tryRun(() => assert.fail('runs'), { signal: AbortSignal.abort() })
    await assert.rejects(tried, { name: 'AbortError' })
    assert.deepEqual([stopped.state, aborted.state], ['stopped', 'stopped'])
  }
})

test('heartbeat does not bring back what has passed', () => {
  let now = 0
  const settings = settingsOf('e', { ttl: 60_000, heartbeat: 6000 })
  const machine = new ElectorMachine(new Lease(settings), () => now, settings)
  machine.step(now, 'run')
  machine.step(now, 'answer', 1, 7)
  machine.step(now, 'done', 'elected')
  now = 3900
  machine.tenure.heartbeat()
  assert.equal(machine.tenure.isLeading(), true)
  now = 8000 // no timer has run meanwhile
  machine.tenure.heartbeat()
  assert.equal(machine.tenure.isLeading(), false)
  assert.equal(machine.step(now).at(-1)[0], 'cancel')
})

test('in session scope, a resignation is not sent where the question before it has failed', () => {
  const settings = settingsOf('e', {})
  const machine = new ElectorMachine(new Session(settings), () => 0, settings)
  machine.step(0, 'run')
  for (const [i, row] of [[11], [7], [true, 11]].entries()) machine.step(0, 'answer', i + 1, ...row)
  machine.step(0, 'done', 'elected')
  machine.step(1000) // the question
  machine.step(1500, 'done', 'job')
  assert.deepEqual(machine.step(1500, 'done', 'ousted'), [])
  assert.deepEqual(
    machine.step(6000).map(([action, error]) => [action, error?.kind]),
    [
      ['error', 'no-connection'],
      ['close', undefined],
    ],
  )
  assert.equal(machine.state, 'paused')
})

test('what is not confirmed is not leading', () => {
  const settings = settingsOf('e', { ttl: 60_000 })
  for (const now of [NaN, Infinity]) {
    const machine = new ElectorMachine(new Lease(settings), () => now, settings)
    machine.step(now, 'run')
    machine.step(now, 'answer', 1, 7)
    assert.equal(Boolean(machine.tenure?.isLeading()), false)
  }
})

test('a connection that comes too late goes back to the pool', async () => {
  const pool = poolOf()
  let open
  pool.connect = () => new Promise((resolve) => (open = resolve))
  const source = new Source(pool, 'e')
  const stop = new AbortController()
  const connecting = source.connect(stop.signal)
  stop.abort()
  await assert.rejects(connecting)
  const released = once(pool, 'released')
  open(pool.client)
  await released
})

test('guard, once and proclaim refuse what they cannot use', async () => {
  const elector = new Elector(poolOf([7], [true]), 'e', {
    ttl: 1000,
    logger: { info() {}, error: assert.fail },
  })
  await elector.run(async (term) => {
    const giving = (rows) => ({ query: async () => rows })
    for (const [error, ...each] of [
      [TYPE, undefined, null, {}, 'BEGIN'],
      [STATE, giving([])],
      [RESULT, giving([{ le_once: true }]), giving([[{ le_once: 'true' }], {}])],
    ]) {
      for (const none of each) {
        await assert.rejects(term.guard(none), error)
        await assert.rejects(term.once(none, new Date()), error)
        await assert.rejects(term.proclaim(none, 'host-1'), error)
      }
    }
    for (const [error, ...times] of [
      [TYPE, undefined, null, '2026-01-01', true, {}],
      [RANGE, NaN, new Date(NaN), Infinity],
    ]) {
      for (const time of times) {
        await assert.rejects(term.once({ query: assert.fail }, time), error)
        assert.throws(() => term.onceSql(time), error)
      }
    }
    for (const value of [undefined, 8080, { port: 8080 }]) {
      await assert.rejects(term.proclaim({ query: assert.fail }, value), TYPE)
    }
    elector.stop()
  })
})

test('expel is repeated if another elector has ended its session', async () => {
  const ended = Object.assign(new Error('terminating connection'), { severity: 'FATAL' })
  for (const [answers, asked] of [
    [[ended, ended, [true], []], 3],
    [[new Error('connect ECONNREFUSED'), []], 1],
    [Array(20).fill(ended), 10],
  ]) {
    const { length } = answers
    const ask = async () => {
      const answer = answers.shift()
      if (answer instanceof Error) throw answer
      return answer
    }
    await explain(poolerError(), { ask }, settingsOf('e', { seats: 2 }))
    assert.equal(length - answers.length, asked)
  }
})

/** The times that are due by croner in a zone, from a time on. */
function timesIn(zone, cron, from, count) {
  const clock = new Cron(cron, { timezone: 'UTC' })
  const schedule = inZone((last) => clock.nextRun(last), zone)
  const times = []
  for (let last = new Date(from); times.length < count; times.push(last.toISOString().slice(0, -5)))
    last = new Date(Number(schedule(last)))
  return times
}

test('T6 every with a zone: what clocks leave out is due at the change, what they show twice, the first time', () => {
  const spring = ['2027-03-27T01:30:00', '2027-03-28T01:00:00', '2027-03-29T00:30:00']
  const autumn = ['2026-10-24T00:30:00', '2026-10-25T00:30:00', '2026-10-26T01:30:00']
  const half = '30 2 * * *'
  for (const [zone, cron, from, times] of [
    ['Europe/Berlin', half, '2027-03-26T12:00Z', spring],
    ['Europe/Berlin', '15 10,30 2 * * *', '2027-03-27T12:00Z', [spring[1], '2027-03-29T00:10:15']],
    ['Europe/Berlin', half, '2026-10-23T12:00Z', autumn],
    ['Europe/Berlin', half, '2026-10-25T00:59:59.999Z', autumn.slice(2)],
    ['Europe/Berlin', half, '2026-10-25T01:00Z', autumn.slice(2)],
    ['Europe/Berlin', half, '2026-10-25T01:00:01Z', autumn.slice(2)],
    [
      'Australia/Lord_Howe',
      '15 2 * * *',
      '2026-10-02T16:00Z',
      ['2026-10-03T15:30:00', '2026-10-04T15:15:00'],
    ],
    [
      'Australia/Lord_Howe',
      '45 1 * * *',
      '2027-04-02T18:00Z',
      ['2027-04-03T14:45:00', '2027-04-04T15:15:00'],
    ],
    [
      'America/Sao_Paulo',
      '0 0 * * *',
      '2018-11-03T12:00Z',
      ['2018-11-04T03:00:00', '2018-11-05T02:00:00'],
    ],
    [
      'Pacific/Apia',
      '0 12 * * *',
      '2011-12-29T00:00Z',
      ['2011-12-29T22:00:00', '2011-12-30T10:00:00', '2011-12-30T22:00:00'],
    ],
    ['UTC', '0 12 29 2 *', '2026-01-01T00:00Z', ['2028-02-29T12:00:00']],
  ])
    assert.deepEqual(timesIn(zone, cron, from, times.length), times, `${zone} ${cron} ${from}`)
})

test('T6 every with a zone agrees with the clocks at each hour of a year', () => {
  for (const zone of [
    'Europe/Berlin',
    'Australia/Lord_Howe',
    'Asia/Kathmandu',
    'Africa/Casablanca',
  ]) {
    const format = new Intl.DateTimeFormat('en', {
      timeZone: zone,
      dateStyle: 'short',
      timeStyle: 'medium',
    })
    const shown = new Set()
    const hourly = inZone((last) => (Math.floor(Number(last) / 3600_000) + 1) * 3600_000, zone)
    for (let last = Date.UTC(2026, 0), next; last < Date.UTC(2027, 0); last = next) {
      next = Number(hourly(new Date(last)))
      assert.ok(next > last && next - last <= 3 * 3600_000, `${zone} ${new Date(last)}`)
      const text = format.format(next)
      assert.ok(!shown.has(text), `${zone} ${text}`)
      shown.add(text)
    }
  }
})

test('a schedule that stands still, or is none, is an error', () => {
  for (const wrong of [undefined, NaN, new Date(NaN), 'x', Promise.resolve(), 0]) {
    for (const schedule of [() => wrong, inZone(() => wrong, 'Europe/Berlin')]) {
      assert.throws(() => due(schedule, Date.UTC(2026, 0), Date.UTC(2027, 0)), {
        ...RESULT,
        message: /a later time/,
      })
    }
  }
  assert.deepEqual(
    due(
      inZone(() => null, 'UTC'),
      5,
      9,
    ),
    [null, 5],
  )
})

test('every tells what fails to the elector also by a copy of the term', async () => {
  const errors = []
  const elector = new Elector(poolOf([7], [true]), 'e', {
    ttl: 60_000,
    logger: { info() {}, error: (error) => errors.push(error) },
  })
  const never = Object.assign(new pg.Pool(), { connect: async () => assert.fail('no connection') })
  const job = every(never, 1000, () => {})
  await elector.run((term) => {
    setTimeout(() => elector.stop(), 10)
    return job({ ...term, more: 1 })
  })
  assert.deepEqual(
    errors.map(({ kind }) => kind),
    ['job'],
  )
})

test('an elector runs once, and its health is told by HTTP', async () => {
  const elector = new Elector('postgres://127.0.0.1:1/x', 'e', {
    logger: { info() {}, error() {} },
  })
  const response = { statusCode: 0, end: (text) => assert.equal(text, elector.health) }
  elector.healthHandler({}, response)
  assert.equal(response.statusCode, 503)
  const running = elector.run(() => {})
  elector.healthHandler({}, response)
  assert.equal(response.statusCode, 200)
  await assert.rejects(
    elector.run(() => {}),
    /only once/,
  )
  while (elector.errors === 0) await sleep(10)
  assert.equal(elector.health, 'in doubt')
  elector.stop()
  await running
})
