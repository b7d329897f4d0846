# Two databases know nothing of each other; the extension can be dropped and
# created again while terms run.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('databases', conf => "autovacuum = off\n");

subtest 'the same election in two databases' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE other');
	create_extension($node, 'other');
	my $here = session($node, app => 'here');
	my $there = session($node, db => 'other', app => 'there');
	foreach my $election (q{'job'}, q{'10'})
	{
		is(ask($_, "SELECT le_try_become_leader($election)"), 't', "both lead $election")
		  foreach $here, $there;
	}
	is(leads_in_view($node, 'job'), 'here/session', 'each sees its own');
	is(leads_in_view($node, 'job', 'other'), 'there/session', 'each sees its own');
	is($node->safe_psql($_, 'SELECT count(*) FROM le_leaders'), '2', "two in $_")
	  foreach 'postgres', 'other';
	is($node->safe_psql('postgres', 'SELECT identity FROM le_leaders WHERE name = \'10\''), 'here', 'the other one');
	is($node->safe_psql('other', 'SELECT identity FROM le_leaders WHERE name = \'10\''), 'there', 'the other one');
	is(ask($_, q{SELECT le_token('10') - le_token('job')}), '1', 'each has its own tokens')
	  foreach $here, $there;
	my $token = ask($there, q{SELECT le_token('10')});

	# a candidate in one of them
	my $waiter = session($node, db => 'other', app => 'waiter');
	my $pid = $waiter->{pid};
	post($waiter, q{SELECT le_become_leader('job')});
	wait_until_waiting($node, $pid);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM le_candidates'), '0', 'no candidate here');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM _le_registry_candidates(false)'), '0', 'nor on record');
	is($node->safe_psql('other', 'SELECT identity FROM le_candidates'), 'waiter', 'but there');
	is(ask($here, 'SELECT le_resign_all()'), '2', 'to resign here');
	is(leads_in_view($node, 'job', 'other'), 'there/session', 'changes nothing there');
	$node->safe_psql('postgres', 'SELECT le_resign_all()');
	end_session($there);
	is(collect($waiter), 't', 'the candidate there is elected');
	is(ask($waiter, q{SELECT le_token('job')}), $token + 1, 'with the next token there');
	end_session($here, $waiter);
	$node->poll_query_until('other', 'SELECT count(*) = 0 FROM le_leaders');
	$node->safe_psql('postgres', 'DROP DATABASE other WITH (FORCE)');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_database WHERE datname = \'other\''),
		'0', 'a database can be dropped after its terms');
};

subtest 'a database made of another has greater tokens' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE postgres');
	cmp_ok(
		$node->safe_psql('copy', q{SELECT le_try_become_leader('x'); SELECT le_token('x')}) =~ /(\d+)\z/ ? $1 : 0,
		'>',
		$node->safe_psql('postgres', 'SELECT last_value FROM le_token_seq'),
		'greater than those that the other has handed out');
};

subtest 'the leases that a copy has take no room of their role' => sub {
	$node->safe_psql('postgres', q{CREATE ROLE regress_holder LOGIN; ALTER ROLE regress_holder SET leader_election.max_elections_per_role = 2;
		SET ROLE regress_holder; SELECT le_lease('copied 1', '1 h'), le_lease('copied 2', '1 h')});
	$node->safe_psql('template1', 'CREATE DATABASE second TEMPLATE postgres');
	$node->safe_psql('postgres', q{SELECT le_resign(name, token) FROM le_leaders WHERE name LIKE 'copied _'});
	is($node->safe_psql('second', q{SELECT le_am_leader('copied 1', 1)}), 'f', 'the copy is loaded');
	my $holder = session($node, user => 'regress_holder');
	is(ask($holder, q{SELECT count(le_lease(name, '1 h')) FROM unnest('{new 1,new 2}'::text[]) name}), '2', 'the role has its room') or diag($holder->{error});
	is(ask($holder, q{SELECT count(le_resign(name, token)) FROM le_leaders WHERE usename = 'regress_holder'}), '2', 'and resigns');
	end_session($holder);
};

sub token_of
{
	my ($session, $name) = @_;
	return ask($session, "SELECT le_token('$name')");
}

subtest 'DROP EXTENSION by the leader' => sub {
	my $session = session($node, app => 'owner');
	my $dba = session($node);
	is(ask($session, q{SELECT le_try_become_leader('kept'), le_try_become_leader('left'), le_try_become_leader('high')}),
		't|t|t', 'leads');
	my $token = token_of($session, 'left');
	my $high = ask($session, q{SELECT le_token('high')});
	ask($session, 'DROP EXTENSION leader_election');
	ask($session, q{SELECT le_am_leader('kept')});
	like($session->{messages}, qr/does not exist/, 'no function');
	ask($session, 'CREATE EXTENSION leader_election');
	is($session->{messages}, '', 'created again');
	is(ask($session, q{SELECT le_am_leader('kept'), le_am_leader('left'), le_am_leader('high')}), 't|t|t', 'the terms ran on');
	is(token_of($session, 'left'), $token, 'with their tokens');
	all_consistent($node, 'no ghost');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM le_leaders'), '3', 'the views show them');
	is(ask($dba, q{SELECT le_try_become_leader('kept')}), 'f', 'no other session is elected');
	is(ask($session, q{SELECT le_resign('left')}), 't', 'it can resign');
	is(ask($dba, q{SELECT le_try_become_leader('left')}), 't', 'then another session is elected');
	cmp_ok(token_of($dba, 'left'), '>', $high, 'with a greater token');
	is(ask($session, q{SELECT le_resign_all()}), '2', 'it can resign from all');
	end_session($session, $dba);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
	all_consistent($node, 'no ghost in the end');
};

subtest 'DROP EXTENSION by another session, the leader never resigns' => sub {
	my $session = session($node, app => 'leader');
	my $offset = log_from($node);
	is(ask($session, q{SELECT le_try_become_leader('job')}), 't', 'leads');
	my $token = token_of($session, 'job');
	$node->safe_psql('postgres', 'DROP EXTENSION leader_election');
	end_session($session);
	$node->wait_for_log(qr/election "job": term $token ended: session ended/, $offset);
	create_extension($node);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL'), '0', 'no ghost');
	$session = session($node);
	is(ask($session, q{SELECT le_try_become_leader('job')}), 't', 'vacant');
	cmp_ok(token_of($session, 'job'), '>', $token, 'greater token');
	end_session($session);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
};

foreach my $used ('a session that was elected before', 'a new session')
{
	foreach my $again (0, 1)
	{
		subtest "DROP EXTENSION while $used waits" . ($again ? ', and CREATE again' : '') => sub {
			my $leader = session($node);
			my $candidate = session($node);
			my $pid = $candidate->{pid};
			ask($candidate, q{SELECT le_try_become_leader('before') AND le_resign('before')})
			  if $used =~ /before/;
			ask($leader, q{SELECT le_try_become_leader('job')});
			my $token = token_of($leader, 'job');
			post($candidate, q{SELECT le_become_leader('job')});
			wait_until_waiting($node, $pid);
			$node->safe_psql('postgres', 'DROP EXTENSION leader_election');
			create_extension($node) if $again;
			end_session($leader);
			my $answer = collect($candidate);
			if ($answer eq 't')
			{
				pass('elected');
			}
			else
			{
				unlike($candidate->{messages}, qr/ERROR:  XX000/, 'not an internal error');
				like($candidate->{messages}, qr/ERROR:  42/, 'undefined object');
			}
			create_extension($node) unless $again;
			if ($answer eq 't')
			{
				is(ask($candidate, q{SELECT le_am_leader('job')}), 't', 'it leads');
				cmp_ok(token_of($candidate, 'job'), '>', $token, 'greater token');
				is(ask($candidate, q{SELECT le_resign('job')}), 't', 'and can resign');
			}
			no_trace($node, $pid, 'nothing is left');
			end_session($candidate);
			$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
		};
	}
}

subtest 'an election in the transaction that creates the extension' => sub {
	my $session = session($node);
	is(ask($session, q{SELECT le_try_become_leader('before')}), 't', 'elected');
	my $token = token_of($session, 'before');
	ask($session, 'DROP EXTENSION leader_election', 'BEGIN', 'CREATE EXTENSION leader_election');
	is(ask($session, q{SELECT le_am_leader('before')}), 't', 'an older term runs on');
	ask($session, q{SELECT le_try_become_leader('job')});
	like($session->{messages}, qr/ERROR:  55000: cannot elect a leader in the transaction that created table/,
		'refused, as a rollback would take the tokens back');
	ask($session, 'ROLLBACK');
	create_extension($node);
	is(ask($session, q{SELECT le_am_leader('job'), le_am_leader('before')}), 'f|t', 'nothing came of it');
	all_consistent($node, 'nothing half done');
	is(ask($session, q{SELECT le_try_become_leader('job')}), 't', 'elected when it is there');
	cmp_ok(token_of($session, 'job'), '>', $token, 'greater token');
	end_session($session);
};

# A session that looks for dropped databases may hold an old view of pg_database.
#
# Wrong outcome: a database that was created since is taken for a dropped one, and its elections
# and its own entry are removed under its sessions: a second leader, or a crash.
subtest 'a database that was created meanwhile is not taken for a dropped one' => sub {
	$node->safe_psql('postgres', 'CREATE ROLE regress_full LOGIN');
	$node->append_conf('postgresql.conf', 'leader_election.max_elections_per_role = 20');
	$node->reload;
	my $dba = session($node);
	ask_until($dba, 'SHOW leader_election.max_elections_per_role', '20') or die;
	ask($dba, 'SELECT pg_advisory_lock(99)');
	my $full = session($node, user => 'regress_full');
	is(ask($full, q{SELECT count(le_lease('l' || i, '1 h')) FROM generate_series(1, 20) i}), '20', 'a role at its limit');
	ask($full, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM pg_database');
	post($full, q{SELECT to_regclass('no_such_table'), pg_advisory_lock_shared(99), le_lease('one more', '10 s')});
	wait_until_waiting($node, $full->{pid});

	$node->safe_psql('postgres', 'CREATE DATABASE young TEMPLATE template0');
	create_extension($node, 'young');
	my ($holder, $other) = map { session($node, db => 'young') } 1, 2;
	lease_take($holder, 'job', '1 h', 'holder');
	is(ask($other, q{SELECT le_lease('job', '1 h', identity => 'other') IS NULL, le_try_become_leader('session')}), 't|t', 'one leader each');
	post($holder, q{CALL le_observe('job', } . version_of($holder, 'job') . q{, '1 h')});
	wait_for_event($node, $dba, 'Observe', $holder);
	ask($dba, 'SELECT pg_advisory_unlock(99)');
	collect($full);
	is($full->{code}, '53400', 'no room could be made') or diag($full->{messages});

	is(ask($other, q{SELECT le_lease('job', '1 h', identity => 'other') IS NULL}), 't', 'the lease of the new database still runs');
	is(ask($other, q{SELECT string_agg(name, ' ' ORDER BY name) FROM le_leaders}), 'job session', 'both are shown');
	is(ask($dba, "SELECT pg_cancel_backend($holder->{pid})"), 't', 'the observer');
	collect($holder);
	is($holder->{code}, '57014', 'has waited') or diag($holder->{messages} // '');
	end_session($full, $dba, $holder, $other);
	$node->safe_psql('postgres', 'DROP DATABASE young WITH (FORCE)');
};

subtest 'the last tokens' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE last');
	create_extension($node, 'last');
	my $client = session($node, db => 'last');
	my $greatest = '9007199254740991';
	is(ask($client, q{SELECT le_try_become_leader('job'), le_resign('job')}), 't|t', 'its origin is known');
	ask($client, "SELECT setval('le_token_seq', $greatest - 4000)");
	ask($client, 'SET default_transaction_read_only = on');
	my @tokens;
	for my $i (0 .. 3000)
	{
		my $token = ask($client, q{SELECT le_token('job') FROM (SELECT le_try_become_leader('job') OFFSET 0) s(bid) WHERE bid});
		last unless defined $token && $token ne '';
		push @tokens, $token;
		ask($client, q{SELECT le_resign('job')});
	}
	cmp_ok($tokens[-1], '<=', $greatest, 'no token is greater than a double can tell from the next');
	cmp_ok($tokens[-1], '>', $greatest - 2000, 'the last of them are handed out');
	is($client->{code}, '22003', 'then there is an error') or diag($client->{messages});
	like($client->{error} // '', qr/there are no more tokens after $tokens[-1]/, 'which says so');
	is(ask($client, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}), '0', 'no lock is left');
	is(ask($client, q{SELECT le_am_leader('job')}), 'f', 'and no term');
	ask($client, 'SET default_transaction_read_only = off');
	ask($client, "ALTER SEQUENCE le_token_seq MAXVALUE 9223372036854775807; SELECT setval('le_token_seq', 9223372036854775807)");
	ask($client, q{SELECT le_try_become_leader('job')});
	is($client->{code}, '22003', 'so there is if the sequence was altered, and set to its end') or diag($client->{messages} // '');
	like($client->{error} // '', qr/there are no more tokens after 9223372036854775807/, 'which says so');
	is(ask($client, 'SELECT last_value FROM le_token_seq'), '9223372036854775807', 'the sequence stays there');
	end_session($client);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
