// once and guard in the transactions of other libraries, as README.md says.
import { PrismaPg } from '@prisma/adapter-pg'
import prisma from '@prisma/client'
import { sql } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import knex from 'knex'
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import pg from 'pg'
import pgPromise from 'pg-promise'
import postgres from 'postgres'
import 'reflect-metadata'
import { DataSource } from 'typeorm'
import { Elector } from '../../src/index.js'

const url = process.env.DATABASE_URL
const skip = url ? false : 'DATABASE_URL is not set'
const byItself = {
  once: (tx, term, due) => term.once(tx, due),
  guard: (tx, term) => term.guard(tx),
}

/** How each opens, begins a transaction, asks in it, and closes. */
const LIBRARIES = {
  'node-postgres': {
    open: () => new pg.Pool({ connectionString: url }),
    async begin(pool, work) {
      const client = await pool.connect()
      await client.query('BEGIN')
      await work(client).then(
        () => client.query('COMMIT'),
        () => client.query('ROLLBACK'),
      )
      client.release()
    },
    ...byItself,
    outside: (pool) => [pool],
    close: (pool) => pool.end(),
  },
  TypeORM: {
    open: () => new DataSource({ type: 'postgres', url }).initialize(),
    begin: (source, work) => source.transaction(work),
    ...byItself,
    outside: (source) => [source, source.manager, source.createQueryRunner()],
    close: (source) => source.destroy(),
  },
  'pg-promise': {
    open: () => pgPromise()(url),
    begin: (db, work) => db.tx(work),
    ...byItself,
    outside: (db) => [db],
    close: (db) => db.$pool.end(),
  },
  knex: {
    open: () => knex({ client: 'pg', connection: url }),
    begin: (db, work) => db.transaction(work),
    once: async (trx, term, due) => (await trx.raw(term.onceSql(due))).rows[0].le_once,
    guard: (trx, term) => trx.raw(term.guardSql()),
    close: (db) => db.destroy(),
  },
  Drizzle: {
    open: () => drizzle(url),
    begin: (db, work) => db.transaction(work),
    once: async (tx, term, due) => (await tx.execute(sql.raw(term.onceSql(due)))).rows[0].le_once,
    guard: (tx, term) => tx.execute(sql.raw(term.guardSql())),
    close: (db) => db.$client.end(),
  },
  'Postgres.js': {
    open: () => postgres(url),
    begin: (db, work) => db.begin(work),
    once: async (tx, term, due) => (await tx.unsafe(term.onceSql(due)))[0].le_once,
    guard: (tx, term) => tx.unsafe(term.guardSql()),
    close: (db) => db.end(),
  },
  Prisma: {
    open: () => new prisma.PrismaClient({ adapter: new PrismaPg({ connectionString: url }) }),
    begin: (db, work) => db.$transaction(work),
    once: async (tx, term, due) => (await tx.$queryRawUnsafe(term.onceSql(due)))[0].le_once,
    guard: (tx, term) => tx.$executeRawUnsafe(term.guardSql()),
    close: (db) => db.$disconnect(),
  },
}

for (const [library, { open, begin, once, guard, outside, close }] of Object.entries(LIBRARIES)) {
  test(`once and guard in a transaction of ${library}`, { skip }, async () => {
    const db = await open()
    for (const more of ['', ` ? $1 :x %s @p ?? {0} "'\\ Ü`]) {
      const election = `js_${process.pid}_${library}${more}`
      const elector = new Elector(url, election)
      const { ran, value } = await elector.tryRun(async (term) => {
        const due = new Date(Math.floor(Date.now() / 1000) * 1000 - 1)
        const results = []
        const work = async (tx) => {
          await guard(tx, term)
          results.push(await once(tx, term, due))
          if (results.length === 1) throw new Error('roll back')
        }
        await begin(db, work).catch((error) => assert.equal(error.message, 'roll back'))
        await begin(db, work)
        await begin(db, work)
        assert.deepEqual(results, [true, true, false])
        for (const none of outside?.(db) ?? []) {
          await assert.rejects(guard(none, term), { code: 'ERR_INVALID_STATE' })
          await assert.rejects(once(none, term, new Date()), { code: 'ERR_INVALID_STATE' })
          await term.proclaim(none, library)
        }
        return term
      })
      assert.ok(ran)
      for (const fenced of [(tx) => guard(tx, value), (tx) => once(tx, value, new Date())]) {
        const attempt = begin(db, async (tx) => {
          await assert.rejects(fenced(tx), (error) => inspect(error).includes('LE001'))
          throw new Error('roll back')
        })
        await attempt.catch((error) => assert.equal(error.message, 'roll back'))
      }
    }
    await close(db)
  })
}

test('the program of README.md does each time once', { skip }, async () => {
  const page = await readFile(new URL('../../README.md', import.meta.url), 'utf8')
  const [, program] = /^```js\nimport knex from 'knex'\n(.*?)^```$/ms.exec(page)
  const run = Object.getPrototypeOf(async () => {}).constructor
  const each = run('knex', 'Elector', 'db', 'signal', 'work', program.replaceAll('60_000', '1000'))
  const pool = new pg.Pool({ connectionString: url })
  await pool.query('CREATE TABLE report (at timestamptz)')
  try {
    const work = () => sleep(100)
    await Promise.all(
      [3000, 6000].map((end) => each(knex, Elector, url, AbortSignal.timeout(end), work)),
    )
    const { rows } = await pool.query('SELECT at FROM report')
    assert.ok(rows.length >= 3)
    assert.equal(new Set(rows.map(({ at }) => Number(at))).size, rows.length)
  } finally {
    await pool.query('DROP TABLE report')
    await pool.end()
  }
})
