# What is full, or not allowed, leaves nothing half done.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('limits', conf => qq{
max_locks_per_transaction = 10
max_connections = 12
max_worker_processes = 0
autovacuum = off
leader_election.max_terms_per_session = 1000000
log_statement = none
leader_election.log_terms = off
});

my $other = session($node);
is(ask($other, q{SELECT le_try_become_leader('other')}), 't', 'another leader');

# Lead so many that the lock table is full; each election stands for itself
my $fill = q{
DO $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		PERFORM le_try_become_leader('full ' || i);
	END LOOP;
END $$};

foreach my $way ('autocommit', 'a transaction block', 'transaction scope')
{
	subtest "the lock table is full: $way" => sub {
		my $session = session($node);
		my $sql = $fill;
		$sql =~ s/leader\(/leader_xact(/ if $way eq 'transaction scope';
		ask($session, 'SET client_min_messages = warning');
		ask($session, 'BEGIN') if $way =~ /block/;
		ask($session, $sql);
		like($session->{messages}, qr/ERROR:  53200: out of shared memory/, "the server's own error");
		ask($session, 'ROLLBACK') if $way =~ /block/;
		my $held = ask($session, q{SELECT le_resign_all()});
		if ($way eq 'transaction scope')
		{
			is($held, '0', 'none is left');
		}
		else
		{
			cmp_ok($held, '>', 100, "resigned from $held");
		}
		all_consistent($node, 'no term without its lock');
		is($node->safe_psql('postgres', 'SELECT count(*) FROM le_leaders'), '1', 'the other leads on');
		is(ask($session, q{SELECT le_try_become_leader('again')}), 't', 'the server is fit for use');
		is(ask($session, q{SELECT le_resign('again')}), 't', 'resigned');
		end_session($session);
	};
}

subtest 'the lock table is full, and the leader stays' => sub {
	my $session = session($node);
	ask($session, $fill);
	like($session->{messages}, qr/ERROR:  53200: out of shared memory/, 'full');
	my $many = ask($session, q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND granted});
	is(ask($session, q{SELECT count(*) FROM _le_registry_terms() WHERE pid = pg_backend_pid()}), $many, 'as many terms as locks');
	ask($other, q{SELECT count(*) FROM generate_series(1, 10000) i WHERE le_become_leader_xact('more ' || i, '1s')});
	like($other->{messages}, qr/ERROR:  53200: out of shared memory/, 'others meet the error');
	is(ask($other, q{SELECT le_am_leader('more 1'), le_am_leader('other')}), 'f|t', 'and lead what they led');
	is(ask($other, q{SELECT le_try_become_leader('other')}), 't', 'to ask again needs no lock');

	# not before there is room for another connection
	is(ask($session, 'SELECT le_resign_all()'), $many, 'all can be resigned from');
	all_consistent($node, 'nothing half done');
	end_session($session);
	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM le_leaders');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL'), '1', 'all gone with the session');
};

subtest 'max_terms_per_session' => sub {
	my $session = session($node);
	ask($session, 'SET leader_election.max_terms_per_session = 3');
	is(ask($session, q{SELECT count(*) FROM generate_series(1, 3) i WHERE le_try_become_leader('n' || i)}), '3', 'as many as allowed');
	foreach my $bid (q{le_try_become_leader('n4')}, q{le_become_leader('n4', '1s')},
		q{le_try_become_leader_xact('n4')}, q{le_try_become_leader('other')})
	{
		ask($session, "SELECT $bid");
		like($session->{messages}, qr/ERROR:  53400: too many elections led by this session/, $bid);
	}
	is(ask($session, q{SELECT le_try_become_leader('n1'), le_become_leader('n2', '1s')}), 't|t', 'what it leads may be asked again');
	all_consistent($node, 'nothing half done');
	no_trace_of_four();
	is(ask($session, q{SELECT le_resign('n1')}), 't', 'resigned from one');
	is(ask($session, q{SELECT le_try_become_leader('n4')}), 't', 'room for another');
	is(ask($session, 'SELECT le_resign_all()'), '3', 'resigned from all');

	# terms that lost their lock take no room
	is(ask($session, q{SELECT count(*) FROM generate_series(1, 3) i WHERE le_try_become_leader('n' || i)}), '3', 'full again');
	is(ask($session, q{BEGIN; SELECT pg_advisory_unlock_all()}), '', 'locks released behind our back');
	is(ask($session, q{SELECT count(*) FROM le_leaders WHERE pid = pg_backend_pid()}), '0', 'leads none');
	is(ask($session, q{SELECT le_try_become_leader('n4')}), 't', 'room for another');
	ask($session, 'ROLLBACK');
	end_session($session);
};

sub no_trace_of_four
{
	is($node->safe_psql('postgres', q{SELECT count(*) FROM _le_registry_terms() WHERE name = 'n4'}), '0', 'no term of it');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM _le_registry_candidates(false)}), '0', 'no candidate');
}

end_session($other);
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|WARNING/, 'no accident in the log');
$node->stop;
done_testing();
