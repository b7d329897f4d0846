--
-- Code of others that runs in a session, as in ANALYZE or REFRESH MATERIALIZED VIEW,
-- neither begins nor ends anything there
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE ROLE regress_le_mallory;
CREATE ROLE regress_le_boss;
CREATE SCHEMA regress_restricted AUTHORIZATION regress_le_mallory;
GRANT EXECUTE ON FUNCTION le_declare, le_undeclare, pg_stat_leader_election_reset TO regress_le_mallory;
SET ROLE regress_le_mallory;
SET search_path = regress_restricted, public;
CREATE TABLE statements (id int, statement text);
INSERT INTO statements VALUES
	(1, $$SELECT public.le_am_leader('boss')$$),
	(2, $$SELECT public.le_try_become_leader('x')$$),
	(3, $$SELECT public.le_try_become_leader('1')$$),
	(4, $$SELECT public.le_try_become_leader_xact('x')$$),
	(5, $$SELECT public.le_become_leader('x', '0')$$),
	(6, $$SELECT public.le_become_leader_xact('1', '0')$$),
	(7, $$SELECT public.le_lease('x', '1 min')$$),
	(8, $$CALL public.le_campaign('x', '0')$$),
	(9, $$CALL public.le_campaign(ARRAY['x', 'y'], '0')$$),
	(10, $$SELECT public.le_resign('boss')$$),
	(11, $$SELECT public.le_resign('1')$$),
	(12, $$SELECT public.le_resign_all()$$),
	(13, $$SELECT public.le_proclaim('boss', 'evil')$$),
	(14, $$SELECT public.le_assert_leader('boss')$$),
	(15, $$INSERT INTO regress_restricted.guarded VALUES (1)$$),
	(16, $$SELECT public.le_depose('other')$$),
	(18, $$SELECT public.le_declare('boss')$$),
	(19, $$SELECT public.le_undeclare('boss')$$),
	(23, $$SELECT public.pg_stat_leader_election_reset()$$);
CREATE TABLE guarded (i int);
CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION le_guard('boss');
CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN coalesce(answer, 'NULL');
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ': ' || sqlerrm;
END $$;
CREATE MATERIALIZED VIEW tried AS SELECT id, statement, regress_restricted.try(statement) AS answer FROM regress_restricted.statements WITH NO DATA;
CREATE TABLE victim (i int);
CREATE TABLE answers (answer text);
CREATE FUNCTION spy(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RAISE WARNING '%', regress_restricted.try('SELECT public.le_resign_all()');
	RETURN $1;
END $$;
RESET ROLE;
RESET client_min_messages;

-- the session leads, and refreshes another's view
SELECT le_declare('boss', 'regress_le_boss'), le_try_become_leader('boss', identity => 'me');
SELECT le_proclaim('boss', 'good');
REFRESH MATERIALIZED VIEW tried;
SELECT statement, answer FROM tried ORDER BY id;
SELECT name, identity, value FROM le_leaders;
TABLE guarded;
-- analyzes or indexes another's table
INSERT INTO victim VALUES (1);
CREATE INDEX ON victim (spy(i));
ANALYZE victim;
REINDEX TABLE victim;
SELECT le_am_leader('boss');
-- outside of it, another role's code acts for the session as far as it may
SET ROLE regress_le_mallory;
SELECT le_proclaim('boss', 'evil');
SELECT le_try_become_leader('x'), le_proclaim('x', 'not declared');
RESET ROLE;
SELECT name, identity, value FROM le_leaders ORDER BY name;
SELECT le_resign_all();
SELECT le_undeclare('boss');
SET client_min_messages = warning;
DROP SCHEMA regress_restricted CASCADE;
REVOKE EXECUTE ON FUNCTION le_declare, le_undeclare, pg_stat_leader_election_reset FROM regress_le_mallory;
DROP ROLE regress_le_mallory, regress_le_boss;
