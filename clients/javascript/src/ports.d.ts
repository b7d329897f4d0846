// The seam between the state machine and the world: tests put a simulated clock and server here.

export interface Clock {
  /** Milliseconds since some point in time. Never goes back. */
  now(): number
  /** Call `action` in `ms` milliseconds. Returns a function that prevents it. */
  after(ms: number, action: () => void): () => void
}

/** Opens connections. */
export interface Server {
  /** Open a connection, or fetch one. When `signal` aborts, give up and leave none behind. */
  connect(signal: AbortSignal): Promise<Connection>
  /** Close what is kept for later. */
  close(): void
}

export type Row = Record<string, any>

export interface Connection {
  /** Send a statement. When `signal` aborts, shut the connection down. */
  query(
    text: string,
    values: unknown[],
    signal: AbortSignal,
  ): Promise<{ rows: Row[]; command: string }>
  /** Called once, with the cause, when the connection ends though it has not been closed. */
  onEnd: ((cause: Error) => void) | undefined
  /** Close it for good. Returns at once. */
  close(): void
  /** Keep it for the next `connect`. */
  release(): void
  /** The client of node-postgres. */
  readonly client: any
}

/** What a campaign has won. */
export interface Won {
  election: string
  token: number
  /** When the question was sent that has been answered. */
  asked: number
}

/** How to campaign, confirm and resign: in session scope, or by a lease. */
export interface Way {
  /** Milliseconds between two questions. */
  readonly period: number
  /** Milliseconds until the next question after one that failed, or that was not to be sent. */
  readonly retry: number
  /** Deadline of an answer, and of opening a connection, in milliseconds. */
  readonly deadline: number
  /** How long a confirmation holds. */
  readonly validity: number
  /** How long a heartbeat that was sent holds; Infinity if the job need not call `heartbeat`. */
  readonly beatValidity: number
  /** Does an error of a confirmation mean that leadership is lost? */
  readonly errorIsLoss: boolean
  /**
   * Bid until elected and confirmed. When `halt` aborts, give null, or fail with its reason. Calls
   * `answered` after each answer to a bid.
   */
  campaign(halt: AbortSignal, answered: () => void): Promise<Won | null>
  /**
   * Does this elector still lead? `beat`: the job has called heartbeat since the last question that
   * said so. Null if there is nothing to ask without a heartbeat.
   */
  confirm(won: Won, beat: boolean): Promise<boolean> | null
  resign(won: Won): Promise<unknown>
  /** Call `lost` when the connection ends on which the term depends. */
  watch(lost: (cause: Error) => void): void
  /** End what is left of a term on a connection that is shared. */
  cleanUp(won: Won): Promise<unknown>
  /** Close the connection of this campaign. */
  close(): void
}
