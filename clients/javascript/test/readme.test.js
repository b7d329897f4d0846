// Runs each program of README.md, and those of examples/, until it is told to stop.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { register } from 'prom-client'

const DIRECT = process.env.DATABASE_URL
const skip = DIRECT ? false : 'DATABASE_URL is not set'
const root = fileURLToPath(new URL('..', import.meta.url))
const run = `${process.pid}_${Date.now()}`
const table = `report_${run}`

// what the text says is there
const PRELUDE = `
import { setTimeout as pause } from 'node:timers/promises'
import pg from 'pg'
import * as library from 'leader-election-pg'
const { Elector, PermanentError, every, follow, leader } = library
const db = process.env.DATABASE_URL
const stop = new AbortController()
const { signal } = stop
process.once('SIGTERM', () => stop.abort())
const work = (term) => pause(100, term.heartbeat(), { signal: term.signal })
`

let folder
before(async () => {
  folder = await mkdtemp(path.join(root, 'readme-')) // within, where the package finds itself
  if (DIRECT) await execute(`CREATE TABLE ${table} (at timestamptz, number bigint)`)
  if (DIRECT)
    await execute(
      'CREATE TABLE IF NOT EXISTS work_done (at timestamptz DEFAULT now(), token bigint)',
    )
})
after(async () => {
  await rm(folder, { recursive: true })
  if (DIRECT) await execute(`DROP TABLE ${table}`)
})

async function execute(statement) {
  const client = new pg.Client(DIRECT)
  await client.connect()
  await client.query(statement)
  await client.end()
}

/** Start a program, let it run for a moment, and stop it. */
async function goesOn(program, meanwhile = () => {}) {
  const file = path.join(folder, 'program.js')
  const unique = program // elections and tables of this run only
    .replace(/'(billing|router|report|import|mailer)'/g, `'$1-${run}'`)
    .replace('INTO report ', `INTO ${table} `)
  await writeFile(file, unique)
  const child = spawn(process.execPath, [file], { env: { ...process.env, PORT: '0' } })
  let output = ''
  child.stdout.on('data', (data) => (output += data))
  child.stderr.on('data', (data) => (output += `stderr: ${data}`))
  const closed = once(child, 'close')
  try {
    await Promise.race([closed, sleep(2500)])
    await meanwhile()
    // one that does something once ends by itself
    assert.equal(child.exitCode, program.includes('tryRun') ? 0 : null, output)
  } finally {
    child.kill('SIGTERM')
  }
  const [code] = await closed
  assert.equal(code, 0, output)
  assert.doesNotMatch(output, /stderr/)
}

const page = await readFile(path.join(root, 'README.md'), 'utf8')
// the SQL edition is tested in this schema
const text = process.env.LE_SQL_EDITION ? page.replaceAll("schema: 'public'", "schema: 'le'") : page
const programs = [...text.matchAll(/^```js\n(.*?)^```$/gms)]
  .map(([, program]) => program)
  .filter((program) => !program.includes("from 'knex'")) // libraries/ runs it
const [metrics] = programs.splice(
  programs.findIndex((program) => program.includes('prom-client')),
  1,
)

test('README.md has its programs', () => assert.equal(programs.length, 7))

for (const [i, program] of programs.entries()) {
  test(`program ${i + 1} of README.md runs, and stops at SIGTERM`, { skip }, () =>
    goesOn(program.includes("from 'leader-election-pg'") ? program : PRELUDE + program),
  )
}

test(
  'the metrics of README.md are those of a term that fails, and of one that ends',
  { skip },
  async () => {
    const shown = []
    globalThis.work = async () => {
      shown.push(await register.metrics())
      if (shown.length === 1) throw new Error('is reported')
    }
    const job = 'async () => (await globalThis.work()) ?? stop.abort()'
    const head = PRELUDE.replace(/^const work.*$/m, `const work = ${job}`)
    const file = path.join(folder, 'metrics.js')
    await writeFile(
      file,
      (head + metrics).replaceAll("'billing'", `'m-${run}'`).replace('9100', '0'),
    )
    await import(file)
    shown.push(await register.metrics())
    for (const [name, ...values] of [
      ['leading{E}', 1, 1, 0],
      ['terms_total{E}', 1, 2, 2],
      ['errors_total{E}', 0, 1, 1],
      ['term_seconds_bucket{le="10",E,reason="job failed"}', undefined, 1, 1],
      ['term_seconds_count{E,reason="resigned"}', undefined, undefined, 1],
    ]) {
      const line = `leader_election_${name.replace('E', `election="m-${run}"`)} `
      const found = shown.map((text) => text.split('\n').find((other) => other.startsWith(line)))
      assert.deepEqual(
        found.map((other) => other && Number(other.slice(line.length))),
        values,
        shown.at(-1),
      )
    }
    assert.match(shown.at(-1), /^leader_election_confirmations_total{/m)
  },
)

test('examples/express.js answers, leads, and stops at SIGTERM', { skip }, async () => {
  const program = await readFile(path.join(root, 'examples/express.js'), 'utf8')
  const [free] = [15_000 + (process.pid % 10_000)]
  await goesOn(program.replace('?? 3000', `&& ${free}`), async () => {
    const base = `http://127.0.0.1:${free}`
    // a loaded machine needs longer until it listens
    let health = await fetch(`${base}/healthz`).catch(() => null)
    for (let i = 0; i < 300 && !health?.ok; i++) {
      await sleep(100)
      health = await fetch(`${base}/healthz`).catch(() => null)
    }
    assert.deepEqual([health?.status, await health?.text()], [200, 'leading'])
    const { done } = await (await fetch(base)).json()
    assert.ok(done >= 1)
  })
})
