# Clients that vanish without a word, behind a real network, and clients that
# are killed in mid-statement: how soon the next candidate leads, which
# sessions stay, and the options of the socket.

use strict;
use warnings;

use Test::More;
use FindBin;
use lib $FindBin::RealBin;
use Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use LeaderElection;

my $timeout = 3;
my %links = (steady => 1, unplugged => 2, gone => 3, flapping => 4);

my $node = new_networked_server('dead_peer',
	conf => "max_prepared_transactions = 1\nleader_election.dead_peer_timeout = $timeout\n");
my $watcher = session($node);

# A client behind that link
sub over
{
	my ($link) = @_;
	return session($node, host => "10.93.$links{$link}.1");
}

sub lead
{
	my ($session, $name) = @_;
	ask($session, "SELECT le_try_become_leader('$name')") eq 't' or die "does not lead $name";
	return $session;
}

# A session from the server's host that waits for a lock
sub follower
{
	my ($sql) = @_;
	my $client = session($node);
	post($client, $sql);
	wait_until_waiting($node, $client->{pid});
	return $client;
}

sub elected
{
	my ($client) = @_;
	return $client->{ready} && "@{ $client->{rows} }" eq 't';
}

# What its socket is told: keepalives count, idle and interval, and the user timeout
sub socket_of
{
	my ($session) = @_;
	return ask($session, q{SELECT string_agg(setting, '/' ORDER BY name) FROM pg_settings WHERE name ~ '^tcp_'});
}

# These have said nothing for long when they vanish
my %silent = map { $_ => lead(over($_), "silent, $_") } qw(unplugged gone);
my $silent_since = monotonic();

subtest 'what the socket is told' => sub {
	my $session = over('steady');
	my ($default, $own, $watched) = (socket_of($session), '8/77/11/99000', "$timeout/1/1/" . 1000 * ($timeout + 1));
	my ($lead, $resign) = (q{SELECT le_try_become_leader('a')}, q{SELECT le_resign('a')});
	my $too_short = q{SELECT le_become_leader('taken', '50 ms')};
	my $is = sub {
		my ($expected, $test, @statements) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		# the server's settings come back at the end of the transaction after
		ask($session, $_) foreach @statements, 'SELECT';
		is(socket_of($session), $expected, $test);
	};

	ask($watcher, q{SELECT le_try_become_leader('taken')});
	$is->($default, 'a bid that is denied at once', q{SELECT le_try_become_leader('taken')});
	$is->($watched, 'leads', $lead);
	ask($session, $resign);
	is(socket_of($session), $watched, 'has resigned: not at once, as it may lead again');
	$is->($default, 'has resigned', 'SELECT');
	$is->($own, 'settings of its own', 'SET tcp_keepalives_idle = 77', 'SET tcp_keepalives_interval = 11',
		'SET tcp_keepalives_count = 8', q{SET tcp_user_timeout = '99s'});
	$is->($watched, 'leads twice', $lead, q{SELECT le_try_become_leader('b')});
	$is->($watched, 'has resigned once', $resign);
	$is->($own, 'has resigned twice', q{SELECT le_resign('b')});
	$is->($watched, 'session scope, rolled back', 'BEGIN', $lead, 'ROLLBACK');
	$is->($own, 'has resigned in a block', 'BEGIN', $resign, 'COMMIT');
	$is->($own, 'pg_advisory_unlock_all', $lead, 'SELECT pg_advisory_unlock_all()');
	$is->($own, 'transaction scope, rolled back', 'BEGIN', q{SELECT le_try_become_leader_xact('a')}, 'ROLLBACK');

	$is->($watched, 'has waited in this transaction', 'BEGIN', $too_short);
	$is->($own, 'and it is committed', 'COMMIT');
	$is->($watched, 'waited in transaction scope', 'BEGIN', q{SELECT le_become_leader_xact('taken', '50 ms')});
	$is->($own, 'rolled back', 'ROLLBACK');
	$is->($own, 'waited, prepared', 'BEGIN', $too_short, q{PREPARE TRANSACTION 'p'});
	ask($session, q{ROLLBACK PREPARED 'p'});
	$is->($own, 'le_campaign timed out', q{CALL le_campaign('taken', '50 ms')});
	$is->($own, 'le_campaign for many timed out', q{CALL le_campaign(ARRAY['taken'], '50 ms')});
	$is->($own, 'a wait that fails, rolled back to a savepoint', 'BEGIN', 'SAVEPOINT s', q{SET LOCAL lock_timeout = '50ms'},
		q{SELECT le_become_leader('taken')}, 'ROLLBACK TO s', 'COMMIT');
	post($session, q{SELECT le_become_leader('taken')});
	wait_for_candidate($watcher, $session);
	ask($watcher, "SELECT pg_cancel_backend($session->{pid})");
	is(collect($session), '', 'a wait is cancelled');
	$is->($own, 'and this is the end of it');

	$is->('2/1/1/2000', 'what is tighter is kept', q{SET tcp_user_timeout = '2s'; SET tcp_keepalives_count = 2}, $lead);
	$is->('2/77/11/2000', 'and restored', $resign);
	$is->('2/77/11/2000', 'no watch is wanted', 'SET leader_election.dead_peer_timeout = 0', $lead);
	end_session($session);

	# the server reads its settings again, the second time as they were
	$session = over('steady');
	$is->($watched, 'leads', $lead);
	foreach my $round (1, 2)
	{
		$node->append_conf('postgresql.conf', "tcp_keepalives_idle = 60\ntcp_user_timeout = 90s\ntest.round = $round");
		$node->reload;
		Time::HiRes::sleep(0.01) until ask($session, q{SELECT current_setting('test.round', true)}) eq $round;
		$is->($watched, "leads, after reload $round");
	}
	$is->('9/60/75/90000', "the server's settings", $resign);
	end_session($session);
	$node->append_conf('postgresql.conf', "tcp_keepalives_idle = 0\ntcp_user_timeout = 0");
	$node->reload;

	# sockets of the local machine have no such options
	$session = session($node);
	$is->('0/0/0/0', 'leads by a unix socket', $lead);
	is($session->{messages}, '', 'without a complaint');
	is(ask($session, "$too_short; $resign"), "f\nt", 'waits and resigns by it');
	end_session($session);
};

# How a leader comes to be in the middle of something when its client is killed
my %killed = (
	'a statement' => ['SELECT pg_sleep(60)'],
	'a procedure' => ['DO $$ BEGIN FOR i IN 1 .. 600 LOOP PERFORM pg_sleep(0.1); END LOOP; END $$'],
	'a busy statement' => ['SELECT count(*) FROM generate_series(1, 10000) a, generate_series(1, 10000) b, generate_series(1, 10000) c'],
	'a lock queue' => ['SELECT pg_advisory_lock(1)'],
	'another election' => [q{SELECT le_become_leader('taken')}],
	'a statement after an error' => ['SELECT 1 / 0', 'SELECT pg_sleep(60)'],
	'a statement after statement_timeout' =>
	  [q{SET statement_timeout = '50ms'}, 'SELECT pg_sleep(60)', 'SET statement_timeout = 0', 'SELECT pg_sleep(60)'],
	'a statement after an error under a savepoint' => ['BEGIN', 'SAVEPOINT s', 'SELECT 1 / 0', 'ROLLBACK TO s', 'SELECT pg_sleep(60)'],
	'a statement, with another timeout' => [q{SET leader_election.dead_peer_timeout = '1h'}, 'SELECT pg_sleep(60)']);

subtest 'clients killed in mid-statement' => sub {
	my (@leaders, %followers, %elected);
	ask($watcher, 'SELECT pg_advisory_lock(1)');
	foreach my $where (map { ("$_, unix socket", "$_, TCP") } keys %killed)
	{
		my ($what, $by) = $where =~ /\A(.*), (.*?)\z/;
		my @before = @{ $killed{$what} };
		my $statement = pop @before;
		my $session = lead($by eq 'TCP' ? over('steady') : session($node), $where);
		push @leaders, $session;
		ask($session, $_) foreach @before;
		post($session, $statement);
		$followers{$where} = follower("SELECT le_become_leader('$where')");
	}

	# until all are in the middle of it, and longer than it takes to look at the client once
	my $pids = join ', ', map { $_->{pid} } @leaders;
	ask_until($watcher, "SELECT bool_and(state = 'active') FROM pg_stat_activity WHERE pid IN ($pids)") or die 'some do nothing';
	Time::HiRes::sleep(1);
	hear(0, values %followers);
	ok(!(grep { $_->{ready} } values %followers), 'none is elected while they live');

	my $killed_at = monotonic();
	kill_client($_) foreach @leaders;
	while (monotonic() < $killed_at + 8 && keys %elected < keys %followers)
	{
		hear(0.05, values %followers);
		$elected{$_} //= monotonic() - $killed_at foreach grep { elected($followers{$_}) } keys %followers;
	}
	ok(defined $elected{$_}, sprintf 'killed in %s: next leader after %.2f s', $_, $elected{$_} // 'Inf') foreach sort keys %followers;
};

# How often the process has gone to sleep
sub sleeps_of
{
	my ($session) = @_;
	my ($sleeps) = slurp_file("/proc/$session->{pid}/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	return $sleeps;
}

subtest 'candidates whose clients are killed' => sub {
	my %setting = (watched => "${timeout}s", idle => '1h', next => '1h');
	my %limits = (watched => $timeout / 3, idle => 5, next => 0);
	my (%waiting, %followers, %sleeps, %left);
	foreach my $name (map { ("$_, unix socket", "$_, TCP") } keys %setting)
	{
		my ($which, $by) = split /, /, $name;
		lead($watcher, "killed, $name");
		my $session = $waiting{$name} = $by eq 'TCP' ? over('steady') : session($node);
		ask($session, "SET leader_election.dead_peer_timeout = '$setting{$which}'");
		post($session, "CALL le_campaign('killed, $name')");
		wait_for_candidate($watcher, $session);
		$followers{$name} = follower("SELECT le_become_leader('killed, $name')");
	}

	# nothing but a check wakes them
	my $since = monotonic();
	$sleeps{$_} = sleeps_of($waiting{$_}) foreach keys %waiting;
	sleep_past($since + 3);
	foreach my $name (sort grep { !/^watched/ } keys %waiting)
	{
		my $woken = sleeps_of($waiting{$name}) - $sleeps{$name};
		cmp_ok($woken, '<=', 2, "$name: woken $woken times in 3 s");
	}

	my $killed_at = monotonic();
	kill_client($_) foreach values %waiting;
	ask($watcher, "SELECT le_resign('killed, $_')") foreach grep { /^next/ } keys %waiting;
	while (monotonic() < $killed_at + 8 && keys %left < keys %waiting)
	{
		my %there = map { $_ => 1 } split /\n/, ask($watcher, 'SELECT pid FROM pg_stat_activity');
		$left{$_} //= monotonic() - $killed_at foreach grep { !$there{ $waiting{$_}{pid} } } keys %waiting;
		hear(0.05, values %followers);
	}
	foreach my $name (sort keys %waiting)
	{
		my ($which) = split /, /, $name;
		ok(($left{$name} // 'Inf') < $limits{$which} + 2, sprintf '%s: the session ends after %.2f s', $name, $left{$name} // 'Inf');
	}
	foreach my $name (sort keys %followers)
	{
		ask($watcher, "SELECT le_resign('killed, $name')") if $name !~ /^next/;
		is(collect($followers{$name}), 't', "$name: the next candidate is elected");
	}

	# once elected, it is checked as a leader, in the same statement already
	lead($watcher, 'killed, elected');
	my $elected = over('steady');
	ask($elected, q{SET leader_election.dead_peer_timeout = '1h'});
	post($elected, q{SELECT le_become_leader('killed, elected'), pg_sleep(60)});
	wait_for_candidate($watcher, $elected);
	my $follower = follower(q{SELECT le_become_leader('killed, elected')});
	ask($watcher, q{SELECT le_resign('killed, elected')});
	ask_until($watcher, "SELECT pid = $elected->{pid} FROM le_leader('killed, elected')") or die 'is not elected';
	$killed_at = monotonic();
	kill_client($elected);
	is(collect($follower), 't', 'elected, and killed then: the next candidate is elected');
	my $took = monotonic() - $killed_at;
	cmp_ok($took, '<', 2.5, sprintf 'after %.2f s', $took);
	end_session($follower, values %followers);
};

# These are not found in time
my ($disabled, $plain) = map { over('gone') } 1, 2;
ask($disabled, 'SET leader_election.dead_peer_timeout = 0');
lead($disabled, 'disabled');
ask($plain, 'SELECT pg_advisory_lock(2)');
my @left_waiting = (follower(q{SELECT le_become_leader('disabled')}), follower('SELECT pg_advisory_lock(2)'));
my $cut_at;

# How a candidate waits
my %waits = (
	'le_become_leader' => q{SELECT le_become_leader('%s')},
	'le_become_leader_xact' => q{SELECT le_become_leader_xact('%s')},
	'le_campaign' => q{CALL le_campaign('%s')},
	'le_campaign for many' => q{CALL le_campaign(ARRAY['%1$s', '%1$s too'])},
	'behind a lease' => q{SELECT le_become_leader('%s')},
	'for a lease, behind a lease' => q{CALL le_campaign('%s', ttl => '1 h')});

subtest 'clients that vanish' => sub {
	my (%successors, %candidates, %next, %tokens, @sessions, %seen);
	foreach my $link (qw(unplugged gone))
	{
		my %leaders = (silent => $silent{$link},
			map { $_ => lead(over($link), "$_, $link") } qw(idle busy block failed queue));
		ask($leaders{$_}, 'BEGIN') foreach qw(block failed);
		ask($leaders{failed}, 'SELECT 1 / 0');
		post($leaders{busy}, 'SELECT pg_sleep(600)');
		post($leaders{queue}, 'SELECT pg_advisory_lock(1)');
		$successors{"$_, $link"} = follower("SELECT le_become_leader('$_, $link')") foreach keys %leaders;
		push @sessions, values %leaders;

		foreach my $how (keys %waits)
		{
			my $name = "$how, $link";
			push @sessions, $candidates{$name} = over($link);
			$tokens{$name} = ask($watcher,
				$how =~ /behind/ ? "SELECT le_lease('$name', '1 h')" : "SELECT le_become_leader('$name'), le_become_leader('$name too')");
			post($candidates{$name}, sprintf $waits{$how}, $name);
			wait_for_candidate($watcher, $candidates{$name});
			$next{$name} = session($node);
			post($next{$name}, "SELECT le_become_leader('$name')");
			wait_for_candidate($watcher, $next{$name});
		}
	}

	# the sessions that stay
	my ($flapping, $in_flight, $waiting) = map { over('flapping') } 1 .. 3;
	my $token = ask(lead($flapping, 'flapping'), q{SELECT le_token('flapping')});
	lead($in_flight, 'in flight');
	post($in_flight, "SELECT pg_sleep($timeout + 1), 'answers', le_token('in flight') IS NOT NULL");
	post($waiting, q{SELECT le_become_leader('in flight')});
	wait_for_candidate($watcher, $waiting);

	sleep_past($silent_since + 2 * $timeout);
	hear(0, values %successors);
	ok(!(grep { $_->{ready} } values %successors), 'all leaders stay while their links do');

	$cut_at = monotonic();
	system_or_bail('sh', '-c', 'ip link set c2 down && ip link set c4 down &&
		ip addr del 10.93.3.2/24 dev c3 && ip route add blackhole 10.93.3.2/32');
	my $up = 0;
	while (monotonic() < $cut_at + $timeout + 4 && keys %seen < keys(%successors) + keys %candidates)
	{
		system_or_bail(qw(ip link set c4 up)) if !$up && monotonic() > $cut_at + $timeout / 3 && ++$up;
		hear(0.05, values %successors);
		my %shown = map { $_ => 1 } split /\n/, ask($watcher, 'SELECT pid FROM le_candidates');
		$seen{"leader: $_"} //= monotonic() - $cut_at foreach grep { elected($successors{$_}) } keys %successors;
		$seen{"candidate: $_"} //= monotonic() - $cut_at foreach grep { !$shown{ $candidates{$_}{pid} } } keys %candidates;
	}
	foreach my $who (sort map({ "leader: $_" } keys %successors), map({ "candidate: $_" } keys %candidates))
	{
		# the kernel may have been a little late with its last probe
		my $time = $seen{$who} // 'Inf';
		ok($time >= $timeout - 0.2 && $time < $timeout + 4, sprintf '%s: found after %.2f s', $who, $time);
	}
	foreach my $name (sort keys %next)
	{
		hear(0, $next{$name});
		ok(!$next{$name}{ready}, "$name: none is elected before the leader resigns");
		ask($watcher, "SELECT le_resign('$name'" . ($name =~ /behind/ ? ", $tokens{$name})" : ')'));
		is(collect($next{$name}, 5), 't', 'then the next one is');
	}

	is(collect($in_flight), '|answers|t', 'a flapping link: the statement in flight answers');
	is(ask($flapping, q{SELECT le_token('flapping')}), $token, 'the leader stays, with its token');
	ask($in_flight, q{SELECT le_resign('in flight')});
	is(collect($waiting), 't', 'and the candidate, until it is elected');
	kill_client($_) foreach @sessions;
	end_session($flapping, $in_flight, $waiting);
};

subtest 'clients that leave as they should' => sub {
	my $offset = log_from($node);
	foreach my $round (1 .. 50)
	{
		my $session = lead($round % 2 ? over('steady') : session($node), "round $round");
		post($session, 'SELECT 1') if $round % 4 < 2;
		end_session($session);
	}

	# looked at when they have left, and have not been heard yet
	foreach my $session (over('steady'), session($node))
	{
		my $pid = $session->{pid};
		lead($session, "round $pid");
		kill 'STOP', $pid;
		leave($session);
		Time::HiRes::sleep(1);
		kill 'CONT', $pid;
	}
	ok(ask_until($watcher, q{SELECT count(*) FROM le_leaders WHERE name LIKE 'round %'}, '0'), 'all have left');
	unlike(log_since($node, $offset), qr/FATAL|connection to client/, 'no complaint in the log');
};

sleep_past($cut_at + 5 * $timeout);
hear(0, @left_waiting);
ok(!$left_waiting[0]{ready}, 'with dead_peer_timeout = 0, a candidate still waits for a vanished leader');
ok(!$left_waiting[1]{ready}, 'and so does a session that wants a plain advisory lock');

my @log = split /\n/, log_since($node, 0);
is(join("\n", grep { /[gs]etsockopt|not supported/ } @log), '', 'no complaint about sockets in the log');
is(join("\n", grep { /TRAP|PANIC|WARNING|terminated by signal/ } @log), '', 'no accident in the log');
$node->stop('immediate');
done_testing();
