// Each way in which what the program has given can end: a job, a callback, a pool, the process.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import pg from 'pg'
import { Elector, LostError, every, follow } from '../src/index.js'

const fail = () => {
  throw new Error('a trap')
}
const traps = new Proxy({}, { get: () => fail })
const revoked = Proxy.revocable({}, {})
revoked.revoke()
const withGetter = (name, target = new Error('x')) =>
  Object.defineProperty(target, name, { get: fail })

let looks = 0
/** What a program can throw. */
const THROWN = {
  undefined,
  null: null,
  number: 0,
  symbol: Symbol('thrown'),
  'object without prototype': Object.create(null),
  'frozen error': Object.freeze(new Error('frozen')),
  'error without a text': new Error(),
  'error of the library': Object.freeze(new LostError('lost', 'as a job of its own')),
  'permanent error': Object.assign(new Error('own'), { kind: 'extension', code: '42883' }),
  'error with odd fields': Object.assign(new Error('odd'), {
    severity: 'high',
    code: 42,
    hint: {},
  }),
  'error with a symbol': Object.assign(new Error('odd'), { severity: 'high', code: Symbol('x') }),
  'error of the library with symbols': Object.assign(new LostError('lost', 'odd'), {
    code: Symbol('x'),
    hint: Symbol('x'),
  }),
  'error of the library that cannot be changed': Object.defineProperty(
    new LostError('lost', 'odd'),
    'election',
    { set: fail },
  ),
  'error with fields that change': Object.assign(new Error('odd'), {
    severity: 'high',
    code: { toString: () => (looks++ % 2 ? fail() : '42501') },
  }),
  'throwing message': withGetter('message'),
  'throwing name': withGetter('name'),
  'throwing toString': Object.assign(new Error('x'), { toString: fail }),
  'throwing inspection': { [inspect.custom]: fail },
  'throwing code': withGetter('code'),
  'proxy with traps': new Proxy(new Error('x'), traps),
  'revoked proxy': revoked.proxy,
}

/** How a function can end by that. */
const ENDS = {
  throws: (cause) => {
    throw cause
  },
  'rejects later': (cause) => sleep(10).then(() => Promise.reject(cause)),
  'is a thenable that rejects': (cause) => ({ then: (_, reject) => reject(cause) }),
  'is a thenable that throws': (cause) => ({
    then() {
      throw cause
    },
  }),
  'is a thenable without then': (cause) => ({
    get then() {
      throw cause
    },
  }),
}

/** A pool whose server grants each bid, and renews each lease. */
function makePool(change = {}) {
  const pool = new pg.Pool()
  pool.connect = async () =>
    Object.assign(new EventEmitter(), {
      connection: { stream: { destroySoon() {}, destroy() {} } },
      query: async ({ text }) => ({ rows: [/le_lease/.test(text) ? [7] : [true]] }),
      release() {},
      ...change,
    })
  return pool
}

/** Let an elector run for two terms, and give what has happened. */
async function twoTerms(options, job) {
  const events = []
  const pool = makePool()
  const elector = new Elector(pool, 'e', {
    ttl: 60_000,
    logger: { info() {}, error: fail },
    onError: (error) => events.push(error),
    ...options,
  })
  const deadline = setTimeout(() => assert.fail(`${elector.state} ${inspect(events)}`), 10_000)
  await elector.run((term) => {
    if (elector.terms === 2) elector.stop()
    return job(term)
  })
  clearTimeout(deadline)
  return events
}

for (const [end, how] of Object.entries(ENDS)) {
  test(`a job that ${end}, with anything: reported, and the next term`, async () => {
    const all = Object.entries(THROWN).map(async ([what, cause]) => {
      const errors = await twoTerms({}, () => how(cause))
      // in the second term, it has been told to stop
      assert.deepEqual(
        errors.map(({ kind, cause }) => [kind, cause]),
        [
          ['job', cause],
          ['job', cause],
        ],
        what,
      )
      for (const { message } of errors) assert.match(message, /^job has failed: ./, what)
    })
    await Promise.all(all)
  })

  for (const name of ['onElected', 'onOusted']) {
    test(`${name} that ${end}, with anything: reported, and harms nothing`, async () => {
      const all = Object.entries(THROWN).map(async ([what, cause]) => {
        let jobs = 0
        const errors = await twoTerms({ [name]: () => how(cause) }, () => jobs++)
        assert.deepEqual(
          errors.map(({ kind, cause }) => [kind, cause]),
          [
            ['callback', cause],
            ['callback', cause],
          ],
          what,
        )
        assert.equal(jobs, 2)
      })
      await Promise.all(all)
    })
  }

  test(`onError and a logger that ${end}, with anything, harm nothing`, async () => {
    const all = Object.values(THROWN).flatMap((cause) => [
      twoTerms({ onError: () => how(cause) }, () => how(cause)),
      twoTerms(
        { onError: undefined, logger: { info: () => how(cause), error: () => how(cause) } },
        () => how(cause),
      ),
    ])
    await Promise.all(all)
  })
}

test('an error whose cause cannot be shown is told nevertheless', async () => {
  const told = []
  const logger = { info() {}, error: (...what) => told.push(inspect(what)) }
  await twoTerms({ logger, onError: undefined }, () => {
    throw THROWN['throwing inspection']
  })
  assert.equal(told.length, 2)
  assert.match(told[0], /job has failed/)
})

test('a job may return anything', async () => {
  for (const value of [undefined, null, 0, Symbol('x'), Object.create(null), fail, { then: 1 }]) {
    assert.deepEqual(await twoTerms({}, () => value), [])
    const { ran, value: got } = await new Elector(makePool(), 'e', {
      ttl: 60_000,
      logger: { info() {}, error: fail },
    }).tryRun(() => value)
    assert.ok(ran && got === value)
  }
  let thens = 0
  const later = {
    get then() {
      return thens++ > 0 ? () => {} : undefined
    },
  }
  const { value } = await Promise.race([
    new Elector(makePool(), 'e', { ttl: 60_000, logger: { info() {}, error: fail } }).tryRun(
      () => later,
    ),
    sleep(5000, {}),
  ])
  assert.ok(value === later)
  const twice = {
    then: (resolve, reject) => (resolve('first'), resolve('second'), reject('third')),
  }
  assert.deepEqual(await twoTerms({}, () => twice), [])
})

test('a generator is no result, as it has done nothing', async () => {
  for (const make of [function* () {}, async function* () {}]) {
    const returns = async () => make()
    const errors = await twoTerms({ onElected: returns, onOusted: returns }, returns)
    let calls = 0
    errors.push(...(await untilDone(1000, () => (calls++ ? undefined : make())))[0])
    assert.equal(errors.length, 7)
    for (const { message, cause } of errors) {
      assert.match(message, /generator/)
      assert.equal(cause.code, 'ERR_INVALID_RETURN_VALUE')
    }
  }
})

test('timers that a test has replaced keep no job from being cancelled', async (t) => {
  const timers = { setTimeout, clearTimeout }
  t.after(() => Object.assign(globalThis, timers))
  const pool = makePool({
    query: ({ text }) => (/le_lease/.test(text) ? { rows: [[7]] } : new Promise(() => {})),
  })
  const errors = await untilErrors(pool, { ttl: 1000 }, async ({ signal }) => {
    Object.assign(globalThis, { setTimeout() {}, clearTimeout() {} })
    await once(signal, 'abort')
    Object.assign(globalThis, timers)
  })
  assert.equal(errors[0].kind, 'timeout')
})

test('tryRun fails with anything that the job fails with', async () => {
  for (const [what, cause] of Object.entries(THROWN)) {
    const elector = new Elector(makePool(), 'e', {
      ttl: 60_000,
      logger: { info() {}, error: fail },
    })
    const got = await elector
      .tryRun(() => Promise.reject(cause))
      .then(
        () => assert.fail(what),
        (error) => [error],
      )
    assert.ok(Object.is(got[0], cause), what)
  }
})

/** Elect on such a pool until two errors were reported, and stop. */
async function untilErrors(pool, options, job = () => assert.fail('leads')) {
  const errors = []
  const onError = (error) => errors.push(error) === 2 && elector.stop()
  const elector = new Elector(pool, 'e', {
    logger: { info() {}, error: fail },
    onError,
    ...options,
  })
  const deadline = setTimeout(() => assert.fail(`${elector.state} ${inspect(errors)}`), 10_000)
  await elector.run(job)
  clearTimeout(deadline)
  return errors
}

for (const [way, options] of Object.entries({ session: {}, lease: { ttl: 60_000 } })) {
  test(`a pool that fails with anything is tried again: ${way}`, async () => {
    const pools = Object.entries(THROWN).flatMap(([what, cause]) => {
      const throws = () => {
        throw cause
      }
      return [
        [what, Object.assign(makePool(), { connect: throws })],
        [what, Object.assign(makePool(), { connect: () => Promise.reject(cause) })],
        [what, makePool({ query: throws })],
        [what, makePool({ query: () => Promise.reject(cause) })],
        [what, makePool({ query: throws, release: throws })],
      ]
    })
    pools.push([
      'no stream',
      makePool({ query: () => Promise.reject(new Error()), connection: {} }),
    ])
    pools.push(['no row', makePool({ query: async () => ({ rows: [] }) })])
    pools.push(['no client', Object.assign(makePool(), { connect: () => undefined })])
    pools.push(['no promise', Object.assign(makePool(), { connect: () => ({}) })])
    await Promise.all(
      pools.map(async ([what, pool]) => {
        const errors = await untilErrors(pool, options)
        assert.deepEqual(
          errors.map(({ kind, name }) => [name, kind]),
          [
            ['LeaderElectionError', 'broken'],
            ['LeaderElectionError', 'broken'],
          ],
          what,
        )
        for (const { message } of errors) assert.ok(message, what)
      }),
    )
  })
}

test('a pool that fails with anything does not end a follower', async () => {
  const all = Object.values(THROWN).map(async (cause) => {
    const stop = new AbortController()
    const errors = []
    const onError = (error) => {
      if (errors.push(error) === 2) stop.abort()
      throw cause
    }
    const pool = Object.assign(makePool(), { connect: () => Promise.reject(cause) })
    const quiet = { info() {}, error() {} }
    const changes = follow(pool, 'e', { signal: stop.signal, onError, logger: quiet })
    assert.deepEqual(await changes.next(), { value: undefined, done: true })
    assert.equal(errors.length, 2)
  })
  await Promise.all(all)
})

test('return of a follower does not wait for a change', async (t) => {
  let closed = 0
  const observed = { rows: [[true]] }
  const query = async ({ text }) => (/le_observe/.test(text) ? new Promise(() => {}) : observed)
  for (const begun of [true, false]) {
    const stop = new AbortController()
    t.after(() => stop.abort())
    const pool = makePool({ query, release: () => closed++ })
    const changes = follow(pool, 'e', { signal: stop.signal })
    const next = begun && changes.next()
    await sleep(20)
    const ends = Promise.all([next, changes.return()]).then(([end]) => end)
    const end = begun && { value: undefined, done: true }
    assert.deepEqual(await Promise.race([ends, sleep(2000, 'hangs')]), end)
    assert.deepEqual(await changes.next(), { value: undefined, done: true })
  }
  assert.equal(closed, 1)
})

/** Let a job of a point in time work until two errors were reported and a task has been done. */
async function untilDone(schedule, task, change) {
  let commits = 0
  const answers = (text) => {
    if (/clock_timestamp/.test(text)) return [[Date.now() / 1000, 0]]
    if (text === 'COMMIT') commits++
    return /txid_current/.test(text) ? [{ once: 'true77' }] : []
  }
  // whatever parsers the program has set
  const query = async ({ text, types }) => ({ command: text, rows: types ? answers(text) : [] })
  const errors = []
  const job = every(makePool({ query, ...change }), schedule, async (...args) => {
    const result = await task(...args)
    if (!result) elector.stop()
    return result
  })
  const elector = new Elector(makePool(), 'e', {
    ttl: 60_000,
    logger: { info() {}, error: fail },
    onError: (error) => errors.push(error),
  })
  const deadline = setTimeout(() => assert.fail(`${elector.state} ${inspect(errors)}`), 10_000)
  await elector.run(job)
  clearTimeout(deadline)
  return [errors, commits]
}

for (const [end, how] of Object.entries(ENDS)) {
  test(`a task and a schedule that ${end}, with anything: reported, and tried again`, async () => {
    const twice = (cause, value) => {
      let calls = 0
      return () => (++calls <= 2 ? how(cause) : value)
    }
    const always = (last) => (Number(last) < 1000 ? 1000 : null)
    const all = Object.entries(THROWN).map(async ([what, cause]) => {
      const [errors, commits] = await untilDone(always, twice(cause))
      assert.deepEqual(
        errors.map(({ kind, cause }) => [kind, cause]),
        [
          ['job', cause],
          ['job', cause],
        ],
        what,
      )
      assert.equal(commits, 1, what)
      if (end === 'rejects later') return // a schedule is no async function
      const failing = twice(cause)
      const [wrong] = await untilDone(
        (last) => failing() ?? always(last),
        () => {},
      )
      assert.deepEqual(
        wrong.map(({ kind }) => kind),
        ['job', 'job'],
        what,
      )
    })
    await Promise.all(all)
  })
}

test('a connection that cannot be given back does not keep the job from being cancelled', async () => {
  let renewals = 0
  const pool = makePool({
    query: async ({ text }) => {
      if (/le_lease/.test(text)) return { rows: [[7]] }
      return ++renewals > 1 ? new Promise(() => {}) : { rows: [[true]] }
    },
    release: (destroyed) => destroyed && fail(),
  })
  const asked = performance.now()
  const errors = await untilErrors(pool, { ttl: 1000 }, ({ signal }) => once(signal, 'abort'))
  assert.ok(errors.length >= 2 && performance.now() - asked < 5000)
})

/** Run a program of an elector, and give its exit status and what it has printed. */
async function execute(program, ...args) {
  const source = `
    import { Elector } from '${new URL('../src/index.js', import.meta.url)}'
    const options = { logger: { info() {}, error: (error) => console.log(error.kind) } }
    ${program}`
  const child = spawn(process.execPath, ['--input-type=module', '-e', source, ...args])
  let output = ''
  child.stdout.on('data', (data) => (output += data))
  child.stderr.on('data', (data) => (output += data))
  const deadline = setTimeout(() => child.kill('SIGKILL'), 20_000)
  const [status] = await once(child, 'close')
  clearTimeout(deadline)
  return [status, output]
}

const db = process.env.DATABASE_URL
const skip = db ? false : 'DATABASE_URL is not set'
const ways = [
  ['the job', 'await run(async () => { process.exit(7) })'],
  ['onElected', 'options.onElected = () => process.exit(7); await run(() => {})'],
  ['onOusted', 'options.onOusted = () => process.exit(7); await run(() => elector.stop())'],
  ['onError', 'options.onError = () => process.exit(7); await run(() => { throw 1 })'],
  [
    'a handler of a signal',
    `process.on('SIGTERM', () => process.exit(7))
     await run(async () => { process.kill(process.pid, 'SIGTERM'); await new Promise(() => {}) })`,
  ],
  [
    'an exception beside the job',
    `process.on('uncaughtException', () => process.exit(7))
     await run(async () => { setTimeout(() => { throw 1 }, 10); await new Promise(() => {}) })`,
  ],
]
for (const [where, program] of ways) {
  test(`process.exit in ${where} ends the process and the leadership`, { skip }, async () => {
    const election = `js_exit_${process.pid}_${where}`
    const [status, output] = await execute(
      `let elector
       const run = (job) => (elector = new Elector(...process.argv.slice(1), options)).run(job)
       ${program}`,
      db,
      election,
    )
    assert.deepEqual([status, output], [7, ''])
    const next = new Elector(db, election, { logger: { info() {}, error: fail } })
    assert.deepEqual(await next.tryRun(() => 'next', { wait: 5000 }), { ran: true, value: 'next' })
  })
}

test('what throws when the job is cancelled does not keep it from that', { skip }, async () => {
  const [status, output] = await execute(
    `process.on('uncaughtException', (error) => console.log('uncaught', error))
     const elector = new Elector(process.argv[1], process.argv[2], options)
     await elector.run((term) => new Promise((resolve) => {
       term.signal.addEventListener('abort', () => { throw 'a listener' })
       term.signal.addEventListener('abort', resolve)
       setTimeout(() => elector.stop(), 10)
     }))
     console.log('ended')`,
    db,
    `js_listener_${process.pid}`,
  )
  assert.deepEqual([status, output.split('\n').sort()], [0, ['', 'ended', 'uncaught a listener']])
})
