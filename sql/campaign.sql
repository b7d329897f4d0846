--
-- le_campaign: wait to be elected, in session scope or, with a ttl, in lease scope
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql

-- session scope
CALL le_campaign('job', identity => 'me') \gset
SELECT :token = le_token('job') AS same, le_am_leader('job');
SELECT scope, identity FROM le_leader('job');
\set first :token
-- asked again: the same term
CALL le_campaign('job') \gset
SELECT :token = :first AS same;
SELECT le_resign('job'), le_am_leader('job');

-- lease scope
CALL le_campaign('job', '1 s', identity => 'me', ttl => '1 min') \gset
SELECT le_am_leader('job', :token), le_am_leader('job');
SELECT scope, identity, ttl FROM le_leader('job');
-- with its token: renewed
\set first :token
CALL le_campaign('job', '1 s', identity => 'me', ttl => '2 min', token => :token) \gset
SELECT :token = :first AS same;
SELECT ttl, renewals > 0 AS renewed FROM le_leader('job');
-- without: it has to wait
CALL le_campaign('job', '100 ms');
CALL le_campaign('job', '100 ms', identity => 'me', ttl => '1 min');
CALL le_campaign('job', '0');
-- a token that is over does not matter
SELECT le_resign('job', :token);
CALL le_campaign('job', '1 s', identity => 'me', ttl => '1 min', token => :token) \gset
SELECT :token > :first AS greater, le_resign('job', :token);

-- it waits for the end of a lease
SELECT le_lease('job', '200 ms') AS lease \gset
CALL le_campaign('job', '1 min') \gset
SELECT :token > :lease AS greater, le_resign('job');

-- a lock_timeout that is due earlier is an error
SELECT le_lease('job', '1 min') AS lease \gset
SET lock_timeout = '50 ms';
CALL le_campaign('job', '1 min');
RESET lock_timeout;
SELECT le_resign('job', :lease);

-- in a transaction block it works, too, and there the lease counts from the commit
BEGIN;
CALL le_campaign('job', '1 s', ttl => '1 min') \gset
ROLLBACK;
SELECT le_am_leader('job', :token);
BEGIN;
CALL le_campaign(ARRAY['job'], '1 s', ttl => '1 min') \gset
ROLLBACK;
CALL le_campaign(ARRAY['job'], '1 s', ttl => '1 min') \gset
SELECT le_resign('job', :token);

-- in a function
CREATE FUNCTION regress_campaign() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
BEGIN
	CALL le_campaign('job', token => token);
	RETURN token = le_token('job');
END $$;
SELECT regress_campaign();
SELECT le_resign('job');
DROP FUNCTION regress_campaign;

-- bad input
\set VERBOSITY sqlstate
CALL le_campaign(NULL);
CALL le_campaign('');
CALL le_campaign('job', '-1 s');
CALL le_campaign('job', '1 s', identity => '');
CALL le_campaign('job', '1 s', ttl => '1 ms');
CALL le_campaign('job', '1 s', ttl => '1 month');
\set VERBOSITY terse

-- a session that leads in another way does not wait for itself
SELECT le_try_become_leader('job');
CALL le_campaign('job', '1 s', ttl => '1 min');
SELECT le_resign('job');
