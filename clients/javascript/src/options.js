// The options, checked as the server would check them. All times are in milliseconds.
import { randomInt } from 'node:crypto'
import { hostname } from 'node:os'
import { safely } from './errors.js'

/** @import { ElectorOptions } from '../index.js' */
/**
 * @typedef {ElectorOptions & { election: string, identity: string, stopTimeout: number,
 *   logger: NonNullable<ElectorOptions['logger']>, prefix: string, application: string }} Settings
 */

/** Complain, unless that is true. */
export function must(isTrue, what) {
  if (!isTrue) throw new TypeError(what)
}

function mustHaveBytes(name, value, most) {
  const length = typeof value === 'string' && !value.includes('\0') ? Buffer.byteLength(value) : 0
  must(length >= 1 && length <= most, `${name} must have 1 to ${most} bytes, none of them zero`)
}

/** A number, and no text that looks like one. */
const between = (least, most) => (name, value) =>
  must(
    typeof value === 'number' && value >= least && value <= most,
    `${name} must be a number from ${least} to ${most}`,
  )
const time = (least) => between(least, 86_400_000)
/** Whether that is a generator, or a function that makes one. */
const isGenerator = (value) =>
  safely(() => /^\[object (Async)?Generator(Function)?\]$/.test({}.toString.call(value)), false)
export const callback = (name, value) =>
  must(typeof value === 'function' && !isGenerator(value), `${name} must be a function`)
/** The result of the user's function, unless it has done nothing yet. */
export function done(value) {
  must(!isGenerator(value), 'it has returned a generator, which has done nothing yet')
  return value
}

/** @type {Record<string, (name: string, value: any) => void>} */
const CHECKS = {
  identity: (name, value) => mustHaveBytes(name, value, 255),
  schema: (name, value) => mustHaveBytes(name, value, 63),
  seats(name, value) {
    must(Number.isInteger(value), `${name} must be an integer`)
    between(1, 10_000)(name, value)
  },
  ttl: time(1000),
  heartbeat: time(1000),
  stopTimeout: time(1),
  logger: (name, value) => must(value?.info && value.error, `${name} must have info and error`),
  signal: (name, value) => must(value instanceof AbortSignal, `${name} must be an AbortSignal`),
  wait: between(0, Infinity),
  zone: (_name, value) => void new Intl.DateTimeFormat('en', { timeZone: value }),
  onElected: callback,
  onOusted: callback,
  onError: callback,
}

/** A text as SQL in which nothing looks like a parameter, to whatever library reads it. */
export function literal(text) {
  if (/^[\w ./-]*$/.test(text)) return `'${text}'`
  return `convert_from(decode('${Buffer.from(text).toString('hex')}', 'hex'), 'UTF8')`
}

const OF_ELECTOR =
  'identity schema seats ttl heartbeat stopTimeout logger onElected onOusted onError'.split(' ')

let serial = randomInt(0x10000)

/**
 * Check those options that are given.
 *
 * @param {Record<string, any>} options
 * @param {string[]} known
 * @returns {any}
 */
export function checked(options, known) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined)
  for (const [name, value] of given) {
    must(known.includes(name), `${name} is no option`)
    CHECKS[name](name, value)
  }
  return Object.fromEntries(given)
}

/**
 * Check the options, and fill in what is not given.
 *
 * @param {string} election
 * @param {Record<string, any>} options
 * @param {string[]} [known]
 * @returns {any}
 */
export function settingsOf(election, options, known = OF_ELECTOR) {
  const given = checked(options, known)
  const { schema, seats } = given
  mustHaveBytes('election', election, seats ? 254 - String(seats).length : 255)
  must(!/^\{.*\}$/s.test(election), 'election must not be in braces')
  serial = (serial + 1) % 0x10000 // so that no two electors of a process have the same digits
  return {
    identity: `${hostname().slice(0, 200)}:${process.pid}:${serial.toString(16).padStart(4, '0')}`,
    stopTimeout: 10_000,
    logger: console,
    ...given,
    election,
    prefix: schema ? `"${schema.replaceAll('"', '""')}".` : '',
    application: `leader_election: ${election}`,
  }
}
