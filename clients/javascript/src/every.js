// Jobs of a point in time: the due times, which are pure, and the job around them.
import { setTimeout as sleep } from 'node:timers/promises'
import { LostError } from './errors.js'
import { must, settingsOf } from './options.js'
import { LIMIT, Source } from './pg.js'
import { onAbort } from './run.js'
import { isAbort, report } from './term.js'

/** @import { Database, Job, Schedule, Task } from '../index.js' */

const ORIGIN = Date.UTC(2000, 0)
const STEPS = 10_000

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
    if (!(time > last)) throw new TypeError('a schedule must return a later time')
    if (step === STEPS) return [null, last]
    latest = last = time
  }
}

/**
 * @param {Database} db
 * @param {number | Schedule} schedule
 * @param {Task} task
 * @param {{ schema?: string | undefined }} [options]
 * @returns {Job}
 */
export function every(db, schedule, task, options = {}) {
  const isInterval = Number.isFinite(schedule) && Number(schedule) >= 1000
  must(isInterval || typeof schedule === 'function', 'schedule must be a function, or from 1000 ms')
  must(typeof task === 'function', 'task must be a function')
  const { prefix } = settingsOf('every', options, ['schema'])
  const times = `SELECT extract(epoch FROM clock_timestamp()),
                        (SELECT extract(epoch FROM due) FROM ${prefix}le_once_done WHERE name = $1::text)`
  const once = `SELECT ${prefix}le_once($1::text, $2::timestamptz, $3::bigint)`

  return async (term) => {
    const { signal, election, token } = term
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
          const [now, recorded] = await present.query([times, election])
          last ??= Math.round((recorded ?? now) * 1000)
          const [time, next] = due(schedule, last, now * 1000)
          if (time !== null && !signal.aborted) {
            const date = new Date(time)
            await present.query(['BEGIN'])
            const [isDue] = await present.query([once, election, date.toISOString(), token])
            if (isDue) await task(present.client, date, term)
            const { command } = await present.client.query({ text: 'COMMIT', query_timeout: LIMIT })
            if (command !== 'COMMIT') throw new Error('a statement in it has failed')
          }
          last = next
        } catch (error) {
          close()
          const isInVain = signal.reason instanceof LostError
          if (!isInVain && !isAbort(signal, error)) term[report]?.(error)
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
