# No cancel and no lock released behind our back leaves half a term: a session
# that leads is on record, one that does not is not.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('half', conf => "log_statement = none\n");

# The session's own state of each election agrees with the shared state
my $agrees = q{
SELECT count(*) FILTER (WHERE me AND NOT shown), count(*) FILTER (WHERE shown AND NOT me), count(*) FILTER (WHERE me AND NOT locked)
FROM (SELECT le_am_leader('n' || i) AS me,
		EXISTS (SELECT FROM le_leader('n' || i) l WHERE l.pid = pg_backend_pid()) AS shown,
		EXISTS (SELECT FROM _le_locks l WHERE l.key = hashtextextended('n' || i, 0) AND l.pid = pg_backend_pid()) AS locked
	FROM generate_series(1, 20) i) s};

# Leave the transaction and take the timeout away; on a busy machine it may cut
# short these statements, too
sub calm
{
	my ($session) = @_;

	foreach my $attempt (1 .. 1000)
	{
		ask($session, 'ROLLBACK');
		ask($session, 'SET statement_timeout = 0');
		if (ask($session, 'SHOW statement_timeout') eq '0')
		{
			return;
		}
	}
	die 'the timeout stays';
}

foreach my $what (
	[ 'le_resign', q{'n' || (1 + i % 20)}, q{le_resign('n' || (1 + i % 20))} ],
	[ 'le_resign_all', q{'n' || (1 + i % 20)}, q{le_resign_all() >= 0} ])
{
	my ($name, $election, $end) = @$what;
	subtest "cancelled in $name" => sub {
		my $session = session($node);
		my $offset = log_from($node);
		my ($cancelled, $bad) = (0, '');
		my $plain = '0|0|0';
		ask($session, 'SET client_min_messages = error');
		foreach my $round (1 .. 60)
		{
			ask($session, sprintf 'SET statement_timeout = %d', 3 + $round % 7);
			ask($session, "SELECT count(*) FROM generate_series(1, 5000) i WHERE le_try_become_leader($election) AND $end");
			$cancelled++ if $session->{messages} =~ /canceling statement due to statement timeout/;
			calm($session);
			my $answer = ask($session, $agrees);
			$bad = $answer if $answer ne $plain;
			ask($session, 'SELECT le_resign_all()');
		}
		cmp_ok($cancelled, '>', 50, "$cancelled statements were cancelled");
		cmp_ok(scalar(term_lines($node, $offset)), '>', 100, 'in the midst of elections');
		is($bad || $plain, $plain, 'session and view always agreed');
		is(ask($session, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock is left');
		is(ask($session, 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL'), '0', 'no term is left');

		# each term that began has ended, once
		my %state;
		my $wrong = 0;
		foreach my $line (term_lines($node, $offset))
		{
			my ($token, $event) = $line =~ /term (\d+) (began|ended)/ or next;
			$wrong++ if $event eq 'began' ? $state{$token}++ : !delete $state{$token};
		}
		is($wrong, 0, 'the log has one end for each term');
		is(scalar(%state), 0, 'and none without an end');
		end_session($session);
	};
}

subtest 'a cancelled bid leads, or not, for all alike' => sub {
	my $session = session($node);
	my $plain = '0|0|0';
	my $bad = '';
	foreach my $block (0, 1)
	{
		foreach my $round (1 .. 40)
		{
			ask($session, sprintf 'SET client_min_messages = error; SET statement_timeout = %d', 2 + $round % 5);
			ask($session, 'BEGIN') if $block;
			ask($session, "SELECT count(le_try_become_leader_xact('x' || (1 + i % 20))), count(le_try_become_leader('n' || (1 + i % 20))), count(le_resign_all()) FROM generate_series(1, 5000) i");
			calm($session);
			my $answer = ask($session, $agrees);
			$bad = $answer . $session->{messages} if $answer ne $plain;
			ask($session, 'SELECT le_resign_all()');
		}
	}
	is($bad || $plain, $plain, 'session and view always agreed');
	end_session($session);
};

subtest 'pg_advisory_unlock_all() in a transaction that leads' => sub {
	my $session = session($node);
	my $other = session($node);
	ask($session, 'SET client_min_messages = warning');

	ask($session, q{SELECT le_try_become_leader('n2')});
	ask($session, 'BEGIN');
	is(ask($session, q{SELECT le_try_become_leader_xact('n1')}), 't', 'one term in each scope');
	my $offset = log_from($node);
	ask($session, 'SELECT pg_advisory_unlock_all()');
	is(ask($session, q{SELECT le_am_leader('n1'), le_am_leader('n2')}), 't|f', 'the transaction still leads');
	is(leads_in_view($node, 'n1') =~ s/.*\///r, 'transaction', 'in transaction scope');
	is(ask($other, q{SELECT le_try_become_leader('n1')}), 'f', 'others are denied');
	ask($session, 'COMMIT');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL}), '0', 'after it no term is on record');
	is(join(' ', sort map { /^election "(n\d)": term \d+ ended/ ? $1 : () } term_lines($node, $offset)), 'n1 n2', 'the log has both ends');
	is(ask($session, q{SELECT le_am_leader('n1'), le_am_leader('n2')}), 'f|f', 'the session knows');
	end_session($session, $other);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_locks WHERE locktype = \'advisory\'');
};

# What is done when a term ends fails after the fact, each time
subtest 'an error at the end of a term' => sub {
	my $library = build_test_library('fail_at_end');
	my $on_record = 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL';
	my $locks = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'};
	my $session = session($node);
	my $offset = log_from($node);
	ask($session, "LOAD '$library'");
	ask($session, q{BEGIN; SELECT le_try_become_leader_xact('fails at commit'); CREATE TABLE t (i int); COMMIT});
	is($session->{messages}, '', 'is none of a commit');
	ask($session, q{BEGIN; SELECT le_try_become_leader_xact('fails at rollback'); ROLLBACK});
	is($session->{messages}, '', 'nor of a rollback');
	is(ask($session, $on_record), '0', 'no term is left');
	like(slurp_file($node->logfile, $offset), qr/could not bring the registry up to date: out of luck/, 'each is logged');
	ask($session, q{SELECT le_try_become_leader('fails at exit ' || i) FROM generate_series(1, 3) i});
	ask($session, q{SELECT le_try_become_leader('ends')});
	is(ask($session, $on_record), '4', 'elected four times');
	end_session($session);
	ok($node->poll_query_until('postgres', "SELECT ($locks) = 0"), 'the session ends');
	is($node->safe_psql('postgres', $on_record), '0', 'and no term is left');
	is(scalar(() = log_since($node, $offset) =~ /FATAL:  out of luck/g), 3, 'in spite of three errors');
};

# The abort of the transaction fails, before any term is ended
subtest 'an error at the end of a session' => sub {
	my $library = build_test_library('fail_at_end');
	my $session = session($node);
	my $next = session($node);
	ask($session, "LOAD '$library'");
	ask($session, q{SELECT le_try_become_leader('ends for good', heartbeat => '1 h')});
	ask($session, 'BEGIN');
	ask($next, "SELECT pg_terminate_backend($session->{pid})");
	ask_until($next, "SELECT count(*) FROM pg_stat_activity WHERE pid = $session->{pid}", '0', 30);
	is(ask($next, q{SELECT count(*) FROM _le_registry_terms() WHERE name = 'ends for good'}), '0', 'no term is left');
	ask($next, q{SELECT le_try_become_leader('ends for good'), le_resign('ends for good')}, 'SELECT pg_stat_leader_election_reset()');
	is(ask($next, q{SELECT count(*) FROM pg_stat_leader_election WHERE name = 'ends for good'}), '0', 'and nothing watches it');
	like(slurp_file($node->logfile), qr/FATAL:  the abort is out of luck/, 'after an error');
	end_session($next);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
