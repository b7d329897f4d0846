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
use Wire;

my $node = new_server('paused', conf => 'restart_after_crash = on');
$node->safe_psql('postgres', q{
CREATE TABLE epoch (token bigint);
INSERT INTO epoch VALUES (0);
CREATE TABLE written (at bigserial, who text);
CREATE TABLE guarded (who text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guarded
	FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job')});
my $watcher = wire($node);

# Stop the client or the backend of the session, with what it has not done yet
sub pause
{
	my ($psql, $what) = @_;
	my $pid = $what eq 'client' ? $psql->{run}{KIDS}[0]{PID} : backend_pid($psql);
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	kill 'STOP', $pid;
	until (slurp_file("/proc/$pid/stat") =~ /\) T /)
	{
		die "process $pid does not stop" if monotonic() > $patience;
		Time::HiRes::sleep(0.001);
	}
	return $pid;
}

# The lease of a holder that does not renew it is over
sub expire
{
	my ($token) = @_;
	is(wire_ask($watcher, "SELECT le_renew('job', $token, '100 ms')"), 't', 'its lease runs out');
	wire_until($watcher, "SELECT le_am_leader('job', $token)", 'f') or die 'it does not';
	return;
}

sub new_leader
{
	my $psql = session($node, app => 'old');
	backend_pid($psql);
	ask($psql, '\set VERBOSITY verbose');
	my $token = ask($psql, q{SELECT le_lease('job', '1 h')});
	die 'no lease: ' . stderr_of($psql) unless $token =~ /^\d+$/;
	wire_ask($watcher, "TRUNCATE written; UPDATE epoch SET token = $token");
	return ($psql, $token);
}

# Somebody who waits to be elected
sub successor
{
	my ($scope, $name) = @_;
	my $client = wire($node, app => 'new');
	$name //= 'job';
	wire_send($client, "CALL le_campaign('$name'" . ($scope eq 'lease' ? q{, ttl => '1 h')} : ')'));
	ok(wire_until($watcher, "SELECT count(*) FROM le_candidates WHERE pid = $client->{pid}", '1'), 'somebody waits');
	return $client;
}

# It waits for the transactions of these processes, and is not elected
sub waits_for_guard
{
	my ($client, $pid) = @_;
	ok(wire_until($watcher, "SELECT waits_for, blocked_by FROM le_candidates WHERE pid = $client->{pid}", "guard|{$pid}"), 'it waits for the guarded transaction');
	is(wire_ask($watcher, q{SELECT count(*) FROM le_leaders WHERE name = 'job'}), '0', 'nobody leads');
	wire_hear(0, $client);
	ok(!$client->{ready}, 'and it has not been elected');
	return;
}

# It is elected, with a greater token; it resigns if asked to
sub is_elected
{
	my ($client, $token, $seconds) = @_;
	my $new = wire_answer($client, $seconds) // 0;
	cmp_ok($new, '>', $token, 'somebody else is elected') or diag($client->{error});
	wire_ask($watcher, "UPDATE epoch SET token = $new");
	wire_ask($client, q{INSERT INTO written (who) VALUES ('new')});
	return $new;
}

sub go_home
{
	my ($client, @psqls) = @_;
	wire_ask($client, q{SELECT le_resign_all(), le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
	wire_drop($client);
	end_session(@psqls);
	ok(wire_until($watcher, 'SELECT count(*) FROM le_leaders', '0'), 'nobody leads any more');
	return;
}

sub order_of_writes
{
	return wire_ask($watcher, q{SELECT string_agg(who, ' ' ORDER BY at) FROM written});
}

foreach my $what ('client', 'backend')
{
	foreach my $way ('checked first', 'old snapshot')
	{
		subtest "an epoch in SQL, the $what stopped: $way" => sub {
			my ($psql, $token) = new_leader();
			my $next = successor('lease');
			my $check = "SELECT count(*) FROM epoch WHERE token = $token";
			ask($psql, $way eq 'old snapshot' ? 'BEGIN ISOLATION LEVEL REPEATABLE READ' : 'BEGIN');
			is(ask($psql, $check), '1', 'it leads, says the table');
			my $pid = pause($psql, $what);
			# to be done when it goes on
			post($psql, $way eq 'old snapshot' ? "INSERT INTO written (who) SELECT 'old' WHERE 1 = ($check)" : q{INSERT INTO written (who) VALUES ('old')});
			post($psql, 'COMMIT');
			expire($token);
			is_elected($next, $token);
			kill 'CONT', $pid;
			collect($psql) foreach 1, 2;
			is(stderr_of($psql), '', 'the leader of old commits');
			is(order_of_writes(), 'new old', 'what it writes lands after its successor has written');
			go_home($next, $psql);
		};
	}

	foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
	{
		subtest "a guarded transaction, the $what stopped within: $level" => sub {
			my ($psql, $token) = new_leader();
			my $next = successor('lease');
			ask($psql, "BEGIN ISOLATION LEVEL $level");
			ask($psql, "SELECT le_assert_leader('job', $token)");
			ask($psql, q{INSERT INTO written (who) VALUES ('old')});
			is(stderr_of($psql), '', 'it leads');
			my $pid = pause($psql, $what);
			post($psql, q{INSERT INTO written (who) VALUES ('old')});
			post($psql, 'COMMIT');
			expire($token);
			waits_for_guard($next, backend_pid($psql));
			kill 'CONT', $pid;
			collect($psql) foreach 1, 2;
			like(stderr_of($psql), qr/ERROR:  LE001: token $token does not lead election "job" any more/, 'it fails when it goes on');
			is_elected($next, $token);
			is(order_of_writes(), 'new', 'nothing of it is kept');
			go_home($next, $psql);
		};
	}

	subtest "the $what stopped between transactions" => sub {
		my ($psql, $token) = new_leader();
		my $next = successor('session');
		my $pid = pause($psql, $what);
		my @late = (
			[ "SELECT le_assert_leader('job', $token)", q{INSERT INTO written (who) VALUES ('old')} ],
			[ "SET LOCAL leader_election.token = '$token'", q{INSERT INTO guarded VALUES ('old')} ]);
		post($psql, $_) foreach map { ('BEGIN', @$_, 'COMMIT') } @late;
		expire($token);
		is_elected($next, $token);
		kill 'CONT', $pid;
		my @errors = map { collect($psql); stderr_of($psql) } 1 .. 8;
		like($errors[1], qr/ERROR:  LE001: token $token does not lead election "job"\nDETAIL:  "new" leads it/, 'asserted too late');
		like($errors[6], qr/ERROR:  LE001: token $token does not lead election "job"/, 'nor does the trigger let it through');
		is(order_of_writes(), 'new', 'only the successor has written');
		is(wire_ask($watcher, 'SELECT count(*) FROM guarded'), '0', 'nothing there either');
		go_home($next, $psql);
	};
}

# What ends a guarded transaction that hangs lets the successor in
my %ends = (
	'idle_in_transaction_session_timeout' => sub { },
	'SIGKILL of the client' => sub { kill_client($_[0]) },
	'SIGKILL of a client that is stopped' => sub { pause($_[0], 'client'); kill_client($_[0]) },
	'pg_terminate_backend' => sub { wire_ask($watcher, "SELECT pg_terminate_backend($_[1])") },
	'pg_terminate_backend, the backend stopped' => sub {
		my $pid = pause($_[0], 'backend');
		wire_ask($watcher, "SELECT pg_terminate_backend($pid)");
		kill 'CONT', $pid;
	},
	'ROLLBACK' => sub { ask($_[0], 'ROLLBACK') });
foreach my $end (sort keys %ends)
{
	subtest "a guarded transaction that hangs: $end" => sub {
		foreach my $scope ('lease', 'session')
		{
			my ($psql, $token) = new_leader();
			my $pid = backend_pid($psql);
			if ($scope eq 'session')
			{
				ask($psql, "SELECT le_resign('job', $token), le_try_become_leader('job')");
				$token = ask($psql, q{SELECT le_token('job')});
			}
			my $next = successor($scope);
			ask($psql, q{SET idle_in_transaction_session_timeout = '1 s'}) if $end =~ /^idle/;
			# a lease may run out first, and a session resign: then the guard is left
			ask($psql, "BEGIN; INSERT INTO written (who) VALUES ('old'); SELECT le_assert_leader('job', $token)");
			is(stderr_of($psql), '', "it leads, $scope scope");
			if ($scope eq 'lease') { expire($token); }
			else { ask($psql, q{SELECT le_resign('job')}); }
			waits_for_guard($next, $pid);
			my $before = monotonic();
			$ends{$end}->($psql, $pid);
			is_elected($next, $token);
			cmp_ok(monotonic(), '<', $before + 20, 'at once');
			is(order_of_writes(), 'new', 'nothing of it is kept');
			go_home($next, $psql);
		}
	};
}

subtest 'SIGKILL of the backend' => sub {
	wire_drop($watcher);
	$node->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
	$node->restart;
	$watcher = wire($node);
	my ($psql, $token) = new_leader();
	my $second = wire($node);
	wire_ask($second, q{SELECT le_try_become_leader('prepared')});
	my $kept = wire_ask($second, q{SELECT le_token('prepared')});
	wire_ask($second, "BEGIN; SELECT le_assert_leader('prepared', $kept); INSERT INTO written (who) VALUES ('prepared'); PREPARE TRANSACTION 'guarded'");
	is($second->{error}, '', 'a guarded transaction is prepared');
	ask($psql, "BEGIN; SELECT le_assert_leader('job', $token); INSERT INTO written (who) VALUES ('old')");

	my $offset = log_from($node);
	kill 9, backend_pid($psql);
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
	$node->poll_query_until('postgres', undef, '');
	end_session($psql);
	wire_drop($second, $watcher);
	$watcher = wire($node);
	is(wire_ask($watcher, "SELECT le_am_leader('job', $token), le_try_become_leader('job')"), 't|f', 'the lease runs on');
	is(wire_ask($watcher, "SELECT le_resign('job', $token), le_try_become_leader('job'), le_resign('job')"), 't|t|t', 'and is all that is in the way');
	# of the term that it is guarded by, nothing else is left
	is(wire_ask($watcher, q{SELECT count(*) FROM le_leaders}), '0', 'nobody leads');
	my $next = successor('session', 'prepared');
	waits_for_guard($next, 0);
	is(wire_ask($watcher, q{SELECT le_try_become_leader('prepared'), le_lease('prepared', '1 s') IS NULL}), 'f|t', 'nobody is elected while the other one is prepared');
	$node->stop('immediate');
	$node->start;
	wire_drop($next, $watcher);
	$watcher = wire($node);
	$next = successor('session', 'prepared');
	waits_for_guard($next, 0);
	wire_ask($watcher, q{ROLLBACK PREPARED 'guarded'});
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
	my @psqls = map { $connect->() } 1 .. 3;

	# the pool opens as many connections as it needs at a time
	ask($_, 'BEGIN; SELECT 1') foreach @psqls;
	ask($_, '\set VERBOSITY verbose'), ask($_, 'COMMIT') foreach @psqls;
	my ($psql) = @psqls;
	my $token = ask($psql, q{SELECT le_lease('job', '1 h', 'pooled')});
	wire_ask($watcher, 'TRUNCATE written, guarded');
	my (%pids, $errors);
	foreach my $i (1 .. 9)
	{
		$pids{ ask($psql, "BEGIN; SET LOCAL leader_election.token = '$token'; INSERT INTO guarded VALUES ($i) RETURNING pg_backend_pid(); COMMIT") }++;
		$errors .= stderr_of($psql);
		ask($psql, "BEGIN; SELECT le_assert_leader('job', $token); INSERT INTO written (who) VALUES ($i); COMMIT");
		$errors .= stderr_of($psql);
	}
	is($errors, '', 'its token lets it write');
	is(wire_ask($watcher, 'SELECT (SELECT count(*) FROM guarded), (SELECT count(*) FROM written)'), '9|9', 'every time');
	cmp_ok(scalar(keys %pids), '>', 1, 'on ' . keys(%pids) . ' connections');
	foreach (1 .. 4)
	{
		ask($psqls[1], q{INSERT INTO guarded VALUES ('other')});
		like(stderr_of($psqls[1]), qr/ERROR:  LE001: this session does not lead election "job"/, 'which leaves it to nobody else');
	}

	# one that is stopped within a transaction keeps its server connection
	my $next = successor('session');
	ask($psql, "BEGIN; SET LOCAL leader_election.token = '$token'; INSERT INTO guarded VALUES ('late')");
	my $backend = ask($psql, 'SELECT pg_backend_pid()');
	my $pid = pause($psql, 'client');
	expire($token);
	waits_for_guard($next, $backend);
	is(ask($psqls[1], "SELECT le_am_leader('job', $token)"), 'f', 'on the other connections, life goes on');
	kill 'CONT', $pid;
	ask($psql, 'COMMIT');
	like(stderr_of($psql), qr/ERROR:  LE001: token $token does not lead election "job" any more/, 'too late to commit');
	is_elected($next, $token);
	foreach (1 .. 4)
	{
		ask($psql, "BEGIN; SET LOCAL leader_election.token = '$token'; INSERT INTO guarded VALUES ('late'); COMMIT");
		like(stderr_of($psql), qr/ERROR:  LE001: token $token does not lead election "job"/, 'nor later on any connection');
		ask($psql, 'ROLLBACK');
	}
	is(wire_ask($watcher, q{SELECT count(*) FROM guarded WHERE who !~ '^\d$'}), '0', 'nothing else was written');
	go_home($next, @psqls);
	stop_pooler($pooler);
};

subtest 'the first thing after a restart' => sub {
	my $token = wire_ask($watcher, q{SELECT le_lease('first', '1 h')});
	wire_drop($watcher);
	$node->restart;
	$watcher = wire($node);
	is(wire_ask($watcher, "SELECT le_assert_leader('first', $token)"), '', 'the lease runs on');
	is(wire_ask($watcher, "SELECT le_resign('first', $token)"), 't', 'and is resigned');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no accident in the log');
wire_drop($watcher);
$node->stop;
done_testing();
