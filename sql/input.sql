--
-- What callers may pass
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
\set VERBOSITY terse

-- every call form
SELECT le_try_become_leader('n', NULL, 'i'), le_try_become_leader('n'), le_try_become_leader('n', NULL),
       le_try_become_leader(name => 'n'), le_try_become_leader(name => 'n', identity => 'i'), le_try_become_leader('n', identity => 'i');
SELECT le_become_leader('n'), le_become_leader('n', '1 s'), le_become_leader('n', NULL), le_become_leader('n', NULL, NULL, 'i'),
       le_become_leader('n', identity => 'i'), le_become_leader('n', timeout => '1 s'),
       le_become_leader(identity => 'i', timeout => '0', name => 'n');
SELECT le_am_leader('n'), le_am_leader(name => 'n'), le_am_leader('n', NULL), le_am_leader('n', NULL, 'i'), le_am_leader('n', identity => 'i'),
       le_am_leader('n', token => NULL), le_token('n') = le_token(name => 'n') AS token;
SELECT count(*) FROM le_leader('n') a, le_leader(name => 'n') b;
SELECT le_resign(name => 'n', identity => 'i');
BEGIN;
SELECT le_try_become_leader_xact('n', 'i'), le_try_become_leader_xact('n'), le_try_become_leader_xact(name => 'n', identity => 'i'),
       le_become_leader_xact('n'), le_become_leader_xact('n', '1 s'), le_become_leader_xact('n', '1 s', 'i'),
       le_become_leader_xact('n', identity => 'i'), le_become_leader_xact('n', timeout => '1 s');
COMMIT;
SELECT le_resign_all();

-- types that are no names
SELECT le_try_become_leader(1);
SELECT le_try_become_leader(1.5);
SELECT le_try_become_leader(true);
SELECT le_try_become_leader('n'::varchar), le_am_leader('n'::name), le_am_leader('n'::text), le_resign('n');
SELECT le_become_leader('n', 5);
SELECT le_become_leader('n', '5 parsecs');
SELECT le_become_leader('n', 'i'::text);
-- the identity comes last: it is not taken for what comes before it
SELECT le_try_become_leader('n', 'i');
SELECT le_become_leader('n', NULL, 'i');
SELECT le_lease('n', '1 s', 'i');
CALL le_campaign('n', '1 s', 'i');
SELECT le_try_become_leader('n', '1 h', 'i'), le_become_leader('m', '1 s', '2 h', 'j'),
       le_lease('l', '1 h', NULL, 'k') IS NOT NULL AS lease;
SELECT name, identity, heartbeat, ttl FROM le_leaders ORDER BY name;
SELECT le_resign_all(), le_resign(name, token) FROM le_leader('l');
SELECT le_try_become_leader();

-- NULL is an error, never a NULL that a client takes for false
\set VERBOSITY default
SELECT le_try_become_leader(NULL);
\set VERBOSITY terse
CREATE FUNCTION pg_temp.state_of(call text) RETURNS text LANGUAGE plpgsql
SET client_min_messages = warning AS $$
DECLARE
	result text;
BEGIN
	EXECUTE 'SELECT ' || call INTO result;
	RETURN coalesce(result, 'null');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;
SELECT f || a AS call, pg_temp.state_of(f || a)
FROM unnest('{le_try_become_leader,le_become_leader,le_try_become_leader_xact,le_become_leader_xact,le_am_leader,le_token,le_resign}'::text[]) WITH ORDINALITY f(f, i),
     unnest(ARRAY['(NULL)', '('''')', '(repeat(''n'', 256))']) WITH ORDINALITY a(a, j)
ORDER BY i, j;

-- the look-ups say so, too, with or without a leader
SELECT pg_temp.state_of('count(*) FROM le_leader(NULL::text)') AS null_name,
       pg_temp.state_of('count(*) FROM le_leader('''')') AS empty,
       pg_temp.state_of('count(*) FROM le_leader(repeat(''n'', 256))') AS long;
SELECT le_try_become_leader('n');
SELECT pg_temp.state_of('count(*) FROM le_leader(NULL::text)') AS null_name,
       pg_temp.state_of('count(*) FROM le_leader('''')') AS empty,
       pg_temp.state_of('count(*) FROM le_leader(repeat(''n'', 256))') AS long;
SELECT le_resign('n');

-- 1 to 255 bytes
\set VERBOSITY default
SELECT le_try_become_leader('');
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader(repeat('n', 256));
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader('n', identity => '');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('n', '0', identity => repeat('i', 256));
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader(repeat('n', 100000));
\set VERBOSITY terse
SELECT le_try_become_leader(repeat('n', 255), identity => repeat('i', 255)), le_try_become_leader('x'), le_try_become_leader(' ');
SELECT length(name), length(identity), name = repeat('n', 255) AS name, key = hashtextextended(name, 0) AS key
FROM le_leader(repeat('n', 255));
SELECT le_am_leader(repeat('n', 254)), le_resign(repeat('n', 255)), le_resign('x'), le_resign(' ');
-- bytes, not characters
SELECT le_try_become_leader(repeat('ü', 127) || 'x'), le_am_leader(repeat('ü', 127) || 'x');
SELECT le_try_become_leader(repeat('ü', 128));
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader('n', identity => repeat('€', 85));
SELECT identity = repeat('€', 85) AS identity FROM le_leader('n');
SELECT le_try_become_leader('m', identity => repeat('€', 85) || 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign_all();
-- a compressed or toasted name
CREATE TEMP TABLE names (n text);
ALTER TABLE names ALTER n SET STORAGE EXTERNAL;
INSERT INTO names VALUES (repeat('t', 200)), (repeat('t', 3000));
SELECT length(n), pg_temp.state_of(format('le_try_become_leader(%L)', n)) FROM names;
SELECT le_try_become_leader(n) FROM names WHERE length(n) > 255;
SELECT le_am_leader(n), le_resign(n) FROM names WHERE length(n) < 255;

-- a wrong argument is an error for a leader, too
SELECT le_try_become_leader('n');
SELECT le_try_become_leader('n', identity => ''), 'not reached';
SELECT le_become_leader('n', '-1 s'), 'not reached';
SELECT le_become_leader('n', '1 year'), 'not reached';
SELECT le_am_leader('n'), le_resign('n');

-- what a driver makes of an array without its type is no name
\set VERBOSITY default
SELECT le_try_become_leader('{a,b}');
\echo :LAST_ERROR_SQLSTATE
SELECT call, pg_temp.state_of(call)
FROM unnest(ARRAY[
 $$le_try_become_leader('{}')$$, $$le_try_become_leader('{a b}')$$,
 $$le_become_leader('{n}', '0')$$, $$le_try_become_leader_xact('{n}')$$, $$le_become_leader_xact('{n}', '0')$$, $$le_am_leader('{n}')$$, $$le_am_leader('{n}', 1)$$,
 $$le_token('{n}')$$, $$le_resign('{n}')$$, $$le_resign('{n}', 1)$$, $$le_lease('{n}', '1 s')$$, $$le_renew('{n}', 1)$$, $$le_assert_leader('{n}')$$,
 $$le_proclaim('{n}', 'v')$$, $$le_depose('{n}')$$, $$count(*) FROM le_leader('{n}')$$]) call;
CALL le_campaign('{job}');
CALL le_campaign(ARRAY['job', '{job}']);
CALL le_campaign('{job,{}}');
CALL le_observe('{job}');
-- but everything else is, also a number
SELECT n, pg_temp.state_of(format('le_try_become_leader(%L)', n))
FROM unnest(ARRAY['0', '-1', '+1', '01', '9223372036854775808', '007', '1.5', '{', '}', '{a', 'a}', ' {a}', '[a]', U&'\0661']) n;
SELECT le_am_leader('1'), le_resign('0'), le_resign('01'), le_resign_all();

-- quotes, newlines, case and spaces: every byte counts
\set VERBOSITY default
SELECT le_try_become_leader(n) FROM unnest(ARRAY['a"b', 'a''b', E'a\nb', E'a\tb', 'a\b', 'A"B', 'a b', 'a b ', '%s%d%n', 'ünïcödé ✓']) n;
SELECT name, key = hashtextextended(name, 0) AS key FROM le_leaders ORDER BY name COLLATE "C";
SELECT le_am_leader('a"B'), le_am_leader(' a b'), le_am_leader('unicode');
SELECT le_resign('%s%d%n'), le_resign('a"b'), le_resign(E'a\nb');
SELECT le_resign('%s%d%n');
SELECT le_resign('ünïcödé ✓') FROM generate_series(1, 2);
SELECT le_resign_all();
-- in messages, names and identities stay on one line, and within their quotes
SELECT le_resign('a"b');
SELECT le_resign(E'a\nb\x7f');
SELECT le_try_become_leader(U&'{a\000Ab\0085\061C\2028\202E\2069ü}');
SELECT le_try_become_leader(E'a\\\nb', identity => E'"\r\n'), le_try_become_leader(E'a\\\nb', identity => 'other');
SELECT le_resign_all();

-- timeouts
SELECT le_become_leader('n', '-1 ms');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('n', '2147483648 ms');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY terse
SELECT t, pg_temp.state_of(format('le_become_leader(%L, %L)', 'n', t))
FROM unnest(ARRAY['0', '00:00', '1 us', '1 ms', '2147483647 ms', '2147483646.5 ms', '24 days 20:31:23.647', '24 days', '1 day -23:59:59.999',
                  '1 month -30 days', '1 month -29 days', '-1 day +24:00:00', '-1 month +31 days',
                  '-1 us', '-999 us', '-0.5 ms', '-1 s', '-1 day', '-1 month', '1 month -31 days', '1 day -24:00:01',
                  '2147483647.001 ms', '24 days 20:31:23.648', '25 days', '1 month', '1 year', '178000000 years', '-178000000 years']) WITH ORDINALITY AS v(t, i)
ORDER BY i;
SELECT le_resign_all();
SELECT le_become_leader_xact('n', '-1 ms');
SELECT le_become_leader_xact('n', '25 days');

-- parameters without a type: text is preferred
PREPARE bid AS SELECT le_try_become_leader($1);
PREPARE bid_as AS SELECT le_become_leader($1, $2, $3, $4);
PREPARE resign AS SELECT le_resign($1);
SELECT name, parameter_types FROM pg_prepared_statements ORDER BY name;
EXECUTE bid('prepared');
EXECUTE bid_as('other', '1 s', NULL, 'me');
EXECUTE bid(12);
PREPARE am AS SELECT le_am_leader($1);
PREPARE am_by AS SELECT le_am_leader($1, $2);
PREPARE am_as AS SELECT le_am_leader($1, $2, $3);
PREPARE am_named AS SELECT le_am_leader($1, identity => $2);
PREPARE resign_as AS SELECT le_resign($1, $2, $3);
SELECT name, parameter_types FROM pg_prepared_statements WHERE name ~ '^am|_as$' ORDER BY name;
EXECUTE am('other');
EXECUTE am_by('other', NULL);
EXECUTE am_as('other', NULL, 'me');
EXECUTE am_named('other', 'you');
EXECUTE resign_as('other', NULL, 'you');
SELECT name FROM le_leaders ORDER BY name;
EXECUTE bid(NULL);
EXECUTE resign('prepared');
SELECT le_resign_all();
DEALLOCATE ALL;
