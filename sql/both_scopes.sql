--
-- Session and transaction scope of one election: one term, until the last hold goes
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
-- (on_record comes first: the question whether it leads would tidy up)
CREATE TEMP VIEW state AS
SELECT (SELECT count(*) FROM _le_registry_terms() WHERE name = 'job') AS on_record,
       (SELECT count(*) FROM advisory) AS locks, le_am_leader('job') AS leads,
       (SELECT scope FROM le_leader('job')) AS scope,
       le_token('job') = (SELECT token FROM le_leader('job')) AS token;

-- session, then transaction: goes on after the commit
SELECT le_try_become_leader('job');
SELECT le_token('job') AS t1 \gset
BEGIN;
SELECT le_try_become_leader_xact('job'), le_token('job') = :t1 AS same;
TABLE state;
COMMIT;
TABLE state;
SELECT le_token('job') = :t1 AS same, le_resign('job');
TABLE state;

-- the same, resigned in the transaction: leads until its end
SELECT le_try_become_leader('job');
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_resign('job');
TABLE state;
SELECT le_resign('job');
COMMIT;
TABLE state;

-- transaction, then session: widened, once
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_token('job') AS t1 \gset
SELECT le_try_become_leader('job');
SELECT le_try_become_leader('job');
SELECT le_token('job') = :t1 AS same;
TABLE state;
COMMIT;
TABLE state;
SELECT le_token('job') = :t1 AS same, le_resign('job');

-- and rolled back: a bid for session scope stands
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_try_become_leader('job');
ROLLBACK;
TABLE state;
SELECT le_resign('job');

-- widened and narrowed again
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_token('job') AS t1 \gset
SELECT le_try_become_leader('job');
SELECT le_resign('job');
TABLE state;
SELECT le_token('job') = :t1 AS same;
COMMIT;
TABLE state;

-- the notice comes once per term, also when a term is widened a second time
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_try_become_leader('job');
SELECT le_resign('job');
SELECT le_try_become_leader('job');
COMMIT;
TABLE state;
SELECT le_resign('job');

-- resigned in a transaction that rolls back: both holds gone
BEGIN;
SELECT le_try_become_leader('job');
SELECT le_try_become_leader_xact('job');
SELECT le_resign('job');
ROLLBACK;
TABLE state;

-- a savepoint takes the transaction hold only
BEGIN;
SELECT le_try_become_leader('job');
SELECT le_token('job') AS t1 \gset
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
ROLLBACK TO a;
TABLE state;
SELECT le_token('job') = :t1 AS same;
SELECT le_resign('job');
TABLE state;
COMMIT;

-- the transaction hold is the savepoint's, the session hold came after it
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
SELECT le_try_become_leader('job');
ROLLBACK TO a;
TABLE state;
SELECT le_resign('job');
TABLE state;
COMMIT;

-- transaction hold before the savepoint, session hold and resignation in it
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_token('job') AS t1 \gset
SAVEPOINT a;
SELECT le_try_become_leader('job');
ROLLBACK TO a;
TABLE state;
SAVEPOINT b;
SELECT le_resign('job');
ROLLBACK TO b;
TABLE state;
SELECT le_token('job') = :t1 AS same;
COMMIT;
TABLE state;

-- narrowed to a savepoint's hold: ends with the savepoint
SELECT le_try_become_leader('job');
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
SELECT le_resign('job');
TABLE state;
ROLLBACK TO a;
TABLE state;
COMMIT;
TABLE state;

-- narrowed to a savepoint's hold that is released
SELECT le_try_become_leader('job');
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
RELEASE a;
SELECT le_resign('job');
SAVEPOINT b;
ROLLBACK TO b;
TABLE state;
COMMIT;
TABLE state;

-- the parent's hold is not given up for the child's
BEGIN;
SELECT le_try_become_leader_xact('job');
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
SELECT le_try_become_leader('job');
SELECT le_resign('job');
ROLLBACK TO a;
TABLE state;
COMMIT;
TABLE state;

-- resign_all counts the session holds, narrows what the transaction holds
BEGIN;
SELECT le_try_become_leader('job'), le_try_become_leader('other');
SELECT le_try_become_leader_xact('job'), le_try_become_leader_xact('third');
SELECT le_resign_all();
SELECT le_resign_all();
SELECT name, scope FROM le_leaders ORDER BY name;
COMMIT;
SELECT * FROM advisory;

SELECT name, scope FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM advisory;
