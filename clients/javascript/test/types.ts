// Checked by `npm run types`, never run: the declarations fit the library, and what programs write.
import pg from 'pg'
import * as library from '../src/index.js'
import type * as declared from '../index.js'
import type { Elector, ElectorState, Health, Leader, OustedReason, Term } from 'leader-election-pg'
import {
  LeaderElectionError,
  LostError,
  PermanentError,
  every,
  follow,
  leader,
} from 'leader-election-pg'

// each value that is declared is there, with a type that fits
const functions: Pick<typeof declared, 'leader' | 'follow' | 'every'> = library
const names: Record<keyof typeof library, true> & Record<keyof typeof declared, true> = {
  Elector: true,
  LeaderElectionError: true,
  LostError: true,
  PermanentError: true,
  every: true,
  follow: true,
  leader: true,
}

declare const make: typeof declared.Elector
class Refused extends LeaderElectionError {
  constructor() {
    super('broken', 'no such host', { cause: 1 })
  }
}
// @ts-expect-error of the library only
const refused = new LeaderElectionError('broken', 'no such host')
const pool = new pg.Pool()
const elector: Elector = new make(pool, 'billing', {
  ttl: 15_000,
  onOusted(term, reason) {
    const why: OustedReason = reason
    console.log(term.token.toFixed(), why)
  },
})
new make('postgres://127.0.0.1/app', 'billing')
new make({ host: '127.0.0.1' }, 'billing', { heartbeat: 5000 })
// @ts-expect-error a client cannot be shared
new make(1, 'billing')
// @ts-expect-error no such option
new make(pool, 'billing', { tll: 1000 })
// @ts-expect-error an option of run
new make(pool, 'billing', { signal: AbortSignal.abort() })
// @ts-expect-error milliseconds
new make(pool, 'billing', { ttl: '15 s' })

export async function program(): Promise<void> {
  const status: [ElectorState, Health, number] = [elector.state, elector.health, elector.terms]
  console.log(status, names, functions)
  await elector.run(async ({ token, signal, heartbeat, isLeading, guard, proclaim }: Term) => {
    heartbeat()
    if (isLeading() && !signal.aborted) console.log(token + 1)
    const client = await pool.connect()
    await guard(client)
    // @ts-expect-error a pool is no transaction
    await guard(pool)
    await proclaim(pool, 'host-1')
    await proclaim(client, null)
    // @ts-expect-error a string
    await proclaim(client, 1)
    // @ts-expect-error without a connection
    await proclaim('host-1')
    // @ts-expect-error the reason is not writable
    signal.reason = 1
  })
  await elector.run(async (term) => {
    const isDue: boolean = await term.once(new pg.Client(), new Date())
    // @ts-expect-error a pool is no transaction
    await term.once(pool, new Date())
    // @ts-expect-error no time
    const text: string = term.onceSql('2026-01-01')
    return isDue ? text : term.guardSql()
  })
  const tried = await elector.tryRun(async (term) => term.token, { wait: 5000 })
  if (tried.ran) console.log(tried.value.toFixed())
  // @ts-expect-error it has not run
  else console.log(tried.value.toFixed())
  const tick = every(pool, 60_000, (client, due) => client.query('SELECT $1', [due.toISOString()]))
  await elector.run(tick, { signal: AbortSignal.timeout(1) })
  const now: Leader | null = await leader(pool, 'billing')
  // @ts-expect-error there may be none
  console.log(now.identity)
  for await (const next of follow(pool, 'billing'))
    console.log(next?.value?.length, next?.identity.length)
  try {
    await elector.run(() => {})
  } catch (error) {
    // @ts-expect-error no such kind
    if (error instanceof LeaderElectionError && error.kind === 'lsot') console.log(error)
    if (error instanceof PermanentError && error.kind === 'pooler') console.log(error.message)
    if (error instanceof Refused) console.log(error, refused)
    if (error instanceof LostError) console.log(error.kind)
  }
}
