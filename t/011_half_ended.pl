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

# What the session thinks of each election agrees with what everybody sees
my $agrees = q{
SELECT count(*) FILTER (WHERE me AND NOT shown), count(*) FILTER (WHERE shown AND NOT me), count(*) FILTER (WHERE me AND NOT locked)
FROM (SELECT le_am_leader('n' || i) AS me,
		EXISTS (SELECT FROM le_leader('n' || i) l WHERE l.pid = pg_backend_pid()) AS shown,
		EXISTS (SELECT FROM _le_locks l WHERE l.key = le_key('n' || i) AND l.pid = pg_backend_pid()) AS locked
	FROM generate_series(1, 20) i) s};

# Leave the transaction and take the timeout away; on a busy machine it may cut
# short these statements, too
sub calm
{
	my ($psql) = @_;

	foreach my $attempt (1 .. 1000)
	{
		ask($psql, 'ROLLBACK');
		ask($psql, 'SET statement_timeout = 0');
		if (ask($psql, 'SHOW statement_timeout') eq '0')
		{
			stderr_of($psql);
			return;
		}
	}
	die 'the timeout stays';
}

foreach my $what (
	[ 'le_resign', q{'n' || (1 + i % 20)}, q{le_resign('n' || (1 + i % 20))} ],
	[ 'le_resign_all', q{'n' || (1 + i % 20)}, q{le_resign_all() >= 0} ],
	[ 'le_resign of a bare key', '1 + i % 20', 'le_resign(1 + i % 20)' ])
{
	my ($name, $election, $end) = @$what;
	subtest "cancelled in $name" => sub {
		my $psql = session($node);
		my $offset = log_from($node);
		my ($cancelled, $bad) = (0, '');
		my $plain = '0|0|0';
		ask($psql, 'SET client_min_messages = error');
		foreach my $round (1 .. 60)
		{
			ask($psql, sprintf 'SET statement_timeout = %d', 3 + $round % 7);
			ask($psql, "SELECT count(*) FROM generate_series(1, 5000) i WHERE le_try_become_leader($election) AND $end");
			$cancelled++ if stderr_of($psql) =~ /canceling statement due to statement timeout/;
			calm($psql);
			my $answer = ask($psql, $agrees);
			$bad = $answer if $answer ne $plain;
			ask($psql, 'SELECT le_resign_all()');
		}
		cmp_ok($cancelled, '>', 50, "$cancelled statements were cancelled");
		cmp_ok(scalar(term_lines($node, $offset)), '>', 100, 'in the midst of elections');
		is($bad || $plain, $plain, 'session and view always agreed');
		is(ask($psql, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock is left');
		is(ask($psql, 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL'), '0', 'no term is left');

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
		end_session($psql);
	};
}

subtest 'a cancelled bid leads, or not, for all alike' => sub {
	my $psql = session($node);
	my $plain = '0|0|0';
	my $bad = '';
	foreach my $block (0, 1)
	{
		foreach my $round (1 .. 40)
		{
			ask($psql, sprintf 'SET client_min_messages = error; SET statement_timeout = %d', 2 + $round % 5);
			ask($psql, 'BEGIN') if $block;
			ask($psql, "SELECT count(le_try_become_leader_xact('n' || (1 + i % 20))), count(le_try_become_leader('n' || (1 + i % 20))), count(le_resign_all()) FROM generate_series(1, 5000) i");
			calm($psql);
			my $answer = ask($psql, $agrees);
			$bad = $answer . stderr_of($psql) if $answer ne $plain;
			ask($psql, 'SELECT le_resign_all()');
		}
	}
	is($bad || $plain, $plain, 'session and view always agreed');
	end_session($psql);
};

subtest 'pg_advisory_unlock_all() while a transaction holds the term, too' => sub {
	my $psql = session($node);
	my $other = session($node);
	ask($psql, 'SET client_min_messages = warning');

	ask($psql, q{SELECT le_try_become_leader('n1'), le_try_become_leader('n2')});
	ask($psql, 'BEGIN');
	is(ask($psql, q{SELECT le_try_become_leader_xact('n1')}), 't', 'both scopes');
	my $offset = log_from($node);
	ask($psql, 'SELECT pg_advisory_unlock_all()');
	is(ask($psql, q{SELECT le_am_leader('n1'), le_am_leader('n2')}), 't|f', 'the transaction still leads one');
	is(leads_in_view($node, 'n1') =~ s/.*\///r, 'transaction', 'in transaction scope');
	is(ask($other, q{SELECT le_try_become_leader('n1')}), 'f', 'others are denied');
	ask($psql, 'COMMIT');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL}), '0', 'after it no term is on record');
	is(join(' ', sort map { /^election "(n\d)": term \d+ ended/ ? $1 : () } term_lines($node, $offset)), 'n1 n2', 'the log has both ends');
	is(ask($psql, q{SELECT le_am_leader('n1'), le_am_leader('n2')}), 'f|f', 'the session knows');

	ask($psql, q{SELECT le_try_become_leader('n1'), le_resign_all()});
	ask($psql, q{SELECT le_try_become_leader('n1')});
	ask($psql, q{BEGIN; SELECT le_try_become_leader_xact('n1'); SELECT pg_advisory_unlock_all()});
	is(ask($psql, q{SELECT le_resign('n1')}), 'f', 'there is no session scope to resign from');
	unlike(stderr_of($psql), qr/you don't own a lock/, 'and no strange warning');
	ask($psql, 'ROLLBACK');

	ask($psql, q{SELECT le_resign_all()});
	ask($psql, q{SELECT le_try_become_leader('n1')});
	ask($psql, q{BEGIN; SELECT le_try_become_leader_xact('n1'); SELECT pg_advisory_unlock_all()});
	is(ask($psql, q{SELECT le_try_become_leader('n1')}), 't', 'asked for session scope again');
	ask($psql, 'COMMIT');
	is(ask($psql, q{SELECT le_am_leader('n1')}), 't', 'it leads after the transaction');
	end_session($psql, $other);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_locks WHERE locktype = \'advisory\'');
};

subtest 'a bare key lent to a plain lock within a transaction' => sub {
	my $psql = session($node);
	my $other = session($node);
	ask($psql, 'SELECT le_try_become_leader(5)');
	my $token = ask($psql, 'SELECT le_token(5)');
	ask($psql, 'BEGIN');
	ask($psql, 'SELECT pg_advisory_unlock(5)');
	is(ask($other, 'SELECT pg_try_advisory_lock(5)'), 't', 'another program holds the key');
	ask($other, 'SELECT pg_advisory_unlock(5)');
	ask($psql, 'SELECT pg_advisory_lock(5)');
	ask($psql, 'COMMIT');
	is(ask($psql, 'SELECT le_am_leader(5)'), 'f', 'the term did not span it')
	  or diag('doubtful: another holder came in between, and the term goes on with the same token');
	end_session($psql, $other);
};

subtest 'a bare key held by a prepared transaction' => sub {
	$node->append_conf('postgresql.conf', "max_prepared_transactions = 2\n");
	$node->restart;
	$node->safe_psql('postgres', q{BEGIN; SELECT pg_advisory_xact_lock(6); PREPARE TRANSACTION 'p'});
	my $psql = session($node);
	is(ask($psql, 'SELECT le_try_become_leader(6)'), 'f', 'denied');
	is(ask($psql, 'SELECT count(*) FROM le_leader(6)'), '1', 'somebody holds it');
	is(ask($psql, 'SELECT le_resign(6)'), 'f', 'nothing to resign from');
	unlike(stderr_of($psql), qr/Nobody leads it/, 'the warning does not say that nobody does');
	ask($psql, q{ROLLBACK PREPARED 'p'});
	is(ask($psql, 'SELECT le_try_become_leader(6)'), 't', 'elected');
	end_session($psql);
};

# What is done when a term ends fails after the fact, each time
subtest 'an error at the end of a term' => sub {
	my $library = build_test_library('fail_at_log');
	my $on_record = 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL';
	my $locks = q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'};
	my $psql = session($node);
	my $offset = log_from($node);
	ask($psql, "LOAD '$library'");
	ask($psql, q{BEGIN; SELECT le_try_become_leader_xact('fails at commit'); CREATE TABLE t (i int); COMMIT});
	is(stderr_of($psql), '', 'is none of a commit');
	ask($psql, q{BEGIN; SELECT le_try_become_leader_xact('fails at rollback'); ROLLBACK});
	is(stderr_of($psql), '', 'nor of a rollback');
	is(ask($psql, $on_record), '0', 'no term is left');
	ask($psql, q{SELECT le_try_become_leader('fails at exit ' || i) FROM generate_series(1, 3) i});
	ask($psql, q{SELECT le_try_become_leader('ends')});
	is(ask($psql, $on_record), '4', 'elected four times');
	end_session($psql);
	ok($node->poll_query_until('postgres', "SELECT ($locks) = 0"), 'the session ends');
	is($node->safe_psql('postgres', $on_record), '0', 'and no term is left');
	is(scalar(() = log_since($node, $offset) =~ /FATAL:  out of luck/g), 3, 'in spite of three errors');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
