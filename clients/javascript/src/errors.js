import { inspect } from 'node:util'

/** An error of an elector or follower; `kind` tells which. */
export class LeaderElectionError extends Error {
  /**
   * @param {string} kind
   * @param {string} message
   * @param {{ code?: string | undefined, hint?: string | undefined, cause?: unknown }} [details]
   */
  constructor(kind, message, { code, hint, cause } = {}) {
    super(message, cause === undefined ? {} : { cause })
    this.name = new.target.name
    this.kind = kind
    this.code = code
    this.hint = hint
  }
}

export class PermanentError extends LeaderElectionError {}

export class LostError extends LeaderElectionError {}

/**
 * Look at what is a program's, which may raise an error.
 *
 * @param {() => any} look
 * @param {any} [otherwise]
 */
export function safely(look, otherwise) {
  try {
    return look()
  } catch {
    return otherwise
  }
}

/** What the program has given has failed, with whatever it has thrown. */
export function failedBy(kind, what, cause) {
  const show = () => String(cause instanceof Error ? cause : inspect(cause))
  const text = safely(show, 'what it has thrown cannot be shown')
  return new LeaderElectionError(kind, `${what} has failed: ${text}`, { cause })
}

/** There was no connection for so long, or no answer after the statement had `begun`. */
export function silence(begun, length, detail) {
  const kind = begun ? 'timeout' : 'no-connection'
  const what = begun ? 'answer from the server' : 'connection from the pool or server'
  const time = `${Math.round(length / 100) / 10} s`
  return new LeaderElectionError(kind, `no ${what} for ${time} (${detail})`)
}

export const poolerError = () =>
  new PermanentError(
    'pooler',
    'session scope needs a connection of its own, and a pooler shares this one: set a ttl, to lead by a lease',
  )

const KINDS = { 42501: 'privilege', 42883: 'extension', '42P01': 'extension', '3F000': 'extension' }

/**
 * The permanent error that an error of a bid is, or undefined.
 *
 * @param {LeaderElectionError} error
 */
export function permanent(error) {
  const { code = '', hint, message, cause } = error
  if (code === 'LE005') return poolerError()
  if (!/^(22|42)/.test(code) && code !== '3F000') return undefined
  return new PermanentError(KINDS[code] ?? 'argument', message, { code, hint, cause })
}
