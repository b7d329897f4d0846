import { openSync, readSync } from 'node:fs'

/** @import { Clock } from './ports.js' */

const LONGEST_TIMER = 2 ** 31 - 1

/**
 * Milliseconds of a clock that goes on while the machine is suspended.
 *
 * Node has no call for CLOCK_BOOTTIME. /proc/uptime has it in hundredths of a second, and a reading
 * costs some 5 microseconds if the file is kept open. Elsewhere than on Linux: performance.now().
 */
const uptime = () => {
  let file = -1
  try {
    file = openSync('/proc/uptime', 'r')
  } catch {
    return () => performance.now()
  }
  const buffer = Buffer.alloc(64)
  return () => {
    const length = readSync(file, buffer, 0, buffer.length, 0)
    return Math.round(parseFloat(buffer.toString('latin1', 0, length)) * 1000)
  }
}

/** @type {Clock} */
export const systemClock = {
  now: uptime(),
  after(ms, action) {
    const timer = setTimeout(action, Math.min(Math.max(Math.ceil(ms), 0), LONGEST_TIMER))
    return () => clearTimeout(timer)
  },
}

/**
 * Call `action` when `signal` aborts, or at once if it has. Returns a function that prevents it.
 *
 * @param {AbortSignal | undefined} signal
 * @param {() => void} action
 */
export function onAbort(signal, action) {
  if (signal?.aborted) action()
  else signal?.addEventListener('abort', action, { once: true })
  return () => signal?.removeEventListener('abort', action)
}

/**
 * Wait for `ms` milliseconds, or until `signal` aborts. Never fails.
 *
 * @param {Clock} clock
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export function sleep(clock, ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const cancel = clock.after(ms, () => {
      forget()
      resolve()
    })
    const forget = onAbort(signal, () => {
      cancel()
      resolve()
    })
  })
}

/**
 * Do what `start` does, but fail after `ms` milliseconds, or when `halt` aborts, whatever it does.
 * The signal that `start` gets tells it to give up then.
 *
 * @template T
 * @param {Clock} clock
 * @param {number} ms
 * @param {string} what
 * @param {(signal: AbortSignal) => Promise<T>} start
 * @param {AbortSignal} [halt]
 * @returns {Promise<T>}
 */
export async function within(clock, ms, what, start, halt) {
  const controller = new AbortController()
  const { signal } = controller
  const cancel = clock.after(ms, () => {
    controller.abort(new Error(`${what}: no answer within ${Math.round(ms)} ms`))
  })
  const forget = onAbort(halt, () => controller.abort(halt?.reason))
  try {
    return await new Promise((resolve, reject) => {
      onAbort(signal, () => reject(signal.reason))
      if (!signal.aborted) start(signal).then(resolve, reject)
    })
  } finally {
    cancel()
    forget()
  }
}

/**
 * The pause after so many errors in a row, in milliseconds.
 *
 * @param {number} errors
 * @param {() => number} random
 */
export const pauseAfterErrors = (errors, random) =>
  Math.min(500 * 2 ** (errors - 1), 15_000) * (0.5 + random() / 2)
