# After a crash or restart nothing is taken, and no token is handed out twice.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(usleep);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('crash', conf => "restart_after_crash = on\n");
my $greatest = 0;

sub note_token
{
	my ($token) = @_;
	die 'no token' unless defined $token && $token =~ /^\d+$/;
	cmp_ok($token, '>', $greatest, 'token is new');
	$greatest = $token if $token > $greatest;
}

# Sessions that lead, one of them in a transaction that goes through $blocks
# blocks of tokens and never commits
sub lead_much
{
	my ($blocks) = @_;
	my $plain = session($node);
	my $open = session($node);
	my $count = 1024 * $blocks + 1;

	is(ask($plain, q{SELECT le_try_become_leader('one')}), 't', 'one');
	note_token(ask($plain, q{SELECT le_token('one')}));
	is(ask($plain, q{SELECT le_try_become_leader('two')}), 't', 'two');
	is(ask($plain, q{SELECT le_try_become_leader(12)}), 't', 'bare key');
	note_token(ask($plain, q{SELECT le_token(12)}));

	ask($open, q{SET synchronous_commit = off});
	ask($open, 'BEGIN');
	is( ask($open,
			"SELECT count(*) FROM generate_series(1, $count) i WHERE le_try_become_leader('many ' || i % 10) AND le_resign('many ' || i % 10)"
		),
		$count,
		"$count elections in an open transaction");
	is(ask($open, q{SELECT le_try_become_leader_xact('three')}), 't', 'three');
	note_token(ask($open, q{SELECT le_token('three')}));
	return ($plain, $open);
}

sub vacant
{
	my ($how) = @_;
	is( $node->safe_psql(
			'postgres', q{
SELECT (SELECT count(*) FROM le_leaders), (SELECT count(*) FROM le_candidates),
	(SELECT count(*) FROM _le_registry_terms()), (SELECT count(*) FROM _le_registry_candidates(false)),
	(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')}),
		'0|0|0|0|0',
		"nothing is taken after $how");
	my $session = session($node);
	foreach my $election (q{'one'}, q{'two'}, q{'three'}, '12')
	{
		is(ask($session, "SELECT le_try_become_leader($election)"),
			't', "$election can be had");
		note_token(ask($session, "SELECT le_token($election)"));
	}
	end_session($session);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
}

sub is_running
{
	my ($pid) = @_;
	return 0 unless kill 0, $pid;
	open my $stat, '<', "/proc/$pid/stat" or return 1;
	return <$stat> !~ /^\d+ \(.*\) [ZX] /;
}

# commit nothing in the background that would flush the log for us
$node->append_conf('postgresql.conf', "wal_writer_delay = '10s'\nautovacuum = off\n");
$node->restart;

foreach my $round (1, 2)
{
	subtest "immediate shutdown, round $round" => sub {
		my @sessions = lead_much($round);
		my $waiter = session($node);
		post($waiter, q{SELECT le_become_leader('one')});
		wait_until_waiting($node, $waiter->{pid});
		$node->stop('immediate');
		$node->start;
		end_session(@sessions, $waiter);
		vacant('an immediate shutdown');
	};
}

subtest 'a block drawn in an open transaction is on disk' => sub {
	my $session = session($node);
	ask($session, 'SET synchronous_commit = off');
	ask($session, 'BEGIN');
	my $blocks = 0;
	my $inserted = $node->safe_psql('postgres', 'SELECT last_value FROM le_token_seq');
	my $block = $inserted;
	while ($block == $inserted)
	{
		ask($session, q{SELECT count(*) FROM generate_series(1, 512) WHERE le_try_become_leader('fine') AND le_resign('fine')});
		$block = $node->safe_psql('postgres', 'SELECT last_value FROM le_token_seq');
	}
	is(ask($session, q{SELECT le_try_become_leader('last')}), 't', 'elected');
	my $token = ask($session, q{SELECT le_token('last')});
	$greatest = $token if $token > $greatest;
	cmp_ok($token, '<=', $block, 'the last value covers the token');
	cmp_ok($token, '>', $inserted, 'a new block was drawn');
	$node->stop('immediate');
	$node->start;
	end_session($session);
	cmp_ok($node->safe_psql('postgres', 'SELECT last_value FROM le_token_seq'),
		'>=', $block, 'it is remembered');
	vacant('that');
};

subtest 'kill -9 of one backend' => sub {
	my @sessions = lead_much(1);
	my $victim = session($node);
	ask($victim, q{SELECT le_try_become_leader('victim')});
	$greatest = ask($victim, q{SELECT le_token('victim')});
	crash_backend($node, $victim->{pid});
	end_session(@sessions, $victim);
	vacant('a crash of one backend');
};

subtest 'fast restart' => sub {
	my @sessions = lead_much(1);
	my $offset = log_from($node);
	$node->restart;
	end_session(@sessions);
	my @lines = term_lines($node, $offset);
	is(scalar(grep { /^election (?:"one"|"two"|12): .* ended: session ended$/ } @lines),
		3, 'the log tells that session scope ended');
	is(scalar(grep { /^election "three": .* ended: session ended$/ } @lines),
		1, 'and transaction scope');
	vacant('a fast restart');
};

subtest 'kill -9 of the postmaster' => sub {
	my @sessions = lead_much(1);
	my @pids = split /\n/, $node->safe_psql('postgres',
		'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()');
	push @pids, (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	$node->kill9;
	end_session(@sessions);

	# Where process 1 does not collect its children, the dead postmaster still
	# has a process ID, and so lock files that the next one believes in.
	foreach my $attempt (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last unless grep { is_running($_) } @pids;
		usleep(100_000);
	}
	is(scalar(grep { is_running($_) } @pids), 0, 'all processes have gone');
	unlink $node->data_dir . '/postmaster.pid',
	  $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	$node->start;
	vacant('the death of the postmaster');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|segmentation/i, 'no accident in the log');
$node->stop;
done_testing();
