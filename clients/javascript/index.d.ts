import type { ClientBase, ClientConfig, Pool } from 'pg'

/**
 * Where the elections are: a `Pool` of node-postgres, a connection string, or the configuration of a
 * `Client`. By a string or a configuration, the library opens connections of its own.
 */
export type Database = Pool | string | ClientConfig

export type ElectorState = 'waiting' | 'leading' | 'stopping' | 'paused' | 'stopped'
export type Health = 'waiting' | 'leading' | 'in doubt' | 'stopped'
export type OustedReason = 'resigned' | 'job returned' | 'job failed' | 'lost' | 'in doubt'

/** A client or a pool of node-postgres, or anything whose query returns rows as theirs does. */
export interface Connection {
  query(text: string): PromiseLike<unknown>
}

/** A connection that is in a transaction. A pool is none. */
export interface Transaction extends Connection {
  readonly totalCount?: never
}

/** A `Date`, or whatever else has milliseconds since 1970 as its value. */
export interface Time {
  valueOf(): number
}

/** A term of leadership. Its functions can be called without it. */
export interface Term {
  /** The name of the election; of the seat, if the elector campaigns for seats. */
  readonly election: string
  /** The fencing token: it grows from term to term. */
  readonly token: number
  /** Aborts when the job must stop; by a {@link LostError} if leadership is lost or in doubt. */
  readonly signal: AbortSignal
  /** Whether the job may go on. Looks at the clock, and sends nothing. */
  readonly isLeading: () => boolean
  /** Tells that the job has made progress. Sends nothing, and never fails. */
  readonly heartbeat: () => void
  /**
   * Lets the transaction fail, now or when it commits, if the term is over: with an error of the
   * server whose `code` is LE001. Fails with the `code` ERR_INVALID_STATE for a pool, and outside of
   * a transaction.
   */
  readonly guard: (transaction: Transaction) => Promise<void>
  /**
   * Whether the job of a due time is to be done in this transaction, which records that, because it
   * is not done yet. Guards the transaction, too, and fails as `guard` does; besides, with the `code`
   * 22008 if the time is more than an hour ahead, and 40001 if another transaction has recorded a job
   * since the snapshot of this one was taken. Waits for another open transaction of the term that has
   * recorded a job.
   */
  readonly once: (transaction: Transaction, due: Time) => Promise<boolean>
  /** The whole statement of `guard`, without parameters, for a library that runs such. */
  readonly guardSql: () => string
  /** The whole statement of `once`. It returns one row with true or false. */
  readonly onceSql: (due: Time) => string
  /**
   * Publishes a value until the term ends: at once, also in a transaction that is rolled back. Fails
   * with a {@link LostError} if the term is over, and with the server's error, whose `code` is 22001,
   * if the value exceeds 8192 bytes.
   */
  readonly proclaim: (connection: Connection, value: string | null) => Promise<void>
}

/**
 * Runs while the elector leads. It must stop when `term.signal` aborts; the next campaign begins
 * after it has stopped. If it fails with an `AbortError` or the signal's reason then, it has stopped.
 */
export type Job = (term: Term) => unknown

/** Times in milliseconds. */
export interface ElectorOptions {
  /** Tells the candidates apart. Default: host name, process ID and four random digits. */
  identity?: string | undefined
  /** The schema of the extension. Default: by `search_path`. */
  schema?: string | undefined
  /** Campaign for this many seats instead of one election. From 1 to 10,000. */
  seats?: number | undefined
  /** Lead by a lease that lives for so long after each renewal. From 1000. Default: session scope. */
  ttl?: number | undefined
  /** The job must call `heartbeat` three times in this length, or is cancelled. From 1000. */
  heartbeat?: number | undefined
  /** How long the job may take to stop, or a callback, before that is reported. Default: 10,000. */
  stopTimeout?: number | undefined
  /** Gets elections and the ends of terms, and errors if there is no `onError`. Default: `console`. */
  logger?: Logger | undefined
  /** Called when elected. The job starts after it has returned, or its promise is fulfilled. */
  onElected?: ((term: Term) => unknown) | undefined
  /** Called when the job has stopped. The elector resigns after it has returned. */
  onOusted?: ((term: Term, reason: OustedReason) => unknown) | undefined
  /** Called with each error. Nothing waits for its promise. */
  onError?: ((error: LeaderElectionError) => unknown) | undefined
}

export type Logger = Pick<Console, 'info' | 'error'>

/** Runs a job while this process leads an election. */
export class Elector {
  /**
   * @throws {TypeError} with the `code` ERR_INVALID_ARG_TYPE or ERR_INVALID_ARG_VALUE.
   * @throws {RangeError} with the `code` ERR_OUT_OF_RANGE, if a number is out of its range.
   */
  constructor(db: Database, election: string, options?: ElectorOptions)
  readonly election: string
  readonly identity: string
  readonly state: ElectorState
  readonly health: Health
  readonly terms: number
  readonly confirmations: number
  readonly errors: number
  /** Answers a request of `node:http` or Express by the health: 200 if waiting or leading, or 503. */
  readonly healthHandler: (
    request: unknown,
    response: { statusCode: number; end(text: string): unknown },
  ) => void
  /**
   * Campaigns, and runs the job in each term, until it is stopped. An aborted signal stops it in
   * order, as `stop` does: it resolves then, and does not reject. Can be called once: fails with the
   * `code` ERR_INVALID_STATE after that.
   *
   * @throws {PermanentError}
   */
  run(job: Job, options?: { signal?: AbortSignal | undefined }): Promise<void>
  /**
   * Runs the job once, if elected within the time *wait*, by default at once, and tells whether it
   * ran, and what it returned. Can be called once, instead of `run`.
   *
   * Fails with what the job fails with, also if it was stopped; with a {@link LostError} if
   * leadership was lost before the job had ended; with the last error if no bid was answered; and
   * with `signal.reason` if the signal was aborted before the job has begun. After that, an aborted
   * signal stops the job, as `stop` does, and its end is the result.
   *
   * @throws {PermanentError}
   */
  tryRun<T>(
    job: (term: Term) => T,
    options?: { wait?: number | undefined; signal?: AbortSignal | undefined },
  ): Promise<{ ran: true; value: Awaited<T> } | { ran: false; value: undefined }>
  /** Ends `run`: cancels the job, waits for it, and resigns. Returns at once. */
  readonly stop: () => void
}

export type PermanentKind = 'extension' | 'privilege' | 'argument' | 'pooler'
export type LostKind = 'lost' | 'in doubt' | 'over'
/** Broken is the connection. The kind server has a `code`. */
export type ErrorKind =
  | ('server' | 'broken' | 'timeout' | 'no-connection' | 'job' | 'slow job' | 'callback')
  | LostKind
  | PermanentKind

/** An error of an elector or follower. */
export class LeaderElectionError extends Error {
  protected constructor(
    kind: ErrorKind,
    message: string,
    details?: { code?: string | undefined; hint?: string | undefined; cause?: unknown },
  )
  readonly kind: ErrorKind
  /** The SQLSTATE, if the server has reported the error. */
  readonly code: string | undefined
  readonly hint: string | undefined
  readonly cause?: unknown
  readonly election?: string
}

/** An error that goes on until something is configured differently. It ends `run`, `tryRun` and `follow`. */
export class PermanentError extends LeaderElectionError {
  readonly kind: PermanentKind
}

/** Leadership is lost or in doubt, or the term is over. */
export class LostError extends LeaderElectionError {
  readonly kind: LostKind
}

export interface Leader {
  readonly token: number
  readonly identity: string
  /** What the leader has published by `proclaim`. */
  readonly value: string | null
}

export interface FollowOptions {
  schema?: string | undefined
  /** Ends the iteration when it aborts, in order: as if there was no further change. */
  signal?: AbortSignal | undefined
  logger?: Logger | undefined
  /** Called with each error after which the connection is opened again. */
  onError?: ((error: LeaderElectionError) => unknown) | undefined
}

/**
 * The present leader, or null. Waits for 5 s at most for a connection, and as long for the answer.
 * Fails as the constructor of {@link Elector} does if an argument is wrong, with a
 * {@link PermanentError}, or with another {@link LeaderElectionError}.
 */
export function leader(
  db: Database,
  election: string,
  options?: { schema?: string | undefined },
): Promise<Leader | null>

/**
 * The present leader, or null, and then each change. Connects when the first one is asked for. The
 * iteration fails with a {@link PermanentError} only; other errors go to `onError`.
 *
 * @throws {TypeError} as the constructor of {@link Elector}.
 */
export function follow(
  db: Database,
  election: string,
  options?: FollowOptions,
): AsyncIterableIterator<Leader | null>

/** The next due time after the last one, or null if there is none. */
export type Schedule = (last: Date) => Time | null

/** What is to be done for a due time. `client` is in a transaction, which is committed afterwards. */
export type Task = (client: ClientBase, due: Date, term: Term) => unknown

/**
 * A job that does the task once for each due time: multiples of an interval, or by a schedule.
 *
 * With a *zone*, such as 'Europe/Berlin', the schedule is asked for what the clocks show there, as if
 * it were UTC. A time that they leave out is due when they are put forward, and one that they show
 * twice, the first time.
 *
 * @throws {TypeError} and `RangeError`, as the constructor of {@link Elector}.
 */
export function every(
  db: Database,
  schedule: number | Schedule,
  task: Task,
  options?: { zone?: string | undefined },
): Job
