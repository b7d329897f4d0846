# A line of candidates in every scope.  The one that has waited longest leads next, whatever
# the leader's scope, and all others keep their places, also if candidates are cancelled,
# terminated and stopped.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $seed = $ENV{LE_SEED} // int(rand(2**31));
srand($seed);
diag("seed $seed");

my $node = new_server('line');
my $watcher = session($node);
my @scopes = qw(session transaction lease);

# The client waits for the election, last in line, or leads if there is no
# leader
sub line_up
{
	my ($client, $name, $scope) = @_;
	@$client{qw(scope election token)} = ($scope, $name, undef);
	post($client, $scope eq 'session' ? "SELECT le_become_leader('$name', identity => '$client->{identity}')" :
		  $scope eq 'transaction' ? "BEGIN; SELECT le_become_leader_xact('$name', identity => '$client->{identity}')" :
		  "CALL le_campaign('$name', identity => '$client->{identity}', ttl => '1 h')");
	return wait_for_candidate($watcher, $client);
}

sub newcomer
{
	my ($identity) = @_;
	my $client = session($node);
	$client->{identity} = $identity;
	return $client;
}

# A leader and the candidates, in this order
sub line
{
	my ($name, $scope, @identities) = @_;
	my @clients = map { newcomer($_) } 'leader', @identities;
	line_up($clients[0], $name, $scope);
	is_elected($clients[0], 'the leader');
	line_up($_, $name, 'session') foreach @clients[ 1 .. $#clients ];
	return @clients;
}

# The waiting client is elected, and gets its token
sub is_elected
{
	my ($client, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $answer = collect($client) // 'connection lost';
	my $elected = $answer =~ ($client->{scope} eq 'lease' ? qr/^(\d+)$/ : qr/^t$/);

	$client->{token} = $1 if $elected && $client->{scope} eq 'lease';
	ok($elected, $test) or diag("$client->{identity}: $answer $client->{error}");
	return $elected;
}

sub resign
{
	my ($client) = @_;
	return ask($client, $client->{scope} eq 'transaction' ? 'COMMIT' : "SELECT le_resign('$client->{election}', " . ($client->{token} // 'NULL') . ')');
}

sub in_line
{
	my ($name) = @_;
	return "SELECT string_agg(identity, ' ' ORDER BY position) FROM le_candidates WHERE name = '$name'";
}

sub nobody_elected
{
	my ($name, @clients) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	hear(0.3, grep { !$_->{ready} } @clients);
	ok(!grep({ $_->{ready} } @clients), 'none is elected');
	is(ask($watcher, "SELECT (SELECT count(*) FROM le_leader('$name')), le_try_become_leader('$name')"), '0|f', 'nor is there anything to be had');
	return;
}

# All that wait are elected, in this order
sub then_in_order
{
	my ($name, @clients) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $client (@clients)
	{
		is_elected($client, "then $client->{identity}") or return;
		resign($client);
	}
	is(ask($watcher, "SELECT count(*) FROM le_candidates WHERE name = '$name' AND position IS NOT NULL"), '0', 'no candidate is left');
	return;
}

# What is to happen is known: a model of the line, and random events
subtest 'the order of the line' => sub {
	my ($leader, @line) = map { newcomer("w$_") } 1 .. 8;
	my (%count, $wrong);

	line_up($leader, 'model', 'lease');
	is_elected($leader, 'the first one leads');
	line_up($_, 'model', some(@scopes)) foreach @line;
	foreach my $round (1 .. 100)
	{
		my @back = ($leader);

		# a candidate leaves the line, maybe the first one
		if (rand() < 0.3)
		{
			my $gone = rand() < 0.4 ? $line[0] : some(@line);
			if (rand() < 0.5)
			{
				ask($watcher, "SELECT pg_cancel_backend($gone->{pid})");
				collect($gone);
				ask($gone, 'ROLLBACK');
				$count{cancelled}++;
			}
			else
			{
				ask($watcher, "SELECT pg_terminate_backend($gone->{pid})");
				wait_for_end($gone);
				ask_until($watcher, "SELECT count(*) FROM pg_locks WHERE pid = $gone->{pid}", '0');
				%$gone = %{ newcomer($gone->{identity}) };
				$count{terminated}++;
			}
			@line = grep { $_ != $gone } @line;
			push @back, $gone;
		}
		my $case = "$leader->{scope} scope";
		$count{$case}++;
		resign($leader);
		$leader = shift @line;
		my $answer = collect($leader, $PostgreSQL::Test::Utils::timeout_default) // '';
		$wrong = "$case: $leader->{identity} is not elected: $answer $leader->{error}" unless $answer =~ /^(?:t|\d+)$/;
		last if $wrong;
		$leader->{token} = $answer if $leader->{scope} eq 'lease';
		hear(0, @line);
		$wrong = "$case: another one is elected, too" if grep { $_->{ready} } @line;
		my $order = join ' ', map { $_->{identity} } @line;
		$wrong = "$case: not in order: " . ask($watcher, in_line('model')) . ", expected $order" unless ask_until($watcher, in_line('model'), $order);
		last if $wrong;
		foreach my $client (@back)
		{
			line_up($client, 'model', some(@scopes));
			push @line, $client;
		}
	}
	is($wrong, undef, 'all is as it should be');
	diag(join ', ', map { "$_: $count{$_}" } sort keys %count);
	kill_client($leader, @line);
	ask($watcher, q{SELECT le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
};

foreach my $scope (qw(session lease))
{
	subtest "the next one is stopped, $scope scope" => sub {
		my ($leader, $first, @others) = line('stopped', $scope, qw(first second third));
		pause_process($first->{pid});
		is(resign($leader), 't', 'the leader resigns');
		nobody_elected('stopped', @others);
		is(ask($watcher, "SELECT granted FROM _le_locks WHERE pid = $first->{pid}"), 't', 'it has the lock');
		kill 'CONT', $first->{pid};
		is_elected($first, 'when it is woken, it is elected');
		ok(ask_until($watcher, in_line('stopped'), 'second third'), 'the others are where they were');
		resign($first);
		then_in_order('stopped', @others);
		kill_client($leader, $first, @others);
	};

	foreach my $how ('pg_terminate_backend', 'pg_cancel_backend')
	{
		subtest "the next one is stopped, and $how, $scope scope" => sub {
			my ($leader, $first, @others) = line('gone', $scope, qw(first second third));
			pause_process($first->{pid});
			is(resign($leader), 't', 'the leader resigns');
			ask($watcher, "SELECT $how($first->{pid})");
			kill 'CONT', $first->{pid};
			$how eq 'pg_cancel_backend' ? collect($first) : wait_for_end($first);
			is($first->{code}, $how eq 'pg_cancel_backend' ? '57014' : '57P01', 'it is gone');
			then_in_order('gone', @others);
			kill_client($leader, $first, @others);
		};
	}
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
kill_client($watcher);
$node->stop;
done_testing();
