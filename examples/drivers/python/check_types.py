"""Which calls need casts with psycopg 3 (server-side binding): plain, and with prepare=True.

Prints each call that does not answer as the table says, and exits 1; else one line.
"""
import datetime
import os
import sys

import psycopg

OK = object()     # any answer
TOKEN = object()  # expected: a token, or a version; as an argument: the latest one


class Error(str):
    """Expected: an error with this SQLSTATE."""


P = 'types.py '   # prefix of the elections' names
S3 = datetime.timedelta(seconds=3)
MS = datetime.timedelta(milliseconds=20)
S, L, M, N, BUSY = P + 'session', P + 'lease', P + 'many 1', P + 'many 2', P + 'busy'
NUMBER = 2929001

CALLS = [  # SQL, arguments, expected (a row of one column: its value; of more: a tuple)
    # by name; strings, NULL and intervals need no cast
    ('SELECT le_try_become_leader(%s, identity => %s)', [S, 'w'], True),  # the first call's identity stays
    ('SELECT le_try_become_leader(%s, identity => %s)', [S, 'w2'], False),  # and another is another client's
    ('SELECT le_try_become_leader(%s)', [S], True),
    ('SELECT le_try_become_leader(%s, identity => %s)', [S, None], True),
    ('SELECT le_become_leader(%s, %s, identity => %s)', [S, '3 s', 'w'], True),
    ('SELECT le_become_leader(%s, %s, identity => %s)', [S, S3, 'w'], True),
    ('SELECT le_become_leader(%s, %s, identity => %s)', [S, None, 'w'], True),
    ('SELECT le_become_leader(%s, %s)', [BUSY, MS], False),
    ('SELECT le_am_leader(%s)', [S], True),
    ('SELECT le_am_leader(%s, identity => %s)', [S, 'w'], True),
    ('SELECT le_am_leader(%s, %s, identity => %s)', [S, None, 'w2'], False),
    ('SELECT le_resign(%s, identity => %s)', [S, 'w2'], False),
    ('SELECT le_token(%s)', [S], TOKEN),
    ('SELECT le_proclaim(%s, %s)', [S, 'v'], True),
    ('SELECT le_assert_leader(%s)', [S], OK),
    ('CALL le_observe(%s)', [S], (TOKEN, TOKEN, 'w', 'v')),
    ('CALL le_observe(%s, version => %s, timeout => %s)', [S, 0, MS], (TOKEN, TOKEN, 'w', 'v')),
    ('CALL le_observe(%s, %s, %s, %s, %s, %s)', [S, None, S3, None, None, None], (TOKEN, TOKEN, 'w', 'v')),
    ('SELECT le_resign(%s)', [S], True),
    # leases
    ('SELECT le_lease(%s, %s, identity => %s, token => %s)', [L, S3, 'w', None], TOKEN),
    ('SELECT le_lease(%s, %s, identity => %s, token => %s)', [L, '3 s', 'w', TOKEN], TOKEN),
    ('SELECT le_lease(%s, %s, token => %s)', [L, S3, TOKEN], TOKEN),
    ('SELECT le_renew(%s, %s)', [L, TOKEN], True),
    ('SELECT le_renew(%s, %s, %s)', [L, TOKEN, S3], True),
    ('SELECT le_am_leader(%s, %s)', [L, TOKEN], True),
    ('SELECT le_am_leader(%s, %s, identity => %s)', [L, TOKEN, 'w2'], False),
    ('SELECT le_am_leader(%s, %s)', [L, None], False),
    ('SELECT le_proclaim(%s, %s, %s)', [L, 'v', TOKEN], True),
    ('SELECT le_assert_leader(%s, %s)', [L, TOKEN], OK),
    ('SELECT le_resign(%s, %s)', [L, TOKEN], True),
    # campaigns: the INOUT parameters come as a row
    ('CALL le_campaign(%s)', [S], TOKEN),
    ('SELECT le_resign(%s)', [S], True),
    ('CALL le_campaign(%s, timeout => %s, identity => %s)', [S, S3, 'w'], TOKEN),
    ('SELECT le_resign(%s, %s, %s)', [S, None, 'w2'], False),
    ('SELECT le_resign(%s, %s)', [S, None], True),
    ('CALL le_campaign(%s, timeout => %s, identity => %s)', [BUSY, '20 ms', 'w'], None),
    ('CALL le_campaign(%s, ttl => %s, token => %s)', [L, S3, None], TOKEN),
    ('SELECT le_resign(%s, %s)', [L, TOKEN], True),
    # many: a list needs the cast (without it, it is a name that is refused)
    ('CALL le_campaign(%s)', [[M, N]], Error('22023')),
    ('CALL le_campaign(%s::text[])', [[M, N]], (TOKEN, M)),
    ('SELECT le_resign(%s)', [M], True),
    # an int is no name, but text of digits is one
    ('SELECT le_try_become_leader(%s)', [NUMBER], Error('42883')),
    ('SELECT le_try_become_leader(%s)', [str(NUMBER)], True),
    ('SELECT le_resign(%s)', [str(NUMBER)], True),
    # the token as a setting
    ("SELECT set_config('leader_election.token', %s::text, true)", [5], '5'),
    ("SELECT set_config('leader_election.token', %s, true)", [5], Error('42883')),
    ('SET LOCAL leader_election.token = %s', [5], Error('42601')),
    ('SELECT le_resign_all()', [], 0),  # nothing is led any more, under whatever name
]


def fits(got, expected):
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and len(got) == len(expected) and all(map(fits, got, expected))
    if expected is TOKEN:
        return isinstance(got, int) and got > 0
    return expected is OK or type(got) is type(expected) and got == expected


url = os.environ['DATABASE_URL']
wrong = done = 0
absent = set()  # of the SQL edition
with psycopg.connect(url, autocommit=True) as busy, psycopg.connect(url, autocommit=True) as conn:
    busy.execute('SELECT le_try_become_leader(%s)', [BUSY])
    for prepare in False, True, True:  # the second time, the statements are there
        token = None
        for sql, args, expected in CALLS:
            args = [token if a is TOKEN else a for a in args]
            try:
                got = conn.execute(sql, args, prepare=prepare).fetchone()
                if fits(got[0], TOKEN) and type(got[0]) is int and 'observe' not in sql:
                    token = got[0]
                got = got[0] if len(got) == 1 else got
            except psycopg.Error as e:
                if 'needs the C extension' in (e.diag.message_hint or ''):
                    absent.add(sql)
                    continue
                got = Error(e.sqlstate or e)
            done += 1
            if not fits(got, expected):
                wrong += 1
                print(f'prepare={prepare}: {sql} {args}: {got!r}, expected {expected!r}')
for sql in sorted(absent):
    print(f'types.py: not run, needs the C extension: {sql}')
if not wrong:
    print(f'types.py: {done} calls ok')
sys.exit(wrong > 0)
