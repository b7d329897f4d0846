// Checked by `npm run types`, never run: the declarations fit the library, and what programs write.
import pg from 'pg'
import * as library from '../src/index.js'
import type * as declared from '../index.js'
import type { Elector, ElectorState, Leader, OustedReason, Term } from 'leader-election-pg'
import { LeadershipError, PoolerError, follow, leader } from 'leader-election-pg'

// each value that is declared is there, with a type that fits
const make: new (...args: ConstructorParameters<typeof Elector>) => Elector = library.Elector
const functions: Pick<typeof declared, 'leader' | 'follow'> = library
const pooler: (error: InstanceType<typeof library.PoolerError>) => PoolerError = (error) =>
  error as Error as PoolerError
type Names = keyof typeof library
const names: Record<Names, true> & Record<keyof typeof declared, true> = {
  Elector: true,
  LeadershipError: true,
  PoolerError: true,
  follow: true,
  leader: true,
}

const pool = new pg.Pool()
const elector = new make(pool, 'billing', {
  identity: 'a',
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
// @ts-expect-error milliseconds
new make(pool, 'billing', { ttl: '15 s' })

export async function program(): Promise<void> {
  const state: ElectorState = elector.state
  console.log(state, names, functions, pooler)
  await elector.run(async ({ token, signal, heartbeat, isLeading }: Term) => {
    heartbeat()
    if (isLeading() && !signal.aborted) console.log(token + 1)
    // @ts-expect-error the reason is not writable
    signal.reason = 1
  })
  await elector.run(
    elector.every(60_000, (client, due) => client.query('SELECT $1', [due.toISOString()])),
    { signal: AbortSignal.timeout(1) },
  )
  elector.stop()
  const now: Leader | null = await leader(pool, 'billing')
  // @ts-expect-error there may be none
  console.log(now.identity)
  for await (const next of follow(pool, 'billing')) console.log(next?.value?.length)
  try {
    await elector.run(() => {})
  } catch (error) {
    if (error instanceof PoolerError) console.log(error.code)
    if (error instanceof LeadershipError) console.log(error.reason)
  }
}
