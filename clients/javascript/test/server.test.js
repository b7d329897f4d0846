// The library against a real server: DATABASE_URL is direct, POOLER_URL leads through PgBouncer in
// transaction mode. The numbers are those of the list in ../README.md.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { after, afterEach, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Elector, PoolerError, follow, leader } from '../src/index.js'
import { Proxy } from './proxy.js'

const DIRECT = process.env.DATABASE_URL
const POOLER = process.env.POOLER_URL
const direct = { skip: DIRECT ? false : 'DATABASE_URL is not set', timeout: 60_000 }
const pooler = { skip: DIRECT && POOLER ? false : 'POOLER_URL is not set', timeout: 60_000 }

// A lease of 6 s, whose validity is 4 s, and which is renewed each 2 s: it outlives a pause of the
// machine of 2 s. A heartbeat likewise.
const TTL = 6000

const run = `js-${process.pid}-${Date.now()}`
let names = 0
const name = () => `${run}-${++names}`

/** @type {pg.Pool} */
let admin
before(() => {
  admin = new pg.Pool({ connectionString: DIRECT })
})
after(() => admin.end())

/** @type {Elector[]} */
const electors = []
afterEach(() => electors.splice(0).forEach((elector) => elector.stop()))

const rows = async (text, ...values) => (await admin.query(text, values)).rows

/** Wait until `probe` gives something. */
async function until(what, probe, ms = 15_000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(20)) {
    const found = await probe()
    if (found) return found
  }
  throw new Error(`waited in vain: ${what}`)
}

const untilCancelled = (term) =>
  term.signal.aborted ? undefined : once(term.signal, 'abort').then(() => {})

/** An elector that runs, with all that happens to it. */
function start(db, election, options = {}, job = untilCancelled) {
  const events = []
  const errors = []
  const elector = new Elector(db, election, {
    onElected: (term) => events.push(['elected', term.token]),
    onOusted: (term, reason) => events.push(['ousted', reason]),
    onError: (error) => errors.push(error),
    ...options,
  })
  electors.push(elector)
  const self = { elector, events, errors, terms: [] }
  self.done = elector.run((term) => {
    self.terms.push(term)
    return job(term)
  })
  self.done.catch(() => {})
  self.leads = () => until(`${elector.identity} leads`, () => elector.state === 'leading')
  self.stop = () => {
    elector.stop()
    return self.done
  }
  return self
}

test('S01 session scope: elected, visible in le_leaders, resigned at a stop', direct, async () => {
  const election = name()
  const one = start(DIRECT, election, { identity: 'one' })
  await one.leads()
  const [row] = await rows('SELECT * FROM le_leaders WHERE name = $1', election)
  assert.equal(row.identity, 'one')
  assert.equal(row.scope, 'session')
  assert.equal(Number(row.token), one.terms[0].token)
  assert.ok(one.terms[0].isLeading())
  await sleep(2500)
  assert.equal(one.elector.state, 'leading', 'it is confirmed')
  await one.stop()
  assert.deepEqual(await rows('SELECT 1 FROM le_leaders WHERE name = $1', election), [])
  assert.deepEqual(one.events.at(-1), ['ousted', 'resigned'])
  assert.deepEqual(one.errors, [])
})

test('S02 lease: elected, renewed, resigned at a stop', direct, async () => {
  const election = name()
  const one = start(DIRECT, election, { identity: 'one', ttl: TTL })
  await one.leads()
  await until('renewed three times', async () => {
    const [row] = await rows('SELECT * FROM le_leader($1)', election)
    return row.scope === 'lease' && row.identity === 'one' && row.renewals >= 3
  })
  await one.stop()
  assert.deepEqual(await rows('SELECT 1 FROM le_leader($1)', election), [])
  assert.equal(one.terms.length, 1)
  assert.deepEqual(one.errors, [])
})

test('S03 heartbeat: a job that hangs is replaced, and cancelled by then', direct, async () => {
  const election = name()
  let cancelled
  const hangs = (term) => untilCancelled(term).then(() => (cancelled = Date.now()))
  const one = start(DIRECT, election, { heartbeat: TTL }, hangs)
  await one.leads()
  let elected
  const two = start(DIRECT, election, { heartbeat: TTL }, async (term) => {
    elected = Date.now()
    while (term.isLeading()) {
      term.heartbeat()
      await sleep(50)
    }
  })
  await two.leads()
  assert.ok(cancelled <= elected, `cancelled at ${cancelled}, the next is elected at ${elected}`)
  assert.deepEqual(one.events.at(-1), ['ousted', 'in doubt'])
  await one.stop()
  await sleep(5000)
  assert.equal(two.elector.state, 'leading', 'one that calls heartbeat leads on')
  await two.stop()
})

for (const [how, statement] of [
  ['pg_terminate_backend', 'SELECT pg_terminate_backend(pid) FROM le_leader($1)'],
  ['le_depose', `SELECT le_depose($1, 'test')`],
]) {
  test(`S04 ${how} of the leader cancels its job at once`, direct, async () => {
    const election = name()
    const one = start(DIRECT, election)
    let took = Infinity
    // before the next question, a second after the one before; a busy machine may be late, but
    // not each time
    for (let terms = 1; terms <= 5 && took >= 500; terms++) {
      await until('elected', () => one.terms.length === terms)
      const term = one.terms.at(-1)
      const asked = performance.now()
      await rows(statement, election)
      await untilCancelled(term)
      took = performance.now() - asked
      assert.equal(term.signal.reason.reason, 'lost')
      assert.equal(term.isLeading(), false)
    }
    assert.ok(took < 500, `after ${took} ms`)
    await until('elected again', () => one.terms.length === one.errors.length + 1)
    await one.stop()
  })
}

test('S04 le_depose of a lease', direct, async () => {
  const election = name()
  const one = start(DIRECT, election, { ttl: TTL })
  await one.leads()
  await rows('SELECT le_depose($1)', election)
  await untilCancelled(one.terms[0])
  assert.equal(one.terms[0].signal.reason.reason, 'lost')
  await one.stop()
})

test('S05 PgBouncer: session scope ends with a pooler error', pooler, async () => {
  for (const db of [POOLER, new pg.Pool({ connectionString: POOLER })]) {
    const election = name()
    const one = start(db, election)
    await assert.rejects(one.done, PoolerError)
    assert.equal(one.terms.length, 0)
    assert.equal(one.elector.state, 'stopped')
    assert.deepEqual(await rows('SELECT 1 FROM le_leaders WHERE name = $1', election), [])
    assert.deepEqual(await rows('SELECT 1 FROM le_candidates WHERE name = $1', election), [])
    if (db instanceof pg.Pool) await db.end()
  }
})

test('S05 PgBouncer: a lease works', pooler, async () => {
  const pool = new pg.Pool({ connectionString: POOLER })
  for (const db of [POOLER, pool]) {
    const election = name()
    const electors = [1, 2, 3].map((i) => start(db, election, { ttl: TTL, identity: `${i}` }))
    const leading = () => electors.filter(({ elector }) => elector.state === 'leading')
    const [first] = await until('one leads', () => leading().length && leading())
    await sleep(5000)
    assert.deepEqual(leading(), [first])
    await first.stop()
    const [second] = await until('the next one leads', () => leading().length && leading())
    assert.notEqual(second, first)
    assert.ok(second.terms[0].token > first.terms[0].token)
    for (const each of electors) await each.stop()
    for (const each of electors) assert.deepEqual(each.errors, [])
  }
  await pool.end()
})

test('S06 leader and follow', direct, async () => {
  const election = name()
  assert.equal(await leader(admin, election), null)
  const stop = new AbortController()
  const changes = follow(DIRECT, election, { signal: stop.signal })
  const next = async () => (await changes.next()).value
  assert.equal(await next(), null)

  const one = start(DIRECT, election, { identity: 'one', ttl: TTL })
  const first = await next()
  await one.leads()
  const { token } = one.terms[0]
  assert.deepEqual(first, {
    election,
    identity: 'one',
    token,
    since: first.since,
    scope: 'lease',
    value: null,
  })
  assert.ok(Math.abs(first.since.getTime() - Date.now()) < 10_000)
  await rows('SELECT le_proclaim($1, $2, $3)', election, 'host-1:8080', token)
  assert.deepEqual(await next(), { ...first, value: 'host-1:8080' })
  assert.deepEqual(await leader(DIRECT, election), { ...first, value: 'host-1:8080' })
  await one.stop()
  assert.equal(await next(), null)

  const two = start(DIRECT, election, { identity: 'two' })
  const second = await next()
  assert.equal(second.identity, 'two')
  assert.equal(second.scope, 'session')
  assert.ok(second.token > token)
  await two.stop()
  assert.equal(await next(), null)

  const waiting = changes.next()
  await sleep(50)
  stop.abort()
  assert.deepEqual(await waiting, { value: undefined, done: true })
})

test('S06 follow goes on after its connection was lost', direct, async () => {
  const election = name()
  const errors = []
  const pool = new pg.Pool({ connectionString: DIRECT, application_name: election })
  const changes = follow(pool, election, { onError: (error) => errors.push(error) })
  assert.equal((await changes.next()).value, null)
  const pending = changes.next()
  await until('it observes', async () => {
    const text = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE application_name = $1 AND state = 'active'`
    return (await rows(text, election)).length
  })
  const one = start(DIRECT, election, { identity: 'one' })
  assert.equal((await pending).value.identity, 'one')
  assert.equal(errors.length, 1)
  await changes.return()
  await one.stop()
  await pool.end()
})

test('S07 every: each due time at most once, also with two electors', direct, async () => {
  const election = name()
  const table = `done_${run}_${names}`.replaceAll('-', '_')
  await rows(`CREATE TABLE ${table} (due timestamptz, identity text)`)
  const pool = new pg.Pool({ connectionString: DIRECT })
  const both = [
    [DIRECT, {}],
    [pool, { ttl: TTL }],
  ].map(([db, options], i) => {
    const elector = new Elector(db, election, { identity: `${i}`, ...options })
    electors.push(elector)
    const task = (client, due) =>
      client.query(`INSERT INTO ${table} VALUES ($1, $2)`, [due, elector.identity])
    return { elector, done: elector.run(elector.every(1000, task)) }
  })
  const by = (i) => rows(`SELECT due FROM ${table} WHERE identity = $1`, String(i))
  const first = await until(
    'one leads',
    () => both.findIndex(({ elector }) => elector.state === 'leading') + 1 || undefined,
  )
  await until('it has done three', async () => (await by(first - 1)).length >= 3)
  both[first - 1].elector.stop()
  await both[first - 1].done
  await until('the other has done three', async () => (await by(2 - first)).length >= 3)
  both[2 - first].elector.stop()
  await both[2 - first].done
  const twice = await rows(`SELECT due FROM ${table} GROUP BY due HAVING count(*) > 1`)
  assert.deepEqual(twice, [])
  const odd = await rows(`SELECT due FROM ${table} WHERE due <> date_trunc('second', due)`)
  assert.deepEqual(odd, [])
  await rows(`DROP TABLE ${table}`)
  await pool.end()
})

test('S07 every: a task that fails leaves nothing, and is tried again', direct, async () => {
  const election = name()
  const table = `failed_${run}_${names}`.replaceAll('-', '_')
  await rows(`CREATE TABLE ${table} (due timestamptz)`)
  let tries = 0
  const errors = []
  const elector = new Elector(DIRECT, election, { onError: (error) => errors.push(error.message) })
  await elector.run(
    elector.every(3_600_000, async (client, due) => {
      await client.query(`INSERT INTO ${table} VALUES ($1)`, [due])
      tries += 1
      if (tries === 1) throw new Error('fails')
      if (tries === 2) await client.query('SELECT 1/0').catch(() => {}) // and goes on regardless
      if (tries === 3) elector.stop()
    }),
  )
  assert.equal(tries, 3)
  assert.equal(errors.length, 2)
  assert.equal((await rows(`SELECT FROM ${table}`)).length, 1)
  await rows(`DROP TABLE ${table}`)
})

for (const options of [{}, { ttl: TTL }]) {
  test(
    `S08 seats: of three electors for two seats, two lead: ${JSON.stringify(options)}`,
    direct,
    async () => {
      const election = name()
      const electors = [1, 2, 3].map(() => start(DIRECT, election, { seats: 2, ...options }))
      const leading = () => electors.filter(({ elector }) => elector.state === 'leading')
      await until('two lead', () => leading().length === 2)
      await sleep(1500)
      assert.equal(leading().length, 2)
      const seats = () =>
        leading()
          .map(({ terms }) => terms.at(-1).election)
          .sort()
      assert.deepEqual(seats(), [`${election}/1`, `${election}/2`])
      await leading()[0].stop()
      await until('the third leads', () => leading().length === 2)
      assert.deepEqual(seats(), [`${election}/1`, `${election}/2`])
      for (const each of electors) await each.stop()
      assert.deepEqual(await rows('SELECT FROM le_leaders WHERE name LIKE $1', `${election}/%`), [])
    },
  )
}

test('S09 a stop while it waits leaves no candidate behind', direct, async () => {
  const pool = new pg.Pool({ connectionString: DIRECT, idleTimeoutMillis: 100 })
  for (const db of [DIRECT, pool]) {
    const election = name()
    const one = start(DIRECT, election)
    await one.leads()
    const two = start(db, election, { identity: 'two' })
    const candidates = () => rows('SELECT identity FROM le_candidates WHERE name = $1', election)
    await until('it waits', async () => (await candidates()).length === 1)
    const asked = performance.now()
    await two.stop()
    assert.ok(performance.now() - asked < 4000) // the deadline of an answer is 5 s
    await until('the candidate has gone', async () => (await candidates()).length === 0)
    await one.stop()
    assert.deepEqual(two.errors, [])
  }
  assert.equal(pool.totalCount, 0)
  await pool.end()
})

const configOf = (url) => {
  const { hostname, port, username, password, pathname } = new URL(url)
  return {
    host: hostname,
    port: Number(port),
    user: username,
    password,
    database: pathname.slice(1),
  }
}

for (const [way, make, pause = 1000] of [
  ['a Pool', (url) => new pg.Pool({ connectionString: url, connectionTimeoutMillis: 5000 })],
  ['a Pool that parses bigint', (url) => new pg.Pool({ connectionString: url, types: bigints })],
  [
    'a Pool with a query_timeout',
    (url) => new pg.Pool({ connectionString: url, query_timeout: 2500 }),
    3000,
  ],
  ['a connection string', (url) => url],
  ['a configuration', configOf],
]) {
  test(`S10 node-postgres: ${way}`, direct, async () => {
    for (const options of [{}, { heartbeat: TTL }, { ttl: TTL }]) {
      const db = make(DIRECT)
      const election = name()
      const one = start(db, election, { identity: 'one', ...options })
      await one.leads()
      const two = start(db, election, { identity: 'two', ...options })
      await sleep(pause)
      assert.equal(two.elector.state, 'waiting')
      assert.equal((await leader(db, election)).token, one.terms[0].token)
      await one.stop()
      await two.leads()
      assert.ok(two.terms[0].token > one.terms[0].token)
      await two.stop()
      assert.deepEqual([...one.errors, ...two.errors], [])
      if (db instanceof pg.Pool) await db.end()
    }
  })
}

const bigints = {
  getTypeParser: (oid, format) =>
    oid === 20 ? (text) => BigInt(text) : pg.types.getTypeParser(oid, format),
}

test('S10 node-postgres through PgBouncer: leader, and every', pooler, async () => {
  const election = name()
  const times = []
  const elector = new Elector(POOLER, election, { ttl: TTL })
  await elector.run(
    elector.every(1000, async (client, due) => {
      assert.equal((await leader(POOLER, election)).identity, elector.identity)
      if (times.push(due) === 2) elector.stop()
    }),
  )
  assert.equal(times.length, 2)
  assert.equal(await leader(POOLER, election), null)
})

test('the loss of idle connections of a pool does not end the process', direct, async () => {
  const election = name()
  const pool = new pg.Pool({ connectionString: DIRECT, application_name: election })
  const one = start(pool, election, { ttl: TTL })
  await one.leads()
  const text = 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1'
  await until('terminated', async () => (await rows(text, election)).length)
  await sleep(TTL / 2)
  assert.equal(one.terms.length, 1, 'a lease depends on no connection')
  await one.stop()
  assert.equal(pool.listenerCount('error'), 0)
  await pool.end()
})

for (const [way, options, limit] of [
  ['session', {}, 6000],
  ['heartbeat', { heartbeat: TTL }, 4000],
  ['lease', { ttl: TTL }, 4000],
]) {
  test(`a proxy that forwards nothing: ${way}`, direct, async (t) => {
    const election = name()
    const proxy = await Proxy.start(DIRECT)
    t.after(() => proxy.close())
    let cancelled
    const one = start(proxy.url, election, options, async (term) => {
      while (term.isLeading()) {
        term.heartbeat()
        await sleep(50, undefined, { signal: term.signal }).catch(() => {})
      }
      cancelled = performance.now()
    })
    await one.leads()
    await sleep(1200)
    proxy.stall()
    const stalled = performance.now()
    await until('cancelled', () => cancelled)
    // so before another is elected
    assert.ok(cancelled - stalled < limit + TTL / 3, `after ${cancelled - stalled} ms`)
    await until('pauses, or tries to connect', () => one.elector.state !== 'stopping')
    await sleep(700) // it is opening a connection by now
    const asked = performance.now()
    await one.stop()
    // the deadline of opening one is 5 s
    assert.ok(performance.now() - asked < 3500, `stopped after ${performance.now() - asked} ms`)
  })
}

test('a proxy that forwards nothing: a Pool', direct, async (t) => {
  const election = name()
  const proxy = await Proxy.start(DIRECT)
  t.after(() => proxy.close())
  const pool = new pg.Pool({ connectionString: proxy.url, connectionTimeoutMillis: 1000 })
  const one = start(pool, election, { ttl: 3000 })
  const two = start(pool, `${election}-2`, { heartbeat: 3000 }, async (term) => {
    while (term.isLeading()) await sleep(50, term.heartbeat())
  })
  await one.leads()
  await two.leads()
  proxy.stall()
  await untilCancelled(one.terms[0])
  await untilCancelled(two.terms[0])
  await Promise.all([one.stop(), two.stop()])
  assert.equal(pool.listenerCount('error'), 0)
  await until('the pool is empty', () => pool.totalCount === 0)
  await pool.end()
})

test('run leaves no timer, socket or connection behind', direct, async () => {
  const count = () =>
    process
      .getActiveResourcesInfo()
      .filter((what) => /TCP|Timeout/.test(what))
      .sort()
  const election = name()
  await admin.query('SELECT 1')
  await sleep(50)
  const before = count()
  for (const options of [{}, { heartbeat: 3000 }, { ttl: 1500 }]) {
    const one = start(DIRECT, election, options)
    await one.leads()
    const two = start(DIRECT, election, options)
    await sleep(300)
    await two.stop()
    await one.stop()
    const elector = new Elector(DIRECT, election, options)
    await elector.run(elector.every(1000, () => elector.stop())) // two connections at a time
  }
  // a server that accepts, and then says nothing
  const accepted = new Set()
  const server = net.createServer((socket) => accepted.add(socket.on('error', () => {})))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address()
  const three = start(`postgres://x@127.0.0.1:${port}/x`, election, { ttl: 1500 })
  await until('an error', () => three.errors.length)
  await three.stop()
  for (const socket of accepted) socket.destroy()
  await new Promise((resolve) => server.close(resolve))
  await until('all is closed', () => count().length <= before.length).catch(() => {})
  assert.deepEqual(count(), before)
})
