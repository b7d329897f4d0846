--
-- Leases at all isolation levels, and in read-only transactions
--
-- The transaction's snapshot is older than all that it asks about.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
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
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT name FROM le_leases WHERE ttl > '0';
