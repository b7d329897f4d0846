# The SQL edition: guards, takeovers, and roles that mean harm.
#
# Wrong outcomes: a stale writer that commits, at any isolation level; two leaders; an election that
# stays vacant because of a bid that was refused, rolled back or canceled, or because of a session
# that takes the lock without leading; a candidate that fails because of another one; a lease that is
# granted, or runs anew, too early; code of another role that runs with the rights of a caller or of
# the owner; a page of the tables that stays locked until a client has read why its transaction failed.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;

my $node = sql_edition_server('sql_edition_races', allows_streaming => 1);
my %as_app = (user => 'app');
my $admin = session($node);

sub waits_for_lock
{
	my ($client, $test) = @_;
	return ok(ask_until($admin, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $client->{pid}", 'Lock'), $test);
}

subtest 'guards' => sub {
	my ($leader, $guard, $next) = map { session($node, %as_app) } 1 .. 3;
	ask($admin, 'CREATE TABLE invoice (id integer); GRANT ALL ON invoice TO app, mallory',
		q{CREATE TRIGGER only_the_leader BEFORE INSERT ON invoice FOR EACH ROW EXECUTE FUNCTION le_guard('billing')});
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		my $begin = "BEGIN ISOLATION LEVEL $level";
		my $token = ask($leader, q{SELECT le_lease('billing', '1 min')});
		ask($guard, $begin, "SELECT le_assert_leader('billing', $token)");
		is($guard->{code}, '', "$level: guarded");
		is(ask($leader, q{SET lock_timeout = '1 s'}, "SELECT le_renew('billing', $token)"), 't', 'a renewal passes');
		is(ask($leader, "SELECT le_resign('billing', $token)"), 't', 'and so does a resignation');
		is(ask($next, q{SELECT le_lease('billing', '1 min')}), '', 'but no new term begins');
		ask($guard, 'COMMIT');
		my $new = ask($next, q{SELECT le_lease('billing', '1 min')});
		cmp_ok($new, '>', $token, 'until the commit');
		fails($guard, "SELECT le_assert_leader('billing', $token)", 'LE001', 'the old token');

		# a stale writer: its snapshot knows nothing of the successor
		ask($guard, $begin, 'SELECT count(*) FROM invoice');
		ask($next, "SELECT le_resign('billing', $new)");
		my $newer = ask($next, q{SELECT le_lease('billing', '1 min')});
		fails($guard, "SELECT le_assert_leader('billing', $new)", '40001', 'a stale writer');
		ask($guard, 'ROLLBACK');

		# a snapshot from before a renewal
		ask($guard, $begin, 'SELECT count(*) FROM invoice');
		ask($next, "SELECT le_renew('billing', $newer)");
		ask($guard, "SELECT le_assert_leader('billing', $newer)");
		is($guard->{code}, '', 'a renewal since the snapshot is no harm');
		ask($guard, 'COMMIT');

		# a short lease that was renewed since the snapshot
		ask($next, "SELECT le_renew('billing', $newer, '300 ms')");
		ask($guard, $begin, 'SELECT count(*) FROM invoice');
		ask($next, "SELECT le_renew('billing', $newer, '1 min')", 'SELECT pg_sleep(0.4)');
		ask($guard, "SELECT le_assert_leader('billing', $newer)");
		is($guard->{code}, '', 'nor a deadline of the snapshot that has passed');
		ask($guard, 'ROLLBACK');

		# a guard that waits for a successor that is not committed
		ask($guard, $begin, 'SELECT count(*) FROM invoice');
		ask($next, "SELECT le_resign('billing', $newer)");
		ask($next, 'BEGIN', q{SELECT le_lease('billing', '1 min')});
		post($guard, "SELECT le_assert_leader('billing', $newer)");
		waits_for_lock($guard, 'a guard waits for a successor');
		fails($leader, "$begin; SELECT le_assert_leader('billing', $newer)", 'LE001', 'one that knows that its term has ended does not');
		ask($leader, 'ROLLBACK');
		ask($next, 'COMMIT');
		my $last = ask($next, q{SELECT token FROM le_leader('billing')});
		collect($guard);
		is($guard->{code}, '40001', 'the old token is refused');
		ask($guard, 'ROLLBACK');

		# the trigger
		ask($guard, $begin, "SET LOCAL leader_election.token = '$last'", 'INSERT INTO invoice VALUES (1)', 'COMMIT');
		is($guard->{code}, '', 'the trigger lets the leader write');
		ask($guard, $begin, "SET LOCAL leader_election.token = '$newer'");
		fails($guard, 'INSERT INTO invoice VALUES (1)', 'LE001', 'not a former one');
		ask($guard, 'ROLLBACK', "SET leader_election.token = 'x'");
		fails($guard, 'INSERT INTO invoice VALUES (1)', '22023', 'nor with one that is none');
		ask($guard, 'RESET leader_election.token');
		ask($next, "SELECT le_resign('billing', $last)");
	}
	end_session($leader, $guard, $next);
};

subtest 'a bid that is denied locks nothing' => sub {
	my ($one, $two) = map { session($node, %as_app) } 1 .. 2;
	my $token = ask($one, q{SELECT le_lease('denied', '1 min')});
	ask($two, 'BEGIN', q{SELECT le_lease('denied', '1 min'), le_try_become_leader('denied')});
	ask($one, q{SET lock_timeout = '1 s'});
	is(ask($one, "SELECT le_renew('denied', $token)"), 't', 'the lease is renewed meanwhile');
	ask($two, 'ROLLBACK');
	# neither does one that has seen the election free, and comes too late: it is held up in between
	ask($one, "SELECT le_resign('denied', $token)");
	ask($admin, q{DO $$ BEGIN EXECUTE replace(pg_get_functiondef('le._le_bid'::regproc),
		'-- decide under the lock', E'PERFORM pg_advisory_xact_lock(-1);\n-- decide under the lock'); END $$});
	ask($admin, 'SELECT pg_advisory_lock(-1)');
	ask($two, 'BEGIN');
	post($two, q{SELECT le_lease('denied', '1 min')});
	waits_for_lock($two, 'a bid before the decision');
	ask($admin, q{UPDATE le.le_elections SET token = nextval('le.le_token_seq'), scope = 'lease', ended = NULL, renewed_at = clock_timestamp(), lasts = '1 min' WHERE name = 'denied'},
		'SELECT pg_advisory_unlock(-1)');
	is(collect($two), '', 'denied');
	is(ask($one, "SELECT le_renew('denied', token) FROM le_leader('denied')"), 't', 'the new lease is renewed meanwhile');
	ask($two, 'ROLLBACK');
	my ($status) = run_script($node, 'postgres');
	is($status, 0, 'the script mends its functions');
	ask($one, q{SELECT le_resign('denied', token) FROM le_leader('denied')});
	end_session($one, $two);
};

subtest 'the session of the leader crashes' => sub {
	my @times;
	foreach (1 .. 5)
	{
		my ($leader, $next) = map { session($node, %as_app) } 1 .. 2;
		is(ask($leader, q{SELECT le_try_become_leader('crash')}), 't', 'elected');
		post($next, q{CALL le_campaign('crash', '1 min')});
		ok(ask_until($admin, q{SELECT position FROM le_candidates WHERE name = 'crash'}, '1'), 'a candidate');
		my $from = monotonic();
		kill_client($leader);
		cmp_ok(collect($next), '>', 0, 'the candidate is elected');
		push @times, monotonic() - $from;
		end_session($next);
	}
	note "takeover after: @times";
	cmp_ok((sort { $a <=> $b } @times)[-1], '<', 1, 'within a second');
	# a campaign with a lease takes over from a session
	my ($leader, $next) = map { session($node, %as_app) } 1 .. 2;
	is(ask($leader, q{SELECT le_try_become_leader('crash')}), 't', 'elected');
	post($next, q{CALL le_campaign('crash', '1 min', ttl => '10 s')});
	ok(ask_until($admin, q{SELECT position FROM le_candidates WHERE name = 'crash'}, '1'), 'a candidate for a lease');
	kill_client($leader);
	my $token = collect($next);
	is(ask($admin, q{SELECT scope FROM le_leader('crash')}), 'lease', 'is elected');
	ask($next, "SELECT le_resign('crash', $token)");
	end_session($next);
};

subtest 'many candidates' => sub {
	my @clients = map { session($node, %as_app) } 1 .. 30;
	collect($_) foreach map { post($_, q{CALL le_campaign('crowd')}); $_ } $clients[0];
	foreach my $i (1 .. 29)
	{
		post($clients[$i], q{CALL le_campaign('crowd')});
		ask_until($admin, q{SELECT candidates FROM le_leader('crowd')}, $i) or die;
	}
	my %by_pid = map { $_->{pid} => $_ } @clients;
	my $leader = $clients[0];
	my ($last, %led) = (0, $leader->{pid} => 1);
	foreach my $round (1 .. 29)
	{
		if ($round % 2) { is(ask($leader, q{SELECT le_resign('crowd')}), 't', 'resigned'); }
		else { kill_client($leader); }
		my $from = monotonic();
		ok(ask_until($admin, qq{SELECT token > $last FROM le_leader('crowd') WHERE pid <> $leader->{pid}}), 'the next, with a greater token');
		cmp_ok(monotonic() - $from, '<', 2, 'soon');
		($last, my $pid) = split /\|/, ask($admin, q{SELECT token, pid FROM le_leader('crowd')});
		$leader = $by_pid{$pid};
		cmp_ok(collect($leader), '==', $last, 'knows its token');
		$led{$pid}++;
	}
	is(join(' ', values %led), join(' ', (1) x 30), 'each leads once');
	end_session(@clients);
};

subtest 'a campaign that is canceled' => sub {
	my ($leader, $next, $other) = map { session($node, %as_app) } 1 .. 3;
	my ($elected, $canceled, $locked) = (0, 0, 0);
	my $rounds = $ENV{CANCELS} // 200;
	foreach my $round (1 .. $rounds)
	{
		ask_until($leader, q{SELECT le_try_become_leader('cancel')}) or die;
		post($next, q{CALL le_campaign('cancel', '10 s')});
		ask_until($admin, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $next->{pid}", 'Lock') if $round % 10;
		post($leader, q{SELECT le_resign('cancel')});
		Time::HiRes::usleep(rand 2500);
		ask($admin, "SELECT pg_cancel_backend($next->{pid})");
		collect($leader);
		collect($next);
		if ($next->{code} eq '')
		{
			$elected++;
			# a cancel that came late is for the next statement
			ask_until($next, q{SELECT le_resign('cancel')}) or die;
		}
		else
		{
			$canceled++;
			my $messages = $next->{messages};
			# a beacon that was taken before the cancel is released by the next bid at the latest
			ask($next, q{SELECT le_resign_all()});
			if (backend_holds($admin, $next->{pid}) ne '0|0')
			{
				$locked++;
				diag("round $round: $messages", ask($admin, q{SELECT token, pid, scope, ended FROM le.le_elections WHERE name = 'cancel'}), " $next->{pid} ",
					ask($admin, "SELECT e.beacon IS NOT NULL FROM pg_locks l LEFT JOIN le.le_elections e ON e.beacon = l.classid::bigint << 32 | l.objid::bigint WHERE l.locktype = 'advisory' AND l.pid = $next->{pid}"));
				ask($next, 'SELECT pg_advisory_unlock_all()');
			}
		}
	}
	note "elected $elected times, canceled $canceled times";
	cmp_ok($elected, '>', $rounds / 20, 'some campaigns ended before the cancel');
	cmp_ok($canceled, '>', $rounds / 20, 'and some after it');
	is($locked, 0, 'a canceled campaign leaves no lock behind');
	is(backend_holds($admin, $next->{pid}), '0|0', 'nor does the last one');
	ask($leader, q{SELECT le_try_become_leader('cancel')});
	ask($next, q{SET statement_timeout = '200 ms'});
	# where it cannot commit
	ask($next, q{CREATE FUNCTION pg_temp.campaign() RETURNS void LANGUAGE plpgsql AS $$ DECLARE t bigint; BEGIN CALL le_campaign('cancel', token => t); END $$});
	fails($next, $_, '57014', "it waits all the same: $_") foreach q{SELECT 1; CALL le_campaign('cancel')}, q{BEGIN; CALL le_campaign('cancel')},
	  q{ROLLBACK; BEGIN; CALL le_campaign('{cancel}'::text[])}, q{ROLLBACK; SELECT pg_temp.campaign()},
	  q{DO $$ DECLARE t bigint; BEGIN CALL le_campaign('cancel', token => t); EXCEPTION WHEN division_by_zero THEN NULL; END $$};
	# a role for a transaction that has ended
	fails($admin, "DO \$\$ DECLARE t bigint; n text; BEGIN SET LOCAL ROLE app; CALL le_campaign($_); END \$\$", '2D000', "in the role that bids first: $_")
	  foreach q{'cancel', '1 min', token => t}, q{'{cancel}'::text[], '1 min', token => t, name => n};
	fails($admin, q{DO $$ DECLARE t bigint; BEGIN SET LOCAL SESSION AUTHORIZATION app; SET ROLE app; CALL le_campaign('cancel', '1 min', token => t); END $$},
		'2D000', 'and in the session of that role');
	ask($admin, 'RESET ROLE');
	fails($admin, q{DO $$ DECLARE v bigint; t bigint; i text; x text; BEGIN CALL le_observe('cancel', v, '0', t, i, x); SET LOCAL ROLE app; CALL le_observe('cancel', v, '1 min', t, i, x); END $$},
		'2D000', 'and observes');
	ask($next, 'RESET statement_timeout');
	ask($leader, q{SELECT le_resign('cancel')});

	# the commit waits to send notifications, as that of another session waits for a standby meanwhile
	ask($next, 'SET leader_election.notify = on');
	ask($admin, q{ALTER SYSTEM SET synchronous_standby_names = 'none'}, q{SELECT pg_reload_conf()});
	ask_until($other, q{SHOW synchronous_standby_names}, 'none') or die;
	post($other, q{NOTIFY other});
	until (ask($admin, "SELECT wait_event FROM pg_stat_activity WHERE pid = $other->{pid}") eq 'SyncRep')
	{
		# the checkpointer tells the others when it has read the setting
		hear(0.01, $other);
		post($other, q{NOTIFY other}) if $other->{ready};
	}
	foreach my $call (q{SELECT le_resign_all()}, q{SELECT le_try_become_leader('another')})
	{
		ask($next, 'SET synchronous_commit = local');
		post($next, q{SELECT le_try_become_leader('cancel')});
		ask_until($admin, "SELECT wait_event FROM pg_stat_activity WHERE pid = $next->{pid}", 'object') or die;
		ask($admin, "SELECT pg_cancel_backend($next->{pid})");
		collect($next);
		is($next->{code}, '57014', 'canceled while the commit waits');
		is(backend_holds($admin, $next->{pid}), '2|0', 'two locks are left');
		is(ask($next, q{SELECT le_am_leader('cancel')}), 'f', 'which do not lead');
		post($next, 'BEGIN', $call, 'ROLLBACK');
		collect($next);
		is(backend_holds($admin, $next->{pid}), '0|0', 'and which the next call releases');
	}
	ask($admin, q{ALTER SYSTEM RESET synchronous_standby_names}, q{SELECT pg_reload_conf()});
	collect($other);
	end_session($leader, $next, $other);
};

subtest 'SET CONSTRAINTS' => sub {
	my ($one, $two) = map { session($node, %as_app) } 1 .. 2;
	foreach my $end ('ROLLBACK', 'ROLLBACK TO a', q{SELECT le_resign('constraints')})
	{
		ask($one, 'BEGIN', 'SET CONSTRAINTS ALL IMMEDIATE', 'SAVEPOINT a', q{SELECT le_try_become_leader('constraints')}, $end, 'COMMIT');
		is(ask($one, q{SELECT le_am_leader('constraints')}), 'f', "$end: does not lead");
		is(ask($two, q{SELECT le_try_become_leader('constraints'), le_resign('constraints')}), 't|t', 'another does');
		is(ask($one, q{SELECT le_resign_all()}), '0', 'no term is left');
		is(backend_holds($admin, $one->{pid}), '0|0', 'nor a lock');
	}
	ask($one, 'BEGIN', q{SELECT le_try_become_leader('constraints')}, 'SET CONSTRAINTS ALL IMMEDIATE', 'COMMIT');
	is(ask($one, q{SELECT le_am_leader('constraints')}), 't', 'committed');
	is(ask($two, q{SELECT le_try_become_leader('constraints')}), 'f', 'once');
	is(ask($one, q{SELECT le_resign('constraints')}), 't', 'resigned');
	is(backend_holds($admin, $one->{pid}), '0|0', 'no lock is left');
	end_session($one, $two);
};

subtest 'waiting without an old snapshot' => sub {
	my ($leader, $next) = map { session($node, %as_app) } 1 .. 2;
	ask($leader, q{SELECT le_try_become_leader('snapshot')});
	post($next, q{CALL le_campaign('snapshot', '1 min')});
	waits_for_lock($next, 'a candidate waits');
	my $start = ask($admin, "SELECT xact_start FROM pg_stat_activity WHERE pid = $next->{pid}");
	ok(ask_until($admin, "SELECT xact_start > '$start' FROM pg_stat_activity WHERE pid = $next->{pid}", 't', 15), 'it begins another transaction within 15 s');
	# at the other isolation levels
	my $strict = session($node, %as_app, options => '-c default_transaction_isolation=serializable');
	post($strict, q{CALL le_campaign('snapshot', '1 min', ttl => '1 min')});
	ok(ask_until($admin, q{SELECT candidates FROM le_leader('snapshot')}, '2'), 'one that is serializable');
	ask($leader, q{SELECT le_resign('snapshot')});
	cmp_ok(collect($next), '>', 0, 'elected');
	end_session($next);
	cmp_ok(collect($strict), '>', 0, 'and so is the other');
	is(backend_holds($admin, $strict->{pid}), '0|0', 'no lock is left');
	ask($strict, q{SELECT le_resign('snapshot', token) FROM le_leader('snapshot')});
	end_session($leader, $strict);
};

subtest 'waiting with an old snapshot' => sub {
	my ($leader, $old, $next) = map { session($node, %as_app) } 1 .. 3;
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		my $token = ask($leader, q{SELECT le_lease('old', '1 min')});
		ask($old, "BEGIN ISOLATION LEVEL $level");
		post($old, q{SELECT le_become_leader('old', '30 s')});
		ok(ask_until($admin, q{SELECT pid FROM le_candidates WHERE name = 'old' AND position = 1}, $old->{pid}), "$level: first in line");
		post($next, q{CALL le_campaign('old', ttl => '1 min')});
		waits_for_lock($next, 'another candidate behind it');
		is(ask($leader, "SELECT le_resign('old', $token)"), 't', 'the leader resigns');
		my $from = monotonic();
		$token = collect($next);
		cmp_ok($token, '>', 0, 'the other candidate is elected');
		cmp_ok(monotonic() - $from, '<', 6, 'soon');
		ask($admin, "SELECT pg_cancel_backend($old->{pid})");
		collect($old);
		ask($old, 'ROLLBACK');
		ask($next, "SELECT le_resign('old', $token)");
	}
	end_session($leader, $old, $next);
};

subtest 'an old snapshot, and a row that was changed since' => sub {
	my ($old, $other) = map { session($node, %as_app) } 1 .. 2;
	ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1');
	is(ask($other, q{SELECT le_try_become_leader('fresh'), le_resign('fresh')}), 't|t', 'another transaction adds the election');
	is(ask($old, q{SELECT le_lease('fresh', '1 s')}) . $old->{code}, '', 'a bid is denied');
	ask($old, 'ROLLBACK');
	ask($admin, q{SELECT pg_advisory_lock(~beacon) FROM le.le_elections WHERE name = 'fresh'});
	ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1');
	is(ask($other, q{SELECT le_lease('fresh', '1 s')}), '', 'another transaction finds the line held');
	is(ask($old, q{SELECT le_lease('fresh', '1 s')}) . $old->{code}, '', 'a bid is denied');
	ask($old, 'ROLLBACK');
	ask($admin, 'SELECT pg_advisory_unlock_all()');
	# of a table that was rewritten, the rows do not tell that their key was changed
	my $token = ask($other, q{SELECT le_lease('fresh', '1 min')});
	ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1');
	ask($other, "SELECT le_resign('fresh', $token)");
	like(ask($other, q{SELECT le_lease('fresh', '1 min')}), qr/^\d+$/, 'the lease ends, and another is granted');
	ask($admin, 'VACUUM FULL le.le_elections');
	ask($old, 'SAVEPOINT s');
	foreach my $call ("le_assert_leader('fresh', $token)", "le_proclaim('fresh', 'value', $token)")
	{
		fails($old, "SELECT $call", '40001', "by the former token after VACUUM FULL: $call");
		ask($old, 'ROLLBACK TO s');
	}
	is(ask($old, q{SELECT le_proclaim('fresh', 'value')}), 'f', 'one who does not lead proclaims nothing');
	ask($old, 'ROLLBACK');
	end_session($old, $other);
};

subtest 'the token of another role' => sub {
	my ($leader, $stranger) = (session($node, %as_app), session($node, user => 'mallory'));
	my $token = ask($leader, q{SELECT le_lease('guarded', '1 min')});
	ask($admin, 'BEGIN', q{SELECT FROM le.le_elections WHERE name = 'guarded' FOR UPDATE});
	ask($stranger, q{SET statement_timeout = '5 s'});
	fails($stranger, $_, '42501', "without the lock of the row: $_") foreach map { s/\bt\b/$token/r }
	  map({ "SELECT $_" } q{le_assert_leader('guarded', t)}, q{le_once('guarded', now(), t)}, q{le_renew('guarded', t)}, q{le_renew('guarded', t, '2 s')},
		q{le_lease('guarded', '1 s', t)}, q{le_lease('guarded', '1 s', t, 'another')}, q{le_resign('guarded', t)},
		q{le_am_leader('guarded', t)}, q{le_proclaim('guarded', 'v', t)}), q{CALL le_campaign('guarded', '1 s', '1 s', token => t)};
	ask($admin, 'COMMIT');
	is(ask($leader, "SELECT le_resign('guarded', $token)"), 't', 'the leader resigns');
	my $short = ask($leader, q{SELECT le_lease('short', '100 ms')});
	ok(ask_until($admin, q{SELECT count(*) FROM le_leader('short')}, '0'), 'and a lease expires');
	ask($admin, 'BEGIN', q{SELECT FROM le.le_elections WHERE name IN ('guarded', 'short') FOR UPDATE});
	foreach my $client ($leader, $stranger)
	{
		ask($client, q{SET statement_timeout = '5 s'});
		foreach my $ended ("'guarded', $token", "'short', $short")
		{
			fails($client, "SELECT le_assert_leader($ended)", 'LE001', "nor for a term that has ended: le_assert_leader($ended)");
			is(ask($client, "SELECT le_renew($ended)"), 'f', "le_renew($ended)");
		}
	}
	ask($admin, 'COMMIT');
	end_session($leader, $stranger);
};

subtest 'a value that is published in an open transaction' => sub {
	my ($leader, $job, $next) = map { session($node, %as_app) } 1 .. 3;
	my $value = q{SELECT value FROM le_leader('published')};
	my $token = ask($leader, q{SELECT le_lease('published', '1 min')});
	ask($leader, q{SET statement_timeout = '5 s'}, q{SELECT le_try_become_leader('beats', '1 min')});
	foreach my $before ('NULL', "'before'")
	{
		is(ask($leader, "SELECT le_proclaim('published', $before, $token)"), 't', 'a value');
		is(ask($job, 'BEGIN', "SELECT le_proclaim('published', 'v', $token), le_proclaim('beats', 'v', token) FROM le_leader('beats')"), 't|t', 'another one, on another connection');
		is(ask($leader, "SELECT le_renew('published', $token), le_heartbeat('beats')"), 't|t', 'the leader goes on');
		is(ask($next, $value), $before eq 'NULL' ? '' : 'before', 'nobody sees it yet');
		ask($job, 'ROLLBACK');
	}
	ask($job, 'BEGIN', "SELECT le_proclaim('published', 'v', $token)");
	is(ask($leader, "SELECT le_resign('published', $token)"), 't', 'the leader resigns');
	is(ask($next, q{SELECT le_lease('published', '1 min')}), '', 'no new term begins before the end of the transaction');
	ask($job, 'COMMIT');
	cmp_ok($token = ask($next, q{SELECT le_lease('published', '1 min')}), '>', 0, 'then it does');
	is(ask($next, $value), '', 'without the value');
	is(ask($next, "SELECT le_proclaim('published', 'next', $token)", $value), "t\nnext", 'and publishes its own');
	ask($next, "SELECT le_resign('published', $token)", $value);
	is(ask($next, q{SELECT le_lease('published', '1 s')} . ' > 0', $value), "t\n", 'which ends with the term');
	end_session($leader, $job, $next);
};

subtest 'no message is sent while all calls wait' => sub {
	my $client = session($node, user => 'mallory');
	ask($client, 'SET debug_print_plan = on', 'SET debug_print_rewritten = on', 'SET client_min_messages = debug5');
	ask($admin, q{SELECT pg_stat_reset_shared('bgwriter')});
	ask($client, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
	cmp_ok(ask($client, q{SELECT le_lease('plans', '1 s')}), '>', 0, 'elected');
	like($client->{messages}, qr/function le\._le_require_primary\(\) line/, 'plans are printed');
	unlike($client->{messages}, qr/function le\._le_(arrive|elects)\(\) line/, 'but not with the row of the settings locked');
	ask($client, 'ROLLBACK');
	end_session($client);
};

subtest 'a client that does not read why its transaction has failed' => sub {
	my ($leader, $candidate) = map { session($node, %as_app) } 1 .. 2;
	ask($admin, 'ALTER ROLE mallory SET log_min_messages = panic');
	my ($stranger, $reader, $writer) = map { session($node, user => 'mallory') } 1 .. 3;
	my $token = ask($leader, q{SELECT le_lease('unread', '1 min')});
	ask($leader, qq{SELECT le_proclaim('unread', 'v', $token), le_once('unread', now(), $token)});
	post($candidate, q{CALL le_campaign('unread', ttl => '1 min')});
	ok(ask_until($admin, q{SELECT position FROM le_candidates WHERE name = 'unread'}, '1'), 'a candidate');
	ask($admin, 'CREATE SCHEMA AUTHORIZATION mallory', 'CREATE TABLE mallory.seen AS SELECT 1 AS v', 'CREATE TABLE mallory.written AS SELECT 1 AS v',
		'GRANT ALL ON ALL TABLES IN SCHEMA mallory TO mallory', 'VACUUM FULL le.le_elections');
	my @calls = ((map { "SELECT $_" } q{le_try_become_leader('unread')}, q{le_become_leader('unread', '1 s')}, q{le_am_leader('unread')}, q{le_am_leader('unread', t)},
		q{le_token('unread')}, q{le_resign('unread', t)}, q{le_resign_all()}, q{le_heartbeat('unread', t)}, q{le_try_become_leader_xact('unread')},
		q{le_become_leader_xact('unread', '1 s')}, q{le_lease('unread', '1 s')}, q{le_renew('unread', t)}, q{le_renew('unread', t, '1 s')},
		q{le_assert_leader('unread', t)}, q{le_once('unread', now(), t)}, q{le_proclaim('unread', 'v', t)}, q{le_depose('unread')},
		q{le_leader('unread')}, q{* FROM le_leaders}, q{* FROM le_candidates}, q{* FROM le_once_done}),
		q{CALL le_campaign('unread', '1 s')}, q{CALL le_campaign('{unread}'::text[], '1 s')}, q{CALL le_observe('unread')}, q{INSERT INTO invoice VALUES (1)},
		q{SET CONSTRAINTS ALL IMMEDIATE});
	foreach my $call (map { s/\bt\b/$token/r } @calls)
	{
		ask($stranger, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT v FROM seen', 'UPDATE written SET v = v + 1');
		is(ask($stranger, q{SELECT le_try_become_leader('own')}), 't', 'a term that the commit would begin') if $call =~ /CONSTRAINTS/;
		ask($reader, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT FROM seen LIMIT 0');
		ask($writer, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'UPDATE seen SET v = v + 1', 'COMMIT');
		ask($reader, 'SELECT v FROM written', 'COMMIT');
		# the error contains the statement, which is longer than what the server can send
		post($stranger, "DO \$\$ BEGIN EXECUTE \$x\$$call\$x\$ || ' /*' || repeat('x', 1000000) || '*/'; END \$\$");
		ok(ask_until($admin, "SELECT wait_event FROM pg_stat_activity WHERE pid = $stranger->{pid}", 'ClientWrite', 5), "it fails: $call");
		post($_->[0], $_->[1]) foreach my @others = ([ $leader, "SELECT le_renew('unread', $token), le_proclaim('unread', 'v', $token), le_once('unread', clock_timestamp(), $token)" ],
			[ $admin, 'UPDATE le.le_settings SET elects = true' ]);
		is(join(' ', map { collect($_->[0], 3) // 'waits' } @others), 't|t|t ', 'others go on');
		collect($_) foreach $stranger, map { $_->[0] } @others;
		is($stranger->{code}, '40001', 'it was a serialization failure') or diag($stranger->{messages});
		ask($stranger, 'ROLLBACK');
	}
	is(ask($admin, q{SELECT count(DISTINCT (ctid::text::point)[0]) FROM le.le_elections WHERE name IN ('unread', 'own')}), '1', 'the rows are on one page');
	ask($leader, "SELECT le_resign('unread', $token)");
	ask($admin, 'DROP SCHEMA mallory CASCADE', 'ALTER ROLE mallory RESET log_min_messages');
	end_session($leader, $candidate, $stranger, $reader, $writer);
};

subtest 'a leader whose deposition is not committed' => sub {
	my ($leader, $next, $late) = map { session($node, %as_app) } 1 .. 3;
	ask($leader, q{SELECT le_try_become_leader('deposed')});
	my $token = ask($leader, q{SELECT le_token('deposed')});
	post($next, q{SELECT le_become_leader('deposed')});
	waits_for_lock($next, 'a candidate waits');
	is(ask($admin, 'BEGIN', q{SELECT le_depose('deposed')}), 't', 'deposed');
	is(ask($late, "SELECT le_heartbeat('deposed', $token)"), 'f', 'no heartbeat is accepted');
	fails($late, "SELECT le_assert_leader('deposed', $token)", 'LE001', 'nor a guard');
	ask($admin, 'COMMIT');
	is(collect($next), 't', 'the candidate is elected');
	wait_for_end($leader, 5);
	end_session($next, $late);
};

subtest 'a bid that is rolled back' => sub {
	my ($one, $two, $three) = map { session($node, %as_app) } 1 .. 3;
	ask($one, q{SELECT le_try_become_leader('back'), le_resign('back')});
	is(ask($one, 'BEGIN', q{SELECT le_try_become_leader('back')}), 't', 'elected');
	post($three, q{CALL le_campaign('back', '1 min')});
	waits_for_lock($three, 'a candidate waits');
	is(ask($two, q{SELECT le_try_become_leader('back')}), 'f', 'locked');
	ask($one, 'ROLLBACK');
	is(backend_holds($admin, $one->{pid}), '0|0', 'no lock is left');
	cmp_ok(collect($three), '>', 0, 'the candidate is elected');
	is(ask($three, q{SELECT le_am_leader('back'), le_resign('back')}), 't|t', 'and resigns');
	# at the very end of a transaction, after the beacon was taken
	ask($admin, 'CREATE TABLE parent (id integer PRIMARY KEY)',
		'CREATE TABLE child (id integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)', 'GRANT ALL ON parent, child TO app');
	ask($one, 'BEGIN', q{SELECT le_try_become_leader('back')}, 'INSERT INTO child VALUES (1)');
	fails($one, 'COMMIT', '23503', 'a commit that fails');
	is(ask($one, q{SELECT le_am_leader('back')}), 'f', 'does not lead');
	foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		fails($one, $_, '23503', "again: $level") foreach "BEGIN ISOLATION LEVEL $level; SELECT le_try_become_leader('back'); INSERT INTO child VALUES (1); COMMIT";
		is(backend_holds($admin, $one->{pid}), '2|0', 'no lock of an earlier one is left');
	}
	is(ask($two, q{SELECT le_try_become_leader('back')}), 't', 'and keeps no other from it');
	end_session($one, $two, $three);
};

subtest 'a session that takes the lock and does not lead' => sub {
	my ($leader, $next, $squatter) = map { session($node, user => $_) } qw(app app mallory);
	my $line = q{SELECT classid::bigint << 32 | objid::bigint FROM pg_locks l JOIN le_leader('squat') e ON e.pid = l.pid WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) < 0};
	ask($leader, q{SELECT le_try_become_leader('squat')});
	my $key = ask($squatter, $line);
	post($squatter, "SELECT pg_advisory_lock($key)");
	waits_for_lock($squatter, 'it waits for the lock');
	end_session($leader);
	collect($squatter);
	my $from = monotonic();
	ok(ask_until($next, q{SELECT le_try_become_leader('squat')}, 't', 30), 'another session is elected by polling');
	my $waited = monotonic() - $from;
	note "after $waited s";
	cmp_ok($waited, '<', 3, 'soon');
	is(ask($next, q{SELECT le_am_leader('squat')}), 't', 'and leads');
	isnt(ask($squatter, $line), $key, 'by another lock');
	# a candidate in line
	ask($squatter, 'SELECT pg_advisory_unlock_all()');
	$key = ask($squatter, $line);
	post($squatter, "SELECT pg_advisory_lock($key)");
	waits_for_lock($squatter, 'it waits for the lock');
	my $candidate = session($node, %as_app);
	post($candidate, q{CALL le_campaign('squat', '1 min')});
	waits_for_lock($candidate, 'a candidate behind it');
	end_session($next);
	$from = monotonic();
	cmp_ok(collect($candidate), '>', 0, 'is elected');
	$waited = monotonic() - $from;
	note "after $waited s";
	cmp_ok($waited, '<', 15, 'after its round of waiting');
	collect($squatter);
	ask($candidate, q{SELECT le_resign('squat')});

	# programs that poll seldom, or roll back what was denied
	my $squat = sub {
		$key = ask($admin, q{SELECT ~beacon FROM le.le_elections WHERE name = 'squat'});
		ask($squatter, 'SELECT pg_advisory_unlock_all()');
		is(ask($squatter, "SELECT pg_try_advisory_lock($key)"), 't', 'the lock is taken');
	};
	$squat->();
	is(ask($candidate, q{SELECT le_try_become_leader('squat')}), 'f', 'denied');
	ask($admin, q{UPDATE le.le_elections SET suspect_at = suspect_at - interval '10 min' WHERE name = 'squat'});
	is(ask($candidate, q{SELECT le_try_become_leader('squat'), le_resign('squat')}), 't|t', 'elected by the next bid, ten minutes later');
	foreach my $bid (q{SELECT le_try_become_leader_xact('squat')}, q{SELECT le_become_leader_xact('squat', '10 ms')})
	{
		$squat->();
		$from = monotonic();
		ask($candidate, 'ROLLBACK') until ask($candidate, 'BEGIN', $bid) eq 't' || monotonic() - $from > 20;
		is(ask($candidate, q{SELECT le_am_leader('squat')}), 't', "elected although each denial is rolled back: $bid");
		ask($candidate, 'COMMIT');
	}

	# a session that happens to have the process ID of a leader that has gone
	is(ask($candidate, q{SELECT le_try_become_leader('squat')}), 't', 'elected');
	end_session($candidate);
	$squat->();
	ask($admin, "UPDATE le.le_elections SET pid = $squatter->{pid} WHERE name = 'squat'");
	is(ask($squatter, q{SELECT le_am_leader('squat'), le_token('squat'), le_resign('squat'), le_resign_all()}), 'f||f|0', 'does not lead');
	fails($squatter, $_, 'LE001', $_) foreach q{SELECT le_assert_leader('squat')}, q{SELECT le_once('squat', now())};
	$candidate = session($node, %as_app);
	ok(ask_until($candidate, q{SELECT le_try_become_leader('squat')}, 't', 30), 'a later session with the same process ID is not the leader');
	# the same for a transaction that has looked at the sessions earlier
	end_session($squatter);
	ask($next = session($node, %as_app), 'BEGIN', 'SELECT count(*) FROM pg_stat_activity');
	end_session($candidate);
	$squatter = session($node, user => 'mallory');
	$squat->();
	ask($admin, "UPDATE le.le_elections SET pid = $squatter->{pid} WHERE name = 'squat'");
	is(ask($next, q{SELECT le_become_leader_xact('squat', '30 s')}), 't', 'nor for a transaction that has looked at the sessions before');
	end_session($next);
	$candidate = session($node, %as_app);
	# a session that has changed its role
	my $superuser = session($node);
	is(ask($superuser, 'SET SESSION AUTHORIZATION app', q{SELECT le_try_become_leader('changed')}), 't', 'elected after SET SESSION AUTHORIZATION');
	is(ask($candidate, q{CALL le_campaign('changed', '300 ms')}), '', 'leads');
	is(ask($superuser, 'RESET SESSION AUTHORIZATION', q{SELECT le_am_leader('changed')}), 't', 'on');
	end_session($candidate, $squatter, $superuser);
};

subtest 'leases after a promotion' => sub {
	my ($leader, $next) = map { session($node, %as_app) } 1 .. 2;
	ask($leader, q{SELECT le_lease('promoted', '2 s')});
	post($next, q{CALL le_campaign('promoted', '1 min', ttl => '1 s')});
	ok(ask_until($admin, q{SELECT position FROM le_candidates WHERE name = 'promoted'}, '1'), 'a candidate waits for the end of a lease');
	# as the first call after a promotion does
	my $from = monotonic();
	ask($admin, q{SELECT setval('le.le_lease_seq', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 5000000)});
	cmp_ok(collect($next), '>', 0, 'elected');
	cmp_ok(monotonic() - $from, '>', 4.9, 'when leases are granted again');
	end_session($leader, $next);
};

subtest 'candidates and a guard' => sub {
	my ($leader, $guard, $next, $late) = map { session($node, %as_app) } 1 .. 4;
	ask($leader, q{SELECT le_try_become_leader('line')});
	ask($guard, 'BEGIN', q{SELECT le_assert_leader('line', token) FROM le_leader('line')});
	post($next, q{SELECT le_become_leader('line')});
	waits_for_lock($next, 'a candidate waits');
	end_session($leader);
	ok(ask_until($admin, q{SELECT waits_for FROM le_candidates WHERE name = 'line'}, 'guard'), 'for the guard');
	post($late, q{SELECT le_become_leader('line')});
	# it has found the line held without a leader, and gets in line again, or passes it over
	my $from = ask($admin, 'SELECT clock_timestamp()');
	ok(ask_until($admin, "SELECT clock_timestamp() > '$from'::timestamptz + interval '1.4 s' AND wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $late->{pid}"), 'another one behind it');
	ask($guard, 'COMMIT');
	is(collect($next) . $next->{code}, 't', 'the first is elected');
	ask($next, q{SELECT le_resign('line')});
	is(collect($late) . $late->{code}, 't', 'then the other');
	end_session($guard, $next, $late);
};

subtest 'a refused bid in an open transaction' => sub {
	my ($one, $two, $three) = map { session($node, %as_app) } 1 .. 3;
	ask($one, q{SELECT le_try_become_leader('refused'), le_resign('refused')});
	ask($admin, q{SELECT pg_advisory_lock(~beacon) FROM le.le_elections WHERE name = 'refused'});
	is(ask($two, 'BEGIN', q{SELECT le_try_become_leader('refused')}), 'f', 'refused');
	ask($admin, 'SELECT pg_advisory_unlock_all()');
	is(ask($three, q{SELECT le_try_become_leader('refused')}), 't', 'locks nothing');
	ask($two, 'ROLLBACK');
	# the leader finds that it does not lead
	ask($three, 'SELECT pg_advisory_unlock_all()', 'BEGIN');
	is(ask($three, q{SELECT le_am_leader('refused')}), 'f', 'a session that has lost its locks');
	is(ask($one, q{SELECT le_try_become_leader('refused')}), 't', 'locks nothing either');
	ask($three, 'ROLLBACK');
	# a lease that was renewed before the clock was set back
	my $token = ask($one, q{SELECT le_lease('ahead', '1 min')});
	my $set_back = q{UPDATE le.le_elections SET renewed_at = renewed_at + interval '1 hour' WHERE name = 'ahead'};
	ask($admin, $set_back);
	is(ask($two, 'BEGIN', q{SELECT le_lease('ahead', '1 min')}), '', 'refused');
	is(ask($one, q{SET lock_timeout = '1 s'}, "SELECT le_renew('ahead', $token)"), 't', 'the lease is renewed meanwhile');
	ask($two, 'ROLLBACK');
	ask($admin, $set_back);
	is(ask($two, q{SELECT le_lease('ahead', '1 min')}), '', 'refused');
	is(ask($one, q{SELECT expires_in <= '1 min' FROM le_leader('ahead')}), 't', 'a bid of its own takes the time back');
	end_session($one, $two, $three);
};

subtest 'a session that takes the beacon of a leader that has gone' => sub {
	my ($leader, $guard, $squatter) = map { session($node, user => $_) } qw(app app mallory);
	ask($leader, q{SELECT le_try_become_leader('taken')});
	my $token = ask($leader, q{SELECT le_token('taken')});
	my $key = ask($admin, q{SELECT beacon FROM le.le_elections WHERE name = 'taken'});
	post($squatter, "SELECT pg_advisory_lock($key)");
	waits_for_lock($squatter, 'it waits for the lock');
	end_session($leader);
	collect($squatter);
	my $from = monotonic();
	until ($guard->{code} || monotonic() - $from > 30) { ask($guard, "SELECT le_assert_leader('taken', $token)"); }
	is($guard->{code}, 'LE001', 'guards by its token are refused');
	like($guard->{messages}, qr/The election is vacant/, 'since there is no leader');
	end_session($guard, $squatter);
};

subtest 'statistics that a transaction keeps' => sub {
	my ($old, $other) = map { session($node, %as_app) } 1 .. 2;
	ask($old, q{SET stats_fetch_consistency = cache}, 'BEGIN', 'SELECT pg_stat_get_bgwriter_stat_reset_time()');
	ask($admin, q{SELECT pg_stat_reset_shared('bgwriter')});
	my $seen = 'SELECT last_value FROM le.le_seen_seq';
	my $before = ask($admin, $seen);
	cmp_ok(ask($other, q{SELECT le_lease('kept statistics', '1 min')}), '>', 0, 'a lease');
	my $noticed = ask($admin, $seen);
	cmp_ok($noticed, '>', $before, 'the reset is noticed');
	ask($old, q{SELECT le_lease('kept statistics', '1 min')}, 'COMMIT');
	is(ask($admin, $seen), $noticed, 'once');
	end_session($old, $other);
};

subtest 'a candidate that has written is not deposed' => sub {
	my ($leader, $guard, $next) = map { session($node, %as_app) } 1 .. 3;
	ask($leader, q{SELECT le_try_become_leader('spared')});
	ask($guard, 'BEGIN', q{SELECT le_assert_leader('spared', token) FROM le_leader('spared')});
	ask($next, 'BEGIN', q{SELECT le_lease('spared, too', '1 min')});
	end_session($leader);
	post($next, q{SELECT le_become_leader('spared')});
	ok(ask_until($admin, q{SELECT waits_for FROM le_candidates WHERE name = 'spared'}, 'guard'), 'a candidate waits for a guard');
	is(ask($admin, q{SELECT le_depose('spared')}), 'f', 'there is no leader');
	ask($guard, 'COMMIT');
	is(collect($next) . $next->{code}, 't', 'the candidate is elected');
	ask($next, 'COMMIT', q{SELECT le_resign('spared')});
	# nor before it asks for the row's lock
	ask($next, 'BEGIN', q{SELECT le_lease('spared, too', '1 min', token) FROM le_leader('spared, too')});
	ask($next, "SELECT pg_advisory_xact_lock(~$_)") foreach ask($admin, q{SELECT beacon FROM le.le_elections WHERE name = 'spared'});
	is(ask($admin, q{SELECT le_depose('spared')}), 'f', 'nor another that holds the line');
	is(ask($next, 'ROLLBACK', 'SELECT 1') . $next->{code}, '1', 'its session goes on');
	my $squatter = session($node, user => 'mallory');
	ask($squatter, "SELECT pg_advisory_lock_shared(~$_)") foreach ask($admin, q{SELECT beacon FROM le.le_elections WHERE name = 'spared'});
	is(ask($admin, q{SELECT le_depose('spared')}), 'f', 'nor one that holds it as a leader does');
	is(ask($squatter, 'SELECT 1') . $squatter->{code}, '1', 'its session goes on');
	end_session($guard, $next, $squatter);
};

subtest 'a session that has lost its term does not wait for an open transaction' => sub {
	my ($former, $leader) = map { session($node, %as_app) } 1 .. 2;
	ask($former, q{SELECT le_try_become_leader('lost')}, 'SELECT pg_advisory_unlock_all()', q{SET statement_timeout = '5 s'});
	is(ask($leader, 'BEGIN', q{SELECT le_try_become_leader_xact('lost')}), 't', 'another leads in its transaction');
	is(ask($former, q{SELECT le_am_leader('lost')}), 'f', 'le_am_leader');
	is(ask($former, q{SELECT le_heartbeat('lost')}), 'f', 'le_heartbeat');
	end_session($former, $leader);
};

subtest 'a bid with another heartbeat waits until the term is over' => sub {
	my ($leader, $other) = map { session($node, %as_app) } 1 .. 2;
	ask($leader, q{SELECT le_try_become_leader('beats', '1 s')});
	my $token = ask($leader, q{SELECT le_token('beats')});
	is(ask($other, 'BEGIN', "SELECT le_heartbeat('beats', $token)"), 't', 'a transaction holds the row');
	post($leader, q{SELECT le_try_become_leader('beats', '10 s')});
	waits_for_lock($leader, 'the bid waits');
	ok(ask_until($admin, q{SELECT count(*) FROM le_leader('beats')}, '0'), 'the term is over');
	ask($other, 'ROLLBACK');
	is(collect($leader), 't', 'the bid is elected');
	is(ask($leader, q{SELECT le_am_leader('beats')}), 't', 'to a term that runs');
	cmp_ok(ask($leader, q{SELECT le_token('beats')}), '>', $token, 'the next one');
	end_session($leader, $other);
};

# The row is unchanged then, so that the server does not judge it again
subtest 'a renewal or heartbeat that waits until the term is over' => sub {
	my ($leader, $open, $other) = map { session($node, %as_app) } 1 .. 3;
	ask($leader, q{SELECT le_try_become_leader('waited', '500 ms')});
	my %tokens = (waited => ask($leader, q{SELECT le_token('waited')}), leased => ask($leader, q{SELECT le_lease('leased', '500 ms')}));
	foreach my $call ([ waited => 'le_heartbeat' ], [ leased => 'le_renew' ])
	{
		my ($name, $function) = @$call;
		is(ask($open, 'BEGIN', "SELECT $function('$name', $tokens{$name})"), 't', "$function in an open transaction");
		post($leader, "SELECT $function('$name', $tokens{$name})");
		waits_for_lock($leader, 'another waits for it');
		my $over = ask($admin, q{SELECT clock_timestamp() + interval '500 ms'});
		ok(ask_until($admin, "SELECT clock_timestamp() > '$over'"), 'the term is over');
		ask($open, 'ROLLBACK');
		is(collect($leader), 'f', 'and is not said to run');
		is(ask($other, "SELECT le_lease('$name', '1 min') > 0"), 't', 'another one is elected');
		$tokens{leased} = ask($leader, q{SELECT le_lease('leased', '500 ms')}) if $name eq 'waited';
	}
	end_session($leader, $open, $other);
};

# As ANALYZE and autovacuum run the functions of indexes: the session's user is another role
subtest 'code of another role in a security-restricted operation' => sub {
	my $token = ask($admin, q{SELECT le_lease('mine', '1 min')});
	ask($admin, q{SELECT le_try_become_leader('held')}, 'CREATE SCHEMA AUTHORIZATION mallory', 'CREATE TABLE ledger (i integer)', 'GRANT INSERT ON ledger TO mallory',
		q{CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION le_guard('mine')}, 'SET ROLE mallory', 'CREATE TABLE mallory.calls (i integer, call text)');
	my @calls = ("SELECT le_renew('mine', $token)", "SELECT le_renew('mine', $token, '30 s')", "SELECT le_proclaim('mine', 'v', $token)", "SELECT le_assert_leader('mine', $token)",
		"SELECT le_once('mine', clock_timestamp(), $token)", 'INSERT INTO public.ledger VALUES (1)', q{SELECT le_lease('theirs', '1 min')}, q{SELECT le_try_become_leader_xact('theirs')},
		q{SELECT le_try_become_leader('theirs')}, q{SELECT le_heartbeat('held')}, q{SELECT le_proclaim('held', 'v')}, q{SELECT le_resign('held')}, q{SELECT le_resign_all()},
		q{SELECT le_depose('mine')}, "SELECT le_resign('mine', $token)");
	ask($admin, "INSERT INTO mallory.calls VALUES ($_, \$c\$$calls[$_]\$c\$)") foreach 0 .. $#calls;
	ask($admin, 'CREATE FUNCTION mallory.try(i integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN RETURN i; END $f$', 'CREATE INDEX ON mallory.calls (mallory.try(i))',
		qq{CREATE FUNCTION mallory.run(j integer) RETURNS integer LANGUAGE plpgsql SET search_path = public, le
			AS \$f\$ BEGIN PERFORM set_config('leader_election.token', '$token', true); EXECUTE (SELECT call FROM mallory.calls WHERE i = j); RAISE WARNING 'done: %', (SELECT call FROM mallory.calls WHERE i = j); RETURN j;
			EXCEPTION WHEN insufficient_privilege THEN RETURN j; END \$f\$},
		'CREATE OR REPLACE FUNCTION mallory.try(i integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN RETURN mallory.run(i); END $f$', 'RESET ROLE');
	is($admin->{error}, '', 'prepared');
	ask($admin, 'ANALYZE mallory.calls');
	is($admin->{messages}, '', 'nothing is done');
	is(ask($admin, "SELECT le_am_leader('held'), le_am_leader('mine', $token), le_resign('held'), le_resign('mine', $token)"), 't|t|t|t', 'nor has it been');
	ask($admin, 'DROP TABLE ledger', 'DROP SCHEMA mallory CASCADE');
};

subtest 'in a query that could be parallel' => sub {
	my $app = session($node, %as_app);
	ask($app, 'SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0', 'SET min_parallel_table_scan_size = 0', q{SELECT le_try_become_leader('nobody')});
	is(ask($app, qq{SELECT count(*) > 0, $_ FROM pg_attribute}) . $app->{code}, 't|t', "answers: $_")
	  foreach q{le_token('nobody') > 0}, q{le_am_leader('nobody')}, q{(SELECT count(*) = 1 FROM le_leader('nobody'))};
	end_session($app);
};

subtest 'a name with a collation' => sub {
	my $app = session($node, %as_app);
	ask($admin, q{CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)});
	foreach my $collation ('"POSIX"', '"blind"')
	{
		my $name = "'collated' COLLATE $collation";
		foreach my $call (
			"SELECT le_try_become_leader($name)", "SELECT le_become_leader($name)", "SELECT le_am_leader($name)", "SELECT le_am_leader($name, identity => 'app')", "SELECT le_token($name)",
			"SELECT le_heartbeat($name)", "SELECT le_proclaim($name, 'v')", "SELECT le_assert_leader($name)", "SELECT le_once($name, now())", "SELECT le_once($name, now())",
			"SELECT le_leader($name)", "SELECT le_seats($name, 2)", "CALL le_observe($name)", "CALL le_campaign($name)", "CALL le_campaign(ARRAY['also ' || $name])",
			"SELECT le_resign($name)", "SELECT le_resign($name)", "CALL le_campaign($name, ttl => '1 min')", "SELECT le_lease($name, '1 min', token) FROM le_leader($name)",
			"SELECT le_renew($name, token) FROM le_leader($name)",
			"SELECT le_resign($name, token), le_resign($name, token) FROM le_leader($name)", "SELECT le_depose($name)", "BEGIN; SELECT le_try_become_leader_xact($name); COMMIT", "SELECT le_become_leader_xact($name, '0')", 'SELECT le_resign_all()')
		{
			ask($app, $call);
			is($app->{code}, '', $call) or diag($app->{messages});
		}
	}
	end_session($app);
};

# What the server is must not depend on where in the stack it is asked for first
subtest 'at the limit of the stack' => sub {
	my $deep = session($node);
	ask($deep, 'CREATE FUNCTION pg_temp.deep(frames integer, what text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		RETURN CASE WHEN frames > 0 THEN pg_temp.deep(frames - 1, what) WHEN what = \'timeline\' THEN le._le_timeline() ELSE le._le_place()::text END; END $$');
	ask($deep, 'CREATE FUNCTION pg_temp.answers(what text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE answers text[] := \'{}\'; BEGIN
		FOR frames IN 1 .. 60 LOOP FOR kilobytes IN 100 .. 140 LOOP BEGIN
			DISCARD PLANS;
			PERFORM set_config(\'max_stack_depth\', kilobytes || \'kB\', true);
			answers := answers || pg_temp.deep(frames, what);
		EXCEPTION WHEN statement_too_complex THEN
			answers := answers || \'error\'::text;
		END; END LOOP; END LOOP;
		RETURN (SELECT string_agg(DISTINCT answer, \' or \') FROM unnest(answers) answer); END $$');
	is(ask($deep, "SELECT pg_temp.answers('$_')"), ask($admin, "SELECT le._le_$_() || ' or error'"), "the $_, or an error") foreach qw(timeline place);
	end_session($deep);
};

subtest 'an identity that UTF-8 lacks' => sub {
	foreach my $case ([ windows => 'WIN1252', 'chr(129)', '81' ], [ ascii => 'SQL_ASCII', q{E'\\xff'}, 'ff' ])
	{
		my ($database, $encoding, $character, $code) = @$case;
		$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING '$encoding' LOCALE 'C' TEMPLATE template0; GRANT CREATE ON DATABASE $database TO le_own");
		sql_edition_database($node, $database);
		my ($mallory, $app) = map { session($node, user => $_, db => $database) } qw(mallory app);
		ask($mallory, "SELECT le_lease('job', '100 ms', identity => $character)");
		ask($app, 'SET leader_election.notify = on', 'LISTEN leader_election');
		ok(ask_until($app, q{SELECT le_lease('job', '1 min') > 0}, 't', 10), "$encoding: the next leader is elected");
		like((next_notification($app, 10, sub { 1 }) // { payload => 'none' })->{payload}, qr/"identity": "\\u00$code"/, 'and announces the end of that term');
		end_session($mallory, $app);
	}
};

subtest 'hostile roles' => sub {
	my ($leader, $mallory) = (session($node, %as_app), session($node, user => 'mallory'));
	ask($leader, q{SELECT le_try_become_leader('crown', identity => 'me')});
	my $token = ask($leader, q{SELECT le_token('crown')});
	fails($mallory, $_, '42501', $_) foreach
	  q{SELECT * FROM le.le_elections}, q{UPDATE le.le_elections SET ended = 'x'}, q{SELECT nextval('le.le_token_seq')},
	  q{SELECT setval('le.le_token_seq', 1)}, q{SELECT * FROM le._le_once_done}, q{DELETE FROM le._le_once_done}, q{UPDATE le.le_settings SET elects = false},
	  q{CREATE TABLE le.mine ()}, "SELECT le_heartbeat('crown', $token)", "SELECT le_assert_leader('crown', $token)", q{SELECT le_depose('crown')},
	  q{SELECT le._le_begin(NULL::le.le_elections, 'session', NULL, 'i', true)}, q{SELECT le._le_bid('crown', 'lease', '1 s', 'i', '0')},
	  q{SELECT le._le_arrive()}, q{SELECT le._le_end(NULL::le.le_elections, 'x')};
	is(ask($mallory, q{SELECT waits FROM le._le_campaign('crown', NULL, NULL, NULL, NULL, now(), '{mallory,mallory}', false, NULL, true)}), 't', 'helpers elect no other');
	is(ask($mallory, "SELECT token, waits FROM le._le_campaign('crown', '0', NULL, NULL, NULL, 'infinity', '{mallory,mallory}', false, $token, NULL)"), '|f', 'with any arguments');
	is(ask($mallory, "SELECT le_am_leader('crown'), le_resign('crown'), le_am_leader('crown', $token)"), 'f|f|f', 'nor resign for others');
	is(ask($leader, q{SELECT le_am_leader('crown')}), 't', 'the leader leads');

	# code of another role in a session of a superuser, as autovacuum runs it
	my $lease = ask($leader, q{SELECT le_lease('treasure', '1 min')});
	ask($admin, 'GRANT CREATE ON SCHEMA public TO mallory; GRANT CREATE ON DATABASE postgres TO mallory');
	ask($mallory, "CREATE FUNCTION public.trap(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM le.le_depose(''treasure''); RETURN 1; END'",
		"CREATE FUNCTION public.trap2() RETURNS boolean SECURITY DEFINER RETURN le.le_resign('treasure', $lease)",
		'CREATE TABLE public.bait (id integer)', 'INSERT INTO public.bait VALUES (1)');
	fails($mallory, 'CREATE INDEX ON public.bait (public.trap(id))', '42501', 'the trap does nothing for its owner');
	ask($mallory, 'DELETE FROM public.bait', 'CREATE INDEX ON public.bait (public.trap(id))', 'ALTER TABLE public.bait DISABLE TRIGGER ALL');
	ask($mallory, "CREATE OR REPLACE FUNCTION public.trap(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS 'BEGIN IF current_user <> session_user THEN PERFORM le.le_depose(''treasure''); PERFORM le.le_resign(''treasure'', $lease); END IF; RETURN 1; END'",
		'INSERT INTO public.bait SELECT generate_series(1, 100)');
	fails($admin, 'ANALYZE public.bait', '42501', 'nor in ANALYZE by a superuser');
	fails($admin, 'SELECT public.trap2()', '42501', 'nor in a SECURITY DEFINER function that a superuser calls');
	is(ask($leader, "SELECT le_am_leader('treasure', $lease)"), 't', 'the lease runs');
	ask($admin, 'DROP FUNCTION public.trap, public.trap2 CASCADE', 'DROP TABLE public.bait');

	# the trigger function of the schema on a table of another role, with casts of that role
	ask($mallory, <<'SQL');
CREATE SCHEMA own;
CREATE TYPE own.bait AS (x integer);
CREATE FUNCTION own.take() RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE le.le_settings SET max_elections_per_role = 1; END $$;
CREATE FUNCTION own.as_text(own.bait) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM own.take(); RETURN 'crown'; END $$;
GRANT USAGE ON SCHEMA own TO PUBLIC;
CREATE CAST (own.bait AS text) WITH FUNCTION own.as_text(own.bait) AS IMPLICIT;
CREATE TABLE own.elections (name own.bait, token bigint, beacon bigint, scope text);
SQL
	my $attach = 'CREATE TRIGGER t AFTER INSERT ON own.elections FOR EACH ROW EXECUTE FUNCTION le._le_take_beacon()';
	fails($mallory, $attach, '42501', 'a trigger function of the schema is for its own table');
	# one that was attached before
	ask($admin, 'GRANT EXECUTE ON FUNCTION le._le_take_beacon() TO mallory');
	ask($mallory, $attach);
	is($mallory->{code}, '', 'attached');
	ask($admin, 'REVOKE EXECUTE ON FUNCTION le._le_take_beacon() FROM mallory');
	fails($mallory, "INSERT INTO own.elections VALUES (ROW(1), $token, 1, 'session')", '42501', 'and runs on no other');
	is(ask($admin, 'SELECT max_elections_per_role FROM le.le_settings'), '10000', 'with no code of another role');
	ask($admin, 'DROP SCHEMA own CASCADE');

	# a schema before pg_catalog, with an operator and a function for each of the server
	ask($admin, 'CREATE SCHEMA evil AUTHORIZATION mallory; GRANT USAGE ON SCHEMA evil TO PUBLIC');
	ask($mallory, <<'SQL');
DO $$
DECLARE
	o record;
	n integer := 0;
	body CONSTANT text := 'LANGUAGE plpgsql AS ''BEGIN PERFORM evil.caught(); END''';
BEGIN
	CREATE FUNCTION evil.caught() RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $x$caught as %$x$, current_user; END';
	FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS t FROM pg_operator
		WHERE oprkind = 'b' AND oprleft::regtype::text !~ 'any' AND oprright::regtype::text !~ 'any' AND oprresult <> 0 LOOP
		EXECUTE format('CREATE FUNCTION evil.f%s(%s, %s) RETURNS %s %s', n, o.l, o.r, o.t, body);
		EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.f%s, LEFTARG = %s, RIGHTARG = %s)', o.oprname, n, o.l, o.r);
		n := n + 1;
	END LOOP;
	FOR o IN SELECT p.oid::regprocedure AS p, p.proname, oidvectortypes(p.proargtypes) AS a, p.prorettype::regtype AS t FROM pg_proc p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0
		AND oidvectortypes(p.proargtypes) || p.prorettype::regtype::text !~ 'any|internal|trigger|handler|cstring' LOOP
		BEGIN
			EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s %s', o.proname, o.a, o.t, body);
		EXCEPTION WHEN feature_not_supported THEN	-- a type that PL/pgSQL cannot have
			NULL;
		END;
	END LOOP;
	FOR o IN SELECT unnest('{text,timestamptz,record,int4,int8,bool,interval,oid,name,xid8,regclass}'::text[]) AS typname LOOP
		EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.int2', o.typname);
	END LOOP;
END $$
SQL
	is(ask($mallory, q{SELECT count(*) > 2000 FROM pg_proc WHERE pronamespace = 'evil'::regnamespace}), 't', 'shadows') or diag($mallory->{messages});
	my $victim = session($node, options => '-c search_path=evil,pg_catalog,public,le');
	fails($victim, q{SELECT now()}, 'P0001', 'which are called without a schema');
	foreach my $sql (
		q{SELECT le.le_try_become_leader('v', identity => 'i')}, q{SELECT le.le_am_leader('v')}, q{SELECT le.le_token('v')}, q{SELECT le.le_proclaim('v', 'value')},
		q{SELECT le.le_assert_leader('v')}, q{SELECT le.le_once('v', pg_catalog.now())}, q{TABLE le.le_leaders}, q{TABLE le.le_candidates}, q{SELECT le.le_leader('v')},
		q{CALL le.le_observe('v')}, q{CALL le.le_observe('v', 1, '200 ms')}, q{SELECT le.le_heartbeat('v')}, q{SELECT le.le_resign('v')}, q{CALL le.le_campaign('v')},
		q{CALL le.le_campaign('crown', '200 ms')}, q{CALL le.le_campaign('{v2,v3}'::pg_catalog.text[])}, q{CALL le.le_campaign('{crown}'::pg_catalog.text[], '300 ms')},
		q{CALL le.le_campaign('v4', ttl => '1 s')}, q{SELECT le.le_resign_all()}, q{SELECT le.le_lease('v', '1 s')}, q{SELECT le.le_renew('v', 1)},
		q{SELECT le.le_try_become_leader_xact('v5')}, q{SELECT le.le_become_leader_xact('v5')}, q{SELECT le.le_become_leader('v5')}, q{SELECT le.le_seats('v', 3)},
		q{SELECT le.le_depose('crown')}, q{SELECT le.le_version()})
	{
		ask($victim, $sql);
		is($victim->{code}, '', $sql) or diag("$victim->{messages}");
	}
	foreach my $schema ('le', 'election')
	{
		my $owner = session($node, user => 'le_own', options => '-c search_path=evil,pg_catalog');
		ask($admin, 'CREATE SCHEMA IF NOT EXISTS election AUTHORIZATION le_own');
		ask($owner, 'BEGIN', slurp_file($SqlEdition::script) =~ s/\ble\b/$schema/gr);
		is($owner->{code}, '', "nor by the script, in schema $schema") or diag($owner->{messages});
		is(ask($owner, 'SHOW search_path'), 'evil,pg_catalog', 'which leaves the path as it was');
		ask($owner, 'COMMIT');
		is(ask($admin, q{SELECT count(*) FROM pg_depend WHERE refobjid IN (SELECT oid FROM pg_type WHERE typnamespace = 'evil'::regnamespace)
			AND (classid, objid) IN (SELECT 'pg_proc'::regclass, oid FROM pg_proc UNION ALL SELECT 'pg_class'::regclass, oid FROM pg_class)}),
			0, 'without types of that schema');
		end_session($owner);
	}
	ask($admin, 'DROP SCHEMA election CASCADE');
	wait_for_end($leader, 5);
	end_session($mallory, $victim);
	ask($admin, 'DROP SCHEMA evil CASCADE');
};

subtest 'who installs the script' => sub {
	my $super = ask($admin, 'SELECT current_user');
	ask($admin, 'CREATE DATABASE theirs OWNER mallory', 'GRANT CREATE ON DATABASE theirs TO le_own', 'GRANT mallory TO le_own');
	my ($mallory, $owner) = map { session($node, user => $_, db => 'theirs') } qw(mallory le_own);
	ask($owner, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1');
	# whose code would run in the statements after the checks
	ask($mallory, 'CREATE SCHEMA le', 'CREATE TABLE le.le_settings (one boolean PRIMARY KEY DEFAULT true, max_ttl interval)',
		'CREATE TABLE public.ran ()', 'GRANT USAGE ON SCHEMA le TO le_own', 'GRANT ALL ON le.le_settings TO le_own',
		q{CREATE FUNCTION le.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RESET ROLE; ALTER TABLE public.ran ADD COLUMN IF NOT EXISTS x int; RETURN NULL; END'},
		'CREATE TRIGGER f BEFORE INSERT ON le.le_settings EXECUTE FUNCTION le.f()');
	ask($owner, slurp_file($SqlEdition::script));
	like($owner->{error}, qr/must be installed at isolation level READ COMMITTED/, 'nobody with an older snapshot');
	ask($owner, 'ROLLBACK');
	foreach my $setting ('search_path = missing, pg_catalog', 'role = mallory', q{search_path = ''})
	{
		ask($mallory, "ALTER DATABASE theirs SET $setting");
		foreach my $stop (0, 1)
		{
			my ($status, $stderr) = run_script($node, 'theirs', user => $super, options => [ '-v', "ON_ERROR_STOP=$stop" ]);
			like($stderr, qr/a superuser can install leader_election only in a database that a superuser owns/, "no superuser in a database of another role: $setting");
		}
	}
	# clients that go on after an error, where code of mallory runs when a statement is planned, or by a trigger
	ask($mallory, q{CREATE FUNCTION le.g() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN IF current_user <> ''mallory'' THEN COPY (SELECT) TO PROGRAM ''exit 1''; END IF; RETURN true; END'},
		q{CREATE FUNCTION le.f(integer) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN le.g(); END'}, 'ALTER TABLE le.le_settings ALTER one SET DEFAULT le.f(1)');
	ask($admin, "ALTER DATABASE theirs OWNER TO $super", 'ALTER DATABASE theirs RESET ALL');
	foreach my $user ($super, 'le_own')
	{
		foreach my $options ([], [ '-1' ], [ '-1', '-v', 'ON_ERROR_ROLLBACK=on' ])
		{
			my ($stdout, $stderr);
			IPC::Run::run([ $node->installed_command('psql'), '-Xq', @$options, '-d', $node->connstr('theirs') . " user=$user", '-f', $SqlEdition::script ], '>', \$stdout, '2>', \$stderr);
			like($stderr, qr/\A\S+ ERROR: .*only the owner of schema "le" can install/, "$user: psql @$options");
			unlike($stderr, qr/\n\S+ ERROR:/, 'no other statement runs');
		}
	}
	ask($admin, 'ALTER DATABASE theirs SET role = mallory');
	like((run_script($node, 'theirs', user => $super))[1], qr/only the owner of schema/, 'nor with a role that the former owner has set');
	ask($admin, 'ALTER DATABASE theirs RESET ALL');
	like((run_script($node, 'theirs', user => $_, options => [ '-c', 'SET ROLE mallory' ]))[1], qr/only the owner of schema/, "nor by SET ROLE: $_")
	  foreach $super, 'le_own';
	is(ask($mallory, q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'public.ran'::regclass AND attnum > 0}), 0, 'and no code of mallory');
	ask($mallory, 'DROP SCHEMA le CASCADE');
	ask($admin, 'ALTER DATABASE theirs OWNER TO mallory', "GRANT $super TO le_own");
	like((run_script($node, 'theirs'))[1], qr/a superuser can install/, 'nor does one who can become a superuser');
	ask($admin, "REVOKE $super FROM le_own", 'REVOKE mallory FROM le_own');
	my ($status, $stderr) = run_script($node, 'theirs');
	is($status, 0, 'another role does') or diag($stderr);
	ask($owner, 'DROP SCHEMA le CASCADE');
	# objects that transactions of mallory have created before CREATE was revoked
	ask($admin, "ALTER DATABASE theirs OWNER TO $super");
	my $installer = session($node, db => 'theirs');
	my $other = session($node, user => 'mallory', db => 'theirs');
	foreach my $object (q{CREATE TABLE le.le_settings (one boolean PRIMARY KEY DEFAULT true, max_ttl interval, max_elections_per_role integer, elects boolean);
		CREATE FUNCTION le.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN ALTER TABLE public.ran ADD COLUMN IF NOT EXISTS x int; RETURN NULL; END';
		CREATE TRIGGER f BEFORE INSERT ON le.le_settings EXECUTE FUNCTION le.f()}, q{CREATE FUNCTION le._le_name(name text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN name; END'},
		'CREATE OPERATOR le.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)')
	{
		ask($installer, 'CREATE SCHEMA le', 'GRANT USAGE, CREATE ON SCHEMA le TO mallory');
		ask($mallory, 'BEGIN', $object);
		ask($other, 'BEGIN', q{CREATE FUNCTION le.le_version() RETURNS text RETURN 'x'});
		ask($installer, 'REVOKE CREATE ON SCHEMA le FROM mallory');
		post($installer, slurp_file($SqlEdition::script));
		waits_for_lock($installer, 'the script waits after its checks');
		ask($mallory, 'COMMIT');
		ask($other, 'ROLLBACK');
		collect($installer);
		like($installer->{error}, qr/another role has created objects in schema "le" meanwhile/, 'what is committed then is found');
		is(ask($installer, q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'le'::regnamespace AND prosecdef}), 0, 'nothing is installed');
		ask($installer, 'DROP SCHEMA le CASCADE');
	}
	is(ask($mallory, q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'public.ran'::regclass AND attnum > 0}), 0, 'and no code of mallory has run');
	end_session($mallory, $owner, $installer, $other);
	ask($admin, 'DROP DATABASE theirs');
};

subtest 'limits' => sub {
	my $mallory = session($node, user => 'mallory');
	ask($admin, q{DELETE FROM le.le_elections WHERE creator = 'mallory'::regrole}, 'UPDATE le.le_settings SET max_elections_per_role = 50');
	is(ask($mallory, q{SELECT count(le_lease('flood ' || i, '1 min')) FROM generate_series(1, 50) i}), '50', 'as many as allowed');
	fails($mallory, q{SELECT le_lease('one more', '1 min')}, '53400', 'and no more');
	is(ask($mallory, q{SELECT count(r) FROM (SELECT le_resign(name, token) AS r FROM le_leaders WHERE name LIKE 'flood %' LIMIT 3) s}), '3', 'resigned');
	is(ask($mallory, q{SELECT count(le_lease('again ' || i, '1 min')) FROM generate_series(1, 3) i}), '3', 'rows of vacant elections make room');
	my $app = session($node, %as_app);
	is(ask($app, q{SELECT le_lease('not of mallory', '1 min') > 0}), 't', 'other roles are not concerned');
	fails($admin, q{SELECT le_lease('super ' || i, '1 min') FROM generate_series(1, 51) i}, '53400', 'a superuser is');
	# rows of jobs, also those that were another role's
	ask($mallory, q{SELECT le_resign(name, token) FROM le_leaders WHERE usename = 'mallory'});
	ask($admin, 'UPDATE le.le_settings SET max_elections_per_role = 2');
	ask($admin, q{INSERT INTO le._le_once_done SELECT 'job ' || i, now() - interval '1 h', 1, role::regrole FROM (VALUES (1, 'mallory'), (2, 'mallory'), (3, 'app')) v (i, role)},
		q{DELETE FROM le.le_elections WHERE creator = 'mallory'::regrole});
	is(ask($mallory, q{SELECT le_once('job 1', now(), le_lease('job 1', '1 min'))}), 't', 'a job of its own');
	my $token = ask($mallory, q{SELECT le_lease('job 3', '1 min')});
	fails($mallory, "SELECT le_once('job 3', now(), $token)", '53400', 'but not the row of another role');
	ask($admin, q{DELETE FROM le._le_once_done WHERE name = 'job 2'});
	is(ask($mallory, "SELECT le_once('job 3', now(), $token)"), 't', 'unless there is room');
	ask($admin, 'UPDATE le.le_settings SET max_elections_per_role = 10000, elects = false');
	is(ask($app, q{SELECT le_lease('closed', '1 min'), le_try_become_leader('closed'), le_renew('not of mallory', token) FROM le_leader('not of mallory')}), '|f|t', 'closed: no new terms');
	post($app, q{CALL le_campaign('closed', '1 min')});
	ok(ask_until($admin, "SELECT state FROM pg_stat_activity WHERE pid = $app->{pid}", 'active'), 'a candidate');
	ask($admin, 'UPDATE le.le_settings SET elects = true');
	cmp_ok(collect($app), '>', 0, 'elected when it is opened again');
	# transactions that keep their snapshots
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		cmp_ok(ask($mallory, "BEGIN ISOLATION LEVEL $level", qq{SELECT le_lease('open $level', '1 min')}), '>', 0, "a bid in an open transaction, $level");
		ask($app, "BEGIN ISOLATION LEVEL $level", q{SELECT le_am_leader('x')});
		ask($admin, q{SET lock_timeout = '1 s'}, 'UPDATE le.le_settings SET elects = false');
		is($admin->{code}, '', 'keeps no lock on the settings');
		is(ask($app, q{SELECT le_lease('closed meanwhile', '1 min')}), '', 'and a bid with an older snapshot is denied');
		ask($_, 'ROLLBACK') foreach $mallory, $app;
		ask($admin, 'RESET lock_timeout', 'UPDATE le.le_settings SET elects = true');
	}
	# the view takes time in proportion to leases and locks, not to their product
	ask($admin, q{INSERT INTO le.le_elections SELECT (jsonb_populate_record(e, jsonb_build_object('name', 'flood ' || i, 'token', nextval('le.le_token_seq'), 'beacon', i,
		'lasts', '1 h', 'ended', NULL))).* FROM le.le_elections e, generate_series(1, 10000) i WHERE e.name = 'not of mallory'});
	my $seconds = sub { my $from = monotonic(); is(ask($app, 'SELECT count(*) >= 10000 FROM le_leaders'), 't', 'all leases'); return monotonic() - $from; };
	my $before = $seconds->();
	ask($mallory, 'SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 3000) i');
	cmp_ok($seconds->(), '<', 1 + 5 * $before, 'and many locks');
	end_session($mallory, $app);
};

done_testing();
