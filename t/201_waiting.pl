# A waiter that goes, in whatever state and way, leaves nothing behind, and the next
# one is elected; so it is if several die together with their leader.  Timeouts and pooled
# connections do what a user of plain locks expects.  A session that waits in le_campaign
# holds back neither VACUUM nor CREATE INDEX CONCURRENTLY; one that waits in pg_advisory_lock
# or le_become_leader does.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Pooler;

# Fast enough to be woken up; the look-up interval is 5 seconds
my $bound = 4;
my $node = new_server('waiting', conf => "deadlock_timeout = 100ms\nautovacuum = off\nlisten_addresses = '127.0.0.1'");
append_to_file($node->data_dir . '/pg_hba.conf', "host all all 127.0.0.1/32 trust\n");
$node->reload;
my $control = session($node, app => 'control');
my $leader = session($node, app => 'leader');
my $altering = session($node, app => 'altering');

sub gone
{
	my ($client) = @_;
	return ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $client->{pid}", 0);
}

sub waits
{
	my ($client, $wait) = @_;
	return ask_until($control, "SELECT wait_event_type || '/' || CASE wait_event_type WHEN 'Lock' THEN wait_event ELSE '' END FROM pg_stat_activity WHERE pid = $client->{pid} AND state = 'active'", $wait)
	  || die "it does not wait: $client->{error}";
}

sub trace
{
	my ($client) = @_;
	return ask($control, qq{
SELECT (SELECT count(*) FROM pg_locks WHERE pid = $client->{pid} AND locktype = 'advisory'),
	(SELECT count(*) FROM _le_registry_candidates(false) WHERE pid = $client->{pid}),
	(SELECT count(*) FROM _le_registry_terms() WHERE pid = $client->{pid})});
}

# Hand out tokens until none of the block is left: the next leader has to draw one
sub use_up_tokens
{
	ask($control, 'SET leader_election.log_terms = off');
	my $token = ask($control, q{SELECT CASE WHEN le_try_become_leader('burn') THEN le_token('burn') END});
	my $left = ask($control, "SELECT last_value - $token FROM le_token_seq");
	ask($control, qq{SELECT count(*) FROM generate_series(1, $left) WHERE le_resign('burn') AND le_try_become_leader('burn')});
	die unless ask($control, q{SELECT le_token('burn') = last_value, le_resign('burn') FROM le_token_seq}) eq 't|t';
	return;
}

# Where waiters can be: what makes them wait, for what, and what ends it
my %states = (
	'in the lock queue' => {
		begin => [q{SELECT le_try_become_leader('job')}],
		wait => 'Lock/advisory',
		end => [q{SELECT le_resign('job')}] },
	'first in line on a lease' => {
		begin => [q{SELECT le_lease('job', '1 h')}],
		wait => 'Extension/',
		end => [q{SELECT le_resign('job', token) FROM le_leader('job')}] },
	'behind the first in line on a lease' => {
		begin => [q{SELECT le_lease('job', '1 h')}],
		before => 1,
		wait => 'Lock/advisory',
		end => [q{SELECT le_resign('job', token) FROM le_leader('job')}] },
	'between the lock and the token' => {
		alter => 1,
		begin => [],
		wait => 'Lock/relation',
		next_wait => 'Lock/advisory',
		end => [] });
my %waits = (
	'le_become_leader' => q{SELECT le_become_leader('job')},
	'le_become_leader_xact, in a block' => q{BEGIN; SAVEPOINT a; SELECT le_become_leader_xact('job')},
	'le_become_leader with a timeout' => q{SELECT le_become_leader('job', '1 h')},
	'le_campaign' => q{CALL le_campaign('job')},
	'le_campaign for a lease' => q{CALL le_campaign('job', ttl => '1 h')},
	'le_campaign with a timeout, in a block' => q{BEGIN; SAVEPOINT a; CALL le_campaign('job', '1 h')});
my %ends = (
	'death of the client' => \&kill_client,
	pg_terminate_backend => sub { ask($control, "SELECT pg_terminate_backend($_[0]{pid})") },
	pg_cancel_backend => sub { ask($control, "SELECT pg_cancel_backend($_[0]{pid})") });

foreach my $state (sort keys %states)
{
	foreach my $wait (sort keys %waits)
	{
		foreach my $end (sort keys %ends)
		{
			subtest "$wait, $state: $end" => sub {
				my $case = $states{$state};
				my ($first, $next) = map { session($node, app => $_) } 'first', 'next';

				# only the server detects the death of a client that holds the
				# lock
				my $waiter = session($node, app => 'waiter', options => '-c client_connection_check_interval=' . ($case->{alter} ? '200ms' : '0'));
				my $dies = $end =~ /death/ && !$case->{alter};
				use_up_tokens() if $case->{alter};
				ask($altering, 'BEGIN; ALTER SEQUENCE le_token_seq CACHE 1') if $case->{alter};
				ask($leader, $_) foreach @{ $case->{begin} };
				if ($case->{before})
				{
					post($first, q{CALL le_campaign('job')});
					waits($first, 'Extension/');
				}
				post($waiter, $waits{$wait});
				waits($waiter, $case->{wait});
				post($next, q{CALL le_campaign('job')});
				waits($next, $case->{next_wait} // 'Lock/advisory');
				my $many = session($node, app => 'many');
				if ($state eq 'in the lock queue')
				{
					post($many, q{CALL le_campaign(ARRAY['job'])});
					waits($many, 'Extension/');
				}

				my $offset = log_from($node);
				$ends{$end}->($waiter);
				if ($end =~ /cancel/)
				{
					collect($waiter);
					is($waiter->{code}, '57014', 'cancelled');
				}
				elsif (!$dies) { ok(gone($waiter), 'gone'); }
				is(trace($waiter), '0|0|0', 'no trace') unless $dies;
				is_deeply([ term_lines($node, $offset) ], [], 'no line in the log');

				ask($leader, $_) foreach @{ $case->{end} };
				ask($altering, 'ROLLBACK') if $case->{alter};
				if ($case->{before})
				{
					like(collect($first, $bound) // 'none', qr/^\d+$/, 'the candidate before it is elected');
					ask($first, q{SELECT le_resign('job')});
				}
				like(collect($next, $bound) // 'none', qr/^\d+$/, 'the next one is elected');
				ok(gone($waiter), 'the dead one is gone') if $dies;
				is(trace($waiter), '0|0|0', 'no trace');
				unlike(log_since($node, $offset), qr/: "waiter" leads/, 'it never led');
				is(ask($waiter, q{ROLLBACK; SELECT le_try_become_leader('job')}), 'f', 'the session goes on, denied') if $end =~ /cancel/;
				ask($next, q{SELECT le_resign('job')});
				like(collect($many, $bound), qr/^\d+\|job$/, 'and then the one outside the queue') if $state eq 'in the lock queue';
				kill_client($first, $waiter, $next, $many);
				ask_until($control, q{SELECT count(*) FROM le_leaders}, 0);
			};
		}
	}
}

subtest 'the next one need not wait for the end of the one before' => sub {
	my ($first, $next) = map { session($node, app => $_) } 'first', 'next';
	my $token = ask($leader, q{SELECT le_lease('job', '1 s')});
	post($first, q{CALL le_campaign('job')});
	waits($first, 'Extension/');
	post($next, q{CALL le_campaign('job')});
	waits($next, 'Lock/advisory');
	kill_client($first);
	like(collect($next, 1 + $bound) // 'none', qr/^\d+$/, 'a dead one first in line does not delay it beyond the expiry');
	kill_client($next);
	gone($_) foreach $first, $next;
};

foreach my $road ('Unix-domain socket', 'TCP')
{
	foreach my $scope ('', '_xact')
	{
		subtest "candidates that died with the leader, $road, le_become_leader$scope" => sub {
			my @where = $road eq 'TCP' ? (host => '127.0.0.1') : ();
			my $first = session($node, @where);
			ask($first, q{SELECT le_try_become_leader('race')});
			my $token = ask($first, q{SELECT le_token('race')});
			my @candidates = map { session($node, app => "candidate $_", @where) } 1 .. 5;
			foreach my $i (0 .. $#candidates)
			{
				ask($candidates[$i], 'BEGIN') if $scope || $i == 1;
				post($candidates[$i], "SELECT le_become_leader$scope('race'" . ($i == 1 ? q{, '1 hour'} : '') . ')');
				waits($candidates[$i], 'Lock/advisory');
			}
			my $offset = log_from($node);
			kill_client(@candidates[ 0, 1 ], $first);

			is(collect($candidates[2]), 't', 'the third is elected');
			is(ask($candidates[2], q{SELECT le_token('race')}), $token + 1, 'no token was drawn for the dead');
			is(leads_in_view($node, 'race'), 'candidate 3/' . ($scope ? 'transaction' : 'session'), 'it leads');
			is(scalar(term_lines($node, $offset)), 2, 'no lines about the dead');
			is(scalar(() = log_since($node, $offset) =~ /FATAL:  connection to client lost/g), 2, 'their sessions ended');
			is(trace($_), '0|0|0', 'no trace') foreach @candidates[ 0, 1 ];
			is(ask($control, 'SELECT count(*) FROM le_candidates'), 2, 'the others wait on');
			ask($candidates[2], $scope ? 'COMMIT' : q{SELECT le_resign('race')});
			is(collect($candidates[3]), 't', 'the fourth is next');
			end_session(@candidates[ 2, 3 ]);
			is(collect($candidates[4]), 't', 'then the fifth');
			end_session($candidates[4]);
		};
	}
}

# What ends a wait by itself, and whether that is a wait for a lock
my %what_waits = (
	'le_campaign' => [ q{CALL le_campaign('job')}, 1 ],
	'le_campaign for a lease' => [ q{CALL le_campaign('job', ttl => '1 h')}, 1 ],
	'le_campaign for any' => [ q{CALL le_campaign(ARRAY['job', 'other'])}, 1 ],
	'le_become_leader' => [ q{SELECT le_become_leader('job')}, 1 ],
	'le_observe' => [ q{CALL le_observe('job', VERSION)}, 0 ],
	'pg_advisory_lock' => [ q{SELECT pg_advisory_lock(7)}, 1 ]);
ask($leader, q{SELECT le_try_become_leader('job'), le_try_become_leader('other'), pg_advisory_lock(7)});
my $version = version_of($leader, 'job');
$_->[0] =~ s/VERSION/$version/ foreach values %what_waits;
foreach my $block ('', 'BEGIN; SAVEPOINT a')
{
	subtest "timeouts of all waits at once, in '$block'" => sub {
		my %clients = map { $_ => session($node) } keys %what_waits;
		my $all_wait = sub {
			my ($settings) = @_;
			ask($_, $settings) foreach values %clients;
			if ($block) { ask($_, $block) foreach values %clients; }
			post($clients{$_}, $what_waits{$_}[0]) foreach keys %clients;
		};

		$all_wait->(q{SET statement_timeout = '200 ms'});
		my $time = monotonic();
		foreach my $wait (sort keys %clients)
		{
			my $client = $clients{$wait};
			collect($client);
			is($client->{code}, '57014', "$wait: statement_timeout");
			is(trace($client), '0|0|0', 'no trace');
			if ($block)
			{
				fails($client, $what_waits{$wait}[0], '25P02', 'the transaction has failed');
				is(ask($client, 'ROLLBACK TO a; SELECT 2'), '2', 'a savepoint helps');
				ask($client, 'ROLLBACK');
			}
			ask($client, 'DISCARD ALL');
			is($client->{error}, '', 'DISCARD ALL');
			is(trace($client), '0|0|0', 'no trace');
		}
		cmp_ok(monotonic() - $time, '<', $bound, 'in time');

		$all_wait->(q{SET lock_timeout = '200 ms'});
		# those that wait for locks come first
		foreach my $wait (sort { $what_waits{$b}[1] <=> $what_waits{$a}[1] } keys %clients)
		{
			my ($client, $locks) = ($clients{$wait}, $what_waits{$wait}[1]);
			my $answer = collect($client, $locks ? $bound : 0.4);
			is($client->{code}, $locks ? '55P03' : '', "$wait: lock_timeout");
			ok(!defined $answer, 'which is for locks only') unless $locks;
			ask($control, "SELECT pg_cancel_backend($client->{pid})") unless $locks;
			collect($client);
			is(trace($client), '0|0|0', 'no trace');
			ask($client, 'ROLLBACK');
		}

		# to wait is not to be idle
		$all_wait->(q{RESET ALL; SET idle_in_transaction_session_timeout = '200 ms'; SET idle_session_timeout = '200 ms'});
		is(join(' ', grep { defined collect($clients{$_}, 0.1) } sort keys %clients), '', 'no idle timeout');
		foreach my $wait (sort keys %clients)
		{
			my $client = $clients{$wait};
			ask($control, "SELECT pg_cancel_backend($client->{pid})");
			collect($client);
			is($client->{code}, '57014', "$wait: but it can be cancelled");
			ok(wait_for_end($client), 'and then it is idle');
			is($client->{code}, $block ? '25P03' : '57P05', 'for too long');
			ok(gone($client), 'gone');
			is(trace($client), '0|0|0', 'no trace');
		}
	};
}

# Rows that were deleted after the wait began and cannot be removed by VACUUM
sub kept_rows
{
	ask($control, 'INSERT INTO work SELECT generate_series(1, 100)');
	ask($control, 'DELETE FROM work');
	ask($control, 'VACUUM (VERBOSE) work');
	die $control->{messages} unless $control->{messages} =~ /(\d+) (?:are dead but not yet removable|dead row versions cannot be removed yet)/;
	return $1;
}

sub index_is_built
{
	my ($timeout) = @_;
	ask($control, "SET statement_timeout = '$timeout'");
	ask($control, 'CREATE INDEX CONCURRENTLY work_id ON work (id)');
	my $built = $control->{error} eq '' ? 1 : 0;
	ask($control, 'RESET statement_timeout', 'DROP INDEX work_id');
	return $built;
}

ask($control, 'CREATE TABLE work (id int) WITH (autovacuum_enabled = false)');
my $lease = ask($leader, q{SELECT le_lease('leased', '1 h')});
foreach my $case (
	[ q{SELECT pg_advisory_lock(7)}, 'Lock/advisory', 0 ],
	[ q{SELECT le_become_leader('job')}, 'Lock/advisory', 0 ],
	[ q{CALL le_campaign('job')}, 'Lock/advisory', 1 ],
	[ q{CALL le_campaign('job', '1 h')}, 'Lock/advisory', 1 ],
	[ q{CALL le_campaign('job', ttl => '1 min')}, 'Lock/advisory', 1 ],
	[ q{CALL le_campaign('leased')}, 'Extension/', 1 ],
	[ q{CALL le_campaign('leased', '1 h', ttl => '1 min')}, 'Extension/', 1 ])
{
	my ($sql, $wait, $harmless) = @$case;
	subtest "VACUUM and CREATE INDEX CONCURRENTLY beside $sql" => sub {
		my $client = session($node);
		post($client, $sql);
		waits($client, $wait);
		is(ask($control, "SELECT backend_xmin IS NULL, backend_xid IS NULL FROM pg_stat_activity WHERE pid = $client->{pid}"),
			$harmless ? 't|t' : 'f|t', 'a snapshot, and no transaction ID');
		cmp_ok(kept_rows(), $harmless ? '==' : '>=', $harmless ? 0 : 100, 'rows that were deleted since and that VACUUM keeps');
		is(index_is_built($harmless ? '1 min' : '200 ms'), $harmless, 'CREATE INDEX CONCURRENTLY finishes');
		is(ask($control, "SELECT position FROM le_candidates WHERE pid = $client->{pid}"), '1', 'it is in line') if $harmless;
		kill_client($client);
		ask($control, "SELECT pg_terminate_backend($client->{pid})");
		ok(gone($client), 'gone');
	};
}
ask($leader, "SELECT le_resign('leased', $lease)");

subtest 'in a procedure' => sub {
	ask($leader, q{SELECT le_resign_all(), pg_advisory_unlock(7)});
	ask($control, q{
CREATE PROCEDURE work(INOUT result text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE t bigint; n text; i text; v text; o bigint;
BEGIN
	CALL le_campaign('job', token => t);
	result := (t > 0)::text;
	COMMIT;
	CALL le_observe('job', o, NULL, t, i, v);
	result := result || (t = le_token('job'))::text;
	CALL le_campaign(ARRAY['job', 'other'], '1 s', token => t, name => n);
	result := result || n;
	BEGIN
		CALL le_campaign(ARRAY['job', 'other', 'third'], '1 s', token => t, name => n);
		result := result || n;
		RAISE 'undo';
	EXCEPTION WHEN raise_exception THEN
		result := result || le_am_leader('third')::text;
	END;
	ROLLBACK;
	result := result || le_resign_all()::text;
END $$});
	is(ask($leader, 'CALL work()'), 'truetrueotherthirdtrue3', 'a procedure') or diag($leader->{error});
	is(trace($leader), '0|0|0', 'no trace');
};

# Behind a pool
SKIP:
{
	skip 'needs PgBouncer, and not to be root', 1 unless defined pooler_program();
	my $pooler = new_pooler($node, 'default_pool_size = 5');
	my $pooled = sub { pooled_session($pooler, @_) };
	start_pooler($pooler);

	subtest 'le_campaign through a pool in session mode' => sub {
		my ($first, $dead, $second) = map { $pooled->('session') } 1 .. 3;
		like(ask($first, q{CALL le_campaign('pooled')}), qr/^\d+$/, 'the first is elected');
		post($dead, q{CALL le_campaign('pooled')});
		ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name = 'pooled'}, 1);
		post($second, q{CALL le_campaign('pooled')});
		ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name = 'pooled'}, 2);
		kill_client($dead);
		my $time = monotonic();
		kill_client($first);
		like(collect($second), qr/^\d+$/, 'the second is elected when the first dies');
		cmp_ok(monotonic() - $time, '<', $bound, 'at once');
		ok(ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name = 'pooled'}, 0), 'not the one whose client died behind the pool');
		end_session($second);
		ok(ask_until($control, q{SELECT count(*) FROM le_leaders}, 0), 'a client that leaves leads no more');
	};

	subtest 'le_observe through a pool in transaction mode' => sub {
		my @observers = map { $pooled->('transaction') } 1 .. 3;
		my $token = ask($leader, q{SELECT le_lease('pooled', '1 h', identity => 'holder')});
		my $version = version_of($observers[0], 'pooled');
		post($_, "CALL le_observe('pooled', $version, '1 min')") foreach @observers;
		ok(ask_until($control, q{SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Extension' AND query LIKE 'CALL le_observe(''pooled%'}, 3), 'they wait');
		my $time = monotonic();
		ask($leader, "SELECT le_resign('pooled', $token)");
		like(collect($_), qr/^\d+\|\|\|$/, 'seen') foreach @observers;
		cmp_ok(monotonic() - $time, '<', $bound, 'at once');
		my $vacant = version_of($observers[1], 'pooled');
		is(ask($observers[0], "CALL le_observe('pooled', $version, '1 min')"), "$vacant|||", 'nothing is missed between two calls');
		my $new = ask($observers[0], q{CALL le_campaign('pooled', ttl => '1 h', identity => 'pooled')});
		is(ask($observers[1], "CALL le_observe('pooled', $vacant, '1 min')") =~ s/^\d+\|//r, "$new|pooled|", 'a lease by le_campaign, seen by another');
		is(ask($observers[2], "SELECT le_resign('pooled', $new)"), 't', 'and resigned from by any');
		end_session(@observers);
	};
	stop_pooler($pooler);
}

# The deletion of the rows that earlier leases have left needs both
subtest 'a session that waits has no transaction ID and no lock on le_leases' => sub {
	my $holds_none = sub {
		my ($what, $client) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		is(ask($control, "SELECT backend_xid, (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid AND relation = 'le_leases'::regclass) FROM pg_stat_activity a WHERE pid = $client->{pid}"), '|0', $what);
		return;
	};
	my $over = sub {
		my ($client, @names) = @_;
		ask($client, "SELECT le_resign('$_', le_lease('$_', '1 h'))") foreach @names;
		return;
	};
	my $expired = sub {
		my ($name) = @_;
		my $token = lease_take($control, $name, '100 ms');
		ok(ask_until($control, "SELECT le_am_leader('$name', $token)", 'f'), "the lease of $name expires");
		return;
	};
	ask($leader, q{SELECT le_try_become_leader('led')});

	foreach my $call (q{CALL le_campaign('vacant')}, q{SELECT le_become_leader('vacant')}, q{CALL le_campaign(ARRAY['vacant', 'led'])})
	{
		my $candidate = session($node);
		ask($candidate, q{SET leader_election.grace_period = '3 s'});
		$expired->('vacant');
		post($candidate, $call);
		wait_for_candidate($control, $candidate);
		wait_until_asleep($control, $candidate);
		$holds_none->("in a grace period: $call", $candidate);
		like(collect($candidate), qr/^(t|\d+(\|vacant)?)$/, 'elected after it');
		is(ask($control, q{SELECT count(*) FROM le_leases WHERE name = 'vacant'}), '0', 'and the row of the lease is deleted');
		end_session($candidate);
	}

	ask($control, 'CREATE ROLE few LOGIN', 'ALTER ROLE few SET leader_election.max_elections_per_role = 3');
	my $version = version_of($control, 'led');
	foreach my $call (q{CALL le_campaign('led')}, q{CALL le_campaign(ARRAY['led'])}, "CALL le_observe('led', $version)")
	{
		my $few = session($node, user => 'few');
		ask($few, q{SELECT le_am_leader('led')});
		$over->($few, 'few 1', 'few 2', 'few 3');
		post($few, $call);
		if ($call =~ /observe/) { wait_until_asleep($control, $few) }
		else { wait_for_candidate($control, $few) }
		$holds_none->("after room was made: $call", $few);
		is(ask($control, q{SELECT count(*) FROM le_leases WHERE name ~ 'few'}), '0', 'by deleting rows');
		ask($control, "SELECT pg_terminate_backend($few->{pid})");
		end_session($few);
	}
	is(ask($leader, q{SELECT le_resign('led')}), 't', 'resigned');
	ok(ask_until($control, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'few'}, 0), 'the others have left');
	ask($control, 'DROP ROLE few');
};

is(ask($control, q{SELECT (SELECT count(*) FROM le_candidates), (SELECT sum(candidates) FROM pg_stat_leader_election), (SELECT count(*) FROM le_leaders),
	(SELECT count(*) FROM _le_registry_candidates(false))}), '0|0|0|0', 'nothing is left');
all_consistent($node, 'also on record');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|WARNING(?!.*transaction)/, 'no accident in the log');
$node->stop;
done_testing();
