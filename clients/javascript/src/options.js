// The options, checked as the server would check them. All times are in milliseconds.
import { randomInt } from 'node:crypto'
import { hostname } from 'node:os'

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
export const between = (least, most) => (name, value) =>
  must(
    typeof value === 'number' && value >= least && value <= most,
    `${name} must be a number from ${least} to ${most}`,
  )
const time = (least) => between(least, 86_400_000)
const callback = (name, value) => must(typeof value === 'function', `${name} must be a function`)

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
  zone: (_name, value) => void new Intl.DateTimeFormat('en', { timeZone: value }),
  onElected: callback,
  onOusted: callback,
  onError: callback,
}

/** Whether nothing in a text looks like a parameter, to whatever library reads SQL. */
const isPlain = (text) => /^[\w ./-]*$/.test(text)

/** A text as SQL in which nothing looks like a parameter. */
export const literal = (text) =>
  isPlain(text)
    ? `'${text}'`
    : `convert_from(decode('${Buffer.from(text).toString('hex')}', 'hex'), 'UTF8')`

/** Likewise a name. */
const identifier = (name) =>
  isPlain(name)
    ? `"${name}"`
    : `U&"${Array.from(name, (letter) => `\\+${letter.codePointAt(0)?.toString(16).padStart(6, '0')}`).join('')}"`

let serial = randomInt(0x10000)

/**
 * Check the options, and fill in what is not given.
 *
 * @param {string} election
 * @param {Record<string, any>} options
 * @param {string[]} [known]
 * @returns {any}
 */
export function settingsOf(election, options, known = Object.keys(CHECKS)) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined)
  for (const [name, value] of given) {
    must(known.includes(name), `${name} is no option`)
    CHECKS[name](name, value)
  }
  const { schema, seats } = options
  mustHaveBytes('election', election, seats ? 254 - String(seats).length : 255)
  must(!/^\{.*\}$/s.test(election), 'election must not be in braces')
  serial = (serial + 1) % 0x10000 // so that no two electors of a process have the same digits
  return {
    identity: `${hostname().slice(0, 200)}:${process.pid}:${serial.toString(16).padStart(4, '0')}`,
    stopTimeout: 10_000,
    logger: console,
    ...Object.fromEntries(given),
    election,
    prefix: schema ? `${identifier(schema)}.` : '',
    application: `leader_election: ${election}`,
  }
}
