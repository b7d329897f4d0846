# Where other libraries have taken the server's timers, a session is refused at its
# first call, and nothing fails at the end of a transaction.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my %library = map { $_ => build_test_library('take_timers', "-DTIMERS_LEFT=$_") } 0, 1;
my $node = new_server('timers');
my $watcher = session($node);
my $alive = ask($watcher, 'SELECT pg_postmaster_start_time()');

# the first of all looks for leases that have to be announced
ask($watcher, 'SELECT count(*) FROM le_leaders');

# Each session has one, for its client
subtest 'no timer left' => sub {
	foreach my $call (q{le_try_become_leader('none')}, q{le_lease('none', '1 min')})
	{
		my $session = session($node);
		my $offset = log_from($node);
		ask($session, "LOAD '$library{0}'");
		ask($session, 'SET leader_election.dead_peer_timeout = 0');
		is(ask($session, q{SELECT count(*) FROM le_leader('none')}), '0', 'a session may look');
		ask($session, "SELECT $call");
		like($session->{messages}, qr/FATAL:  53400: cannot add more timeout reasons/, "refused: $call");

		# where it is not refused, the end of a transaction is too late
		ask($session, 'BEGIN; SET leader_election.dead_peer_timeout = 15; CREATE TABLE t (i int); COMMIT');
		unlike(log_since($node, $offset), qr/PANIC/, 'no panic');
		end_session($session);
	}
	is(ask($watcher, 'SELECT count(*) FROM le_leaders'), '0', 'no term is left');
};

subtest 'one timer left' => sub {
	my $session = session($node);
	ask($session, "LOAD '$library{1}'");
	ask($session, 'SET leader_election.dead_peer_timeout = 0');
	is(ask($session, q{SELECT le_try_become_leader('one')}), 't', 'elected');
	ask($session, 'BEGIN; SET leader_election.dead_peer_timeout = 15; CREATE TABLE t (i int); COMMIT');
	is($session->{messages}, '', 'the transaction ends as any other');
	is(ask($session, q{SELECT le_am_leader('one')}), 't', 'the session leads on');
	end_session($session);
};

is(ask($watcher, 'SELECT pg_postmaster_start_time()'), $alive, 'no session was ended but those');
end_session($watcher);
$node->stop;
done_testing();
