// The options, checked as the server would check them. All times are in milliseconds.
import { randomInt } from 'node:crypto'
import { hostname } from 'node:os'
import { safely } from './errors.js'

/** @import { ElectorOptions } from '../index.js' */
/**
 * @typedef {ElectorOptions & { election: string, identity: string, stopTimeout: number,
 *   logger: NonNullable<ElectorOptions['logger']>, prefix: string, application: string }} Settings
 */

/** Complain with an error of Node.js, unless that is true. */
export function must(isTrue, what, code = 'ERR_INVALID_ARG_TYPE') {
  const Kind = { ERR_OUT_OF_RANGE: RangeError, ERR_INVALID_STATE: Error }[code] ?? TypeError
  if (!isTrue) throw Object.assign(new Kind(what), { code })
}

function mustHaveBytes(name, value, most) {
  must(typeof value === 'string', `${name} must be a string`)
  const length = value.includes('\0') ? 0 : Buffer.byteLength(value)
  const what = `${name} must have 1 to ${most} bytes, none of them zero`
  must(length >= 1 && length <= most, what, 'ERR_INVALID_ARG_VALUE')
}

/** A number, and no text that looks like one; a multiple of `step`, if there is one. */
export const between = (least, most, step) => (name, value) => {
  const what = `${name} must be ${step ? 'an integer' : 'a number'} from ${least} to ${most}`
  must(typeof value === 'number', what)
  must(value >= least && value <= most && !(value % step), what, 'ERR_OUT_OF_RANGE')
}
const time = (least) => between(least, 86_400_000)
/** Whether that is a generator, or a function that makes one. */
const isGenerator = (value) =>
  safely(() => /^\[object (Async)?Generator(Function)?\]$/.test({}.toString.call(value)), false)
export const callback = (name, value) =>
  must(typeof value === 'function' && !isGenerator(value), `${name} must be a function`)
/** The result of the user's function, unless it has done nothing yet. */
export function done(value) {
  must(!isGenerator(value), 'a generator has done nothing yet', 'ERR_INVALID_RETURN_VALUE')
  return value
}

/** @type {Record<string, (name: string, value: any) => void>} */
const CHECKS = {
  identity: (name, value) => mustHaveBytes(name, value, 255),
  schema: (name, value) => mustHaveBytes(name, value, 63),
  seats: between(1, 10_000, 1),
  ttl: time(1000),
  heartbeat: time(1000),
  stopTimeout: time(1),
  logger: (name, value) => must(value?.info && value.error, `${name} must have info and error`),
  signal: (name, value) => must(value instanceof AbortSignal, `${name} must be an AbortSignal`),
  wait: between(0, Infinity),
  zone(name, value) {
    must(typeof value === 'string', `${name} must be a string`)
    const isZone = safely(() => new Intl.DateTimeFormat('en', { timeZone: value }))
    must(isZone, `${name} must be a time zone`, 'ERR_INVALID_ARG_VALUE')
  },
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
  // neither a signal nor a list, whose options would all be missing
  const isObject = /^\[object (Object|Module)\]$/.test({}.toString.call(options))
  must(isObject, 'options must be a plain object')
  const names = new Set([...known, ...Object.keys(options)])
  const values = [...names].map((name) => [name, options[name]])
  const given = values.filter(([, value]) => value !== undefined)
  for (const [name, value] of given) {
    must(known.includes(name), `${name} is no option`, 'ERR_INVALID_ARG_VALUE')
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
  must(!/^\{.*\}$/s.test(election), 'election must not be in braces', 'ERR_INVALID_ARG_VALUE')
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
