// Which calls need casts with node-postgres: unnamed and named (prepared) statements.
// Prints each call that does not answer as the table says, and exits 1; else one line.
import pg from 'pg'

const OK = Symbol('ok')        // any answer
const TOKEN = Symbol('token')  // expected: a token, or a version (a string); as an argument: the latest one
const BIG = Symbol('bigint')   // as an argument: the latest token as a BigInt
const error = (sqlstate) => ({ error: sqlstate })

const P = 'types.js '          // prefix of the elections' names
const [S, L, M, N, BUSY] = ['session', 'lease', 'many 1', 'many 2', 'busy'].map((n) => P + n)
// An interval: text. A number is seconds, and so is a plain { milliseconds: 20 } (sent as JSON, of which
// PostgreSQL reads the number only). postgres-interval's own objects are fine: S3 and MS are such.
const S3 = pg.types.getTypeParser(1186)('00:00:03')
const MS = pg.types.getTypeParser(1186)('00:00:00.02')
const NUMBER = 2929002

const calls = [ // SQL, arguments, expected (a row of one column: its value; of more: an array)
  // by name; strings, null and intervals need no cast
  ['SELECT le_try_become_leader($1, identity => $2)', [S, 'w'], true], // the first call's identity stays
  ['SELECT le_try_become_leader($1, identity => $2)', [S, 'w2'], false], // and another is another client's
  ['SELECT le_try_become_leader($1)', [S], true],
  ['SELECT le_try_become_leader($1, identity => $2)', [S, null], true],
  ['SELECT le_try_become_leader($1, identity => $2)', [S, undefined], true],
  ['SELECT le_become_leader($1, $2, identity => $3)', [S, '3 s', 'w'], true],
  ['SELECT le_become_leader($1, $2, identity => $3)', [S, S3, 'w'], true],
  ['SELECT le_become_leader($1, $2, identity => $3)', [S, null, 'w'], true],
  ['SELECT le_become_leader($1, $2)', [BUSY, MS], false],
  ['SELECT le_am_leader($1)', [S], true],
  ['SELECT le_am_leader($1, identity => $2)', [S, 'w'], true],
  ['SELECT le_am_leader($1, $2, identity => $3)', [S, null, 'w2'], false],
  ['SELECT le_resign($1, identity => $2)', [S, 'w2'], false],
  ['SELECT le_token($1)', [S], TOKEN],
  ['SELECT le_proclaim($1, $2)', [S, 'v'], true],
  ['SELECT le_assert_leader($1)', [S], OK],
  ['CALL le_observe($1)', [S], [TOKEN, TOKEN, 'w', 'v']],
  ['CALL le_observe($1, version => $2, timeout => $3)', [S, 0, '20 ms'], [TOKEN, TOKEN, 'w', 'v']],
  ['CALL le_observe($1, $2, $3, $4, $5, $6)', [S, null, S3, null, null, null], [TOKEN, TOKEN, 'w', 'v']],
  ['SELECT le_resign($1)', [S], true],
  // leases
  ['SELECT le_lease($1, $2, identity => $3, token => $4)', [L, S3, 'w', null], TOKEN],
  ['SELECT le_lease($1, $2, identity => $3, token => $4)', [L, '3 s', 'w', TOKEN], TOKEN],
  ['SELECT le_lease($1, $2, token => $3)', [L, '3 s', BIG], TOKEN],
  ['SELECT le_renew($1, $2)', [L, TOKEN], true],
  ['SELECT le_renew($1, $2, $3)', [L, BIG, S3], true],
  ['SELECT le_am_leader($1, $2)', [L, TOKEN], true],
  ['SELECT le_am_leader($1, $2, identity => $3)', [L, TOKEN, 'w2'], false],
  ['SELECT le_am_leader($1, $2)', [L, null], false],
  ['SELECT le_proclaim($1, $2, $3)', [L, 'v', TOKEN], true],
  ['SELECT le_assert_leader($1, $2)', [L, TOKEN], OK],
  ['SELECT le_resign($1, $2)', [L, TOKEN], true],
  // campaigns: the INOUT parameters come as a row
  ['CALL le_campaign($1)', [S], TOKEN],
  ['SELECT le_resign($1)', [S], true],
  ['CALL le_campaign($1, timeout => $2, identity => $3)', [S, S3, 'w'], TOKEN],
  ['SELECT le_resign($1, $2, $3)', [S, null, 'w2'], false],
  ['SELECT le_resign($1, $2)', [S, null], true],
  ['CALL le_campaign($1, timeout => $2, identity => $3)', [BUSY, '20 ms', 'w'], null],
  ['CALL le_campaign($1, ttl => $2, token => $3)', [L, S3, null], TOKEN],
  ['SELECT le_resign($1, $2)', [L, TOKEN], true],
  // many: an array needs the cast (without it, it is a name that is refused)
  ['CALL le_campaign($1)', [[M, N]], error('22023')],
  ['CALL le_campaign($1::text[])', [[M, N]], [TOKEN, M]],
  ['SELECT le_resign($1)', [M], true],
  // a number is sent as text, and is a name
  ['SELECT le_try_become_leader($1)', [NUMBER], true],
  ['SELECT le_am_leader($1)', [BigInt(NUMBER)], true],
  ['SELECT le_resign($1)', [String(NUMBER)], true],
  // the token as a setting
  ["SELECT set_config('leader_election.token', $1::text, true)", ['5'], '5'],
  ["SELECT set_config('leader_election.token', $1, true)", [5], '5'],
  ['SET LOCAL leader_election.token = $1', ['5'], error('42601')],
  ['SELECT le_resign_all()', [], 0], // nothing is led any more, under whatever name
]

const isToken = (v) => typeof v === 'string' && /^[1-9][0-9]*$/.test(v)
const fits = (got, expected) =>
  Array.isArray(expected)
    ? Array.isArray(got) && got.length === expected.length && expected.every((e, i) => fits(got[i], e))
    : expected === TOKEN ? isToken(got)
      : expected?.error ? got?.error === expected.error
        : expected === OK ? !got?.error : got === expected

const connect = async () => {
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL })
  await client.connect()
  return client
}
const busy = await connect()
const client = await connect()
await busy.query('SELECT le_try_become_leader($1)', [BUSY])
const absent = Symbol('not in the SQL edition')
let done = 0
let wrong = 0
for (const mode of ['unnamed', 'named', 'named']) { // the second time, the statements are there
  let token = null
  for (const [i, [text, args, expected]] of calls.entries()) {
    const values = args.map((a) => (a === TOKEN ? token : a === BIG ? BigInt(token ?? 0) : a))
    const query = { text, values, rowMode: 'array', ...(mode === 'named' && { name: `call ${i}` }) }
    const got = await client.query(query).then(({ rows: [r] }) => {
      if (r.length > 0 && text.match(/token|lease|campaign/) && isToken(r[0])) token = r[0]
      return r.length === 1 ? r[0] : r
    }, (e) => (e.hint?.includes('needs the C extension') ? absent : error(e.code ?? e.message)))
    if (got === absent) {
      if (mode === 'unnamed') console.log(`types.js: not run, needs the C extension: ${text}`)
      continue
    }
    done++
    if (fits(got, expected)) continue
    wrong++
    console.log(mode, text, values, 'gave', got, 'expected', expected)
  }
}
await Promise.all([client.end(), busy.end()])
if (wrong === 0) console.log(`types.js: ${done} calls ok`)
process.exitCode = wrong > 0 ? 1 : 0
