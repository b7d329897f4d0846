// Jobs of a point in time: the due times, which are pure, and the job around them.
import { clearInterval, setInterval } from 'node:timers' // not those that a test replaces
import { setTimeout as sleep } from 'node:timers/promises'
import { failedBy } from './errors.js'
import { between, callback, checked, done, must } from './options.js'
import { LIMIT, Source, types } from './pg.js'
import { ask, internals, isAbort } from './term.js'

/** @import { Database, Job, Schedule, Task } from '../index.js' */

const ORIGIN = Date.UTC(2000, 0)
const STEPS = 10_000
const XID = 'pg_catalog.txid_current()'
const DAY = 86_400_000
const STYLE = /** @type {const} */ ({ dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' })

const floor = (time, length) => Math.floor(time / length) * length

/** The time that follows another one, or Infinity. */
function following(/** @type {Schedule} */ schedule, /** @type {number} */ last) {
  const next = schedule(new Date(last))
  const time = next === null ? Infinity : Number(next)
  must(time > last, 'a schedule must return a later time', 'ERR_INVALID_RETURN_VALUE')
  return time
}

/**
 * The last time that is due after `last`, or null, and where to go on.
 *
 * @param {number | Schedule} schedule
 * @param {number} last
 * @param {number} now
 * @returns {[number | null, number]}
 */
export function due(schedule, last, now) {
  if (typeof schedule === 'number') {
    const latest = floor(now - ORIGIN, schedule) + ORIGIN
    return latest > last ? [latest, latest] : [null, last]
  }
  /** @type {number | null} */
  let latest = null
  for (let step = 0; ; step++) {
    const time = following(schedule, last)
    if (time > now) return [latest, last]
    if (step === STEPS) return [null, last]
    latest = last = time
  }
}

/**
 * A schedule that asks another one for what clocks show in a zone, as if it were UTC. A time that
 * clocks leave out is due when they are put forward, and one that they show twice, the first time.
 *
 * @param {Schedule} schedule
 * @param {string} zone
 * @returns {Schedule}
 */
export function inZone(schedule, zone) {
  const format = new Intl.DateTimeFormat('en', { timeZone: zone, ...STYLE })
  const shownAt = (time) => Date.parse(`${format.format(time)} UTC`) + time - floor(time, 1000)
  const place = (shown) => {
    // by the offset before a change and the one after it
    const times = [shown - DAY, shown + DAY].map((near) => shown - shownAt(near) + near)
    let [before, after] = [Math.min(...times), Math.max(...times)]
    if (shownAt(before) === shown) return before
    while (after - before > 1) {
      const middle = Math.floor((before + after) / 2)
      if (shownAt(middle) < shown) before = middle
      else after = middle
    }
    return after
  }
  return (last) => {
    for (let shown = shownAt(last.getTime()), next; ; shown = next) {
      next = following(schedule, shown)
      const time = next === Infinity ? next : place(next)
      if (time > Number(last)) return time
    }
  }
}

/**
 * @param {Database} db
 * @param {number | Schedule} schedule
 * @param {Task} task
 * @param {{ zone?: string | undefined }} [options]
 * @returns {Job}
 */
export function every(db, schedule, task, options = {}) {
  const isInterval = typeof schedule === 'number'
  if (isInterval) between(1000, Number.MAX_SAFE_INTEGER)('schedule', schedule)
  else must(typeof schedule === 'function', 'schedule must be a function, or milliseconds')
  callback('task', task)
  const { zone } = checked(options, ['zone'])
  must(!zone || !isInterval, 'an interval has no zone', 'ERR_INVALID_ARG_VALUE')
  const dues = zone ? inZone(/** @type {Schedule} */ (schedule), zone) : schedule

  return async (term) => {
    const { signal, election } = term
    const { prefix, tenure, post } = term[internals]
    const times = `SELECT extract(epoch FROM clock_timestamp()),
                        (SELECT extract(epoch FROM due) FROM ${prefix}le_once_done WHERE name = $1::text)`
    const source = new Source(db, `leader_election: ${election}`)
    let last
    /** @type {Awaited<ReturnType<Source['connect']>> | undefined} */
    let connection
    const close = () => {
      connection?.close() // and so rolls back
      connection = undefined
    }
    // the signal cannot tell it after a stop, and the task can wait for a server that is silent
    const watch = setInterval(() => tenure.over && close(), 100)

    try {
      while (!signal.aborted) {
        term.heartbeat()
        try {
          const present = (connection ??= await source.connect())
          const [now, recorded] = await present.query([times, election])
          last ??= Math.round((recorded ?? now) * 1000)
          const [time, next] = due(dues, last, now * 1000)
          if (time !== null && !signal.aborted) {
            const date = new Date(time)
            const query = (text) => present.client.query({ text, types, query_timeout: LIMIT })
            await query('BEGIN')
            const first = await ask({ query }, `${term.onceSql(date)}::text || ${XID}`)
            if (first.startsWith('true')) {
              done(await task(present.client, date, term))
              // it can have ended the transaction, and begun another
              const still = await ask({ query }, `SELECT 'true' || ${XID}`)
              must(still === first, 'the task has ended its transaction', 'ERR_INVALID_STATE')
            }
            await query('COMMIT')
          }
          last = next
        } catch (error) {
          close()
          if (!tenure.over && !isAbort(signal, error))
            post('report', failedBy('job', 'the task', error))
        }
        await sleep(1000, undefined, { signal }).catch(() => {})
      }
    } finally {
      clearInterval(watch)
      connection?.release()
      source.close()
    }
  }
}
