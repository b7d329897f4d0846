"""What is compared in throughput: statements of ours, and what they stand beside.

The first statement of a pair is run once by each client, the second again and
again.  Each client has an election of its own, :name, a key :key for plain
locks, and another election for its lease, :leased.
"""
from dataclasses import dataclass

from clients import NOTHING, QUIET, psql

# what a client has learnt is kept in a variable of pgbench's
GSET = " \\gset\nSELECT 1"
BACKEND_PID = ("SELECT pg_backend_pid()",) * 2
AM_LEADER = ("SELECT le_try_become_leader(:name::text)", "SELECT le_am_leader(:name::text)")
LEADER_OF_NAME = (NOTHING, "SELECT * FROM le_leader('held')")
ELECT = "SELECT le_try_become_leader(:name::text)"
ELECT_RESIGN = (NOTHING, ELECT + ";\nSELECT le_resign(:name::text)")
LOCK = "SELECT pg_try_advisory_lock(:key)"
LOCK_UNLOCK = (NOTHING, LOCK + ";\nSELECT pg_advisory_unlock(:key)")
TRY_LOCK_DENIED = (NOTHING, "SELECT pg_try_advisory_lock(77)")
SELF_CHECK = """SELECT count(*) FROM pg_locks
 WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objid = 10"""
HOLD_LEASE = """SELECT coalesce((SELECT token FROM le_leader(:leased::text)),
 le_lease(:leased, '1 day', identity => 'me')) AS token""" + GSET
HEARTBEAT = ("SELECT le_try_become_leader(:name::text, heartbeat => '1 day')",
             "SELECT le_heartbeat(:name::text)")
RENEW = (HOLD_LEASE, "SELECT le_renew(:leased, :token)")
LEASE = (HOLD_LEASE, "SELECT le_lease(:leased, '1 day', identity => 'me', token => :token)")

# what people write today, with one row for each election
UPSERT_TABLE = """CREATE TABLE lease (key text PRIMARY KEY,
 leader_id text NOT NULL, valid_until timestamptz NOT NULL)"""
UPSERT = """INSERT INTO lease VALUES ({key}, {leader}, now() + '1 day')
 ON CONFLICT (key) DO UPDATE
 SET leader_id = excluded.leader_id, valid_until = excluded.valid_until
 WHERE lease.valid_until < now() OR lease.leader_id = excluded.leader_id"""
UPSERT_OWN = (NOTHING, UPSERT.format(key=":name", leader="'me'"))
UPSERT_DENIED = (NOTHING, UPSERT.format(key="'held'", leader="'follower'"))

# An advisory lock with what le_try_become_leader and le_resign do beside: a token,
# an identity that others can read, a notification and a line in the log for each.
BY_HAND = """CREATE SEQUENCE token_by_hand;
CREATE TABLE leader_by_hand (name text PRIMARY KEY, identity text NOT NULL,
 token bigint NOT NULL);
CREATE FUNCTION elect_by_hand(election text, candidate text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	term bigint;
BEGIN
	IF NOT pg_try_advisory_lock(hashtextextended(election, 0)) THEN
		RETURN false;
	END IF;
	term := nextval('token_by_hand');
	INSERT INTO leader_by_hand VALUES (election, candidate, term)
	ON CONFLICT (name) DO UPDATE
	SET identity = excluded.identity, token = excluded.token;
	PERFORM pg_notify('by_hand', json_build_object('event', 'elected',
		'name', election, 'token', term, 'identity', candidate)::text);
	RAISE LOG 'election "%": term % began: "%" leads', election, term, candidate;
	RETURN true;
END $$;
CREATE FUNCTION resign_by_hand(election text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('by_hand', json_build_object('event', 'vacant',
		'name', election)::text);
	RAISE LOG 'election "%": its term ended: resigned', election;
	RETURN pg_advisory_unlock(hashtextextended(election, 0));
END $$"""
ELECT_RESIGN_BY_HAND = (
    NOTHING, "SELECT elect_by_hand(:name, 'me');\nSELECT resign_by_hand(:name)")

# a write of the leader's, on any of its connections: without a guard, guarded, and
# checked as people do it today, in as many statements
LEADER = """SELECT set_config('leader_election.token', token::text, false), token
 FROM le_leader('leased')""" + GSET
LAZY = "SET synchronous_commit = off;\n"
WRITE = "UPDATE {table} SET n = n + 1 WHERE id = :client_id"
PLAIN = WRITE.format(table="plain")
GUARDED = WRITE.format(table="guarded")
BLOCK = "BEGIN;\n{check};\n" + PLAIN + ";\nCOMMIT"
ASSERTED = BLOCK.format(check="SELECT le_assert_leader('leased', :token)")
EPOCH = "SELECT token FROM epoch WHERE name = 'leased' AND token = :token FOR SHARE"
SHARED = BLOCK.format(check=EPOCH)
SHARED_AT_ONCE = """WITH epoch AS MATERIALIZED (""" + EPOCH + """)
 UPDATE plain SET n = n + 1 FROM epoch WHERE id = :client_id"""
WRITE_TABLES = """CREATE TABLE plain WITH (fillfactor = 50) AS
 SELECT id, 0 AS n FROM generate_series(0, 7) AS id;
 ALTER TABLE plain ADD PRIMARY KEY (id);
 CREATE TABLE guarded (LIKE plain INCLUDING ALL);
 INSERT INTO guarded SELECT * FROM plain;
 CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded
 EXECUTE FUNCTION le_guard('leased');
 CREATE TABLE epoch AS SELECT name, token FROM le_leader('leased');
 ALTER TABLE epoch ADD PRIMARY KEY (name)"""


@dataclass
class Workload:
    """Ours and theirs, each the first and the repeated statements."""
    what: str
    ours: tuple
    against: str
    theirs: tuple
    least: float = None			# ratio that is asked
    options: str = ""			# settings of our sessions
    beside: tuple = None		# what our side has to bear: kind and number


ANNOUNCED = "-c leader_election.notify=on"
BESIDE = (("50,000 other terms", ("terms", 50000)),
          ("100,000 leases", ("leases", 100000)),
          ("5,000 other advisory locks", ("locks", 5000)))

WORKLOADS = [
    Workload("le_am_leader, leading", AM_LEADER,
             "SELECT pg_backend_pid()", BACKEND_PID, 0.95),
    Workload("le_am_leader, beside 5,000 other advisory locks", AM_LEADER,
             "the same without them", AM_LEADER, 0.95, beside=("locks", 5000)),
    Workload("le_leader(name)", LEADER_OF_NAME,
             "SELECT pg_backend_pid()", BACKEND_PID, 0.5),
    *[Workload(f"le_leader(name), beside {crowd}", LEADER_OF_NAME,
               "the same without them", LEADER_OF_NAME, 0.95, beside=beside)
      for crowd, beside in BESIDE],
    Workload("le_try_become_leader, denied",
             (NOTHING, "SELECT le_try_become_leader('held')"),
             "pg_try_advisory_lock, denied", TRY_LOCK_DENIED, 0.95),
    Workload("le_try_become_leader, leading already", (ELECT, ELECT),
             "pg_try_advisory_lock, re-entrant", (LOCK, LOCK), 0.95),
    Workload("le_try_become_leader + le_resign, log_terms off",
             ELECT_RESIGN, "pg_try_advisory_lock + pg_advisory_unlock", LOCK_UNLOCK,
             0.85, options=QUIET),
    Workload("le_try_become_leader + le_resign", ELECT_RESIGN,
             "pg_try_advisory_lock + pg_advisory_unlock", LOCK_UNLOCK),
    Workload("le_try_become_leader + le_resign, notify on", ELECT_RESIGN,
             "pg_try_advisory_lock + pg_advisory_unlock", LOCK_UNLOCK,
             options=ANNOUNCED),
    Workload("le_try_become_leader + le_resign, notify on", ELECT_RESIGN,
             "the same by hand", ELECT_RESIGN_BY_HAND, 2, options=ANNOUNCED),
    Workload("le_try_become_leader + le_resign, notify on, synchronous_commit off",
             (LAZY + NOTHING, ELECT_RESIGN[1]),
             "the same by hand", (LAZY + NOTHING, ELECT_RESIGN_BY_HAND[1]),
             options=ANNOUNCED),
    Workload("le_heartbeat, by the leader", HEARTBEAT,
             "SELECT pg_backend_pid()", BACKEND_PID, 0.90),
    Workload("le_renew, by the holder", RENEW,
             "SELECT pg_backend_pid()", BACKEND_PID, 0.90),
    Workload("le_lease, by the holder", LEASE,
             "SELECT pg_backend_pid()", BACKEND_PID, 0.90),
    Workload("le_renew, by the holder", RENEW,
             "upsert of a lease table, by the holder", UPSERT_OWN, 10),
    Workload("le_lease, by the holder", LEASE,
             "upsert of a lease table, by the holder", UPSERT_OWN, 10),
    Workload("le_lease, denied by a lease",
             (NOTHING, "SELECT le_lease('leased', '1 day')"),
             "pg_try_advisory_lock, denied", TRY_LOCK_DENIED, 0.90),
    Workload("one-row UPDATE, guarded by the trigger le_guard", (LEADER, GUARDED),
             "the same UPDATE without it", (LEADER, PLAIN), 0.90),
    Workload("one-row UPDATE, guarded by the trigger le_guard", (LEADER, GUARDED),
             "the same UPDATE with SELECT ... FOR SHARE in it",
             (LEADER, SHARED_AT_ONCE), 1),
    Workload("one-row UPDATE after le_assert_leader", (LEADER, ASSERTED),
             "the same after SELECT ... FOR SHARE", (LEADER, SHARED), 1),
    Workload("one-row UPDATE, guarded, synchronous_commit off",
             (LAZY + LEADER, GUARDED),
             "the same UPDATE without a guard", (LAZY + LEADER, PLAIN)),
    Workload("one-row UPDATE after le_assert_leader, synchronous_commit off",
             (LAZY + LEADER, ASSERTED),
             "the same after SELECT ... FOR SHARE", (LAZY + LEADER, SHARED)),
    Workload("upsert of a lease table, by the holder", UPSERT_OWN,
             "SELECT pg_backend_pid()", BACKEND_PID),
    Workload("upsert of a lease table, denied", UPSERT_DENIED,
             "SELECT pg_backend_pid()", BACKEND_PID),
    Workload("self-check over pg_locks, beside 5,000 advisory locks",
             (NOTHING, SELF_CHECK),
             "SELECT pg_backend_pid()", BACKEND_PID, beside=("locks", 5000)),
]


def create_tables():
    """Create what the workloads need."""
    psql(UPSERT_TABLE)
    psql("SELECT le_lease('leased', '1 day');"
         + UPSERT.format(key="'held'", leader="'leader'"))
    psql(WRITE_TABLES)
    psql(BY_HAND)


def hold_others(session):
    """Let the session lead and lock what the workloads find led and locked."""
    session.ask("SELECT le_try_become_leader('held'), pg_advisory_lock(77)")
