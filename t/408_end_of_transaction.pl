# The end of a transaction may need a part of the registry that this backend has
# not mapped yet, and fail to map it.  It is too late for an error then: one at
# commit would take the whole server down.
#
# The failure is made by a limit on the backend's address space (prlimit).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'prlimit and /proc are needed'
  unless -r '/proc/self/status' && system('prlimit --version >/dev/null 2>&1') == 0;

# Let the backend's address space grow no more, or without limit again.
sub limit_memory
{
	my ($pid, $limited) = @_;
	my $limit = 'unlimited';

	if ($limited)
	{
		slurp_file("/proc/$pid/status") =~ /^VmSize:\s+(\d+) kB/m
		  or die 'no VmSize';
		$limit = $1 * 1024 + 65536;
	}
	system('prlimit', "--pid=$pid", "--as=$limit:") == 0 or die 'prlimit failed';
}

# a server for each: one whose registry has grown has nothing new to map
for my $end ('COMMIT', 'ROLLBACK')
{
	my $node = new_server("end_by_$end", conf => <<'CONF');
max_locks_per_transaction = 1000
leader_election.max_terms_per_session = 100000
log_min_messages = warning
CONF
	$node->safe_psql('postgres', 'CREATE TABLE written (what text)');
	my $leader = session($node, app => 'leader');
	my $pid = $leader->{pid};
	my $other = session($node, app => 'other');

	ask($leader, 'BEGIN', "INSERT INTO written VALUES ('$end')", q{SELECT le_try_become_leader_xact('job')}) eq 't'
	  or die $leader->{messages};
	ask($other, 'SET leader_election.log_terms = off',
		"SELECT count(le_try_become_leader('$end' || i)) FROM generate_series(1, 30000) i") eq '30000'
	  or die $other->{messages};
	my $logged = -s $node->logfile;
	limit_memory($pid, 1);
	ask($leader, $end);
	limit_memory($pid, 0);
	ok($node->log_contains('could not bring the registry up to date', $logged),
		"$end: the failure came about");

	# the server warns of the segment that it could not map
	is(ask($leader, 'SELECT pg_backend_pid()'),
		$pid, "$end: the session goes on");
	ask($leader, "SELECT pg_cancel_backend($pid), pg_sleep(180)");
	like($leader->{messages}, qr/canceling statement due to user request/,
		"$end: it can be cancelled");
	is($node->safe_psql('postgres', "SELECT count(*) FROM written WHERE what = '$end'"),
		$end eq 'COMMIT' ? 1 : 0, "$end: it did what it says");
	is($node->safe_psql('postgres', "SELECT count(*) FROM le_leader('job')"),
		0, "$end: no leader is shown");
	is($node->safe_psql('postgres', "SELECT le_try_become_leader('job')"),
		't', "$end: the next one leads");
	is(ask($other, 'SELECT le_resign_all()'),
		30000, "$end: others led on all the while");
	end_session($leader, $other);
	unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal/,
		"$end: the server took no harm");
	$node->stop;
}

done_testing();
