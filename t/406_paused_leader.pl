# A leader that is stopped, hangs or dies in the middle of its work.  With an epoch
# compared in SQL its write lands after its successor's; guarded, it does not: the
# successor is elected when the transaction is over, or the transaction fails.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Pooler;

my $node = new_server('paused', conf => 'restart_after_crash = on');
$node->safe_psql('postgres', q{
CREATE TABLE epoch (token bigint);
INSERT INTO epoch VALUES (0);
CREATE TABLE written (at bigserial, who text);
CREATE TABLE guarded (who text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guarded
	FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job')});
my $watcher = session($node);

# Stop the client or the backend of the session; what is returned makes it go on, and do
# these statements.  A client that is stopped sends nothing, and that is all of it that the
# server sees.
sub stop
{
	my ($session, $what, @statements) = @_;

	return sub { post($session, @statements) } if $what eq 'client';
	pause_process($session->{pid});
	post($session, @statements);
	return sub { kill 'CONT', $session->{pid} };
}

# The lease of a holder that does not renew it is over
sub expire
{
	my ($token) = @_;
	is(ask($watcher, "SELECT le_renew('job', $token, '100 ms')"), 't', 'its lease runs out');
	ask_until($watcher, "SELECT le_am_leader('job', $token)", 'f') or die 'it does not';
	return;
}

sub new_leader
{
	my $session = session($node, app => 'old');
	my $token = ask($session, q{SELECT le_lease('job', '1 h')});
	die 'no lease: ' . $session->{messages} unless $token =~ /^\d+$/;
	ask($watcher, "TRUNCATE written; UPDATE epoch SET token = $token");
	return ($session, $token);
}

# A session that waits to be elected
sub successor
{
	my ($scope, $name) = @_;
	my $client = session($node, app => 'new');
	$name //= 'job';
	post($client, "CALL le_campaign('$name'" . ($scope eq 'lease' ? q{, ttl => '1 h')} : ')'));
	wait_for_candidate($watcher, $client);
	ok(!$client->{ready}, 'a candidate waits');
	return $client;
}

# It waits for the transactions of these processes, and is not elected
sub waits_for_guard
{
	my ($client, $pid) = @_;
	ok(ask_until($watcher, "SELECT waits_for, blocked_by FROM le_candidates WHERE pid = $client->{pid}", "guard|{$pid}"), 'it waits for the guarded transaction');
	is(ask($watcher, q{SELECT count(*) FROM le_leaders WHERE name = 'job'}), '0', 'there is no leader');
	hear(0, $client);
	ok(!$client->{ready}, 'and it has not been elected');
	return;
}

# It is elected, with a greater token; it resigns if asked to
sub is_elected
{
	my ($client, $token, $seconds) = @_;
	my $new = collect($client, $seconds) // 0;
	cmp_ok($new, '>', $token, 'another session is elected') or diag($client->{error});
	ask($watcher, "UPDATE epoch SET token = $new");
	ask($client, q{INSERT INTO written (who) VALUES ('new')});
	return $new;
}

sub go_home
{
	my ($client, @sessions) = @_;
	ask($client, q{SELECT le_resign_all(), le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
	kill_client($client);
	end_session(@sessions);
	ok(ask_until($watcher, 'SELECT count(*) FROM le_leaders', '0'), 'there is no leader any more');
	return;
}

sub order_of_writes
{
	return ask($watcher, q{SELECT string_agg(who, ' ' ORDER BY at) FROM written});
}

foreach my $what ('client', 'backend')
{
	foreach my $way ('checked first', 'old snapshot')
	{
		subtest "an epoch in SQL, the $what stopped: $way" => sub {
			my ($session, $token) = new_leader();
			my $next = successor('lease');
			my $check = "SELECT count(*) FROM epoch WHERE token = $token";
			ask($session, $way eq 'old snapshot' ? 'BEGIN ISOLATION LEVEL REPEATABLE READ' : 'BEGIN');
			is(ask($session, $check), '1', 'it leads, says the table');
			my $go_on = stop($session, $what,
				$way eq 'old snapshot' ? "INSERT INTO written (who) SELECT 'old' WHERE 1 = ($check)" : q{INSERT INTO written (who) VALUES ('old')},
				'COMMIT');
			expire($token);
			is_elected($next, $token);
			$go_on->();
			collect($session);
			is($session->{messages}, '', 'the leader of old commits');
			is(order_of_writes(), 'new old', 'what it writes lands after its successor has written');
			go_home($next, $session);
		};
	}

	foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
	{
		subtest "a guarded transaction, the $what stopped within: $level" => sub {
			my ($session, $token) = new_leader();
			my $next = successor('lease');
			ask($session, "BEGIN ISOLATION LEVEL $level");
			ask($session, "SELECT le_assert_leader('job', $token)");
			ask($session, q{INSERT INTO written (who) VALUES ('old')});
			is($session->{messages}, '', 'it leads');
			my $go_on = stop($session, $what, q{INSERT INTO written (who) VALUES ('old')}, 'COMMIT');
			expire($token);
			waits_for_guard($next, $session->{pid});
			$go_on->();
			collect($session);
			like($session->{messages}, qr/ERROR:  LE001: token $token does not lead election "job" any more/, 'it fails when it goes on');
			is_elected($next, $token);
			is(order_of_writes(), 'new', 'nothing of it is kept');
			go_home($next, $session);
		};
	}

	subtest "the $what stopped between transactions" => sub {
		my ($session, $token) = new_leader();
		my $next = successor('session');
		my $go_on = stop($session, $what,
			'BEGIN', "SELECT le_assert_leader('job', $token)", q{INSERT INTO written (who) VALUES ('old')}, 'COMMIT',
			'BEGIN', "SET LOCAL leader_election.token = '$token'", q{INSERT INTO guarded VALUES ('old')}, 'COMMIT');
		expire($token);
		is_elected($next, $token);
		$go_on->();
		collect($session);
		like($session->{messages}, qr/\AERROR:  LE001: token $token does not lead election "job"\nDETAIL:  "new" leads it/, 'asserted too late');
		like($session->{messages}, qr/ERROR:  25P02: .*ERROR:  LE001: token $token does not lead election "job"/s, 'nor does the trigger let it through');
		is(order_of_writes(), 'new', 'only the successor has written');
		is(ask($watcher, 'SELECT count(*) FROM guarded'), '0', 'nothing there either');
		go_home($next, $session);
	};
}

# What ends a guarded transaction that hangs lets the successor in
my %ends = (
	'idle_in_transaction_session_timeout' => sub { },
	'SIGKILL of the client' => sub { kill_client($_[0]) },
	'pg_terminate_backend' => sub { ask($watcher, "SELECT pg_terminate_backend($_[1])") },
	'pg_terminate_backend, the backend stopped' => sub {
		my $pid = pause_process($_[0]{pid});
		ask($watcher, "SELECT pg_terminate_backend($pid)");
		kill 'CONT', $pid;
	},
	'ROLLBACK' => sub { ask($_[0], 'ROLLBACK') });
foreach my $end (sort keys %ends)
{
	subtest "a guarded transaction that hangs: $end" => sub {
		foreach my $scope ('lease', 'session')
		{
			my ($session, $token) = new_leader();
			my $pid = $session->{pid};
			if ($scope eq 'session')
			{
				ask($session, "SELECT le_resign('job', $token), le_try_become_leader('job')");
				$token = ask($session, q{SELECT le_token('job')});
			}
			my $next = successor($scope);
			ask($session, q{SET idle_in_transaction_session_timeout = '1 s'}) if $end =~ /^idle/;
			# a lease may run out first, and a session resign: then the guard is left
			ask($session, "BEGIN; INSERT INTO written (who) VALUES ('old'); SELECT le_assert_leader('job', $token)");
			is($session->{messages}, '', "it leads, $scope scope");
			if ($scope eq 'lease') { expire($token); }
			else { ask($session, q{SELECT le_resign('job')}); }
			waits_for_guard($next, $pid);
			my $before = monotonic();
			$ends{$end}->($session, $pid);
			is_elected($next, $token);
			cmp_ok(monotonic(), '<', $before + 20, 'at once');
			is(order_of_writes(), 'new', 'nothing of it is kept');
			go_home($next, $session);
		}
	};
}

subtest 'SIGKILL of the backend' => sub {
	kill_client($watcher);
	$node->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
	$node->restart;
	$watcher = session($node);
	my ($session, $token) = new_leader();
	my $second = session($node);
	ask($second, q{SELECT le_try_become_leader('prepared')});
	my $kept = ask($second, q{SELECT le_token('prepared')});
	ask($second, "BEGIN; SELECT le_assert_leader('prepared', $kept); INSERT INTO written (who) VALUES ('prepared'); PREPARE TRANSACTION 'guarded'");
	is($second->{error}, '', 'a guarded transaction is prepared');
	ask($session, "BEGIN; SELECT le_assert_leader('job', $token); INSERT INTO written (who) VALUES ('old')");

	crash_backend($node, $session->{pid});
	end_session($session);
	kill_client($second, $watcher);
	$watcher = session($node);
	is(ask($watcher, "SELECT le_am_leader('job', $token), le_try_become_leader('job')"), 't|f', 'the lease runs on');
	is(ask($watcher, "SELECT le_resign('job', $token), le_try_become_leader('job'), le_resign('job')"), 't|t|t', 'and is all that is in the way');
	# of the term that it is guarded by, nothing else is left
	is(ask($watcher, q{SELECT count(*) FROM le_leaders}), '0', 'there is no leader');
	my $next = successor('session', 'prepared');
	waits_for_guard($next, 0);
	is(ask($watcher, q{SELECT le_try_become_leader('prepared'), le_lease('prepared', '1 s') IS NULL}), 'f|t', 'no session is elected while the other one is prepared');
	$node->stop('immediate');
	$node->start;
	kill_client($next, $watcher);
	$watcher = session($node);
	$next = successor('session', 'prepared');
	waits_for_guard($next, 0);
	ask($watcher, q{ROLLBACK PREPARED 'guarded'});
	is_elected($next, $kept);
	is(order_of_writes(), 'new', 'nothing is kept of either');
	go_home($next);
};

subtest 'through PgBouncer, each transaction on another connection' => sub {
	plan skip_all => 'needs PgBouncer (Debian package pgbouncer), and not to run as root'
	  unless defined pooler_program();
	my $pooler = new_pooler($node, 'min_pool_size = 3');
	my $connect = sub { pooled_session($pooler, 'job') };
	start_pooler($pooler);
	my @sessions = map { $connect->() } 1 .. 3;

	# the pool opens as many connections as it needs at a time
	ask($_, 'BEGIN; SELECT 1') foreach @sessions;
	ask($_, 'COMMIT') foreach @sessions;
	my ($session) = @sessions;
	my $token = ask($session, q{SELECT le_lease('job', '1 h', identity => 'pooled')});
	ask($watcher, 'TRUNCATE written, guarded');
	my (%pids, $errors);
	foreach my $i (1 .. 9)
	{
		$pids{ ask($session, "BEGIN; SET LOCAL leader_election.token = '$token'; INSERT INTO guarded VALUES ($i) RETURNING pg_backend_pid(); COMMIT") }++;
		$errors .= $session->{messages};
		ask($session, "BEGIN; SELECT le_assert_leader('job', $token); INSERT INTO written (who) VALUES ($i); COMMIT");
		$errors .= $session->{messages};
	}
	is($errors, '', 'its token lets it write');
	is(ask($watcher, 'SELECT (SELECT count(*) FROM guarded), (SELECT count(*) FROM written)'), '9|9', 'every time');
	cmp_ok(scalar(keys %pids), '>', 1, 'on ' . keys(%pids) . ' connections');
	foreach (1 .. 4)
	{
		ask($sessions[1], q{INSERT INTO guarded VALUES ('other')});
		like($sessions[1]{messages}, qr/ERROR:  LE001: this session does not lead election "job"/, 'other sessions of the pool do not have it');
	}

	# one that is stopped within a transaction, and so says nothing, keeps its server connection
	my $next = successor('session');
	ask($session, "BEGIN; SET LOCAL leader_election.token = '$token'; INSERT INTO guarded VALUES ('late')");
	my $backend = ask($session, 'SELECT pg_backend_pid()');
	expire($token);
	waits_for_guard($next, $backend);
	is(ask($sessions[1], "SELECT le_am_leader('job', $token)"), 'f', 'on the other connections, life goes on');
	ask($session, 'COMMIT');
	like($session->{messages}, qr/ERROR:  LE001: token $token does not lead election "job" any more/, 'too late to commit');
	is_elected($next, $token);
	foreach (1 .. 4)
	{
		ask($session, "BEGIN; SET LOCAL leader_election.token = '$token'; INSERT INTO guarded VALUES ('late'); COMMIT");
		like($session->{messages}, qr/ERROR:  LE001: token $token does not lead election "job"/, 'nor later on any connection');
		ask($session, 'ROLLBACK');
	}
	is(ask($watcher, q{SELECT count(*) FROM guarded WHERE who !~ '^\d$'}), '0', 'nothing else was written');
	go_home($next, @sessions);
	stop_pooler($pooler);
};

subtest 'the first thing after a restart' => sub {
	my $token = ask($watcher, q{SELECT le_lease('first', '1 h')});
	kill_client($watcher);
	$node->restart;
	$watcher = session($node);
	is(ask($watcher, "SELECT le_assert_leader('first', $token)"), '', 'the lease runs on');
	is(ask($watcher, "SELECT le_resign('first', $token)"), 't', 'and is resigned');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no accident in the log');
kill_client($watcher);
$node->stop;
done_testing();
