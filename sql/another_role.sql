--
-- Code of another role in a session: functions that are SECURITY DEFINER, and
-- triggers that a foreign key fires
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
CREATE ROLE regress_team;
CREATE ROLE regress_w1 LOGIN IN ROLE regress_team;
CREATE ROLE regress_mallory LOGIN;
CREATE SCHEMA hostile AUTHORIZATION regress_mallory;
CREATE SCHEMA team AUTHORIZATION regress_team;
GRANT USAGE ON SCHEMA hostile, team TO PUBLIC;
SELECT le_declare('vital', 'regress_team');
CREATE TABLE parent (i int PRIMARY KEY);
INSERT INTO parent SELECT generate_series(1, 3);
GRANT REFERENCES ON parent TO regress_mallory;

SET SESSION AUTHORIZATION regress_mallory;
CREATE FUNCTION hostile.bid(name text, heartbeat interval) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_try_become_leader(name, heartbeat => heartbeat)';
CREATE FUNCTION hostile.bid_xact(name text) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_try_become_leader_xact(name)';
CREATE FUNCTION hostile.wait(name text) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_become_leader(name, ''1 s'')';
CREATE FUNCTION hostile.lease(name text) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_lease(name, ''1 min'') IS NOT NULL';
CREATE FUNCTION hostile.beat(name text) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_heartbeat(name)';
CREATE FUNCTION hostile.fill() RETURNS bigint
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT count(public.le_try_become_leader(''fill '' || i)) FROM generate_series(1, 1000) i';
CREATE FUNCTION hostile.fill_xact() RETURNS bigint
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT count(*) FROM generate_series(1, 1000) i WHERE public.le_try_become_leader_xact(''fill '' || i)';
CREATE FUNCTION hostile.campaign() RETURNS bigint
	LANGUAGE plpgsql SECURITY DEFINER
	AS $$ DECLARE t bigint; n text; BEGIN CALL public.le_campaign(ARRAY['trap', 'other'], token => t, name => n); RETURN t; END $$;
CREATE FUNCTION hostile.at_delete() RETURNS trigger
	LANGUAGE plpgsql
	AS $$ BEGIN PERFORM public.le_try_become_leader('trap', heartbeat => '100 ms'); RETURN old; END $$;
CREATE TABLE hostile.child (i int REFERENCES public.parent ON DELETE CASCADE);
INSERT INTO hostile.child SELECT generate_series(1, 3);
CREATE TRIGGER t BEFORE DELETE ON hostile.child FOR EACH ROW EXECUTE FUNCTION hostile.at_delete();

-- its own session is its own
SELECT hostile.bid('own', '1 min'), le_resign('own');
SELECT hostile.bid('vital', '1 min');

-- of a superuser, whose name may be any
RESET SESSION AUTHORIZATION;
\set VERBOSITY sqlstate
SELECT hostile.bid('trap', '100 ms');
SELECT hostile.bid('trap', NULL);
SELECT hostile.wait('trap');
SELECT hostile.fill();
DELETE FROM parent WHERE i = 1;
SELECT hostile.campaign();
\set VERBOSITY default

-- of another role
SET SESSION AUTHORIZATION regress_w1;
SELECT hostile.bid('trap', '100 ms');
SELECT hostile.fill();
SELECT count(*) FROM le_leaders;

-- in an election that the session leads
SELECT le_try_become_leader('vital');
SELECT hostile.bid('vital', '100 ms');
SELECT hostile.bid('vital', NULL);
SELECT hostile.beat('vital');
SELECT scope, heartbeat FROM le_leaders;
SELECT le_resign('vital');
BEGIN;
SELECT le_try_become_leader_xact('vital');
SAVEPOINT a;
SELECT hostile.bid('vital', NULL);
ROLLBACK TO a;
SELECT hostile.bid_xact('vital');
ROLLBACK TO a;
SELECT scope FROM le_leaders;
COMMIT;
SELECT count(*) FROM le_leaders;

-- what ends with the transaction, and what is bound to no session
BEGIN;
SELECT hostile.bid_xact('other'), hostile.lease('lease');
SELECT name, scope FROM le_leaders;
ROLLBACK;
BEGIN;
SELECT hostile.fill_xact();
ROLLBACK;

-- of a role that the session's is a member of, which is no consent, and of one
-- that has the privileges of the session's
SET ROLE regress_team;
CREATE FUNCTION team.bid(name text) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_try_become_leader(name)';
RESET ROLE;
SELECT team.bid('vital'), le_resign('vital');
RESET SESSION AUTHORIZATION;
\set VERBOSITY sqlstate
SELECT team.bid('vital');
\set VERBOSITY default
SET ROLE regress_w1;
SELECT team.bid('vital'), le_resign('vital');
SELECT hostile.bid('trap', NULL);
RESET ROLE;
CREATE FUNCTION root_bid(name text) RETURNS boolean
	LANGUAGE sql SECURITY DEFINER
	AS 'SELECT public.le_try_become_leader(name)';
SET SESSION AUTHORIZATION regress_w1;
SELECT root_bid('vital'), le_resign('vital');
RESET SESSION AUTHORIZATION;

SELECT count(*) FROM le_leaders;

-- a procedure that commits ends SET LOCAL ROLE
\set VERBOSITY terse
DO $$ DECLARE t bigint; BEGIN
	SET LOCAL ROLE regress_mallory;
	CALL le_campaign('local', '1 s', token => t);
END $$;
DO $$ DECLARE t bigint; n text; BEGIN
	SET LOCAL SESSION AUTHORIZATION regress_mallory;
	CALL le_campaign(ARRAY['local'], '1 s', token => t, name => n);
END $$;
DO $$ DECLARE t bigint; BEGIN
	SET LOCAL SESSION AUTHORIZATION regress_mallory;
	SET ROLE regress_mallory;
	CALL le_campaign('local', '1 s', token => t);
END $$;
RESET ROLE;
DO $$ DECLARE v bigint; t bigint; i text; x text; BEGIN
	SET LOCAL ROLE regress_mallory;
	CALL le_observe('local', v, '0', t, i, x);
END $$;
SELECT count(*) FROM le_leaders;
DO $$ DECLARE t bigint; BEGIN
	SET ROLE regress_mallory;
	CALL le_campaign('local', '1 s', token => t);
	RAISE NOTICE '% leads', current_user;
END $$;
SELECT le_resign('local');
RESET ROLE;
BEGIN;
SET LOCAL ROLE regress_mallory;
DO $$ DECLARE t bigint; BEGIN
	CALL le_campaign('local', '1 s', token => t);
	RAISE NOTICE '% leads', current_user;
END $$;
SELECT le_resign('local');
ROLLBACK;
\set VERBOSITY default

SELECT le_undeclare('vital');

-- a function's owner has the lease that it takes; a superuser may renew it, also when the owner is gone
CREATE ROLE regress_owner;
CREATE FUNCTION take() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$
	SELECT public.le_lease('lent', '1 hour', identity => 'me') $$;
CREATE FUNCTION keep(bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$
	SELECT public.le_renew('lent', $1) $$;
ALTER FUNCTION take OWNER TO regress_owner;
ALTER FUNCTION keep OWNER TO regress_owner;
SET ROLE regress_mallory;
SELECT take() AS t \gset
SELECT usename, keep(:t) FROM le_leaders WHERE name = 'lent';
SELECT le_renew('lent', :t);
RESET ROLE;
SELECT le_renew('lent', :t, '4 hours');
DROP FUNCTION take, keep;
DROP ROLE regress_owner;
SELECT usename, le_am_leader('lent', :t), le_renew('lent', :t) FROM le_leaders WHERE name = 'lent';
SET ROLE regress_mallory;
SELECT le_renew('lent', :t);
RESET ROLE;
SELECT le_resign('lent', :t);
DROP FUNCTION root_bid;
SET client_min_messages = warning;
DROP TABLE parent CASCADE;
DROP SCHEMA hostile, team CASCADE;
DROP ROLE regress_w1, regress_mallory, regress_team;
