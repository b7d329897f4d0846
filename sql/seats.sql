--
-- le_seats: names of elections, so that at most so many lead
--
-- Could go wrong: a number of seats, or a name, that makes names which are not what the caller
-- means; seats that are not independent elections.
--
-- editions: C, SQL
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

SELECT le_seats('pool', 3), le_seats('pool', 1), le_seats(n => 2, name => 'a/b');
SELECT pg_typeof(le_seats('pool', 1)), cardinality(le_seats('pool', 10000)), (le_seats('pool', 10000))[10000];
SELECT array_length(le_seats('pool', 3), 1), array_lower(le_seats('pool', 3), 1), array_ndims(le_seats('pool', 3));
SELECT le_seats(E'Pöö l\n{"', 2);

-- arguments that make no names of elections: le_campaign refuses what comes of them
SELECT le_seats('pool', 0), le_seats('pool', -1), le_seats('pool', NULL), le_seats(NULL, 2);
\set VERBOSITY sqlstate
CALL le_campaign(le_seats('pool', 0));
CALL le_campaign(le_seats('pool', NULL));
CALL le_campaign(le_seats(NULL, 3));
CALL le_campaign(le_seats(repeat('x', 253), 10));
\set VERBOSITY default

-- where n is a parameter, without a type
PREPARE seats AS SELECT le_seats($1, $2);
EXECUTE seats('pool', 2);
DEALLOCATE seats;
CREATE TABLE regress_seats (n int GENERATED ALWAYS AS (cardinality(le_seats('pool', 3))) STORED);
DROP TABLE regress_seats;

-- a session leads one more with each call, in their order, and then waits
CALL le_campaign(le_seats('pool', 2), timeout => '0') \gset won_
\echo :won_name
CALL le_campaign(le_seats('pool', 2), timeout => '0') \gset won_
\echo :won_name
CALL le_campaign(le_seats('pool', 2), timeout => '0');
CALL le_campaign(le_seats('pool', 3), timeout => '0', ttl => '1 min') \gset won_
\echo :won_name
SELECT name, scope FROM le_leaders WHERE name ^@ 'pool/' ORDER BY name;
-- each seat is an election: it is resigned by its name
SELECT le_resign('pool/1'), le_am_leader('pool/1'), le_am_leader('pool/2'), le_am_leader('pool/3', :won_token);
CALL le_campaign(le_seats('pool', 2), timeout => '0') \gset won_
\echo :won_name
SELECT le_resign(name, token) FROM le_leader('pool/3');
-- the pool itself is another election
SELECT le_try_become_leader('pool'), le_am_leader('pool/1');
SELECT le_resign_all();

-- as many seats as there can be
CALL le_campaign(le_seats('pool', 10000), timeout => '0', token => NULL, name => NULL) \gset won_
\echo :won_name
SELECT le_resign_all();
