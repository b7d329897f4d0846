// A program of which one copy works at a time: DATABASE_URL=postgres://... node main.js
import { setTimeout as sleep } from 'node:timers/promises'
import { Elector } from 'leader-election-pg'

const elector = new Elector(process.env.DATABASE_URL, 'scheduler')
process.once('SIGTERM', () => elector.stop())
await elector.run(async (term) => {
  while (term.isLeading()) {
    console.log(`leading, token ${term.token}`)
    await sleep(1000, null, { signal: term.signal }) // the step of the job
  }
})
