// Runs each program of README.md until it is told to stop.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'

const DIRECT = process.env.DATABASE_URL
const POOLER = process.env.POOLER_URL
const skip = DIRECT ? false : 'DATABASE_URL is not set'
const root = fileURLToPath(new URL('..', import.meta.url))

// what the text says is there, for programs that do not import anything
const PRELUDE = `
import { setTimeout as sleep } from 'node:timers/promises'
import { Elector, PoolerError, follow, leader } from 'leader-election-pg'
const db = process.env.DATABASE_URL
const stop = new AbortController()
const { signal } = stop
process.once('SIGTERM', () => stop.abort())
const work = (term) => sleep(100, undefined, { signal: term.signal })
`

let folder
before(async () => {
  folder = await mkdtemp(path.join(root, 'readme-')) // within, where the package finds itself
  if (DIRECT) await execute(`CREATE TABLE ${table} (at timestamptz, connections bigint)`)
})
after(async () => {
  await rm(folder, { recursive: true })
  if (DIRECT) await execute(`DROP TABLE ${table}`)
})

const table = `report_${process.pid}_${Date.now()}`

async function execute(statement) {
  const client = new pg.Client(DIRECT)
  await client.connect()
  await client.query(statement)
  await client.end()
}

const text = await readFile(path.join(root, 'README.md'), 'utf8')
const programs = [...text.matchAll(/^```js\n(.*?)^```$/gms)].map(([, program]) => program)

test('README.md has its programs', () => assert.equal(programs.length, 9))

for (const [i, program] of programs.entries()) {
  const throughPooler = program.includes('PoolerError')
  const missing = throughPooler && !POOLER ? 'POOLER_URL is not set' : skip
  test(`program ${i + 1} of README.md runs, and stops at SIGTERM`, { skip: missing }, async () => {
    const file = path.join(folder, `${i}.js`)
    // elections and tables of this run only
    const unique = program
      .replace(/'(billing|router|report|import)'/g, `'$1-${process.pid}-${i}'`)
      .replace('INTO report ', `INTO ${table} `)
    await writeFile(file, program.includes('import {') ? unique : PRELUDE + unique)
    const env = { ...process.env, DATABASE_URL: throughPooler ? POOLER : DIRECT }
    const child = spawn(process.execPath, [file], { env })
    let output = ''
    child.stdout.on('data', (data) => (output += data))
    child.stderr.on('data', (data) => (output += `stderr: ${data}`))
    const closed = once(child, 'close')
    await Promise.race([closed, sleep(2500)])
    assert.equal(child.exitCode, null, `goes on: ${output}`)
    child.kill('SIGTERM')
    const [code] = await closed
    assert.equal(code, 0, output)
    assert.doesNotMatch(output, /stderr/)
  })
}
