# Candidates that wait while a lease runs are elected when it is over, in the
# order of the queue, without the dead ones.  None is elected before.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('lease_candidates');
my $holder = session($node, app => 'holder');

sub candidate
{
	my ($name, $how, @arguments) = @_;
	my $session = session($node, app => $how);
	ask($session, 'BEGIN') if $how eq 'le_become_leader_xact';
	post($session, "SELECT $how(" . join(', ', "'$name'", @arguments) . ')');
	return $session;
}

sub queue
{
	my ($name) = @_;
	return $node->safe_psql('postgres', "SELECT string_agg(pid::text, ' ' ORDER BY position) FROM le_candidates WHERE name = '$name'");
}

my $number = 0;

sub elected_after
{
	my ($session, $over, $what) = @_;
	is(collect($session), 't', "$what: elected");
	my $now = monotonic();
	cmp_ok($now, '>=', $over, 'not before the lease is over');
	cmp_ok($now, '<', $over + 20, 'and not much later');
	diag(sprintf '%s: elected %.1f ms after the lease was over', $what, 1000 * ($now - $over));
	return;
}

foreach my $how ('le_become_leader', 'le_become_leader_xact')
{
	foreach my $limit ('NULL', q{'1 min'})
	{
		subtest "$how, timeout $limit, expiry" => sub {
			my $name = 'job ' . ++$number;
			my $asked = monotonic();
			my $token = lease_take($holder, $name, '1 s', 'holder');
			my $session = candidate($name, $how, $limit);
			wait_until_sleeping($node, $session->{pid}, $asked + 1);
			my $shown = ask($holder, "SELECT l.identity, l.candidates, c.position, c.pid FROM le_leader('$name') l JOIN le_candidates c USING (name)");
			is($shown, "holder|1|1|$session->{pid}", 'shown') if monotonic() < $asked + 1;
			elected_after($session, $asked + 1, 'at expiry');
			is(ask($holder, "SELECT le_renew('$name', $token), le_lease('$name', '1 s') IS NULL"), 'f|t', 'the lease is over, and another denied');
			is(queue($name), '', 'no candidate is left');
			ask($session, 'COMMIT') if $how =~ /xact/;
			end_session($session);
		};
		subtest "$how, timeout $limit, resignation" => sub {
			my $name = 'job ' . ++$number;
			my $token = lease_take($holder, $name, '1 h', 'holder');
			my $session = candidate($name, $how, $limit);
			wait_until_sleeping($node, $session->{pid});
			my $resigned = monotonic();
			is(ask($holder, "SELECT le_resign('$name', $token)"), 't', 'resigned');
			elected_after($session, $resigned, 'at resignation');
			is(ask($holder, "SELECT le_lease('$name', '1 s') IS NULL"), 't', 'the old holder is denied');
			ask($session, 'COMMIT') if $how =~ /xact/;
			end_session($session);
		};
	}
}

subtest 'the deadline moves while a candidate sleeps' => sub {
	my $renewed = monotonic();
	my $token = lease_take($holder, 'moved', '1 s', 'holder');
	my $session = candidate('moved', 'le_become_leader');
	wait_until_sleeping($node, $session->{pid}, $renewed + 1);
	foreach my $i (1 .. 4)
	{
		sleep_past($renewed + 0.4);
		my $asked = monotonic();
		if (ask($holder, "SELECT le_renew('moved', $token)") eq 't') { $renewed = $asked; }
		else { cmp_ok(monotonic(), '>', $renewed + 1, 'the machine is too slow to renew it'); }
	}
	elected_after($session, $renewed + 1, 'after the last renewal');
	end_session($session);

	$token = lease_take($holder, 'shorter', '1 h', 'holder');
	$session = candidate('shorter', 'le_become_leader');
	wait_until_sleeping($node, $session->{pid});
	$renewed = monotonic();
	is(ask($holder, "SELECT le_renew('shorter', $token, '500 ms')"), 't', 'a shorter ttl');
	elected_after($session, $renewed + 0.5, 'at the shorter ttl');
	end_session($session);
};

# How a wait ends without election: nothing is left of it, and the lease runs on
my @ends = (
	{ end => 'timeout', arguments => q{'200 ms'}, answer => 'f' },
	{ end => 'lock_timeout', before => q{SET lock_timeout = '200 ms'}, error => qr/ERROR:  55P03/ },
	{ end => 'lock_timeout before the timeout', before => q{SET lock_timeout = '200 ms'}, arguments => q{'1 min'}, error => qr/ERROR:  55P03/ },
	{ end => 'statement_timeout', before => q{SET statement_timeout = '200 ms'}, error => qr/ERROR:  57014/ },
	{ end => 'cancel', act => 'pg_cancel_backend', error => qr/ERROR:  57014/ },
	{ end => 'terminate', act => 'pg_terminate_backend', error => qr/FATAL:  57P01/ });
foreach my $how ('le_become_leader', 'le_become_leader_xact')
{
	foreach my $case (@ends)
	{
		subtest "$how: $case->{end} of the first in line" => sub {
			my $name = 'job ' . ++$number;
			my $token = lease_take($holder, $name, '1 h', 'holder');
			my $first = session($node, app => 'first');
			my $pid = $first->{pid};
			ask($first, $case->{before}) if $case->{before};
			my $arguments = $case->{arguments} // 'NULL';
			ask($first, 'BEGIN; SAVEPOINT one') if $number % 2;
			post($first, "SELECT $how('$name', $arguments)");
			wait_until_sleeping($node, $pid) if $case->{act};
			my $second;
			if ($case->{act})
			{
				$second = candidate($name, $how);
				wait_until_waiting($node, $second->{pid});
				is(queue($name), "$pid $second->{pid}", 'two in line');
				$node->safe_psql('postgres', "SELECT $case->{act}($pid)");
			}
			my $answer = collect($first);
			$case->{error}
			  ? like($first->{messages}, $case->{error}, 'error')
			  : is($answer, $case->{answer}, 'answer');
			is(ask($first, 'ROLLBACK; SELECT 1'), '1', 'the session goes on') if $number % 2 && $case->{end} ne 'terminate';
			no_trace($node, $pid, 'nothing is left of it');
			is(ask($holder, "SELECT le_renew('$name', $token)"), 't', 'the lease runs on');
			is($node->safe_psql('postgres', "SELECT identity || candidates FROM le_leader('$name')"), 'holder' . ($second ? 1 : 0), 'is shown');
			if ($second)
			{
				wait_until_sleeping($node, $second->{pid});
				is(queue($name), $second->{pid}, 'the second is first now');
			}
			is(ask($holder, "SELECT le_resign('$name', $token)"), 't', 'resigned');
			if ($second)
			{
				is(collect($second), 't', 'the second is elected');
				ask($second, 'COMMIT');
				end_session($second);
			}
			end_session($first);
		};
	}
}

subtest 'five wait, the clients of two die' => sub {
	my $offset = log_from($node);
	my $token = lease_take($holder, 'five', '1 h', 'holder');
	my @waiting;
	foreach my $i (0 .. 4)
	{
		my $session = session($node, app => "candidate $i");
		post($session, q{SELECT le_become_leader('five', NULL)});
		$i == 0 ? wait_until_sleeping($node, $session->{pid}) : wait_until_waiting($node, $session->{pid});
		push @waiting, $session;
	}
	is(queue('five'), join(' ', map { $_->{pid} } @waiting), 'five in line');
	kill_client($waiting[$_]) foreach 0, 2;
	my $asked = monotonic();
	is(ask($holder, "SELECT le_renew('five', $token, '2 s')"), 't', 'the lease is soon over');
	foreach my $i (1, 3, 4)
	{
		is(collect($waiting[$i]), 't', "candidate $i is elected");
		cmp_ok(monotonic(), '>=', $asked + 2, 'not before the lease is over');
		is($node->safe_psql('postgres', q{SELECT identity FROM le_leader('five')}), "candidate $i", 'and shown');
		is(ask($waiting[$i], q{SELECT le_resign('five')}), 't', 'resigned');
	}
	is(join(' ', map { /term \d+ began: "candidate (\d)" leads/ ? $1 : () } term_lines($node, $offset)), '1 3 4', 'no other was');
	is(scalar(() = log_since($node, $offset) =~ /FATAL:  connection to client lost/g), 2, 'two sessions ended');
	no_trace($node, $waiting[$_]{pid}, 'nothing is left of a dead one') foreach 0, 2;
	end_session(@waiting);
	is(ask($holder, "SELECT le_renew('five', $token)"), 'f', 'the lease is over');
};

# The dead one does not keep its place until the lease ends, which may be never
subtest 'the client of the first in line dies while the lease is renewed' => sub {
	my $token = lease_take($holder, 'renewed', '1 h', 'holder');
	my $first = candidate('renewed', 'le_become_leader');
	my $second = candidate('renewed', 'le_become_leader');
	my $patience = monotonic() + 30;
	my ($renewed, $line) = ('t', '');
	kill_client($first);

	# by one statement, as a new session can take longer to begin than the lease lasts
	until ($renewed ne 't' || $line eq $second->{pid} || monotonic() > $patience)
	{
		($renewed, $line) = split /\|/, ask($holder, "SELECT le_renew('renewed', $token, '1 s'), (SELECT string_agg(pid::text, ' ' ORDER BY position) FROM le_candidates WHERE name = 'renewed')");
	}
  SKIP:
	{
		skip 'the machine was too slow to renew the lease', 2 if $renewed ne 't';
		is($line, $second->{pid}, 'the second is first in line');
		is(ask($holder, "SELECT le_renew('renewed', $token, '1 h')"), 't', 'the lease runs on');
	}
	ask($holder, "SELECT le_resign('renewed', $token)");
	is(collect($second), 't', 'the second is elected');
	end_session($first, $second);
};

subtest 'first come, first served, whatever the scope' => sub {
	my $session = session($node, app => 'in transaction');
	my $second = session($node, app => 'second');
	ask($session, 'BEGIN');
	is(ask($session, q{SELECT le_try_become_leader_xact('mixed')}), 't', 'a transaction leads');
	is(ask($holder, q{SELECT le_lease('mixed', '1 h')}), '', 'a lease is denied');
	my $waiter = candidate('mixed', 'le_become_leader_xact');
	wait_until_waiting($node, $waiter->{pid});
	ask($session, 'COMMIT');
	is(collect($waiter), 't', 'the waiting candidate is elected');
	is(ask($holder, q{SELECT le_lease('mixed', '1 h')}), '', 'no lease');
	ask($waiter, 'COMMIT');
	my $token = lease_take($holder, 'mixed', '1 h', 'holder');
	ask($session, 'BEGIN');
	is(ask($session, q{SELECT le_try_become_leader_xact('mixed'), le_try_become_leader('mixed')}), 'f|f', 'other scopes are denied');
	is(ask($session, q{SELECT le_become_leader_xact('mixed', '10 ms')}), 'f', 'after a wait, too');
	ask($session, 'ROLLBACK');
	post($waiter, q{BEGIN; SELECT le_become_leader_xact('mixed')});
	wait_until_sleeping($node, $waiter->{pid});
	is(ask($holder, qq{SELECT le_resign('mixed', $token), le_lease('mixed', '1 h') IS NULL}), 't|t', 'the resigned leader cannot overtake the candidate');
	is(collect($waiter), 't', 'which is elected');
	end_session($session, $second, $waiter);
};

subtest 'a lease that is not committed' => sub {
	my $taker = session($node, app => 'taker');
	ask($taker, 'BEGIN');
	my $token = ask($taker, q{SELECT le_lease('slow', '1 s')});
	my $first = candidate('slow', 'le_become_leader');
	wait_until_waiting($node, $first->{pid});
	my $second = candidate('slow', 'le_become_leader');
	wait_until_waiting($node, $second->{pid});
	is(ask($holder, q{SELECT le_lease('slow', '1 s')}), '', 'others are denied');
	sleep_past(monotonic() + 1.1);
	is(queue('slow'), "$first->{pid} $second->{pid}", 'the ttl has not begun');
	my $committed = monotonic();
	ask($taker, 'COMMIT');
	is(ask($taker, "SELECT le_renew('slow', $token)"), 't', 'it counts from the commit');
	elected_after($first, $committed + 1, 'after a commit');
	end_session($first);
	is(collect($second), 't', 'then the second');
	is(ask($second, q{SELECT le_resign('slow')}), 't', 'resigned');

	ask($taker, 'BEGIN; SAVEPOINT one');
	$token = ask($taker, q{SELECT le_lease('slow', '1 h')});
	post($second, q{SELECT le_become_leader('slow')});
	wait_until_waiting($node, $second->{pid});
	ask($taker, 'ROLLBACK TO one');
	is(collect($second), 't', 'a rollback to a savepoint lets the next in at once');
	is(ask($taker, "SELECT le_am_leader('slow', $token), le_renew('slow', $token)"), 'f|f', 'it never was');
	ask($taker, 'COMMIT');
	is(ask($taker, "SELECT le_am_leader('slow', $token), le_renew('slow', $token)"), 'f|f', 'nor is it after the commit');
	end_session($taker, $second);
};

is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock is left');
is($node->safe_psql('postgres', q{SELECT count(*) FROM _le_registry_candidates(false)}), '0', 'no candidate is left');

subtest 'the server is stopped while a candidate sleeps' => sub {
	my $token = lease_take($holder, 'stop', '1 day', 'holder');
	my $session = candidate('stop', 'le_become_leader');
	wait_until_sleeping($node, $session->{pid});
	my $asked = monotonic();
	$node->stop('fast');
	note(sprintf 'stopped in %.1f s', monotonic() - $asked);
	is(collect($session), undef, 'the candidate has no answer');
	like($session->{messages}, qr/FATAL:  57P01: terminating connection due to administrator command/, 'but is told');
	end_session($session, $holder);
	$node->start;
	is($node->safe_psql('postgres', "SELECT le_renew('stop', $token), le_resign('stop', $token)"), 't|t', 'the lease runs on');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
