import { randomInt } from 'node:crypto'
import { hostname } from 'node:os'

/** @import { ElectorOptions } from '../index.js' */

/**
 * @typedef {ElectorOptions & { election: string, identity: string, stopTimeout: number,
 *   onError: (error: Error) => void }} Settings
 */

const DAY = 86_400_000

/** @type {Record<string, (value: any) => boolean>} */
const VALID = {
  identity: isText,
  seats: (value) => Number.isInteger(value) && value >= 1 && value <= 10_000,
  heartbeat: (value) => Number.isFinite(value) && value >= 1000 && value <= DAY,
  ttl: (value) => Number.isFinite(value) && value >= 1000 && value <= DAY,
  renewOnHeartbeat: (value) => typeof value === 'boolean',
  stopTimeout: (value) => Number.isFinite(value) && value >= 0,
  onElected: isFunction,
  onOusted: isFunction,
  onError: isFunction,
}

/** @param {unknown} value */
function isText(value) {
  if (typeof value !== 'string' || value.includes('\0')) return false
  const length = Buffer.byteLength(value)
  return length >= 1 && length <= 255
}

/** @param {unknown} value */
function isFunction(value) {
  return typeof value === 'function'
}

/**
 * Check the name of an election: what the server would refuse in each bid is refused at once.
 *
 * @param {unknown} election
 */
export function checkElection(election) {
  if (!isText(election) || /^([+-]?\d+|\{.*\})$/s.test(/** @type {string} */ (election))) {
    throw new TypeError(
      `election must be a name of 1 to 255 bytes, neither a number nor in braces: ${String(election)}`,
    )
  }
}

/**
 * Check the arguments of an elector, and fill in what is not given.
 *
 * @param {string} election
 * @param {ElectorOptions} options
 * @returns {Settings}
 */
export function settingsOf(election, options) {
  checkElection(election)
  const given = Object.entries(options).filter(([, value]) => value !== undefined)
  for (const [name, value] of given) {
    if (!Object.hasOwn(VALID, name)) throw new TypeError(`there is no option ${name}`)
    if (!VALID[name](value)) throw new TypeError(`bad value of ${name}: ${String(value)}`)
  }
  const { heartbeat, ttl, renewOnHeartbeat } = options
  if (heartbeat !== undefined && ttl !== undefined) {
    throw new TypeError('heartbeat is for session scope, ttl for a lease: give one of them')
  }
  if (renewOnHeartbeat && ttl === undefined) {
    throw new TypeError('renewOnHeartbeat is for a lease: give a ttl as well')
  }
  return {
    identity: defaultIdentity(),
    stopTimeout: 10_000,
    onError: (error) => console.error(`leader election "${election}":`, error),
    ...Object.fromEntries(given),
    election,
  }
}

let serial = randomInt(0x10000)

function defaultIdentity() {
  serial = (serial + 1) % 0x10000 // so that no two electors of a process have the same digits
  return `${hostname().slice(0, 200)}:${process.pid}:${serial.toString(16).padStart(4, '0')}`
}
