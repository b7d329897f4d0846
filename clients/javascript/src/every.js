// Jobs of a point in time: the due times, which are pure, and the job around them.
import { setTimeout as sleep } from 'node:timers/promises'
import { LostError } from './errors.js'
import { must, settingsOf } from './options.js'
import { LIMIT, Source } from './pg.js'
import { onAbort } from './run.js'
import { internals, isAbort } from './term.js'

/** @import { Database, Job, Schedule, Task } from '../index.js' */

const ORIGIN = Date.UTC(2000, 0)
const STEPS = 10_000
const DAY = 86_400_000
const MUST_GO_ON = 'a schedule must return a later time'

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
    const latest = Math.floor((now - ORIGIN) / schedule) * schedule + ORIGIN
    return latest > last ? [latest, latest] : [null, last]
  }
  /** @type {number | null} */
  let latest = null
  for (let step = 0; ; step++) {
    const following = schedule(new Date(last))
    const time = following === null ? Infinity : Number(following)
    if (time > now) return [latest, last]
    if (!(time > last)) throw new TypeError(MUST_GO_ON)
    if (step === STEPS) return [null, last]
    latest = last = time
  }
}

/** What the clocks of a zone show, as if it were UTC. */
function clocksOf(zone) {
  const format = new Intl.DateTimeFormat('en', {
    timeZone: zone,
    hourCycle: 'h23',
    year: 'numeric',
    month: 'numeric',
    day: 'numeric',
    hour: 'numeric',
    minute: 'numeric',
    second: 'numeric',
  })
  return (/** @type {number} */ time) => {
    const parts = format.formatToParts(time).map(({ type, value }) => [type, Number(value)])
    const { year, month, day, hour, minute, second } = Object.fromEntries(parts)
    return Date.UTC(year, month - 1, day, hour, minute, second) + (((time % 1000) + 1000) % 1000)
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
  const shownAt = clocksOf(zone)
  const place = (shown) => {
    const [early, late] = [-DAY, DAY]
      .map((shift) => shown + shift)
      .map((near) => shown - (shownAt(near) - near)) // by the offset before and after a change
      .sort((a, b) => a - b)
    const found = [early, late].find((time) => shownAt(time) === shown)
    if (found !== undefined) return found
    let [before, after] = [early, late] // left out: the change is between them
    while (after - before > 1) {
      const middle = Math.floor((before + after) / 2)
      if (shownAt(middle) < shown) before = middle
      else after = middle
    }
    return after
  }
  return (last) => {
    let shown = shownAt(last.getTime())
    for (;;) {
      const next = schedule(new Date(shown))
      if (next === null) return null
      if (!(Number(next) > shown)) throw new TypeError(MUST_GO_ON)
      shown = Number(next)
      const time = place(shown)
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
  const isInterval = Number.isFinite(schedule) && Number(schedule) >= 1000
  must(isInterval || typeof schedule === 'function', 'schedule must be a function, or from 1000 ms')
  must(typeof task === 'function', 'task must be a function')
  const { zone } = settingsOf('every', options, ['zone'])
  must(!zone || !isInterval, 'an interval has no zone')
  const times = zone ? inZone(/** @type {Schedule} */ (schedule), zone) : schedule

  return async (term) => {
    const { signal, election } = term
    const { prefix, report } = term[internals]
    const ask = `SELECT extract(epoch FROM clock_timestamp()),
                        (SELECT extract(epoch FROM due) FROM ${prefix}le_once_done WHERE name = $1::text)`
    const source = new Source(db, `leader_election: ${election}`)
    let last
    /** @type {Awaited<ReturnType<Source['connect']>> | undefined} */
    let connection
    const close = () => {
      connection?.close() // and so rolls back
      connection = undefined
    }
    const forget = onAbort(signal, () => {
      if (signal.reason instanceof LostError) close() // what it does is in vain
    })

    try {
      while (!signal.aborted) {
        term.heartbeat()
        try {
          const present = (connection ??= await source.connect())
          const [now, recorded] = await present.query([ask, election])
          last ??= Math.round((recorded ?? now) * 1000)
          const [time, next] = due(times, last, now * 1000)
          if (time !== null && !signal.aborted) {
            const date = new Date(time)
            const { client } = present
            const query = (text) => client.query({ text, query_timeout: LIMIT })
            await query('BEGIN')
            if (await term.once({ query }, date)) await task(client, date, term)
            const { command } = await query('COMMIT')
            if (command !== 'COMMIT') throw new Error('a statement in it has failed')
          }
          last = next
        } catch (error) {
          close()
          const isInVain = signal.reason instanceof LostError
          if (!isInVain && !isAbort(signal, error)) report(error)
        }
        await sleep(1000, undefined, { signal }).catch(() => {})
      }
    } finally {
      forget()
      connection?.release()
      source.close()
    }
  }
}
