# While a synchronous standby is gone, a bid that does not wait is answered
# soon.  No session is elected before the end of the last lease, and the token,
# are durable there.  A bid that waits keeps its timeouts.  Removing old leases
# holds back no other election.

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# Such a bid takes 0.1 s; one that waits for a standby hangs
my $bound = 5;
my $node = new_server('standby_gone', conf => q{
wal_level = replica
max_wal_senders = 2
autovacuum = off
});
my $control = session($node);
my $bidder = session($node, app => 'bidder');
my $other = session($node, app => 'other');

# Until all of the server has heard of it: the checkpointer has, when a commit hangs or not
sub set_standbys
{
	my ($names) = @_;
	my $probe = session($node);
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$node->reload;
	ask_until($_, 'SHOW synchronous_standby_names', $names) foreach $probe, $control;
	my $hangs = 0;
	until ($hangs || $names eq '')
	{
		post($probe, 'CREATE TABLE probe (); DROP TABLE probe');
		$hangs = !defined collect($probe, 0.2);
	}
	ask($control, "SELECT pg_terminate_backend($probe->{pid})");
	kill_client($probe);
	return;
}

sub standby_is_gone { return set_standbys('missing'); }
sub standby_is_given_up { return set_standbys(''); }

# Runs a statement that must not wait for a standby; its answer
sub soon
{
	my ($client, $sql) = @_;
	my $before = monotonic();
	post($client, $sql);
	my $answer = collect($client, $bound);
	my $took = monotonic() - $before;
	unless (ok(defined $answer, sprintf '%s: answered (%.0f ms)', $sql, 1000 * $took))
	{
		# for the wait in the statement, and for that of the commit
		ask($control, "SELECT pg_cancel_backend($client->{pid})") until defined collect($client, 0.1);
		return 'none';
	}
	return $answer;
}

# Leases that have run out; they are taken at once, so that none is swept by the next
sub run_out
{
	my @names = @_;
	my $list = join ',', map { "'$_'" } @names;
	ask($other, "SELECT count(le_lease(name, '100 ms')) FROM unnest(ARRAY[$list]) name") eq @names || die $other->{error};
	sleep_past(monotonic() + 0.15);
	return;
}

sub is_vacant
{
	my ($name) = @_;
	is(ask($control, "SELECT count(*) FROM le_leader('$name')"), '0', "no leader of \"$name\"");
	return;
}

subtest 'behind a lease that has run out' => sub {
	run_out(map { "over$_" } 1 .. 8);
	standby_is_gone();
	my $denied = ask($control, q{SELECT sum(denied) FROM pg_stat_leader_election WHERE name LIKE 'over%'});
	foreach my $round (1, 2)
	{
		is(soon($bidder, q{SELECT le_try_become_leader('over1')}), 'f', 'denied in session scope');
		is(soon($bidder, q{SELECT le_try_become_leader_xact('over2')}), 'f', 'in transaction scope');
		is(soon($bidder, q{SELECT le_lease('over3', '1 h')}), '', 'in lease scope');
		is(soon($bidder, q{CALL le_campaign(ARRAY['over4', 'over5', 'over6', 'over7', 'over8'], timeout => '0')}), '|', 'for many elections');
	}
	is(ask($control, q{SELECT sum(denied) FROM pg_stat_leader_election WHERE name LIKE 'over%'}) - $denied, 16, 'and that is counted');
	is(soon($bidder, q{SELECT le_become_leader('over1', '300 ms')}), 'f', 'a timeout ends the wait');
	is(soon($bidder, q{CALL le_campaign('over3', timeout => '300 ms', ttl => '1 h')}), '', 'in lease scope');
	is(soon($bidder, q{CALL le_campaign(ARRAY['over4', 'over5'], timeout => '300 ms')}), '|', 'for many elections');
	ask($bidder, q{SET lock_timeout = '300 ms'});
	fails($bidder, q{SELECT le_become_leader('over1')}, '55P03', 'lock_timeout');
	fails($bidder, q{SELECT le_become_leader('over1', '1 min')}, '55P03', 'lock_timeout before the timeout');
	ask($bidder, 'RESET lock_timeout');
	is_vacant("over$_") foreach 1 .. 8;

	post($bidder, q{SELECT le_become_leader('over1')});
	ok(ask_until($control, 'SELECT name, position, waits_for FROM le_candidates', 'over1|1|standby'), 'le_candidates tells what is waited for');
	ok(ask_until($control, "SELECT wait_event FROM pg_stat_activity WHERE pid = $bidder->{pid}", 'SyncRep'), 'and so does pg_stat_activity');
	is(soon($other, q{SELECT le_try_become_leader('over1')}), 'f', 'the candidate is not overtaken');
	ask($control, "SELECT pg_cancel_backend($bidder->{pid})");
	collect($bidder);
	is($bidder->{code}, '57014', 'cancelled');
	is_vacant('over1');
	no_trace($node, $bidder->{pid}, 'nothing of it is left');

	my $many = session($node);
	post($bidder, q{SELECT le_become_leader('over1')});
	post($many, q{CALL le_campaign(ARRAY['over4', 'over5'])});
	ok(ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name IN ('over1', 'over4')}, '2'), 'candidates wait');
	standby_is_given_up();
	is(collect($bidder, 10), 't', 'elected when the standby is given up');
	like(collect($many, 10), qr/^\d+\|over[45]$/, 'for many elections, too');
	ask($_, 'SELECT le_resign_all()') foreach $bidder, $many;
	kill_client($many);
};

subtest 'a resignation before that' => sub {
	my $token = ask($other, q{SELECT le_lease('resigned', '1 h')});
	ask($other, "SELECT le_resign('resigned', $token)");
	standby_is_gone();

	# no record of it has arrived there, and none was needed then
	is(soon($bidder, q{SELECT le_try_become_leader('resigned')}), 'f', 'denied, as the standby does not have it');
	standby_is_given_up();
	is(soon($bidder, q{SELECT le_try_become_leader('resigned'), le_resign('resigned')}), 't|t', 'elected');
};

subtest 'a new block of tokens' => sub {
	my $last = ask($control, 'SELECT last_value FROM le_token_seq');
	my $rest = $last - lead_once($bidder, 'more');
	is(ask($bidder, "SELECT count(*) FROM generate_series(1, $rest) WHERE le_try_become_leader('more') AND le_resign('more')"), $rest, 'the block is used up');
	standby_is_gone();
	is(soon($bidder, q{SELECT le_try_become_leader('next')}), 'f', 'denied');
	is(soon($bidder, q{SELECT le_try_become_leader_xact('next')}), 'f', 'denied');
	is(soon($bidder, q{SELECT le_become_leader('next', '300 ms')}), 'f', 'a timeout');
	is_vacant('next');
	my $drawn = ask($control, 'SELECT last_value FROM le_token_seq');
	is($drawn - $last, 1024, 'one block was drawn by all of them');

	# those that need it at the same time wait for it at the same time
	my @crowd = map { session($node) } 1 .. 10;
	my $before = monotonic();
	post($crowd[$_], "SELECT le_try_become_leader('crowd $_')") foreach 0 .. $#crowd;
	is(collect($_, $bound), 'f', 'denied') foreach @crowd;
	kill_client(@crowd);
	post($bidder, q{SELECT le_become_leader('next'), le_token('next')});
	ok(ask_until($control, 'SELECT name, waits_for FROM le_candidates', 'next|standby'), 'a candidate waits');
	standby_is_given_up();
	is(collect($bidder, 10), 't|' . ($last + 1), 'it has the first token of that block');
	is(ask($control, 'SELECT last_value FROM le_token_seq'), $drawn, 'and no other one was drawn');
	ask($bidder, 'SELECT le_resign_all()');
};

subtest 'clearing old leases away' => sub {
	my @old = map { "old$_" } 1 .. 24;
	my $candidate = session($node);
	run_out(@old);
	standby_is_gone();
	ask($other, 'BEGIN');
	foreach my $sweep (1 .. 3)
	{
		is(soon($other, "SELECT count(le_lease('new $sweep ' || i, '1 h')) FROM generate_series(1, 40) i"), '40', 'leases are taken beside them');
	}
	is(ask($control, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $other->{pid}"), '120', 'no lock of an old one is held');
	is(soon($bidder, "SELECT count(*) FROM le_leases WHERE name LIKE 'old%' AND ttl = '0'"), '24', 'they are void');
	is(soon($bidder, "SELECT le_try_become_leader('$_')"), 'f', 'but on record, until that is durable') foreach @old[0 .. 3];

	post($candidate, "SELECT le_become_leader('old1')");
	ok(ask_until($control, "SELECT name, waits_for FROM le_candidates", 'old1|standby'), 'a candidate waits for the standby only');
	standby_is_given_up();
	is(collect($candidate, 10), 't', 'and is elected then');
	is(soon($bidder, "SELECT le_try_become_leader('$_')"), 't', 'so are others') foreach @old[1 .. 3];
	ask($other, 'ROLLBACK');
	foreach my $sweep (1 .. 3)
	{
		ask($other, "SELECT count(le_lease('$sweep new ' || i, '1 h')) FROM generate_series(1, 40) i");
	}
	is(ask($control, q{SELECT count(*) FROM le_leases WHERE name LIKE 'old%'}), '0', 'all are cleared away in the end');
	kill_client($candidate);
};

subtest 'a lease that is deposed, and what it guards' => sub {
	my $many = session($node);
	my $guarded = session($node);
	my $token = ask($other, q{SELECT le_lease('guarding', '1 h')});
	ask($guarded, $_) foreach 'BEGIN', "SELECT le_assert_leader('guarding', $token)";
	post($many, q{CALL le_campaign(ARRAY['guarding'])});
	ok(ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name = 'guarding'}, '1'), 'a candidate waits');
	standby_is_gone();
	post($bidder, q{SELECT le_depose('guarding')});
	ok(ask_until($control, "SELECT wait_event FROM pg_stat_activity WHERE pid = $bidder->{pid}", 'SyncRep'), 'le_depose waits');
	ok(ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $guarded->{pid}", '0'), 'but the guarded session is terminated');
	standby_is_given_up();
	is(collect($bidder, 10), 't', 'it ends when the standby is given up');
	like(collect($many, 10), qr/^\d+\|guarding$/, 'and the candidate is elected then');
	kill_client($guarded, $many);
};

# A role that may use up so much, and asks for more, has what is over cleared away first
subtest 'making room' => sub {
	$node->safe_psql('postgres', q{CREATE ROLE regress_bounded LOGIN; ALTER ROLE regress_bounded SET leader_election.max_elections_per_role = 2});
	my $bounded = session($node, user => 'regress_bounded');
	my $observe = q{CALL le_observe('watched', NULL, '0')};

	ask($bounded, q{SELECT le_lease('small', '100 ms')});
	ask($bounded, $_) foreach 'BEGIN', q{SELECT le_lease('small, too', '1 h')}, 'ROLLBACK';
	sleep_past(monotonic() + 0.15);
	standby_is_gone();
	like(soon($bounded, $observe), qr/^\d+\|\|\|$/, 'there is room for what was rolled back');
	standby_is_given_up();

	kill_client($bounded);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring|past end of generated/, 'no accident in the log');
kill_client($control, $bidder, $other);
$node->stop;
done_testing();
