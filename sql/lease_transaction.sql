--
-- Leases and transactions: a grant counts from its commit, and everything else at
-- once; isolation levels; what is kept of leases, and cleared away
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql

-- before the commit: it belongs to the session that took it, and is not shown
-- to others
BEGIN;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
TABLE advisory;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_renew('job', :t1, '20 min'), le_lease('job', '30 min', token => :t1) = :t1 AS lease;
SELECT le_am_leader('job', 0), le_renew('job', 0), le_am_leader('job'), le_token('job');
SELECT le_lease('job', '1 hour'), le_try_become_leader('job'), le_try_become_leader_xact('job'), le_become_leader('job', '0');
SELECT count(*) FROM le_leaders WHERE name = 'job';
SELECT count(*) FROM le_leader('job');
CALL le_observe('job') \gset
SELECT :{?token} AS observed;
COMMIT;
TABLE advisory;
SELECT scope, ttl, renewals FROM le_leader('job');
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_resign('job', :t1);

-- it expires in no open transaction: the ttl runs from the commit
BEGIN;
SELECT le_lease('job', '200 ms') AS t1 \gset
SELECT pg_sleep(0.6);
SELECT le_am_leader('job', :t1), le_renew('job', :t1, '1 hour');
SELECT clock_timestamp() AS before_commit \gset
COMMIT;
SELECT renewed_at > :'before_commit'::timestamptz - interval '300 ms' AS from_commit, le_resign('job', :t1) FROM le_leader('job');

-- a session may not wait for a lease that only its own commit can end
BEGIN;
SELECT le_lease('waited for', '1 hour') > 0 AS taken;
SAVEPOINT a;
SELECT le_become_leader('waited for');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO a;
SELECT le_become_leader_xact('waited for', '1 hour');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- rolled back, it never was
BEGIN;
SELECT le_lease('back', '1 hour') AS t2 \gset
ROLLBACK;
SELECT le_am_leader('back', :t2), le_renew('back', :t2);
SELECT count(*) FROM le_leader('back');
SELECT count(*) FROM le_leases WHERE name = 'back';
BEGIN;
SELECT le_lease('back', '1 hour') AS t3 \gset
SELECT 1 / 0;
COMMIT;
SELECT :t3 > :t2 AS greater, le_am_leader('back', :t3), le_lease('back', '1 hour') AS t4 \gset
SELECT :t4 > :t3 AS greater, le_resign('back', :t4);

-- to a savepoint, before and after
BEGIN;
SELECT le_lease('top', '1 hour') AS top \gset
SAVEPOINT a;
SELECT le_lease('sub', '1 hour') AS sub \gset
SELECT le_am_leader('sub', :sub), le_am_leader('top', :top);
ROLLBACK TO a;
SELECT le_am_leader('sub', :sub), le_renew('sub', :sub), le_am_leader('top', :top);
SELECT count(*) FROM advisory;
SELECT le_lease('sub', '1 hour') AS sub2 \gset
SAVEPOINT b;
SAVEPOINT c;
SELECT le_lease('released', '1 hour') AS released \gset
RELEASE b;
SELECT le_renew('released', :released, '2 hours');
COMMIT;
SELECT name, token = CASE name WHEN 'top' THEN :top WHEN 'sub' THEN :sub2 ELSE :released END AS token, ttl
FROM le_leaders WHERE scope = 'lease' ORDER BY name;
SELECT name, ttl FROM le_leases WHERE name IN ('top', 'sub', 'released') ORDER BY name;
SELECT le_resign('top', :top), le_resign('sub', :sub2), le_resign('released', :released);

-- given up in the transaction that took it: at once, and not brought back
BEGIN;
SELECT le_lease('job', '1 hour') AS t5 \gset
SAVEPOINT a;
SELECT le_resign('job', :t5), le_am_leader('job', :t5), le_renew('job', :t5);
ROLLBACK TO a;
SELECT le_am_leader('job', :t5), le_renew('job', :t5);
SELECT le_lease('job', '1 hour', identity => 'again', token => :t5) AS t6 \gset
SELECT :t6 > :t5 AS new;
COMMIT;
SELECT identity, token = :t6 AS token FROM le_leader('job');
SELECT name, token = :t6 AS token, ttl FROM le_leases WHERE name = 'job' AND ttl > '0';

-- renewed, changed and given up: at once, whatever becomes of the transaction
BEGIN;
SELECT le_renew('job', :t6), le_renew('job', :t6, '2 hours');
ROLLBACK;
SELECT r.ttl, t.ttl, renewals FROM le_leader('job') r JOIN le_leases t USING (name, token);
BEGIN;
SELECT le_renew(name, token) FROM unnest(ARRAY['job'], ARRAY[:t6]) AS held (name, token);
ROLLBACK;
SELECT renewals FROM le_leader('job');
BEGIN;
SELECT le_resign('job', :t6);
TABLE advisory;
SELECT le_am_leader('job', :t6);
ROLLBACK;
SELECT le_am_leader('job', :t6), count(*) FROM le_leader('job');
SELECT count(*) FROM le_leases WHERE name = 'job' AND ttl > '0';

-- a renewal takes no transaction ID
BEGIN;
SELECT le_lease('xid', '1 hour') AS x, pg_current_xact_id_if_assigned() IS NOT NULL AS grant \gset
COMMIT;
BEGIN;
SELECT le_renew('xid', :x), le_lease('xid', '1 hour', token => :x) = :x, le_renew('xid', :x, '2 hours'), le_lease('xid', '1 s') IS NULL;
SELECT le_resign('xid', :x);
SELECT pg_current_xact_id_if_assigned();
COMMIT;

-- blocks: an exception takes the lease back, a commit begins it
CREATE PROCEDURE pg_temp.work() LANGUAGE plpgsql AS $$
DECLARE
	t bigint;
BEGIN
	BEGIN
		t := le_lease('block', '1 hour');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE INFO 'after the exception: %', le_am_leader('block', t);
	END;
	t := le_lease('block', '1 hour');
	RAISE INFO 'before the commit: %, shown %', le_am_leader('block', t), (SELECT count(*) FROM le_leader('block'));
	COMMIT;
	RAISE INFO 'after the commit: %, shown %', le_am_leader('block', t), (SELECT count(*) FROM le_leader('block'));
	PERFORM le_resign('block', t);
	t := le_lease('block', '1 hour');
	ROLLBACK;
	RAISE INFO 'after the rollback: %', le_am_leader('block', t);
	t := le_lease('block', '1 hour');
	BEGIN
		PERFORM le_resign('block', t);
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE INFO 'resigned in a block that failed: %', le_am_leader('block', t);
	END;
END
$$;
CALL pg_temp.work();
SELECT count(*) FROM le_leader('block');

-- by a deferred trigger and a held cursor, as the transaction commits
CREATE TEMP TABLE t (i int);
CREATE FUNCTION pg_temp.elect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_lease('from a trigger', '1 hour');
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER elect AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pg_temp.elect();
BEGIN;
INSERT INTO t VALUES (1);
DECLARE c CURSOR WITH HOLD FOR SELECT le_lease('from a cursor', '1 hour') > 0 AS taken;
COMMIT;
FETCH c;
CLOSE c;
SELECT name, le_resign(name, token) FROM le_leaders WHERE name LIKE 'from a %' ORDER BY name;
DROP TABLE t;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
TABLE advisory;

-- what the library keeps of leases, in le_leases and in the registry: the ttl, and its changes
SELECT le_lease('ttl', '-1 day 25 hours') AS t1 \gset
SELECT r.ttl, t.ttl FROM le_leader('ttl') r JOIN le_leases t USING (name, token);
SELECT le_renew('ttl', :t1, '10 min');
SELECT r.ttl, t.ttl FROM le_leader('ttl') r JOIN le_leases t USING (name, token);
SELECT le_lease('ttl', '20 min', token => :t1) = :t1 AS lease;
\set VERBOSITY sqlstate
SELECT le_renew('ttl', :t1, '1 day 1 us');
SELECT le_lease('ttl', '1 ms', token => :t1);
SELECT le_lease('none', '1 s', identity => '');
\set VERBOSITY default
SELECT r.ttl, t.ttl FROM le_leader('ttl') r JOIN le_leases t USING (name, token);
SELECT name FROM le_leases WHERE ttl > '0' AND name NOT LIKE 'short %' ORDER BY name;
SELECT le_resign('ttl', :t1);
-- a lease that is over, and the next one
SELECT le_lease('job', '100 ms') AS t1 \gset
SELECT pg_sleep(0.15);
SELECT count(*) FROM _le_registry_terms() WHERE name = 'job';
SELECT le_lease('job', '1 hour', token => :t1) AS t2 \gset
SELECT token = :t2 AS token, ttl FROM le_leases WHERE name = 'job';
-- elected in another scope, the row says that it is over
SELECT le_lease('session', '100 ms') > 0 AS s, le_lease('xact', '100 ms') > 0 AS x;
SELECT pg_sleep(0.15);
SELECT le_try_become_leader('session', identity => 's');
BEGIN;
SELECT le_become_leader_xact('xact', '1 hour', identity => 'x');
ROLLBACK;
SELECT name, ttl FROM le_leases WHERE name IN ('session', 'xact') ORDER BY name;
SELECT le_resign('session');
SELECT le_lease('session', '1 hour') > 0 AS s, le_lease('xact', '1 hour') > 0 AS x;
SELECT name, count(*), min(ttl) FROM le_leases WHERE name IN ('session', 'xact') GROUP BY name ORDER BY name;
-- leases that are over are cleared away as new ones are taken
SELECT count(le_lease('short ' || i, '100 ms')) FROM generate_series(1, 100) i;
SELECT pg_sleep(0.15);
SELECT count(le_lease('new ' || i, '1 hour')) FROM generate_series(1, 500) i;
SELECT count(*) FILTER (WHERE name LIKE 'short %') < 10 AS cleared, count(*) FILTER (WHERE name LIKE 'new %') AS new FROM le_leases;
SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders WHERE scope = 'lease';
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
TABLE advisory;

-- all isolation levels, and read-only transactions, whose snapshot is older than all that they ask about
SELECT le_lease('before', '1 hour') AS t1 \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM le_leases WHERE name = 'after';
SELECT le_lease('after', '1 hour') AS t2 \gset
SELECT le_am_leader('before', :t1), le_renew('before', :t1, '2 hours'), le_am_leader('after', :t2);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT count(*) FROM le_leases WHERE name = 'read only';
SELECT le_renew('after', :t2, '20 min'), le_resign('before', :t1), le_lease('before', '1 hour') > :t2 AS again;
SELECT le_lease('read only', '1 hour') AS t3 \gset
SAVEPOINT a;
SELECT le_lease('sub', '1 hour') > :t3 AS greater;
ROLLBACK TO a;
SHOW transaction_read_only;
INSERT INTO le_leases VALUES (1);
COMMIT;
-- an error has rolled that back, but not what does not wait for a commit
SELECT le_am_leader('read only', :t3), le_am_leader('before', :t1);
SELECT name, r.ttl, t.ttl FROM le_leaders r JOIN le_leases t USING (name, token) WHERE scope = 'lease';

BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT le_lease('before', '1 hour') AS t4 \gset
SELECT le_renew('after', :t2, '30 min');
COMMIT;
SELECT le_am_leader('before', :t4);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM le_leaders WHERE scope = 'lease';
SELECT le_lease('third', '1 hour') AS t5 \gset
SELECT le_resign('before', :t4), le_lease('before', '1 hour') > 0 AS again;
SELECT count(*) FROM le_leaders WHERE scope = 'lease';
COMMIT AND CHAIN;
SHOW transaction_isolation;
SELECT name FROM le_leaders WHERE scope = 'lease' ORDER BY name;
ROLLBACK;
BEGIN READ ONLY;
SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders WHERE scope = 'lease';
ROLLBACK;

-- one lock, however often the lease is taken and given up: no more than
-- leader_election.max_terms_per_session
DO $$
BEGIN
	FOR i IN 1 .. 1005 LOOP
		IF NOT le_resign('again', le_lease('again', '1 hour')) THEN
			RAISE 'not resigned';
		END IF;
	END LOOP;
END $$;
TABLE advisory;

-- given up outside of a savepoint, and taken in it; the other way round
BEGIN;
SELECT le_resign('again', le_lease('again', '1 hour'));
SAVEPOINT s;
SELECT le_lease('again', '1 hour') AS inner \gset
ROLLBACK TO s;
SELECT le_am_leader('again', :inner);
SAVEPOINT s;
SELECT le_resign('again', le_lease('again', '1 hour'));
RELEASE s;
SELECT le_lease('again', '1 hour') AS outer \gset
SELECT le_am_leader('again', :outer);
COMMIT;
SELECT le_am_leader('again', :inner), le_am_leader('again', :outer);
SELECT count(*), bool_and(token = :outer) FROM le_leases WHERE name = 'again' AND ttl > '0';
SELECT le_resign('again', :outer);
-- a bid that fails there before it takes the lock leaves that alone
SELECT le_declare('again', max_ttl => '1 min');
BEGIN;
SELECT le_resign('again', le_lease('again', '1 min'));
SAVEPOINT s;
SELECT le_lease('again', '1 hour');
ROLLBACK TO s;
TABLE advisory;
COMMIT;
SELECT le_undeclare('again');

-- what a transaction cleared away that was rolled back is cleared away later
SELECT count(le_lease('one-off ' || i, '100 ms')) FROM generate_series(1, 60) i;
SELECT pg_sleep(0.2);
BEGIN;
SELECT count(le_lease('in vain ' || i, '1 day')) FROM generate_series(1, 60) i;
ROLLBACK;
SELECT count(*) AS left_over FROM le_leases WHERE name LIKE 'one-off %';
DO $$
BEGIN
	FOR i IN 1 .. 20000 LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM le_leases WHERE name LIKE 'one-off %');
		PERFORM le_resign('other ' || i, le_lease('other ' || i, '1 day'));
		COMMIT;
	END LOOP;
END $$;
SELECT count(*) AS left_over FROM le_leases WHERE name LIKE 'one-off %';

-- a lease that begins with the commit says so, once a transaction
BEGIN;
SELECT le_lease('one', '1 h') AS one, le_lease('two', '1 h') AS two \gset
SELECT le_lease('one', '2 h', token => :one) = :one AS renewed;
COMMIT;
SELECT le_resign('one', :one), le_resign('two', :two);
BEGIN;
CALL le_campaign(ARRAY['one'], ttl => '1 h') \gset
CALL le_campaign('two', ttl => '1 h') \gset
ROLLBACK;
-- and not where the statement is the transaction
SELECT le_lease('one', '1 h') AS one \gset
DO $$ BEGIN PERFORM le_lease('two', '1 h'); END $$;
SELECT count(le_resign(name, token)) FROM le_leaders;
