# One connection waits for any of 10,000 elections, and at once gets the one
# that becomes free, by whatever way, without harm to other sessions meanwhile.
#
# A candidate that is not woken checks its state after 5 seconds, and tries
# nothing then.

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# Fast enough to be woken up; the look-up interval is 5 seconds
my $bound = 4;
my $names = 10_000;
my $node = new_server('campaign_names', conf => qq{
autovacuum = off
max_connections = 40
max_locks_per_transaction = 800
leader_election.max_terms_per_session = 30000
leader_election.log_terms = off
});
my $control = session($node);
my $candidate = session($node, app => 'candidate');
my $slowest = 0;

sub array
{
	my ($prefix, $from, $to) = @_;
	return q{ARRAY(SELECT '} . "$prefix ' || n FROM generate_series($from, $to) n)";
}

# The campaign takes parameters, no subqueries
sub campaign
{
	my ($client, $array, $rest) = @_;
	my $literal = ask($control, "SELECT quote_literal($array)");
	post($client, "CALL le_campaign($literal\::text[]" . ($rest // '') . ')');
	return;
}

# The campaign has won this one, soon after that time
sub won
{
	my ($client, $since, $name, $what) = @_;
	my $answer = collect_or_cancel($client, $control);
	my $took = monotonic() - $since;
	$slowest = $took if $took > $slowest;
	my ($token, $won) = split /\|/, $answer // '', 2;
	is($won, $name, "$what: that one") or diag($client->{error});
	cmp_ok($took, '<', $bound, sprintf '%s: at once (%.0f ms)', $what, 1000 * $took);
	return $token;
}

# Another session leads them all
my $holder = session($node, app => 'holder');
sub take_all
{
	my ($prefix) = @_;
	my $count = ask($holder, qq{SELECT count(*) FILTER (WHERE le_try_become_leader('$prefix ' || n)) FROM generate_series(1, $names) n});
	return is($count, $names, "one session leads all '$prefix'");
}
my @ten = ('ten', 1, 10);

take_all('job');
campaign($candidate, array('job', 1, $names));
wait_for_event($node, $control, 'Campaign', $candidate);
is(ask($control, "SELECT count(*), count(position), min(name), count(DISTINCT key), min(identity) FROM le_candidates WHERE pid = $candidate->{pid}"), "$names|0|job 1|$names|candidate", 'shown for each election');
is(ask($control, q{SELECT sum(candidates), min(candidates), max(candidates) FROM le_leaders}), "$names|1|1", 'counted of each leader');
is(ask($control, q{SELECT sum(candidates), min(candidates), max(candidates) FROM pg_stat_leader_election}), "$names|1|1", 'and in the statistics');

subtest 'it holds back no other session' => sub {
	my $other = session($node);
	is(ask($control, "SELECT backend_xmin IS NULL, backend_xid IS NULL FROM pg_stat_activity WHERE pid = $candidate->{pid}"), 't|t', 'no snapshot, no transaction ID');
	is(ask($control, "SELECT count(*) FROM pg_locks WHERE pid = $candidate->{pid} AND locktype <> 'virtualxid'"), '0', 'no lock');
	ask($other, 'CREATE TABLE work (id int) WITH (autovacuum_enabled = false)');
	ask($other, 'INSERT INTO work SELECT generate_series(1, 100)');
	ask($other, 'DELETE FROM work');
	ask($other, 'VACUUM work');
	is(ask($other, q{SELECT pg_relation_size('work')}), '0', 'VACUUM removes what was deleted since');
	ask($other, q{SET statement_timeout = '1 min'});
	ask($other, 'CREATE INDEX CONCURRENTLY work_id ON work (id)');
	is($other->{error}, '', 'CREATE INDEX CONCURRENTLY finishes');
	kill_client($other);
};

my $time = monotonic();
is(ask($holder, q{SELECT le_resign('job 7777')}), 't', 'one is resigned from');
won($candidate, $time, 'job 7777', 'le_resign');
no_candidates($control, 'elected: no trace');

# What that session leads already is passed over
campaign($candidate, array('job', 1, $names));
wait_for_event($node, $control, 'Campaign', $candidate);
$time = monotonic();
is(ask($holder, q{BEGIN; SELECT le_resign('job 1')}), 't', 'resigned, in a transaction block');
won($candidate, $time, 'job 1', 'le_resign in a transaction block');
ask($holder, 'ROLLBACK');

# Stop these while they sleep: each second they look at locks, and hold others up if they are
# stopped at that
sub stop_asleep
{
	foreach my $client (@_)
	{
		while (1)
		{
			pause_process($client->{pid});
			last if ask($control, "SELECT wait_event FROM pg_stat_activity WHERE pid = $client->{pid}") eq wait_event($node, 'Campaign');
			kill 'CONT', $client->{pid};
			wait_for_event($node, $control, 'Campaign', $client);
		}
	}
	return;
}

subtest 'many releases while it sleeps' => sub {
	campaign($candidate, array('job', 1, $names));
	wait_for_event($node, $control, 'Campaign', $candidate);

	# of elections it does not campaign for, and of one that it does
	my $other = session($node);
	my $second = session($node);
	ask($other, q{SELECT count(le_try_become_leader('other ' || n)) FROM generate_series(1, 2000) n});
	campaign($second, array('other', 1, 2000));
	wait_for_event($node, $control, 'Campaign', $second);
	stop_asleep($candidate);
	ask($holder, q{SELECT le_resign('job 4321')});
	ask($other, q{SELECT count(le_resign('other ' || n)) FROM generate_series(1, 2000) n});
	my $time = monotonic();
	kill 'CONT', $candidate->{pid};
	won($candidate, $time, 'job 4321', 'after 2000 releases');
	like(collect($second), qr/^\d+\|other \d+$/, 'another campaign has got another one');
	kill_client($other, $second);
};

# The end of a lease, the deadline of a lease, the rollback of one
subtest 'leases' => sub {
	my $leaser = session($node, app => 'leaser');
	my $tokens = ask($leaser, q{SELECT string_agg(le_lease('lease ' || n, '1 h')::text, ' ' ORDER BY n) FROM generate_series(1, 1000) n});
	my @tokens = (0, split / /, $tokens);
	campaign($candidate, array('lease', 1, 1000));
	wait_for_event($node, $control, 'Campaign', $candidate);
	my $time = monotonic();
	is(ask($leaser, "SELECT le_resign('lease 500', $tokens[500])"), 't', 'one is resigned from');
	won($candidate, $time, 'lease 500', 'le_resign by token');

	campaign($candidate, array('lease', 1, 1000));
	wait_for_event($node, $control, 'Campaign', $candidate);
	$time = monotonic();
	is(ask($leaser, "SELECT le_renew('lease 501', $tokens[501], '300 ms')"), 't', 'one runs out earlier');
	won($candidate, $time + 0.3, 'lease 501', 'a shorter ttl');
	cmp_ok(monotonic(), '>=', $time + 0.3, 'not before');

	$time = monotonic();
	is(ask($leaser, "SELECT le_renew('lease 502', $tokens[502], '800 ms')"), 't', 'one runs out soon');
	campaign($candidate, array('lease', 502, 1000));
	wait_for_event($node, $control, 'Campaign', $candidate);
	my $renewed = monotonic();
	if (ask($leaser, "SELECT le_renew('lease 502', $tokens[502])") eq 't') { $time = $renewed; }
	won($candidate, $time + 0.8, 'lease 502', 'expiry, after a renewal');
	cmp_ok(monotonic(), '>=', $time + 0.8, 'not before');

	ask($leaser, 'BEGIN');
	like(ask($leaser, q{SELECT le_lease('lease x', '1 h')}), qr/^\d+$/, 'one that is not committed');
	campaign($candidate, q{ARRAY['lease x', 'lease 1']});
	wait_for_event($node, $control, 'Campaign', $candidate);
	$time = monotonic();
	ask($leaser, 'ROLLBACK');
	won($candidate, $time, 'lease x', 'rollback of a lease');
	ask($candidate, q{SELECT le_resign('lease x')});

	ask($leaser, 'BEGIN; SAVEPOINT a');
	ask($leaser, q{SELECT le_lease('lease x', '1 h')});
	campaign($candidate, q{ARRAY['lease x', 'lease 1']});
	wait_for_event($node, $control, 'Campaign', $candidate);
	$time = monotonic();
	ask($leaser, 'ROLLBACK TO a');
	won($candidate, $time, 'lease x', 'rollback of a lease to a savepoint');
	ask($candidate, q{SELECT le_resign('lease x')});
	ask($leaser, 'COMMIT');

	# a lease whose ttl begins while it is campaigned for, and a campaign that
	# takes leases itself
	ask($leaser, 'BEGIN');
	ask($leaser, q{SELECT le_lease('lease x', '300 ms')});
	campaign($candidate, q{ARRAY['lease 1', 'lease x']}, q{, ttl => '500 ms'});
	wait_for_event($node, $control, 'Campaign', $candidate);
	$time = monotonic();
	ask($leaser, 'COMMIT');
	my $token = won($candidate, $time + 0.3, 'lease x', 'expiry of a lease that was committed');
	my $shown = ask($leaser, "SELECT scope, token FROM le_leader('lease x')");
	is($shown, "lease|$token", 'to lease scope') if monotonic() < $time + 0.8;
	ask($candidate, "SELECT le_resign('lease x', $token)");
	ask($candidate, q{SELECT le_resign_all()});
	kill_client($leaser);
};
no_candidates($control, 'leases: no trace');

subtest 'transactions' => sub {
	my $other = session($node);
	foreach my $end ('COMMIT', 'ROLLBACK', 'ROLLBACK TO a', 'SELECT 1 / 0', 'drop', 'terminate')
	{
		ask($other, 'BEGIN; SAVEPOINT a');
		is(ask($other, q{SELECT count(le_try_become_leader_xact('xact ' || n)) FROM generate_series(1, 50) n}), 50, 'a transaction leads');
		campaign($candidate, array('xact', 50, 50) . ' || ' . array('job', 8000, 8100));
		wait_for_event($node, $control, 'Campaign', $candidate);
		my $time = monotonic();
		if ($end eq 'drop') { kill_client($other); }
		elsif ($end eq 'terminate') { ask($control, "SELECT pg_terminate_backend($other->{pid})"); }
		else { ask($other, $end); }
		won($candidate, $time, 'xact 50', $end);
		ask($candidate, q{SELECT le_resign('xact 50')});
		$other->{closed} || $end eq 'terminate' ? ($other = session($node)) : ask($other, 'ROLLBACK');
	}
	kill_client($other);
};

subtest 'it overtakes no candidate' => sub {
	my $waiter = session($node, app => 'waiter');
	foreach my $how (q{SELECT le_become_leader('job 5000')}, q{CALL le_campaign('job 5000')}, q{CALL le_campaign('job 5000', ttl => '1 h')})
	{
		ask($holder, q{SELECT le_try_become_leader('job 5000')});
		campaign($candidate, q{ARRAY['job 5000', 'job 5001']});
		wait_for_event($node, $control, 'Campaign', $candidate);
		post($waiter, $how);
		wait_until_waiting($node, $waiter->{pid});
		is(ask($control, q{SELECT string_agg(concat(identity, position), ' ' ORDER BY position) FROM le_candidates WHERE name = 'job 5000'}), 'waiter1 candidate', "$how: stands in line");
		is(ask($control, q{SELECT candidates FROM le_leader('job 5000')}), 2, 'both are counted');
		ask($holder, q{SELECT le_resign('job 5000')});
		my $token = collect($waiter);
		like($token, qr/^(t|\d+)$/, 'is elected, though it came later');
		ok(!defined collect($candidate, 0.2), 'the campaign goes on');
		my $time = monotonic();
		ask($waiter, $how =~ /ttl/ ? "SELECT le_resign('job 5000', $token)" : q{SELECT le_resign('job 5000')});
		won($candidate, $time, 'job 5000', 'then the campaign');
		ask($candidate, q{SELECT le_resign('job 5000')});
	}
	kill_client($waiter);
};

subtest 'ten campaigns for the same hundred' => sub {
	my @campaigns = map { session($node, app => "campaign $_") } 1 .. 10;
	ask($holder, q{SELECT count(le_try_become_leader('job ' || n)) FROM generate_series(1, 100) n});
	foreach my $round (1 .. 5)
	{
		campaign($_, array('job', 1, 100)) foreach @campaigns;
		wait_for_event($node, $control, 'Campaign', @campaigns);
		is(ask($control, q{SELECT candidates FROM pg_stat_leader_election WHERE name = 'job 50'}), 10, 'all are counted');
		my $time = monotonic();
		is(ask($holder, qq{SELECT count(*) FILTER (WHERE le_resign('job ' || n)) FROM generate_series($round * 10 + 1, $round * 10 + 10) n}), 10, 'ten come free');
		my %won;
		foreach my $campaign (@campaigns)
		{
			my $answer = collect($campaign, $bound) // 'nothing|nothing';
			push @{ $won{ (split /\|/, $answer)[1] } }, $answer;
		}
		is(join(' ', sort { $a <=> $b } map { /(\d+)/ ? $1 : () } keys %won), join(' ', map { $round * 10 + $_ } 1 .. 10), 'each gets one of its own');
		ask($_, 'SELECT le_resign_all()') foreach @campaigns;
		ask($holder, q{SELECT count(le_try_become_leader('job ' || n)) FROM generate_series(1, 100) n});
	}

	# one comes free for ten
	campaign($_, array('job', 1, 100)) foreach @campaigns;
	wait_for_event($node, $control, 'Campaign', @campaigns);
	ask($holder, q{SELECT le_resign('job 1')});
	my $patience = monotonic() + $bound;
	my @ready;
	while (!@ready && monotonic() < $patience)
	{
		hear(0.1, @campaigns);
		@ready = grep { $_->{ready} } @campaigns;
	}
	Time::HiRes::sleep(0.2);
	hear(0, @campaigns);
	is(scalar(grep { $_->{ready} } @campaigns), 1, 'one comes free: one gets it');
	kill_client(@campaigns);
	ok(ask_until($control, q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'campaign _%'}, 0), 'all die');
	is(ask($holder, q{SELECT le_try_become_leader('job 1')}), 't', 'and leave nothing');
};

subtest 'how it ends without election' => sub {
	my $literal = ask($control, 'SELECT quote_literal(' . array('job', 100, 200) . ')') . '::text[]';
	foreach my $case (
		[ 'timeout', '', q{'300 ms'}, undef, '' ],
		[ 'timeout 0', '', q{'0'}, undef, '' ],
		[ 'statement_timeout', q{SET statement_timeout = '300 ms'}, 'NULL', undef, '57014' ],
		[ 'lock_timeout', q{SET lock_timeout = '300 ms'}, 'NULL', undef, '55P03' ],
		[ 'lock_timeout before the timeout', q{SET lock_timeout = '300 ms'}, q{'1 min'}, undef, '55P03' ],
		[ 'timeout before lock_timeout', q{SET lock_timeout = '1 min'}, q{'300 ms'}, undef, '' ],
		[ 'pg_cancel_backend', '', 'NULL', sub { ask($control, "SELECT pg_cancel_backend($_[0]{pid})") }, '57014' ],
		[ 'pg_terminate_backend', '', 'NULL', sub { ask($control, "SELECT pg_terminate_backend($_[0]{pid})") }, '57P01' ],
		[ 'death', '', 'NULL', \&kill_client, undef ])
	{
		my ($what, $before, $timeout, $act, $code) = @$case;
		foreach my $block ($what eq 'death' ? '' : ('', 'BEGIN', 'BEGIN; SAVEPOINT a'))
		{
			my $client = session($node, app => 'short-lived');
			my $where = $what . ($block && " in $block");
			ask($client, $_) foreach grep { $_ } $before, $block;
			post($client, "CALL le_campaign($literal, $timeout)");
			if ($act)
			{
				wait_for_event($node, $control, 'Campaign', $client);
				is(ask($control, q{SELECT candidates FROM pg_stat_leader_election WHERE name = 'job 150'}), 1, "$where: counted");
				$act->($client);
			}
			my $answer = collect($client);
			is($client->{code}, $code, "$where: error or not") if defined $code;
			is($answer, '|', "$where: not elected") if defined $code && $code eq '';
			ok(ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $client->{pid}", 0), "$where: gone") if $act && $what !~ /cancel/;
			no_candidates($control, "$where: no trace");
			is(ask($client, 'ROLLBACK; SELECT 1'), '1', "$where: the session goes on") unless $client->{closed};
			kill_client($client);
		}
	}
	is(ask($control, q{SELECT count(*) FROM le_leaders WHERE pid = } . $holder->{pid} . q{ AND name IN ('job 100', 'job 150', 'job 200')}), 3, 'the leader still leads');
};

# The big ends: everything comes free at once
ask($candidate, 'SELECT le_resign_all()');
take_all('job');
foreach my $end ('DISCARD ALL', 'SELECT le_resign_all()', 'SELECT pg_advisory_unlock_all()')
{
	campaign($candidate, array('job', 9000, 9010));
	wait_for_event($node, $control, 'Campaign', $candidate);
	$time = monotonic();
	ask($holder, $end);
	like((collect($candidate) // '') . $candidate->{error}, qr/^\d+\|job 90\d\d$/, "$end: elected");
	cmp_ok(monotonic() - $time, '<', $bound, 'in time');
	ask($candidate, 'SELECT le_resign_all()');
	take_all('job');
}
campaign($candidate, array('job', 1, $names));
wait_for_event($node, $control, 'Campaign', $candidate);
$time = monotonic();
kill_client($holder);
like(collect($candidate), qr/^\d+\|job \d+$/, 'SIGKILL of the client that leads all: elected');
cmp_ok(monotonic() - $time, '<', $bound, 'in time');
end_session($holder);
ask_until($control, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $holder->{pid}, 0);
is(ask($control, 'SELECT count(*) FROM le_leaders WHERE pid IS NOT NULL'), 1, 'it leads one');

no_candidates($control, 'the end: no trace');
note(sprintf 'slowest: %.0f ms', 1000 * $slowest);
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring/, 'no accident in the log');
$node->stop;
done_testing();
