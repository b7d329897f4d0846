# However a session ends, its terms end with it, and the next candidate leads.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('ends', conf => "max_prepared_transactions = 2\n");
$node->safe_psql('postgres', 'CREATE TABLE work (n integer)');

my $dba = session($node);

sub terminate
{
	my ($leader) = @_;
	ask($dba, 'SELECT pg_terminate_backend(' . $leader->{pid} . ')');
}

sub busy_then_terminate
{
	my ($leader) = @_;
	post($leader, 'SELECT pg_sleep(600)');
	$node->poll_query_until('postgres',
		"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $leader->{pid}"
	);
	terminate($leader);
}

sub idle { }

# what the leader does before and after it is elected, and how its session ends
my @roads = (
	{ road => 'clean exit', end => \&leave },
	{ road => 'SIGKILL of an idle client', end => \&kill_client },
	{
		road => 'SIGKILL of a client in a transaction',
		before => 'BEGIN',
		end => \&kill_client
	},
	{ road => 'pg_terminate_backend when idle', end => \&terminate },
	{
		road => 'idle_session_timeout',
		after => 'SET idle_session_timeout = 1',
		end => \&idle
	},
	{
		road => 'idle_in_transaction_session_timeout',
		after => 'SET idle_in_transaction_session_timeout = 1; BEGIN',
		end => \&idle
	},
	{
		road => 'idle_in_transaction_session_timeout, transaction scope',
		scope => 'transaction',
		before => 'BEGIN',
		after => 'SET idle_in_transaction_session_timeout = 1',
		end => \&idle
	},
	{
		road => 'idle_in_transaction_session_timeout in a failed transaction',
		before => 'SET idle_in_transaction_session_timeout = 1',
		after => 'BEGIN; INSERT INTO work VALUES (1); SELECT 1/0',
		end => \&idle
	},
	{ road => 'FATAL in mid-statement', end => \&busy_then_terminate },
	{
		road => 'FATAL in mid-statement, elected and written in the transaction',
		before => 'BEGIN',
		after => 'INSERT INTO work VALUES (1)',
		end => \&busy_then_terminate
	},
	{
		road => 'FATAL in mid-statement, in two subtransactions',
		before => 'BEGIN; SAVEPOINT one; INSERT INTO work VALUES (1); SAVEPOINT two',
		end => \&busy_then_terminate
	},
	{
		road => 'FATAL in a failed transaction',
		before => 'BEGIN',
		after => 'INSERT INTO work VALUES (1); SELECT 1/0',
		end => \&terminate
	},
	{
		road => 'FATAL in mid-statement, transaction scope',
		scope => 'transaction',
		before => 'BEGIN; INSERT INTO work VALUES (1)',
		end => \&busy_then_terminate
	},
	{
		road => 'FATAL in mid-statement, transaction scope in a subtransaction',
		scope => 'transaction',
		before => 'BEGIN; SAVEPOINT one',
		end => \&busy_then_terminate
	},
	{
		road => 'FATAL in mid-statement, temporary table',
		before => 'CREATE TEMP TABLE mine (n integer); BEGIN; INSERT INTO mine VALUES (1)',
		end => \&busy_then_terminate
	});

foreach my $case (@roads)
{
	subtest $case->{road} => sub {
		my $scope = $case->{scope} // 'session';
		my $function =
		  $scope eq 'session'
		  ? 'le_try_become_leader'
		  : 'le_try_become_leader_xact';
		my $offset = log_from($node);
		my $first = session($node);
		my $second = session($node);

		ask($first, $case->{before}) if $case->{before};
		is(ask($first, "SELECT $function('job', identity => 'first')"), 't', 'first leads');
		my $token = ask($first, "SELECT le_token('job')");
		my $other = '';
		if ($scope eq 'session')
		{
			is(ask($first, "SELECT le_try_become_leader('other', identity => 'first')"),
				't', 'first leads another, too');
			$other = ask($first, q{SELECT le_token('other')});
		}
		is(leads_in_view($node, 'job'), "first/$scope", 'the view says so');
		my $waiter = $second->{pid};
		post($second, q{SELECT le_become_leader('job', identity => 'second')});
		wait_until_waiting($node, $waiter);
		ask($first, $case->{after}) if $case->{after};

		$case->{end}->($first);
		is(collect($second), 't', 'the candidate leads');
		is(leads_in_view($node, 'job'), 'second/session', 'the view says so');
		my $next = ask($second, "SELECT le_token('job')");
		cmp_ok($next, '>', $token, 'with a greater token');
		no_trace($node, $first->{pid}, 'nothing of the first session is left');

		my @lines = grep { /"job"/ } term_lines($node, $offset);
		is_deeply(
			\@lines,
			[
				qq{election "job": term $token began: "first" leads, process $first->{pid}, $scope scope},
				qq{election "job": term $token ended: session ended},
				qq{election "job": term $next began: "second" leads, process $waiter, session scope}
			],
			'the log tells it in order');
		if ($other ne '')
		{
			is(scalar(grep { $_ eq qq{election "other": term $other ended: session ended} }
					  term_lines($node, $offset)),
				1, 'the other one is free, too');
		}
		end_session($first, $second);
		$node->poll_query_until('postgres',
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $waiter");
		is(leads_in_view($node, 'job'), '', 'vacant in the end');
	};
}

subtest 'DROP DATABASE ... FORCE ends the term of a session in it' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE doomed');
	create_extension($node, 'doomed');
	my $offset = log_from($node);
	my $leader = session($node, db => 'doomed');
	is(ask($leader, q{SELECT le_try_become_leader('job', identity => 'lost')}),
		't', 'a leader in the database');
	$node->safe_psql('postgres', 'DROP DATABASE doomed WITH (FORCE)');
	ok((grep { /^election "job": term \d+ ended: session ended$/ } term_lines($node, $offset)) == 1,
		'its term ended');
	end_session($leader);
};

my $log = slurp_file($node->logfile);
unlike($log, qr/WARNING|PANIC|TRAP|terminated by signal/, 'no complaints in the log');
end_session($dba);
$node->stop;
done_testing();
