# Programs that lead with a heartbeat, in the faults where a session would lead on, or on for
# long: the program hangs or is paused, also within a transaction, or does not read, a cable is cut, or a proxy
# stands still.  The next one is to lead when the heartbeat is missing, not when TCP or an
# administrator notices.
#
# needs: pgbouncer

use strict;
use warnings;

use Test::More;
use FindBin;
use lib $FindBin::RealBin;
use Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use LeaderElection;
use Pooler;

my $heartbeat = 1;
my $interval = 0.1;
my $node = new_networked_server('heartbeat_faults');
my $candidate = session($node);
my $beat = "SELECT le_heartbeat('job') \\watch $interval\n";

# Have a psql lead, and run these statements, until it is stopped; its process, and what it
# prints
sub start_program
{
	my ($connection, $statements) = @_;
	my $path = PostgreSQL::Test::Utils::tempdir() . '/program';
	my $pid;

	append_to_file("$path.sql", "SELECT le_try_become_leader('job', heartbeat => '$heartbeat s');\n$statements");
	$pid = fork() // die "fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', "$path.out";
		open STDERR, '>&', \*STDOUT;
		POSIX::setpgid(0, 0);
		exec 'psql', '-XqAt', '-f', "$path.sql", $connection or POSIX::_exit(127);
	}
	return ($pid, "$path.out");
}

# Wait until the program says so
sub wait_for_output
{
	my ($output, $said) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	until (-e $output && slurp_file($output) =~ $said)
	{
		die 'the program says: ' . (-e $output ? slurp_file($output) : 'nothing') if monotonic() > $patience;
		Time::HiRes::sleep(0.005);
	}
	return;
}

# How the fault strikes a program that leads: the next one is elected when its heartbeat is
# missing.  What the program does in the end, unless it is cut off
sub strikes
{
	my ($what, $program, $output, $strike) = @_;
	my $offset = log_from($node);
	my $took;

	wait_for_output($output, qr/^t\n(?:t|hung)/);
	post($candidate, q{CALL le_campaign('job')});
	$strike->();
	my $since = monotonic();
	collect($candidate);
	$took = monotonic() - $since;
	diag(sprintf '%s: the next one leads after %.3f s', $what, $took);
	cmp_ok($took, '>', $heartbeat - $interval - 0.5, "$what: not before the heartbeat is missing");
	cmp_ok($took, '<', $heartbeat + 5, 'but then');
	like(log_since($node, $offset), qr/LOG: .*terminated due to missing heartbeat in election "job"/, 'the session is terminated');
	like(log_since($node, $offset), qr/ended: silent,/, 'and its term was silent');
	ask($candidate, q{SELECT le_resign('job')});
	return;
}

sub stop_program
{
	my ($pid) = @_;
	kill 'KILL', -$pid;
	waitpid $pid, 0;
	return;
}

my $local = 'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres';

subtest 'the program hangs' => sub {
	my ($pid, $output) = start_program($local, "\\! echo hung; exec sleep 600\n");
	strikes('hung program', $pid, $output, sub { wait_for_output($output, qr/hung/) });
	stop_program($pid);
};

foreach my $where (['paused program', ''], ['paused within a transaction', "BEGIN;\nSELECT true;\n"])
{
	my ($what, $before) = @$where;

	subtest $what => sub {
		my ($pid, $output) = start_program($local, "$before$beat");
		strikes($what, $pid, $output, sub { pause_process($pid) });
		kill 'CONT', $pid;
		wait_for_output($output, qr/FATAL: .*terminating connection due to administrator command/);
		stop_program($pid);
	};
}

subtest 'a client does not read' => sub {
	my $leader = session($node);
	lead_unread($candidate, $leader, "SELECT le_try_become_leader('job', heartbeat => '5 s')");
	post($candidate, q{CALL le_campaign('job')});
	like(collect($candidate, 20) // 'nothing', qr/^\d+$/, 'the next one leads all the same');
	ask($candidate, q{SELECT le_resign('job')});
	kill_client($leader);
};

subtest 'a cable is cut' => sub {
	my ($pid, $output) = start_program('host=10.93.2.1 port=' . $node->port . ' dbname=postgres', $beat);
	strikes('cut cable', $pid, $output, sub { system_or_bail(qw(ip link set c2 down)) });
	stop_program($pid);
};

SKIP:
{
	skip 'PgBouncer is not installed, or would not run, as root', 1 unless pooler_program();
	my $pooler = new_pooler($node, '');

	start_pooler($pooler);
	subtest 'a proxy stands still' => sub {
		my ($pid, $output) = start_program("host=127.0.0.1 port=$pooler->{port} dbname=session", $beat);
		strikes('frozen proxy', $pid, $output, sub { pause_process($pooler->{pid}) });
		kill 'CONT', $pooler->{pid};
		stop_program($pid);
	};
	stop_pooler($pooler);
}

done_testing();
