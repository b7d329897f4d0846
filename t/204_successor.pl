# A leader names a successor.  The successor leads next, whatever its place in
# line, and all others keep theirs, also if candidates, or those that give way,
# are cancelled, killed and stopped.
#
# needs: gdb

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Actors;

my $seed = $ENV{LE_SEED} // int(rand(2**31));
srand($seed);
diag("seed $seed");

my $node = new_server('handover', conf => 'max_connections = 120');
my $watcher = session($node);
my @scopes = qw(session transaction lease);

# The client waits for the election, last in line, or leads if there is no
# leader
sub line_up
{
	my ($client, $name, $scope, $timeout) = @_;
	$timeout = $timeout ? "'$timeout'" : 'NULL';
	@$client{qw(scope election token)} = ($scope, $name, undef);
	post($client, $scope eq 'session' ? "SELECT le_become_leader('$name', $timeout, identity => '$client->{identity}')" :
		  $scope eq 'transaction' ? "BEGIN; SELECT le_become_leader_xact('$name', $timeout, identity => '$client->{identity}')" :
		  "CALL le_campaign('$name', $timeout, identity => '$client->{identity}', ttl => '1 h')");
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

# Resign in favour of the given identity
sub hand_over
{
	my ($client, $successor) = @_;
	return ask($client, "SELECT le_resign('$client->{election}', " . ($client->{token} // 'NULL') . ", '$successor')");
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
	my @all = map { newcomer("w$_") } 1 .. 8;
	my ($leader, @line);
	my %count;
	my $in_front = sub { my ($client) = @_; $leader = $client; @line = grep { $_ != $client } @line; };

	line_up($all[0], 'model', 'lease');
	is_elected($all[0], 'the first one leads');
	$leader = $all[0];
	foreach my $client (@all[ 1 .. 7 ])
	{
		line_up($client, 'model', some(@scopes));
		push @line, $client;
	}
	my $until = monotonic() + ($ENV{LE_LOAD_SECONDS} // 7);
	my $wrong = 0;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	my $enough = sub { !grep { ($count{"handed over, $_"} // 0) < 10 } 'lease', 'session' };
	while (!$wrong && (monotonic() < $until || !$enough->() && monotonic() < $patience))
	{
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		my $old = $leader;
		my $scope = $old->{scope};
		my $successor = some(@line);
		my $what = rand();
		my @back = ($old);

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
			$successor = some(@line) if $successor == $gone;
		}
		my $expected = $line[0];
		my $case;
		if ($what < 0.1)
		{
			my $answer = hand_over($old, 'nobody');
			$wrong ||= 'an unknown successor was accepted' if $answer ne 'f';
			$case = 'unknown successor';
			resign($old);
		}
		elsif ($what < 0.25 || $scope eq 'transaction')
		{
			my $answer = $scope eq 'transaction' ? hand_over($old, $successor->{identity}) : 'f';
			$wrong ||= 'resigned from within a transaction' if $answer ne 'f';
			$case = 'resigned';
			resign($old);
		}
		else
		{
			$case = 'handed over';
			$expected = $successor;
			my $answer = hand_over($old, $successor->{identity});
			$wrong ||= "$case to $successor->{identity}: $answer $old->{messages}" if $answer ne 't';
		}
		my $answer = collect($expected, 20);
		$wrong ||= "$case, $scope scope: $expected->{identity} is not elected: " . ($answer // '') . " $expected->{error}" unless ($answer // '') =~ /^(?:t|\d+)$/;
		last if $wrong;
		$expected->{token} = $answer if $expected->{scope} eq 'lease';
		$in_front->($expected);
		hear(0, @line);
		$wrong ||= 'another one is elected, too' if grep { $_->{ready} } @line;
		my $order = join ' ', map { $_->{identity} } @line;
		$wrong ||= "$case, $scope scope, to $expected->{identity}: not in order: " . ask($watcher, in_line('model')) . ", expected $order"
		  unless ask_until($watcher, in_line('model'), $order, 5);
		foreach my $client (@back)
		{
			line_up($client, 'model', some(@scopes));
			push @line, $client;
		}
		$count{$case}++;
		$count{"$case, $scope"}++;
	}
	is($wrong, 0, 'all is as it should be');
	diag(join ', ', map { "$_: $count{$_}" } sort keys %count);
	ok($enough->(), 'leases and terms of sessions were handed over');
	kill_client(@all);
	ask($watcher, q{SELECT le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
};

# All clients at the same time.  Some are killed, are cancelled or time out;
# all others are known to wait when they are named
subtest 'all at the same time' => sub {
	my (%handed, %count, @errors);
	my $offset = log_from($node);
	my %fine = map { $_ => 1 } '', '57014', '57P01';
	my $candidate = sub {
		my ($actor, $answer) = @_;
		my ($state, $was, $code) = ($actor->{state} // 'new', $actor->{leading}, $actor->{client}{code});
		my $id = $actor->{params}{app};
		my $own = $actor->{token} // 'NULL';

		push @errors, "$actor->{say}: $actor->{client}{error}" if defined $answer && !$fine{$code};
		@$actor{qw(state token)} = ('new', undef) if !defined $answer || $code;
		return 'ROLLBACK; SELECT le_resign_all()' if $code;
		return if $actor->{stop} && $actor->{state} && $actor->{state} eq 'new';
		if (($actor->{state} // 'new') eq 'new')
		{
			my $scope = $actor->{scope} = some(@scopes, 'session', 'lease');
			my $timeout = $actor->{frail} && rand() < 0.3 ? q{'} . int(rand 100) . q{ ms'} : 'NULL';
			$actor->{state} = 'waits';
			return $scope eq 'session' ? "SELECT le_become_leader('storm', $timeout)" :
			  $scope eq 'transaction' ? "BEGIN; SELECT le_become_leader_xact('storm', $timeout)" : "CALL le_campaign('storm', $timeout, ttl => '" . ($actor->{frail} ? 200 : 60000) . " ms')";
		}
		if ($state eq 'waits')
		{
			$actor->{state} = 'new', return 'ROLLBACK' unless $answer =~ /^(?:t|\d+)$/;
			$actor->{token} = $answer if $actor->{scope} eq 'lease';
			$actor->{state} = $actor->{scope} eq 'transaction' ? 'ends' : 'looks';
			return 'COMMIT' if $actor->{scope} eq 'transaction';
			return (q{SELECT string_agg(identity, ' '), (SELECT token FROM le_leader('storm')) FROM le_candidates WHERE name = 'storm' AND position IS NOT NULL}, rand 0.01);
		}
		if ($state eq 'looks')
		{
			my ($waiting, $token) = split /\|/, $answer;
			my @others = split / /, $waiting;
			@$actor{qw(state named term)} = ('resigns', @others ? some(@others) : 'nobody', $token);
			return "SELECT le_resign('storm', $own, '$actor->{named}')";
		}
		if ($state eq 'resigns')
		{
			$handed{ $actor->{term} } = $actor->{named} if $answer eq 't';
			$count{"handed over: $answer"}++;
			@$actor{qw(state token)} = ('ends', undef) if $answer eq 't';
			$actor->{state} = 'ends';
			return "SELECT le_resign('storm', $own)" if $answer ne 't';
		}
		@$actor{qw(state token)} = ('new', undef);
		return ('SELECT 1', rand 0.02);
	};
	my @actors = ((map { actor($node, $candidate, app => "sturdy$_") } 1 .. 4), map { actor($node, $candidate, app => "frail$_") } 1 .. 4);
	$_->{frail} = 1 foreach @actors[ 4 .. 7 ];
	my $next = 0;
	my $disturb = sub {
		return if monotonic() < $next;
		$next = monotonic() + rand 0.03;
		my $victim = some(@actors[ 4 .. 7 ]);
		my $what = rand();
		if ($what < 0.5) { ask($watcher, "SELECT pg_cancel_backend($victim->{client}{pid})"); }
		elsif ($what < 0.75) { ask($watcher, "SELECT pg_terminate_backend($victim->{client}{pid})"); }
		elsif (!$victim->{done}) { lose($victim); }
	};
	my @hang = play($ENV{LE_LOAD_SECONDS} // 6, $disturb, @actors);
	is(scalar(@hang), 0, 'none hangs') or diag(map { "$_->{params}{app} $_->{say}\n" } @hang);
	is(scalar(@errors), 0, 'no unexpected error') or diag(join "\n", @errors[0 .. ($#errors < 9 ? $#errors : 9)]);
	kill_client(map { $_->{client} } @actors);
	ask($watcher, q{SELECT le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
	ok(ask_until($watcher, q{SELECT (SELECT count(*) FROM le_candidates) + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')}, '0'), 'nothing is left behind');

	my (@wrong, $ended, $leads);
	foreach my $line (grep { /^election "storm"/ } term_lines($node, $offset))
	{
		if ($line =~ /term (\d+) ended/) { ($ended, $leads) = ($1, undef); }
		elsif ($line =~ /term (\d+) began: "(\w+)" leads/)
		{
			push @wrong, "$2 leads beside term $leads" if $leads;
			my $named = $ended ? delete $handed{$ended} : undef;
			$count{'named is next'}++ if $named && $named eq $2;
			push @wrong, "term $ended was handed over to $named, but $2 is next" if $named && $named ne $2 && $named =~ /sturdy/;
			$count{'named is not next'}++ if $named && $named ne $2;
			$leads = $1;
		}
	}
	is(scalar(@wrong), 0, 'the named one is next') or diag(join "\n", @wrong[0 .. ($#wrong < 9 ? $#wrong : 9)]);
	diag(join ', ', map { "$_: $count{$_}" } sort keys %count);
	cmp_ok($count{'named is next'} // 0, '>', 0, 'a successor was named');
};

foreach my $scope (qw(session lease))
{
	subtest "identities that can be named, $scope scope" => sub {
		my ($leader, $first, $second, $third) = line('named', $scope, 'first', 'twin', 'twin');
		my $many = session($node);
		post($many, q{CALL le_campaign(ARRAY['named', 'named'], identity => 'many')});
		wait_for_candidate($watcher, $many);
		foreach my $identity ('nobody', 'many', 'leader')
		{
			is(hand_over($leader, $identity), 'f', "not $identity");
			like($leader->{messages}, qr/WARNING:  01000: "$identity" does not wait to lead election "named"/, 'said so');
		}
		is(ask($watcher, q{SELECT identity FROM le_leader('named')}), 'leader', 'nothing was resigned');
		is(hand_over($leader, 'twin'), 't', 'of two, the one that has waited longer');
		is_elected($second, 'elected');
		is(hand_over($second, 'twin'), 't', 'the other one');
		is_elected($third, 'elected');
		resign($third);
		then_in_order('named', $first);
		is(collect($many) =~ s/\d+//r, '|named', 'and at last the one for many elections');
		kill_client($leader, $first, $second, $third, $many);
	};

	subtest "a successor that is stopped, $scope scope" => sub {
		my ($leader, $first, $second, $third) = line('stopped', $scope, qw(first second third));
		pause_process($third->{pid});
		is(hand_over($leader, 'third'), 't', 'named');
		nobody_elected('stopped', $first, $second);
		is(ask($watcher, "SELECT granted FROM _le_locks WHERE pid = $third->{pid}"), 't', 'it has the lock');
		kill 'CONT', $third->{pid};
		is_elected($third, 'when it is woken, it is elected');
		ok(ask_until($watcher, in_line('stopped'), 'first second'), 'the others are where they were');
		resign($third);
		then_in_order('stopped', $first, $second);
		kill_client($leader, $first, $second, $third);
	};

	subtest "a successor that is stopped, and killed, $scope scope" => sub {
		my ($leader, $first, $second, $third, $fourth) = line('killed', $scope, qw(first second third fourth));
		pause_process($third->{pid});
		is(hand_over($leader, 'third'), 't', 'named');
		# the first one has lined up again
		ok(ask_until($watcher, "SELECT count(*) FROM _le_locks WHERE NOT granted AND pid IN ($first->{pid}, $second->{pid}, $fourth->{pid})", '3'), 'all others wait');
		ask($watcher, "SELECT pg_terminate_backend($third->{pid})");
		kill 'CONT', $third->{pid};
		ok(wait_for_end($third), 'it ends');
		hear(1, $first, $second, $fourth) until grep { $_->{ready} } $first, $second, $fourth;
		hear(0, $first);
		ok($first->{ready}, 'the one that has waited longest is elected');
		foreach my $turn (1 .. 3)
		{
			my @left = grep { $_->{election} } $first, $second, $fourth;
			hear(1, @left) until grep { $_->{ready} } @left;
			my ($elected) = grep { $_->{ready} } @left;
			is_elected($elected, "$elected->{identity} is elected");
			resign($elected);
			$elected->{election} = undef;
		}
		kill_client($leader, $first, $second, $fourth);
	};

	subtest "a successor whose client was killed, $scope scope" => sub {
		my ($leader, $first, $second, $third) = line('dead', $scope, qw(first second third));
		kill_client($third);
		like(hand_over($leader, 'third'), qr/^[tf]$/, 'named');
		resign($leader);
		then_in_order('dead', $first, $second);
		kill_client($leader, $first, $second);
	};
}

# With a lease, the first one in line has to give way
subtest 'the one that has to give way is stopped' => sub {
	my ($leader, $first, $second, $third) = line('way', 'lease', qw(first second third));
	pause_process($first->{pid});
	is(hand_over($leader, 'third'), 't', 'named');
	nobody_elected('way', $second, $third);
	is(ask($watcher, in_line('way')), 'first second third', 'they are where they were');
	kill 'CONT', $first->{pid};
	my $woken = monotonic();
	is_elected($third, 'when it is woken, the named one is elected');
	diag(sprintf 'elected %.1f ms after the one that gives way was woken', 1000 * (monotonic() - $woken));
	ok(ask_until($watcher, in_line('way'), 'first second'), 'the one that gave way is the first again');
	resign($third);
	then_in_order('way', $first, $second);
	kill_client($leader, $first, $second, $third);
};

subtest 'the one that has to give way is stopped, and killed' => sub {
	foreach my $how ('pg_terminate_backend', 'pg_cancel_backend')
	{
		my ($leader, $first, $second, $third) = line('way', 'lease', qw(first second third));
		pause_process($first->{pid});
		is(hand_over($leader, 'third'), 't', "named, $how");
		ask($watcher, "SELECT $how($first->{pid})");
		kill 'CONT', $first->{pid};
		$how eq 'pg_cancel_backend' ? collect($first) : wait_for_end($first);
		is($first->{code}, $how eq 'pg_cancel_backend' ? '57014' : '57P01', 'it is gone');
		is_elected($third, 'the named one is elected');
		resign($third);
		then_in_order('way', $second);
		kill_client($leader, $first, $second, $third);
	}
};

subtest 'the one that gives way keeps its timeout' => sub {
	my ($leader, $third) = map { newcomer($_) } 'leader', 'third';
	my @first = map { newcomer("first$_") } 1, 2;
	line_up($leader, 'time', 'lease');
	is_elected($leader, 'the leader');
	my $before = monotonic();
	line_up($first[0], 'time', 'session', '1 s');
	line_up($first[1], 'time', 'lease', '1500 ms');
	line_up($third, 'time', 'session');
	is(hand_over($leader, 'third'), 't', 'named');
	is_elected($third, 'elected');
	is(collect($first[0]), 'f', 'its timeout is over');
	cmp_ok(monotonic(), '>=', $before + 1, 'not too early');
	is(collect($first[1]), '', 'the next one, too');
	cmp_ok(monotonic(), '<', $before + 20, 'not too late');
	diag(sprintf 'timeouts of 1.0 and 1.5 s: over %.3f s after the first began to wait', monotonic() - $before);
	no_trace($node, $_->{pid}, 'nothing of it is left') foreach @first;
	kill_client($leader, $third, @first);
};

# Let the client bid, and stop it when it is shown as a candidate but stands in no queue
# yet; returns what makes it go on, or undef where a debugger cannot do that
sub stop_lining_up
{
	my ($client, $name) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $go_on = sub { PostgreSQL::Test::Utils::append_to_file("$dir/go", ''); };
	my $output = '';
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	# the library is loaded when the session has used it
	ask($client, q{SELECT le_am_leader('nothing')});
	my $debugger = eval { IPC::Run::start([ 'gdb', '-p', $client->{pid}, '-batch', '-ex', 'set pagination off',
		'-ex', 'handle all nostop noprint pass', '-ex', 'break le_registry_watch', '-ex', "shell touch $dir/ready", '-ex', 'continue',
		'-ex', "shell touch $dir/stopped; until [ -e $dir/go ]; do sleep 0.01; done" ], '>&', \$output) } or return;
	foreach my $step ('ready', 'stopped')
	{
		until (-e "$dir/$step")
		{
			$debugger->pump_nb;
			die "the debugger does nothing: $output" if monotonic() > $patience;
			if (!$debugger->pumpable || $output =~ /ptrace: |not defined/)
			{
				diag($output);
				$go_on->();
				eval { $debugger->finish };
				return;
			}
			Time::HiRes::sleep(0.01);
		}
		post($client, "SELECT le_become_leader('$name', identity => '$client->{identity}')") if $step eq 'ready';
	}
	@$client{qw(scope election token)} = ('session', $name, undef);
	return sub { $go_on->(); $debugger->finish; };
}

# It stands in no queue whose lock it could be given
SKIP: {
	my ($leader, $third) = map { newcomer($_) } 'leader', 'third';
	foreach my $bid (q{SELECT le_try_become_leader('up')}, q{SELECT coalesce(le_lease('up', '1 h')::text, 'f')}, q{CALL le_campaign(ARRAY['up'], timeout => '0')})
	{
		line_up($leader, 'up', 'lease');
		is_elected($leader, 'the leader');
		my $go_on = stop_lining_up($third, 'up') or skip 'no debugger', 1;
		is(ask($watcher, "SELECT count(*) FROM pg_locks WHERE pid = $third->{pid} AND locktype = 'advisory'"), '0', 'it is just lining up');
		is(hand_over($leader, 'third'), 't', 'and is named');
		like(ask($watcher, $bid), qr/^(f|\|)$/, "it is not overtaken: $bid");
		$go_on->();
		is_elected($third, 'it is elected when it goes on') or last;
		resign($third);
	}
	kill_client($leader, $third);
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
kill_client($watcher);
$node->stop;
done_testing();
