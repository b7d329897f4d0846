-- Leases that are given up in the transaction that took them, and what is cleared
-- away in transactions that are rolled back
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

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
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';

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
