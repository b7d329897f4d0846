--
-- leader_election.grace_period: after a term that ended without resignation,
-- the election stays vacant for a while
--
-- A grace period of an hour does not end here, and one of zero is over at
-- once.  So what is shown in between does not depend on time.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE SCHEMA regress_grace;
SET search_path = regress_grace, public;
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/sessions.psql
CREATE FUNCTION cancel(who text) RETURNS boolean LANGUAGE sql AS $$
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = who
$$;
-- can it be led now, in each of the ways that do not wait?  Leaves no term
CREATE FUNCTION now(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	session boolean := le_try_become_leader(name);
	xact boolean;
	lease bigint;
	zero boolean;
BEGIN
	IF session THEN
		PERFORM le_resign(name);
		RETURN 'free';
	END IF;
	xact := le_try_become_leader_xact(name);
	lease := le_lease(name, '1 hour');
	zero := le_become_leader(name, '0');
	RETURN CASE WHEN xact OR zero OR lease IS NOT NULL THEN format('DENIED, BUT %s %s %s', xact, lease, zero)
	            WHEN EXISTS (SELECT FROM le_leader(name)) THEN 'led'
	            ELSE 'vacant' END;
END $$;
CREATE VIEW queue AS SELECT name, position, identity, waits_for, cardinality(blocked_by) AS ahead FROM le_candidates ORDER BY name, position, identity;
CREATE VIEW counted AS SELECT name, terms, resigned, deposed, session_ended, transaction_ended, expired, lock_released, denied FROM pg_stat_leader_election;
CREATE VIEW locks AS SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT open('a'), open('b'), open('c');
-- for unknown elections, it may count from what was forgotten before
SELECT le_try_become_leader(name), le_resign(name)
FROM unnest('{resigned,xact,never was,released,discarded,session,open transaction,resigned before,terminated,expired,long ago,waited for,m1,m2,given up,line,dropped,dropped and resigned}'::text[]) name;
SELECT pg_stat_leader_election_reset();
RESET client_min_messages;
\set VERBOSITY terse

-- the setting
SHOW leader_election.grace_period;
SELECT unit, vartype, context, min_val, max_val, boot_val FROM pg_settings WHERE name = 'leader_election.grace_period';
\set VERBOSITY sqlstate
SET leader_election.grace_period = -1;
SET leader_election.grace_period = '1d';
SET leader_election.grace_period = '86400001 ms';
\set VERBOSITY default
CREATE ROLE regress_grace LOGIN;
SET ROLE regress_grace;
SET leader_election.grace_period = 0;
RESET ROLE;
SHOW leader_election.grace_period;
-- for roles that may not set it; a setting made before the library is loaded
-- has no effect
ALTER ROLE regress_grace SET leader_election.grace_period = '1h';
RESET leader_election.grace_period;
SELECT open('r', 'regress_grace');
SELECT says('r', 'SHOW leader_election.grace_period');
SELECT says('r', 'SET leader_election.grace_period = 0');
SELECT says('r', 'SELECT le_am_leader(''x'')'), says('r', 'SHOW leader_election.grace_period'), says('r', 'SET leader_election.grace_period = 0');

SET leader_election.grace_period = '1h';
-- none after a resignation, in each way
SELECT le_try_become_leader('resigned'), le_resign('resigned');
SELECT now('resigned');
SELECT le_lease('resigned', '1 hour') AS t1 \gset
SELECT le_resign('resigned', :t1);
SELECT now('resigned');
-- none after the end of the transaction, in each way
BEGIN;
SELECT le_try_become_leader_xact('xact');
COMMIT;
SELECT now('xact');
BEGIN;
SELECT le_try_become_leader_xact('xact');
ROLLBACK;
SELECT now('xact');
BEGIN;
SELECT le_try_become_leader_xact('xact');
SELECT 1 / 0;
COMMIT;
SELECT now('xact');
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('xact');
ROLLBACK TO a;
SELECT le_try_become_leader_xact('xact');
COMMIT;
SELECT now('xact');
-- nor after a lease that never was
BEGIN;
SELECT le_lease('never was', '1 hour') > 0 AS taken;
ROLLBACK;
BEGIN;
SELECT le_lease('never was', '1 hour') AS t2 \gset
SELECT le_resign('never was', :t2);
COMMIT;
SELECT dblink_exec('a', 'BEGIN');
SELECT says('a', 'SELECT le_lease(''never was'', ''1 hour'') > 0');
SELECT dblink_disconnect('a');
SELECT gone('a');
SELECT open('a');
SELECT now('never was');

-- there is one after the lock was released
SELECT le_try_become_leader('released'), pg_advisory_unlock_all();
SELECT now('released');
SELECT le_try_become_leader('discarded');
DISCARD ALL;
SET client_min_messages = warning;
SET search_path = regress_grace, public;
SET client_min_messages = notice;
-- the bidding session's setting applies; neither this session nor the identity
-- is exempt
SHOW leader_election.grace_period;
SET leader_election.grace_period = '1h';
SELECT now('discarded');
SELECT le_try_become_leader('discarded', identity => 'me'), pg_advisory_unlock_all();
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('discarded', identity => 'me'), pg_advisory_unlock_all();
SET leader_election.grace_period = '1h';
SELECT le_try_become_leader('discarded', identity => 'me'), le_try_become_leader('discarded', identity => 'another');
SELECT says('r', 'SELECT le_try_become_leader(''discarded'')'), says('b', 'SELECT le_try_become_leader(''discarded'')');
SELECT now('discarded') AS led;
SELECT says('b', 'SELECT le_resign(''discarded'')'), says('r', 'SELECT le_try_become_leader(''discarded'')'), says('r', 'SELECT le_resign(''discarded'')');

-- after the end of a session
SELECT dblink_disconnect('a');
SELECT open('a');
SELECT says('a', 'SELECT le_try_become_leader(''session'', identity => ''a'')'), says('a', 'SELECT le_try_become_leader(''resigned before'')'), says('a', 'SELECT le_resign(''resigned before'')');
SELECT dblink_exec('a', 'BEGIN');
SELECT says('a', 'SELECT le_try_become_leader_xact(''open transaction'', identity => ''a'')');
SELECT dblink_disconnect('a');
SELECT gone('a');
SELECT now('session') AS session, now('open transaction') AS xact, now('resigned before') AS resigned;
SELECT * FROM counted WHERE name IN ('session', 'open transaction') ORDER BY name;
-- also if it is terminated
SELECT open('a');
SELECT dblink_exec('a', 'BEGIN');
SELECT says('a', 'SELECT le_try_become_leader_xact(''terminated'', identity => ''a'')');
SELECT pg_terminate_backend(pid, 10000) FROM le_leader('terminated');
SELECT dblink_disconnect('a');
SELECT now('terminated');
SELECT * FROM counted WHERE name = 'terminated';
SELECT open('a');

-- after a lease has run out, of which it counts from the deadline
SET leader_election.grace_period = 0;
SELECT le_lease('expired', '100 ms') AS t3, le_lease('long ago', '100 ms') AS t4 \gset
SELECT pg_sleep(0.5);
SET leader_election.grace_period = '1h';
SELECT now('expired'), le_renew('expired', :t3), le_am_leader('expired', :t3), le_lease('expired', '1 hour', token => :t3);
SET leader_election.grace_period = '350 ms';
SELECT le_lease('long ago', '1 hour') > :t4 AS elected;
SELECT le_resign('long ago', token) FROM le_leader('long ago');
SELECT now('expired') AS "not from when it was found";
-- what never was does not end it; what is resigned does
SET leader_election.grace_period = '1h';
SELECT now('session');
SET leader_election.grace_period = 0;
BEGIN;
SELECT le_lease('session', '1 hour') > 0 AS taken;
ROLLBACK;
SET leader_election.grace_period = '1h';
SELECT now('session');
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('session'), le_resign('session');
SET leader_election.grace_period = '1h';
SELECT now('session');

-- it ends in time, and the waiting candidate is elected then
SELECT le_try_become_leader('waited for'), pg_advisory_unlock_all();
SET leader_election.grace_period = '250 ms';
SELECT clock_timestamp() AS start \gset
SELECT le_become_leader('waited for', '1 min', identity => 'waited');
SELECT clock_timestamp() - :'start' BETWEEN '200 ms' AND '20 s' AS waited, identity FROM le_leader('waited for');
-- asked again it goes on to lead
SELECT le_try_become_leader('waited for'), le_become_leader('waited for'), pg_advisory_unlock_all();
-- in the other scopes
BEGIN;
SELECT le_become_leader_xact('waited for', '1 min');
SELECT clock_timestamp() - :'start' BETWEEN '400 ms' AND '20 s' AS waited;
COMMIT;
SELECT le_try_become_leader('waited for'), pg_advisory_unlock_all(), clock_timestamp() AS start \gset
CALL le_campaign('waited for', '1 min', identity => 'waited', ttl => '1 hour') \gset w
SELECT clock_timestamp() - :'start' BETWEEN '200 ms' AND '20 s' AS waited, scope, identity, le_resign('waited for', :wtoken) FROM le_leader('waited for');
-- for many
SELECT le_try_become_leader('m1'), le_try_become_leader('m2'), pg_advisory_unlock_all(), clock_timestamp() AS start \gset
CALL le_campaign(ARRAY['m1', 'm2'], '1 min', identity => 'waited') \gset w
SELECT clock_timestamp() - :'start' BETWEEN '200 ms' AND '20 s' AS waited, :'wname' IN ('m1', 'm2') AS won, le_token(:'wname') = :wtoken AS token, le_resign(:'wname');
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('m1'), le_try_become_leader('m2'), pg_advisory_unlock_all();
SET leader_election.grace_period = '1h';
CALL le_campaign(ARRAY['m1', 'm2'], '100 ms', identity => 'waited') \gset w
\echo won: :{?wname}
CALL le_campaign(ARRAY['m1', 'm2'], '0', identity => 'waited') \gset w
\echo won: :{?wname}
-- others are won meanwhile
CALL le_campaign(ARRAY['m1', 'resigned', 'm2'], '1 min', identity => 'waited') \gset w
SELECT :'wname', le_resign(:'wname');

-- a wait that is too short for it, or given up, leaves nothing
SELECT le_try_become_leader('given up'), pg_advisory_unlock_all();
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('given up'), pg_advisory_unlock_all();
SET leader_election.grace_period = '1h';
SELECT clock_timestamp() AS start \gset
SELECT le_become_leader('given up', '200 ms');
SELECT clock_timestamp() - :'start' BETWEEN '150 ms' AND '20 s' AS waited;
SELECT le_become_leader_xact('given up', '50 ms');
CALL le_campaign('given up', '50 ms') \gset w
\echo won: :{?wtoken}
CALL le_campaign('given up', '50 ms', ttl => '1 hour') \gset w
\echo won: :{?wtoken}
TABLE locks;
SET lock_timeout = '100 ms';
\set VERBOSITY sqlstate
SELECT le_become_leader('given up');
SELECT le_become_leader_xact('given up', '1 hour');
CALL le_campaign('given up', ttl => '1 hour');
CALL le_campaign(ARRAY['given up', 'm1']);
SET lock_timeout = '1h';
SELECT le_become_leader('given up', '50 ms');
SHOW lock_timeout;
RESET lock_timeout;
SET statement_timeout = '100 ms';
SELECT le_become_leader('given up');
SELECT le_become_leader('given up', '1 hour');
CALL le_campaign(ARRAY['given up', 'm1']);
RESET statement_timeout;
\set VERBOSITY terse
TABLE locks;
SELECT count(*) AS candidates FROM le_candidates;
SELECT now('given up');
-- each try of now() and each timeout counts as denied, a cancel does not
SELECT * FROM counted WHERE name = 'given up';
-- it is vacant for observers
CALL le_observe('given up') \gset w
SELECT :{?wtoken} AS led, (SELECT count(*) FROM le_leader('given up')) AS leaders;

-- candidates in line wait it out in order: none of them comes before the other
SELECT says('a', 'SET leader_election.grace_period = ''1h'''), says('b', 'SET leader_election.grace_period = ''1h''');
SELECT open('d'), says('d', 'SET leader_election.grace_period = ''1h''');
SELECT le_try_become_leader('line', identity => 'me');
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('line', identity => 'me');
SELECT le_token('line') AS t5 \gset
SELECT waits('a', $$SELECT le_become_leader('line', identity => 'a')$$), waits('b', $$SELECT le_become_leader('line', identity => 'b')$$),
       waits('c', $$SELECT le_become_leader('line', identity => 'c')$$), waits('d', $$CALL le_campaign(ARRAY['line', 'm1'], identity => 'd')$$);
SELECT pg_advisory_unlock_all();
SELECT waits('a', '', 'grace');
TABLE queue;
-- with no grace period of its own, a bid does not overtake them
SELECT now('line');
-- one gives up, and the next waits
SELECT cancel('a'), answer('a');
SELECT waits('b', '', 'grace');
TABLE queue;
-- one goes, and the next does not have to wait
SELECT now('line');
SELECT dblink_cancel_query('b'), answer('b');
SELECT answer('c');
SELECT identity, token > :t5 AS greater, candidates FROM le_leader('line');
SELECT cancel('d'), answer('d');
SELECT count(*) AS candidates FROM le_candidates;
-- in time, the first is elected, and then the others at once
SELECT says('c', 'SELECT le_resign(''line'')');
SELECT le_try_become_leader('line', identity => 'me');
SELECT says(who, 'SET leader_election.grace_period = ''300 ms''') FROM unnest('{a,b,c}'::text[]) who;
SELECT waits('a', $$SELECT le_become_leader('line', identity => 'a')$$), waits('b', $$SELECT le_become_leader('line', identity => 'b')$$);
SELECT pg_advisory_unlock_all();
SELECT waits('c', $$SELECT le_become_leader('line', identity => 'c')$$);
SELECT answer('a');
SELECT identity, candidates FROM le_leader('line');
SELECT position, identity, waits_for FROM queue;
SELECT says('a', 'SELECT le_resign(''line'')'), answer('b');
SELECT says('b', 'SELECT le_resign(''line'')'), answer('c');
-- behind a lease that runs out
SELECT says('c', 'SELECT le_resign(''line'')'), le_lease('line', '1 hour') AS t6 \gset
SELECT says(who, 'SET leader_election.grace_period = ''1h''') FROM unnest('{a,b,c}'::text[]) who;
SELECT waits('a', $$SELECT le_become_leader('line', identity => 'a')$$), waits('b', $$SELECT le_become_leader('line', identity => 'b')$$);
SELECT le_renew('line', :t6, '100 ms');
SELECT waits('a', '', 'grace');
TABLE queue;
SELECT cancel('a'), answer('a'), waits('b', '', 'grace'), cancel('b'), answer('b');
-- a lease that is resigned has none
SELECT le_lease('line', '1 hour') AS t7 \gset
SELECT waits('a', $$SELECT le_become_leader('line', identity => 'a')$$), le_resign('line', :t7), answer('a');
-- a bid that the first in line denies is shown, unless it is for another name with the same key
SELECT le_try_become_leader('worker-queue-mail.sender'), pg_advisory_unlock_all();
SELECT waits('a', $$SELECT le_become_leader('worker-queue-mail.sender')$$, 'grace');
SELECT le_try_become_leader('worker-queue-mail.sender', identity => 'shown');
SELECT le_try_become_leader('HwFfjYHs9PGi-Rwb-Amyj4y5', identity => 'not shown');
SELECT name, last_denied_identity FROM pg_stat_leader_election WHERE key = hashtextextended('worker-queue-mail.sender', 0) AND name IS NOT NULL;
SELECT cancel('a'), answer('a');
SELECT dblink_disconnect(who) FROM unnest('{a,b,c,d,r}'::text[]) who;

-- the end of a term is known by its key, whatever name the election has had since
\set a worker-queue-mail.sender
\set b HwFfjYHs9PGi-Rwb-Amyj4y5
SET leader_election.grace_period = 0;
SELECT le_try_become_leader(:'a'), pg_advisory_unlock_all();
SET leader_election.grace_period = '1h';
SELECT now(:'b'), now(:'a'), now(:'b');
SET leader_election.grace_period = 0;
SELECT le_try_become_leader(:'b'), le_resign(:'b');

-- leases that end with the extension
SELECT le_lease('dropped', '1 hour') > 0 AS taken, le_try_become_leader('dropped and resigned');
SET client_min_messages = error;
DROP EXTENSION leader_election CASCADE;
CREATE EXTENSION leader_election SCHEMA public;
RESET client_min_messages;
SET leader_election.grace_period = '1h';
SELECT le_try_become_leader('dropped'), le_resign('dropped and resigned'), le_try_become_leader('dropped and resigned'), le_resign('dropped and resigned');
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('dropped'), le_resign('dropped');

RESET leader_election.grace_period;
SET client_min_messages = warning;
DROP SCHEMA regress_grace CASCADE;
DROP EXTENSION dblink;
DROP ROLE regress_grace;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
