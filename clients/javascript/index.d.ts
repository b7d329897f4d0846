import type { ClientBase, ClientConfig, Pool } from 'pg'

/**
 * Where the elections are: a `Pool` of node-postgres, a connection string, or the configuration of a
 * `Client`. By a string or a configuration, the library opens connections of its own.
 */
export type Database = Pool | string | ClientConfig

/** What an elector does at the moment. */
export type ElectorState = 'waiting' | 'leading' | 'stopping' | 'paused' | 'stopped'

/**
 * Why a term has ended: the elector was stopped, the job has returned or failed, the server has said
 * that leadership is lost, or the validity of the last confirmation has passed.
 */
export type OustedReason = 'resigned' | 'job returned' | 'job failed' | 'lost' | 'in doubt'

/** A term of leadership, which the job gets. Its functions can be called without it. */
export interface Term {
  /** The name of the election; of the seat, if the elector campaigns for seats. */
  readonly election: string
  /** The fencing token: it grows from term to term. Pass it along with what the job writes. */
  readonly token: number
  /**
   * Aborted when the job must stop, with a {@link LeadershipError} as its reason. Pass it to what the
   * job calls.
   */
  readonly signal: AbortSignal
  /** The job has made progress. Costs nothing, sends nothing by itself, and never fails. */
  readonly heartbeat: () => void
  /**
   * Does the last confirmation hold at this moment, and has the job not been told to stop? Looks at
   * the clock only, and sends nothing. Ask before each step that matters: timers can be late, the clock is
   * not.
   */
  readonly isLeading: () => boolean
}

/**
 * Runs while the elector leads. It must stop when `term.signal` aborts; the next campaign begins
 * after it has stopped. If it fails with an `AbortError` or the signal's reason then, that is no error.
 */
export type Job = (term: Term) => unknown

/**
 * What is to be done once for a point in time. `client` is in a transaction, which is committed
 * afterwards, or rolled back if the task fails.
 */
export type Task = (client: ClientBase, due: Date, term: Term) => unknown

/** Options of an elector. All times are in milliseconds. */
export interface ElectorOptions {
  /**
   * Tells the candidates apart, in views, logs and warnings: it must differ from copy to copy.
   * Default: host name, process ID and four random hexadecimal digits.
   */
  identity?: string | undefined
  /** Campaign for this many seats (`le_seats`) instead of one election. From 1 to 10,000. */
  seats?: number | undefined
  /**
   * Session scope only: the term is over when the job has not called `heartbeat` for so long. From
   * 1000. Default: none.
   */
  heartbeat?: number | undefined
  /**
   * Lead by a lease that lives for so long after each renewal. From 1000. Default: none, which is
   * session scope.
   */
  ttl?: number | undefined
  /** Lease only: renew it only if the job has called `heartbeat` since. Default: false. */
  renewOnHeartbeat?: boolean | undefined
  /** How long the job may take to stop before that is reported. Default: 10,000. */
  stopTimeout?: number | undefined
  /** Called when elected, before the job starts. A promise that it returns is not waited for. */
  onElected?: ((term: Term) => unknown) | undefined
  /** Called after the job has stopped, before the elector resigns and campaigns again. */
  onOusted?: ((term: Term, reason: OustedReason) => unknown) | undefined
  /**
   * Called once for each error: a failed attempt, leadership that was lost or is in doubt, a job or
   * callback that fails, a job that does not stop. None of them ends the elector. Default:
   * `console.error`.
   */
  onError?: ((error: Error) => unknown) | undefined
}

/**
 * Runs a job while this process leads an election, and stops it as soon as leadership is lost or in
 * doubt.
 *
 * @example
 * const elector = new Elector(process.env.DATABASE_URL, 'billing')
 * process.once('SIGTERM', () => elector.stop())
 * await elector.run(async (term) => {
 *   while (term.isLeading()) await sendNextInvoice(term.token, term.signal)
 * })
 */
export class Elector {
  /**
   * Makes an elector. It connects when it runs.
   *
   * @param db Where the election is. In session scope, a pool must have two connections to spare.
   * @param election The name of the election, 1 to 255 bytes.
   * @throws {TypeError} if an argument is bad.
   */
  constructor(db: Database, election: string, options?: ElectorOptions)
  /** What the elector does at the moment. */
  readonly state: ElectorState
  /** The name of the election. */
  readonly election: string
  /** The identity under which this elector campaigns. */
  readonly identity: string
  /**
   * Campaign, run the job while leading, and so on, until stopped. An elector can run only once.
   *
   * @param options `signal`: stops the elector when it aborts, as `stop` does.
   * @returns when the elector has been stopped, the job has stopped, and leadership is resigned.
   * @throws {PoolerError} in session scope, through a pooler in transaction mode.
   */
  run(job: Job, options?: { signal?: AbortSignal | undefined }): Promise<void>
  /**
   * Stop: cancel the job, wait for it to stop, resign, and let `run` return. Returns at once. The job
   * may call this, to be done only once.
   */
  stop(): void
  /**
   * Make a job of a task that is to be done once for each point in time, at multiples of an interval
   * since 2000-01-01 00:00 UTC. A time that was missed by all leaders is left out, but the last one. A
   * task that fails is reported, and tried again a second later.
   *
   * @param interval In milliseconds, from 1000.
   * @example
   * await elector.run(elector.every(60_000, (client, due) =>
   *   client.query('INSERT INTO report SELECT $1, count(*) FROM orders', [due])))
   */
  every(interval: number, task: Task): Job
}

/**
 * Leadership has ended. The reason of `term.signal`; reported to `onError` if leadership was lost or
 * is in doubt.
 */
export class LeadershipError extends Error {
  private constructor()
  readonly code: 'ERR_LEADER_ELECTION_ENDED'
  /** The name of the election or seat. */
  readonly election: string
  /** Why the job was cancelled. */
  readonly reason: OustedReason
}

/**
 * The elector is in session scope, but shares its server connection with others, through a pooler in
 * transaction mode. Lead by a lease (`ttl`) there.
 */
export class PoolerError extends Error {
  private constructor()
  readonly code: 'ERR_LEADER_ELECTION_POOLER'
}

/** The leader of an election. */
export interface Leader {
  readonly election: string
  readonly identity: string | null
  readonly token: number
  /** When the term began. */
  readonly since: Date
  readonly scope: 'session' | 'transaction' | 'lease'
  /** What the leader has published by `le_proclaim`. */
  readonly value: string | null
}

/** Options of {@link follow}. */
export interface FollowOptions {
  /** Ends the iteration when it aborts. */
  signal?: AbortSignal | undefined
  /** Called once for each error; the connection is opened again after a pause. Default: `console.error`. */
  onError?: ((error: Error) => unknown) | undefined
}

/** The leader of the election at the moment. Null if there is no leader. */
export function leader(db: Database, election: string): Promise<Leader | null>

/**
 * The present leader, or null, and then each change. Of changes that come at once, it can give the
 * last one only. It keeps a connection, which must not lead through a pooler in transaction mode.
 *
 * @example
 * for await (const leader of follow(pool, 'router', { signal })) {
 *   console.log(leader === null ? 'no leader' : `${leader.identity} leads`)
 * }
 */
export function follow(
  db: Database,
  election: string,
  options?: FollowOptions,
): AsyncGenerator<Leader | null, void, undefined>
