// The state machine on a simulated clock and server. The numbers are those of the list in ../README.md.
import assert from 'node:assert/strict'
import { afterEach, beforeEach, test } from 'node:test'
import { Elector } from '../src/index.js'
import { World, late, silence, sqlError, untilCancelled } from './world.js'

/** @type {World} */
let world

beforeEach(() => {
  world = new World()
})

// nothing is left behind by any elector
afterEach(async () => {
  if (!world.elector) return
  world.elector.stop()
  await world.advance(20_000)
  assert.equal(world.elector.state, 'stopped')
  assert.equal(world.count('returned') + world.count('failed'), 1, 'run has returned')
  assert.equal(world.open.size, 0, 'no connection is left')
  assert.equal(world.timers, 0, 'no timer is left')
})

/** A job that does not stop before it is told to by `finish`, whatever its signal says. */
function stubbornJob() {
  let finish
  const done = new Promise((resolve) => (finish = resolve))
  return { job: () => done, finish }
}

test('U01 the job does not start before the first confirmation', async () => {
  world.answers.le_am_leader = (values, { pid }) => late(world, 700, { leads: true, pid })()
  await world.start()
  assert.equal(world.count('le_campaign'), 1)
  await world.advance(699)
  assert.equal(world.count('job'), 0)
  assert.equal(world.elector.state, 'waiting')
  await world.advance(1)
  assert.deepEqual(world.times('job'), [700])
  assert.equal(world.elector.state, 'leading')
  assert.equal(world.term.token, 7)
  assert.equal(world.term.election, 'e')
})

test('U01 elected, but not confirmed: no job, an error, and a new campaign', async () => {
  world.answers.le_am_leader = (values, { pid }) => ({ leads: false, pid })
  await world.start()
  assert.equal(world.count('job'), 0)
  assert.equal(world.errors.length, 1)
  assert.equal(world.elector.state, 'paused')
  assert.equal(world.open.size, 0)
  await world.advance(500)
  assert.equal(world.count('le_campaign'), 2)
})

test('U02 in session scope, the job is cancelled when the validity has passed', async () => {
  await world.start()
  await world.advance(500)
  // asked at 1000, answered at 4000; asked at 4000, never answered
  world.answers.le_am_leader = (values, { pid }) => {
    world.answers.le_am_leader = silence
    return late(world, 3000, { leads: true, pid })()
  }
  await world.advance(6499)
  assert.equal(world.count('cancelled'), 0)
  await world.advance(1)
  assert.deepEqual(world.times('cancelled'), [7000])
  assert.deepEqual(world.order('ousted'), ['ousted in doubt'])
})

test('U02 by a lease, the job is cancelled when the validity has passed', async () => {
  world.answers.le_lease = late(world, 500, { token: '7' })
  world.answers.le_renew = silence
  await world.start({ ttl: 3000 })
  await world.advance(1999)
  assert.deepEqual(world.times('job'), [500])
  assert.equal(world.count('cancelled'), 0)
  await world.advance(1)
  assert.deepEqual(world.times('cancelled'), [2000])
  assert.deepEqual(world.order('ousted'), ['ousted in doubt'])
})

test('U02 in session scope, an unanswered question is not given up under the job', async () => {
  await world.start({}, () => new Promise((resolve) => world.clock.after(12_000, resolve)))
  await world.advance(500)
  world.answers.le_am_leader = silence
  await world.advance(11_499)
  assert.equal(world.count('cancelled'), 1)
  assert.deepEqual(world.times('closed'), [0], 'only the second connection of the start')
  await world.advance(1)
  assert.deepEqual(world.times('job stopped'), [12_000])
  await world.advance(5000)
  assert.equal(world.times('closed')[1] >= 12_000, true)
})

test('U02 an answer that comes when the validity has passed revives nothing', async () => {
  await world.start({ ttl: 3000 })
  await world.advance(999)
  const answered = {}
  world.answers.le_renew = () => new Promise((resolve) => (answered.resolve = resolve))
  await world.advance(1)
  world.jump(1500) // suspended, and so no timer has run
  answered.resolve({ leads: true })
  await world.settle()
  assert.deepEqual(world.times('cancelled'), [2500])
  assert.equal(world.term.isLeading(), false)
})

for (const options of [{}, { heartbeat: 3000 }, { ttl: 3000 }]) {
  const way = Object.keys(options)[0] ?? 'session'
  test(`U03 the answer false cancels the job at once: ${way}`, async () => {
    await world.start(options, (term) => {
      term.heartbeat()
      return untilCancelled(term)
    })
    await world.advance(999)
    const no = (values, { pid }) => ({ leads: false, pid })
    Object.assign(world.answers, { le_am_leader: no, le_heartbeat: no, le_renew: no })
    await world.advance(1)
    assert.deepEqual(world.times('cancelled'), [1000])
    assert.deepEqual(world.order('ousted'), ['ousted lost'])
    assert.equal(world.errors.length, 1, 'is reported')
    assert.equal(world.count('le_resign'), 0, 'nothing to resign')
  })
}

test('U04 the end of the connection cancels the job at once', async () => {
  await world.start()
  await world.advance(300)
  const [connection] = world.open
  connection.break()
  assert.deepEqual(world.times('cancelled'), [300])
  await world.settle()
  assert.deepEqual(world.order('ousted', 'error'), [
    'error leadership of "e" has ended: lost (terminated)',
    'ousted lost',
  ])
  assert.equal(world.count('le_resign'), 0)
})

test('U04 an error of a confirmation means that leadership is lost', async () => {
  await world.start()
  world.answers.le_am_leader = () => Promise.reject(sqlError('57014'))
  await world.advance(1000)
  assert.deepEqual(world.times('cancelled'), [1000])
  assert.deepEqual(world.order('ousted'), ['ousted lost'])
  assert.equal(world.errors.length, 1)
})

test('U05 by a lease, a renewal that fails is reported and tried again', async () => {
  await world.start({ ttl: 3000 })
  world.answers.le_renew = () => Promise.reject(sqlError('57P03'))
  await world.advance(1000)
  assert.equal(world.errors.length, 1)
  assert.equal(world.elector.state, 'leading')
  await world.advance(600)
  assert.deepEqual(world.times('le_renew'), [1000, 1300, 1600])
  assert.equal(world.errors.length, 3)
  assert.ok(world.term.isLeading())
  world.answers.le_renew = () => ({ leads: true })
  await world.advance(300)
  await world.advance(1900)
  assert.equal(world.count('cancelled'), 0)
  assert.deepEqual(world.times('le_renew'), [1000, 1300, 1600, 1900, 2900])
})

test('U06 with a heartbeat, a job that does not call it is cancelled', async () => {
  await world.start({ heartbeat: 6000 })
  await world.advance(3999)
  assert.equal(world.count('cancelled'), 0)
  assert.deepEqual(world.times('le_am_leader'), [1000, 2000, 3000], 'the server answers')
  await world.advance(1)
  assert.deepEqual(world.times('cancelled'), [4000])
  assert.deepEqual(world.order('ousted', 'le_resign'), ['ousted in doubt', 'le_resign e me'])
  assert.match(world.errors[0], /has not called heartbeat/)
})

test('U06 a heartbeat longer than the validity of a confirmation', async () => {
  await world.start({ heartbeat: 60_000 })
  await world.advance(20_000)
  assert.equal(world.count('cancelled'), 0, 'confirmed without a heartbeat')
  world.term.heartbeat()
  await world.advance(40_999)
  assert.equal(world.count('cancelled'), 0, 'sent at 21 s')
  await world.advance(1)
  assert.equal(world.count('cancelled'), 1)
})

test('U07 le_heartbeat is sent only if the job has called heartbeat since', async () => {
  await world.start({ heartbeat: 6000 })
  assert.deepEqual(world.times('le_heartbeat'), [0], 'the confirmation')
  await world.advance(1500)
  world.term.heartbeat()
  world.term.heartbeat()
  await world.advance(2000)
  assert.deepEqual(world.times('le_heartbeat'), [0, 2000])
  assert.deepEqual(world.times('le_am_leader'), [1000, 3000])
  world.term.heartbeat()
  await world.advance(1000)
  assert.deepEqual(world.times('le_heartbeat'), [0, 2000, 4000])
})

test('U07 with a short heartbeat, each third of it is asked', async () => {
  await world.start({ heartbeat: 1200 })
  await world.advance(400)
  assert.deepEqual(world.times('le_am_leader'), [400])
})

test('U08 renew on heartbeat: a job that does not call it is cancelled', async () => {
  await world.start({ ttl: 3000, renewOnHeartbeat: true })
  world.term.heartbeat()
  await world.advance(2999)
  assert.deepEqual(world.times('le_renew'), [1000])
  assert.equal(world.count('cancelled'), 0)
  await world.advance(1)
  assert.deepEqual(world.times('cancelled'), [3000])
  assert.deepEqual(world.times('le_renew'), [1000])
  assert.deepEqual(world.order('ousted'), ['ousted in doubt'])
})

test('U08 renew on heartbeat: a job that calls it leads on, and without the option any job', async () => {
  await world.start({ ttl: 3000, renewOnHeartbeat: true }, (term) => {
    const beat = () => {
      if (!term.signal.aborted) world.clock.after(500, () => (term.heartbeat(), beat()))
    }
    beat()
    return untilCancelled(term)
  })
  await world.advance(30_000)
  assert.equal(world.count('cancelled'), 0)
})

for (const options of [{}, { ttl: 3000 }]) {
  test(`U09 no campaign begins before the job has stopped: ${JSON.stringify(options)}`, async () => {
    const { job, finish } = stubbornJob()
    await world.start(options, job)
    const no = (values, { pid }) => ({ leads: false, pid })
    Object.assign(world.answers, { le_am_leader: no, le_renew: no })
    await world.advance(3_600_000)
    assert.equal(world.count('le_campaign') + world.count('le_lease'), 1)
    assert.equal(world.count('ousted'), 0)
    assert.equal(world.elector.state, 'stopping')
    finish()
    await world.settle()
    assert.deepEqual(world.order('ousted'), ['ousted lost'])
    assert.equal(world.elector.state, 'paused')
    await world.advance(500)
    assert.equal(world.count('le_campaign') + world.count('le_lease'), 2)
  })
}

test('U10 a job that has not stopped after the stop timeout is reported once', async () => {
  const { job, finish } = stubbornJob()
  await world.start({ stopTimeout: 2000 }, job)
  world.elector.stop()
  await world.advance(1999)
  assert.equal(world.errors.length, 0)
  await world.advance(1)
  assert.equal(world.errors.length, 1)
  assert.match(world.errors[0], /has not stopped 2000 ms after/)
  await world.advance(60_000)
  assert.equal(world.errors.length, 1)
  finish()
})

test('U10 a job that stops in time is not reported', async () => {
  await world.start({ stopTimeout: 2000 })
  world.elector.stop()
  await world.advance(10_000)
  assert.equal(world.errors.length, 0)
})

for (const options of [{}, { ttl: 3000 }]) {
  test(`U11 a stop while leading: ${JSON.stringify(options)}`, async () => {
    const { job, finish } = stubbornJob()
    await world.start(options, job)
    await world.advance(500)
    world.elector.stop()
    assert.deepEqual(world.times('cancelled'), [500])
    assert.equal(world.elector.state, 'stopping')
    assert.equal(world.term.isLeading(), false, 'told to stop')
    await world.advance(9000)
    assert.equal(world.count('le_resign'), 0, 'leadership is kept')
    assert.equal(world.count('le_am_leader') + world.count('le_renew') >= 9, true, 'and confirmed')
    assert.equal(world.count('returned'), 0)
    finish()
    await world.settle()
    assert.deepEqual(world.order('cancelled', 'job', 'ousted', 'le_resign', 'returned'), [
      'job',
      'cancelled resigned',
      'job stopped',
      'ousted resigned',
      options.ttl ? 'le_resign e 7' : 'le_resign e me',
      'returned',
    ])
    assert.deepEqual(world.errors, [])
    assert.equal(world.elector.state, 'stopped')
  })
}

test('U11 leadership that is lost while the job stops is not resigned', async () => {
  const { job, finish } = stubbornJob()
  await world.start({}, job)
  world.elector.stop()
  const [connection] = world.open
  connection.break()
  finish()
  await world.settle()
  assert.deepEqual(world.order('ousted', 'le_resign', 'returned'), ['ousted lost', 'returned'])
  assert.equal(world.errors.length, 1)
})

test('U11 the job can stop the elector', async () => {
  await world.start({}, async () => world.elector.stop())
  assert.deepEqual(world.order('ousted', 'le_resign', 'returned'), [
    'ousted resigned',
    'le_resign e me',
    'returned',
  ])
})

test('U12 a stop while waiting cancels the bid and closes the connection', async () => {
  world.answers.le_campaign = silence
  await world.start()
  await world.advance(60_000)
  assert.equal(world.elector.state, 'waiting')
  assert.equal(world.open.size, 1)
  world.elector.stop()
  await world.settle()
  assert.equal(world.count('returned'), 1)
  assert.equal(world.open.size, 0)
  assert.deepEqual(world.errors, [])
})

test('U12 a stop while a connection is being opened', async () => {
  let given
  world.answers.connect = (signal) => ((given = signal), silence())
  await world.start()
  world.elector.stop()
  await world.settle()
  assert.equal(given.aborted, true)
  assert.equal(world.count('returned'), 1)
  assert.deepEqual(world.errors, [])
})

test('U12 a stop between two bids for a lease', async () => {
  world.answers.le_lease = () => ({ token: null })
  await world.start({ ttl: 3000 })
  await world.advance(2500)
  assert.deepEqual(world.times('le_lease'), [0, 1000, 2000])
  world.elector.stop()
  await world.settle()
  assert.deepEqual(world.times('returned'), [2500])
})

test('U12 a lease that is granted while the elector stops is resigned', async () => {
  world.answers.le_lease = late(world, 400, { token: '7' })
  await world.start({ ttl: 3000 })
  world.elector.stop()
  await world.advance(400)
  assert.deepEqual(world.order('job', 'le_resign', 'returned'), ['le_resign e 7', 'returned'])
})

test('U13 a stop while paused returns at once', async () => {
  world.answers.connect = () => Promise.reject(sqlError('ECONNREFUSED'))
  await world.start()
  await world.advance(100)
  assert.equal(world.elector.state, 'paused')
  world.elector.stop()
  await world.settle()
  assert.deepEqual(world.times('returned'), [100])
})

for (const [dice, pause] of [
  [0, 500],
  [1, 1000],
]) {
  test(`U14 a job that returns: resigned, a pause of ${pause} ms, a new campaign`, async () => {
    world.dice = dice
    await world.start({}, async () => {})
    assert.deepEqual(world.order('ousted', 'le_resign', 'closed'), [
      'closed',
      'ousted job returned',
      'le_resign e me',
      'closed',
    ])
    assert.equal(world.elector.state, 'paused')
    await world.advance(pause - 1)
    assert.equal(world.count('le_campaign'), 1)
    await world.advance(1)
    assert.deepEqual(world.times('le_campaign'), [0, pause])
    assert.deepEqual(world.errors, [])
  })
}

test('U15 a job that fails: reported once, resigned, paused, a new campaign', async () => {
  world.dice = 0
  await world.start({ ttl: 3000 }, () => {
    throw new Error('no paper')
  })
  assert.deepEqual(world.order('error', 'ousted', 'le_resign'), [
    'error the job of "e" has failed: no paper',
    'ousted job failed',
    'le_resign e 7',
  ])
  await world.advance(249)
  assert.equal(world.count('le_lease'), 1)
  await world.advance(1)
  assert.equal(world.count('le_lease'), 2)
})

test('U15 a job that is cancelled may fail with the reason of its signal, or an AbortError', async () => {
  await world.start({}, async (term) => {
    await untilCancelled(term)
    throw term.signal.reason
  })
  world.elector.stop()
  await world.settle()
  assert.deepEqual(world.errors, [])

  world = new World()
  await world.start({}, async (term) => {
    await untilCancelled(term)
    throw new DOMException('aborted', 'AbortError')
  })
  world.elector.stop()
  await world.settle()
  assert.deepEqual(world.errors, [])

  world = new World()
  await world.start({}, async (term) => {
    await untilCancelled(term)
    throw new Error('while it stopped')
  })
  world.elector.stop()
  await world.settle()
  assert.deepEqual(world.order('error', 'ousted'), [
    'error the job of "e" has failed: while it stopped',
    'ousted resigned',
  ])
})

for (const [dice, pauses] of [
  [0, [250, 500, 1000, 2000, 4000, 7500, 7500]],
  [1, [500, 1000, 2000, 4000, 8000, 15_000, 15_000]],
]) {
  test(`U16 pauses after errors in a row, times ${(1 + dice) / 2}`, async () => {
    world.dice = dice
    world.answers.connect = () => Promise.reject(new Error('refused'))
    await world.start()
    for (const pause of pauses) await world.advance(pause)
    const times = world.times('connect')
    assert.deepEqual(
      times.slice(1).map((time, i) => time - times[i]),
      pauses,
    )
    assert.equal(world.errors.length, pauses.length + 1, 'each is reported once')
  })
}

test('U16 a bid that is answered starts anew', async () => {
  world.dice = 0
  const refuse = () => Promise.reject(new Error('refused'))
  world.answers.le_lease = refuse
  await world.start({ ttl: 3000 })
  await world.advance(750) // at 0, 250, 750
  world.answers.le_lease = () => ({ token: null })
  await world.advance(1000)
  world.answers.le_lease = refuse
  await world.advance(1500)
  assert.deepEqual(world.times('le_lease'), [0, 250, 750, 1750, 2750, 3000])
})

test('U16 an answer, and a connection, that do not come are errors after 5 s', async () => {
  world.dice = 0
  world.answers.connect = silence
  await world.start()
  await world.advance(4999)
  assert.equal(world.errors.length, 0)
  await world.advance(1)
  assert.equal(world.errors.length, 1)
  world.answers.connect = () => {}
  world.answers.le_campaign = silence
  await world.advance(250)
  await world.advance(304_999)
  assert.equal(world.errors.length, 1)
  await world.advance(1)
  assert.equal(world.errors.length, 2)
  assert.equal(world.open.size, 0)
})

test('U16 by a lease, the deadline is a third of the ttl, for connection and answer together', async () => {
  world.answers.connect = late(world, 600)
  world.answers.le_lease = silence
  await world.start({ ttl: 3000 })
  await world.advance(999)
  assert.equal(world.errors.length, 0)
  await world.advance(1)
  assert.equal(world.errors.length, 1)
})

test('U17 a lease that could not be resigned is bid for with its token', async () => {
  world.answers.le_resign = () => Promise.reject(new Error('refused'))
  await world.start({ ttl: 3000 }, async () => {})
  assert.deepEqual(world.errors, ['refused'])
  await world.advance(1000)
  assert.deepEqual(world.order('le_lease').slice(0, 2), [
    'le_lease e 3000 ms me null',
    'le_lease e 3000 ms me 7',
  ])
  world.answers.le_resign = () => ({ resigned: true })
  await world.advance(2000)
  assert.equal(world.order('le_lease').at(-1), 'le_lease e 3000 ms me null', 'resigned by now')
})

test('U18 two connections with one process ID end the elector', async () => {
  world.answers.pg_backend_pid = () => ({ pid: '100' })
  await world.start()
  assert.deepEqual(world.order('failed'), ['failed PoolerError'])
  assert.equal(world.count('le_campaign'), 0)
  assert.equal(world.open.size, 0)
})

test('U18 a changed process ID ends the elector, after the job has stopped', async () => {
  const { job, finish } = stubbornJob()
  world.answers.le_resign = () => ({ resigned: false })
  await world.start({}, job)
  world.answers.le_am_leader = () => ({ leads: true, pid: '999' })
  await world.advance(1000)
  assert.deepEqual(world.times('cancelled'), [1000])
  assert.equal(world.count('failed'), 0)
  finish()
  await world.settle()
  assert.deepEqual(world.order('ousted', 'le_resign', 'le_depose', 'failed'), [
    'ousted lost',
    'le_resign e me',
    'le_depose e me 7',
    'failed PoolerError',
  ])
  assert.deepEqual(world.errors, [], 'is thrown, not reported')
})

test('U18 a changed process ID at the first confirmation: no job', async () => {
  world.answers.le_am_leader = () => ({ leads: true, pid: '999' })
  await world.start()
  assert.deepEqual(world.order('job', 'le_resign', 'failed'), [
    'le_resign e me',
    'failed PoolerError',
  ])
})

test('U18 le_campaign fails with LE005: the session leads for another client', async () => {
  const message = 'cannot wait to lead election "e", which this session leads already'
  world.answers.le_campaign = () => Promise.reject(sqlError('LE005', message))
  await world.start()
  assert.deepEqual(world.order('job', 'failed'), ['failed PoolerError'])
})

test('U18 another SQLSTATE is an error as any other', async () => {
  const message = 'the registry of elections was made by another version of the library'
  world.answers.le_campaign = () => Promise.reject(sqlError('55000', message))
  await world.start()
  assert.deepEqual(world.errors, [message])
  assert.equal(world.elector.state, 'paused')
})

test('U19 isLeading is false from the moment that the validity has passed', async () => {
  await world.start({ ttl: 3000 })
  world.jump(1999)
  assert.equal(world.term.isLeading(), true)
  world.jump(1)
  assert.equal(world.term.isLeading(), false)
  assert.equal(world.term.signal.aborted, false, 'no timer has run')
})

test('U20 elected, ousted and error are called in order, each once', async () => {
  await world.start({}, async () => {
    throw new Error('x')
  })
  world.elector.stop()
  await world.settle()
  assert.deepEqual(world.order('elected', 'job', 'ousted', 'error', 'returned'), [
    'elected 7',
    'job',
    'job stopped',
    'error the job of "e" has failed: x',
    'ousted job failed',
    'returned',
  ])
})

test('U20 a callback that fails is reported and harms nothing', async () => {
  const onElected = () => {
    throw new Error('a')
  }
  const onOusted = async () => {
    throw new Error('b')
  }
  await world.start({ onElected, onOusted }, async () => {})
  assert.deepEqual(world.order('error', 'job', 'le_resign'), [
    'error onElected has failed: a',
    'job',
    'job stopped',
    'error onOusted has failed: b',
    'le_resign e me',
  ])
  await world.advance(1000)
  assert.equal(world.count('job'), 2)
})

test('U20 an onError that fails harms nothing', async (t) => {
  const log = t.mock.method(console, 'error', () => {})
  const onError = () => {
    throw new Error('c')
  }
  world.answers.connect = () => Promise.reject(new Error('refused'))
  await world.start({ onError })
  assert.equal(log.mock.callCount(), 1)
  assert.equal(world.elector.state, 'paused')
})

for (const options of [{ seats: 3 }, { seats: 3, heartbeat: 3000 }, { seats: 3, ttl: 3000 }]) {
  test(`U21 seats: the seat is what is confirmed and resigned: ${JSON.stringify(options)}`, async () => {
    world.answers.le_campaign = () => ({ token: '7', name: 'e/2' })
    await world.start(options)
    assert.equal(world.term.election, 'e/2')
    world.term.heartbeat()
    await world.advance(1000)
    world.elector.stop()
    await world.settle()
    const asked = world.log.filter(([, what]) => /am_leader|heartbeat|renew|resign/.test(what))
    assert.equal(asked.length >= 2, true)
    for (const [, what, name] of asked) assert.equal(name, 'e/2', what)
    assert.match(world.order('le_campaign')[0], / 3$/, 'of three')
  })
}

test('U22 bad arguments are refused', () => {
  const db = 'postgres://127.0.0.1/none'
  const refused = (...args) => assert.throws(() => new Elector(...args), TypeError)
  for (const name of [undefined, '', 'x'.repeat(256), 'é'.repeat(128), '12', '-7', '{a,b}', 5])
    refused(db, name)
  for (const bad of [
    { identity: '' },
    { identity: 'x'.repeat(256) },
    { seats: 0 },
    { seats: 10_001 },
    { seats: 1.5 },
    { heartbeat: 999 },
    { heartbeat: NaN },
    { heartbeat: '5 s' },
    { ttl: 999 },
    { ttl: Infinity },
    { ttl: 3000, heartbeat: 3000 },
    { renewOnHeartbeat: true },
    { stopTimeout: -1 },
    { onError: 'log' },
    { timeToLive: 3000 },
  ])
    refused(db, 'e', bad)
  for (const bad of [undefined, null, 5, { connect() {} }]) refused(bad, 'e')
  refused({ connect() {}, totalCount: 0, options: { max: 1 } }, 'e') // a pool with no place to spare
  const elector = new Elector(db, 'é'.repeat(127), { identity: undefined, ttl: 1000 })
  assert.equal(elector.state, 'stopped')
  assert.throws(() => elector.every(999, () => {}), TypeError)
  assert.throws(() => elector.every(1000), TypeError)
  return assert.rejects(elector.run(), TypeError)
})

test('U23 a NULL of le_campaign is bid again without a pause, and is no error', async () => {
  let bids = 0
  world.answers.le_campaign = () =>
    ++bids < 3 ? late(world, 300_000, { token: null })() : silence()
  await world.start()
  await world.advance(600_000)
  assert.deepEqual(world.times('le_campaign'), [0, 300_000, 600_000])
  assert.equal(world.count('connect'), 2, 'on the same connection')
  assert.deepEqual(world.errors, [])
  assert.equal(world.elector.state, 'waiting')
})

test('U24 the default identity differs between two electors of one process', () => {
  const [a, b] = [1, 2].map(() => new Elector('postgres://127.0.0.1/none', 'e').identity)
  assert.notEqual(a, b)
  assert.match(a, new RegExp(`^.+:${process.pid}:[0-9a-f]{4}$`))
})

test('an elector can run only once, and a signal stops it', async () => {
  await world.start()
  await assert.rejects(
    world.elector.run(() => {}),
    /only once/,
  )
  const other = new Elector('postgres://127.0.0.1/none', 'e')
  await other.run(() => {}, { signal: AbortSignal.abort() })
  assert.equal(other.state, 'stopped')
})

test('every: each time once, in a transaction, on a connection of its own', async () => {
  const done = []
  await world.start({ ttl: 3000 }, (term) =>
    world.elector.every(60_000, (client, due) => done.push([client.name, due.getTime()]))(term),
  )
  await world.advance(2500)
  assert.deepEqual(done.splice(0), [['client', 0]])
  assert.deepEqual(world.order('BEGIN', 'le_once', 'COMMIT'), [
    'BEGIN',
    'le_once e 1970-01-01T00:00:00.000Z 7',
    'COMMIT',
  ])
  world.answers.date_bin = () => ({ due: '60000' })
  world.answers.le_once = () => ({ due: false })
  await world.advance(1000)
  assert.deepEqual(done, [], 'another has done it')
  assert.deepEqual(world.errors, [])
})

test('every: a task that fails is rolled back, reported, and tried again a second later', async () => {
  let tries = 0
  await world.start({ ttl: 3000 }, (term) =>
    world.elector.every(60_000, () => {
      if (++tries === 1) throw new Error('no paper')
    })(term),
  )
  assert.deepEqual(world.errors, ['no paper'])
  assert.equal(world.count('COMMIT'), 0)
  assert.equal(world.count('closed'), 1)
  await world.advance(1000)
  assert.equal(tries, 2)
  assert.equal(world.count('COMMIT'), 1)
  await world.advance(5000)
  assert.equal(tries, 2)
})

test('every: a transaction that has failed unnoticed is no success', async () => {
  world.answers.COMMIT = () => ({ command: 'ROLLBACK' })
  await world.start({ ttl: 3000 }, (term) => world.elector.every(60_000, () => {})(term))
  assert.match(world.errors[0], /rolled back/)
})

test('every: calls heartbeat each second', async () => {
  await world.start({ heartbeat: 5000 }, (term) => world.elector.every(60_000, () => {})(term))
  await world.advance(20_000)
  assert.equal(world.count('cancelled'), 0)
})
