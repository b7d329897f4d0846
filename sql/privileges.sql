--
-- What a role without any rights can do: elect, look, and no more
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
CREATE ROLE regress_le_nobody;
SELECT le_try_become_leader('of the administrator', identity => 'boss');
SET ROLE regress_le_nobody;

-- all functions
SELECT le_try_become_leader('mine'), le_become_leader('mine too', '1 s');
SELECT le_am_leader('mine'), le_token('mine') > 0 AS token;
BEGIN;
SELECT le_try_become_leader_xact('xact'), le_become_leader_xact('xact too');
COMMIT;

-- all views
SELECT name, identity FROM le_leaders WHERE name LIKE 'of%';
SELECT count(*) FROM le_leaders;
SELECT count(*) FROM le_candidates;
SELECT count(*) FROM _le_locks;
SELECT count(*) FROM le_leader('mine') a, _le_registry_terms() t WHERE t.name = 'mine';
SELECT count(*) FROM _le_registry_candidates(false);
SELECT count(*) > 0 AS counted FROM _le_registry_statistics();

-- not even to read how far the tokens are
SELECT last_value > 0 AS shown FROM le_token_seq;
SELECT nextval('le_token_seq');
SELECT setval('le_token_seq', 1);
ALTER SEQUENCE le_token_seq RESTART;
DROP EXTENSION leader_election;

-- leadership is the session's, whichever role it puts on
SELECT le_resign('of the administrator');
RESET ROLE;
SELECT le_am_leader('mine'), le_resign_all();

-- an administrator may take the functions away
REVOKE EXECUTE ON FUNCTION le_try_become_leader(text, interval, text) FROM PUBLIC;
SET ROLE regress_le_nobody;
SELECT le_try_become_leader('mine');
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_try_become_leader(text, interval, text) TO PUBLIC;

-- a function with another's rights can lend leadership
CREATE FUNCTION pg_temp.elect() RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$
	SELECT le_try_become_leader('lent', identity => 'me') $$;
GRANT EXECUTE ON FUNCTION pg_temp.elect() TO regress_le_nobody;
SET ROLE regress_le_nobody;
SELECT pg_temp.elect(), le_am_leader('lent');
SELECT le_resign('lent');
RESET ROLE;
DROP FUNCTION pg_temp.elect;

-- in a schema of its own, it is closed to all but those with USAGE; a trigger runs for all
-- that may write to its table
CREATE SCHEMA le;
ALTER EXTENSION leader_election SET SCHEMA le;
CREATE ROLE regress_le_app;
GRANT USAGE ON SCHEMA le TO regress_le_app;
CREATE TABLE regress_le_guarded (i int);
CREATE TRIGGER only_the_leader BEFORE INSERT ON regress_le_guarded EXECUTE FUNCTION le.le_guard('closed');
GRANT INSERT ON regress_le_guarded TO regress_le_app, regress_le_nobody;
SET ROLE regress_le_app;
SELECT le.le_lease('closed', '1 min') AS token \gset
SELECT name FROM le.le_leaders;
SELECT set_config('leader_election.token', :'token', false) = :'token' AS set;
INSERT INTO regress_le_guarded VALUES (1);
SET ROLE regress_le_nobody;
SELECT le.le_try_become_leader('open');
CALL le.le_campaign('open');
SELECT name FROM le.le_leaders;
SELECT le.le_resign('closed', 1);
TABLE le.le_declarations;
\set VERBOSITY sqlstate
INSERT INTO regress_le_guarded VALUES (2);
SET leader_election.token = '';
INSERT INTO regress_le_guarded VALUES (2);
\set VERBOSITY default
RESET ROLE;
SELECT le.le_resign('closed', :token);
DROP TABLE regress_le_guarded;
ALTER EXTENSION leader_election SET SCHEMA public;
DROP SCHEMA le;
DROP ROLE regress_le_app, regress_le_nobody;
