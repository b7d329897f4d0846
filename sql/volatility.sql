--
-- The planner keeps its hands off: no folding, no caching, no parallel worker
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
-- each call is made
SELECT le_try_become_leader('job') AS try, le_am_leader('job') AS leads, le_resign('job') AS resign, le_am_leader('job') AS leads_still
FROM generate_series(1, 3);
SELECT le_try_become_leader('job'), le_token('job') AS t1, le_resign('job') \gset
SELECT count(DISTINCT t) FROM (SELECT le_try_become_leader('job'), le_token('job') AS t, le_resign('job') FROM generate_series(1, 5) OFFSET 0) s;

-- generic plans
SET plan_cache_mode = force_generic_plan;
PREPARE leads AS SELECT le_am_leader('job'), le_token('job') IS NOT NULL AS token, (SELECT count(*) FROM le_leaders) AS leaders;
EXECUTE leads;
SELECT le_try_become_leader('job');
EXECUTE leads;
SELECT le_resign('job');
EXECUTE leads;
CREATE FUNCTION pg_temp.leads() RETURNS boolean LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN le_am_leader('job'); END $$;
SELECT pg_temp.leads(), le_try_become_leader('job'), pg_temp.leads(), le_resign('job'), pg_temp.leads();
RESET plan_cache_mode;

-- no parallel worker, however much it is wanted
SELECT count(set_config(name, 'on', false)) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
CREATE TABLE regress_le_t AS SELECT i FROM generate_series(1, 100) i;
ANALYZE regress_le_t;
SELECT le_try_become_leader('job');
EXPLAIN (COSTS OFF) SELECT le_try_become_leader('job') FROM regress_le_t;
EXPLAIN (COSTS OFF) SELECT count(*) FROM regress_le_t WHERE le_am_leader('job');
SELECT count(*) FROM regress_le_t WHERE le_am_leader('job');
SELECT count(*) FROM regress_le_t WHERE le_token('job') IS NOT NULL;
SELECT count(*) FROM regress_le_t, le_leaders;
SELECT count(*) FROM regress_le_t, le_leader('job');
SELECT count(*) FROM le_candidates;
-- in a function that was given a wrong label: an error
\set VERBOSITY terse
CREATE FUNCTION pg_temp.bid() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN le_try_become_leader_xact('another'); END $$;
SELECT pg_temp.bid() FROM regress_le_t LIMIT 1;
\echo :LAST_ERROR_SQLSTATE
SELECT count(set_config(name, 'off', false)) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT le_am_leader('job'), le_resign('job');
DROP TABLE regress_le_t;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
