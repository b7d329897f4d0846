# A crowd that waits for one election, by CALL le_campaign outside a transaction block: no
# candidate checks the whole line for deadlocks, which would stop all users of locks.
#
# alone: it measures time

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('crowd', conf => "max_connections = 60\ndeadlock_timeout = 10ms\nlog_lock_waits = on\n");
my $leader = session($node);
my $watcher = session($node);
ask($leader, q{SELECT le_try_become_leader('job')});

# The server says so of each session that has checked for a deadlock
sub checks
{
	my ($statement, @before) = @_;
	my $candidate = session($node);
	my $offset = log_from($node);

	ask($candidate, $_) foreach @before;
	post($candidate, $statement);
	wait_for_candidate($watcher, $candidate);

	# one that comes later and does check has done so
	my $last = session($node);
	post($last, q{SELECT le_become_leader('job')});
	$node->wait_for_log(qr/process $last->{pid} still waiting/, $offset);
	my $checks = log_since($node, $offset) =~ /process $candidate->{pid} still waiting/;
	kill_client($candidate, $last);
	ask_until($watcher, 'SELECT count(*) FROM le_candidates', 0);
	return $checks;
}

subtest 'who checks for deadlocks' => sub {
	my $call = q{CALL le_campaign('job')};
	ok(!checks($call), 'not a candidate that holds nothing');
	ok(!checks(q{CALL le_campaign('job', '1 h')}), 'nor with a timeout');
	ok(!checks(q{CALL le_campaign('job', ttl => '1 h')}), 'nor for a lease');
	ok(checks(q{SELECT le_become_leader('job')}), 'one with a snapshot');
	ok(checks($call, 'BEGIN', 'LOCK pg_statistic IN ACCESS SHARE MODE'), 'one with a lock');
	ok(checks($call, q{SELECT le_try_become_leader('another')}), 'a leader');
	ok(checks($call, 'SELECT pg_advisory_lock(1)'), 'one with an advisory lock');
	ok(checks($call, 'BEGIN', 'SELECT pg_current_xact_id()'), 'one with a transaction ID');
	ok(checks($call, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1'), 'one with a snapshot of its transaction');
};

subtest 'the setting is left as it was' => sub {
	my $candidate = session($node);
	my $unchanged = sub { return is(ask($candidate, 'SHOW deadlock_timeout'), '10ms', shift) };

	ask($candidate, q{CALL le_campaign('job', '50 ms')});
	$unchanged->('after a timeout');
	ask($candidate, q{SET lock_timeout = '50 ms'}, q{CALL le_campaign('job')});
	is($candidate->{code}, '55P03', 'lock_timeout');
	$unchanged->('after lock_timeout');
	ask($candidate, 'RESET lock_timeout');
	post($candidate, q{CALL le_campaign('job')});
	wait_for_candidate($watcher, $candidate);
	ask($watcher, "SELECT pg_cancel_backend($candidate->{pid})");
	collect($candidate);
	is($candidate->{code}, '57014', 'cancel');
	$unchanged->('after a cancel');
	post($candidate, q{CALL le_campaign('job')});
	wait_for_candidate($watcher, $candidate);
	ask($leader, q{SELECT le_resign('job')});
	like(collect($candidate), qr/^\d+$/, 'elected');
	$unchanged->('after an election');
	end_session($candidate);
};

end_session($leader, $watcher);
$node->stop;
done_testing();
