# A session that waits in le_campaign holds back neither vacuum nor CREATE
# INDEX CONCURRENTLY.  One that waits in pg_advisory_lock or le_become_leader
# does.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('campaign', conf => 'autovacuum = off');
my $leader = session($node, app => 'leader');
my $other = session($node, app => 'other');
is(ask($leader, q{SELECT le_try_become_leader('job'), pg_try_advisory_lock(7)}), 't|t', 'there is a leader');
my $lease = ask($leader, q{SELECT le_lease('leased', '1 h')});
$node->safe_psql('postgres', 'CREATE TABLE work (id int) WITH (autovacuum_enabled = false)');

sub wait_for
{
	my ($session, $sleeps) = @_;
	return wait_until_sleeping($node, $session->{pid}) if $sleeps;
	return wait_until_waiting($node, $session->{pid});
}

# Rows that were deleted after the wait began and cannot be removed by VACUUM
sub kept_rows
{
	ask($other, 'INSERT INTO work SELECT generate_series(1, 100)');
	ask($other, 'DELETE FROM work');
	ask($other, 'VACUUM (VERBOSE) work');
	die $other->{messages} unless $other->{messages} =~ /(\d+) (?:are dead but not yet removable|dead row versions cannot be removed yet)/;
	return $1;
}

sub index_is_built
{
	ask($other, q{SET statement_timeout = '} . $_[0] . q{'});
	ask($other, 'CREATE INDEX CONCURRENTLY work_id ON work (id)');
	my $errors = $other->{messages};
	ask($other, 'RESET statement_timeout');
	ask($other, 'DROP INDEX work_id');
	return $errors eq '';
}

foreach my $case (
	[ q{SELECT pg_advisory_lock(7)}, 0, 0 ],
	[ q{SELECT le_become_leader('job')}, 0, 0 ],
	[ q{CALL le_campaign('job')}, 0, 1 ],
	[ q{CALL le_campaign('job', '1 h')}, 0, 1 ],
	[ q{CALL le_campaign('job', ttl => '1 min')}, 0, 1 ],
	[ q{CALL le_campaign('leased')}, 1, 1 ],
	[ q{CALL le_campaign('leased', '1 h', ttl => '1 min')}, 1, 1 ])
{
	my ($sql, $sleeps, $harmless) = @$case;
	subtest $sql => sub {
		my $session = session($node, app => 'candidate');
		post($session, $sql);
		wait_for($session, $sleeps);
		my $state = $node->safe_psql('postgres', 'SELECT backend_xmin IS NULL, backend_xid IS NULL FROM pg_stat_activity WHERE pid = ' . $session->{pid});
		if ($harmless)
		{
			is($state, 't|t', 'no snapshot, no transaction ID');
			is(kept_rows(), 0, 'VACUUM removes what was deleted since');
			ok(index_is_built('1 min'), 'CREATE INDEX CONCURRENTLY finishes');
			is($node->safe_psql('postgres', 'SELECT position, identity FROM le_candidates WHERE pid = ' . $session->{pid}), '1|candidate', 'and it is in line');
		}
		else
		{
			is($state, 'f|t', 'a snapshot');
			cmp_ok(kept_rows(), '>=', 100, 'VACUUM keeps what was deleted since');
			ok(!index_is_built('1 s'), 'CREATE INDEX CONCURRENTLY hangs');
		}
		$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->{pid} . ')');
		collect($session);
		like($session->{messages}, qr/canceling statement due to user request/, 'cancelled');
		no_trace($node, $session->{pid}, 'and gone');
		end_session($session);
	};
}

subtest 'session and lease candidates stand in one queue' => sub {
	my @sessions;
	foreach my $sql (q{CALL le_campaign('job', ttl => '1 h')}, q{SELECT le_become_leader('job')}, q{CALL le_campaign('job', ttl => '1 h')})
	{
		my $session = session($node);
		post($session, $sql);
		wait_for($session, 0);
		push @sessions, $session;
	}
	is(ask($leader, q{SELECT le_resign('job')}), 't', 'resigned');
	my $first = collect($sessions[0]);
	like($first, qr/^\d+$/, 'the first has the lease');
	is(ask($other, "SELECT le_am_leader('job', $first)"), 't', 'which counts when it is told');
	wait_until_sleeping($node, $sessions[1]{pid});
	is($node->safe_psql('postgres', q{SELECT string_agg(pid::text, ' ' ORDER BY position) FROM le_candidates WHERE name = 'job'}),
		join(' ', map { $_->{pid} } @sessions[ 1, 2 ]), 'the others wait, in their order');
	is(ask($other, "SELECT le_resign('job', $first)"), 't', 'resigned');
	is(collect($sessions[1]), 't', 'the second leads');
	end_session($sessions[1]);
	my $third = collect($sessions[2]);
	cmp_ok($third, '>', $first, 'the third has a lease when the second has gone');
	is(ask($other, "SELECT le_resign('job', $third)"), 't', 'resigned');
	end_session(@sessions[ 0, 2 ]);
	is(leads_in_view($node, 'job'), '', 'there is no leader any more');
};

subtest 'a candidate whose client has died is not elected' => sub {
	foreach my $name ('job', 'leased')
	{
		is(ask($leader, q{SELECT le_try_become_leader('job')}), 't', 'there is a leader');
		my $dead = session($node);
		my $next = session($node);
		post($dead, "CALL le_campaign('$name', ttl => '1 h')");
		wait_for($dead, $name eq 'leased');
		post($next, "CALL le_campaign('$name', ttl => '1 h')");
		wait_for($next, 0);
		my $offset = log_from($node);
		kill_client($dead);
		ask($leader, $name eq 'job' ? q{SELECT le_resign('job')} : "SELECT le_resign('leased', $lease)");
		my $token = collect($next);
		like($token, qr/^\d+$/, "$name: the next one is elected");
		unlike(log_since($node, $offset), qr/\Q"$name": term\E \d+ began: .*process @{[ $dead->{pid} ]}/, 'the dead one was not');
		is(ask($other, "SELECT le_resign('$name', $token)"), 't', 'resigned');
		end_session($next);
	}
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
