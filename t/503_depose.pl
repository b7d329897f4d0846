# A leader is deposed in whatever state it is: its term is over, what it guards
# ends, and the candidate that has waited longest is elected.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Pooler;

my $node = new_server('depose', allows_streaming => 1, conf => "max_connections = 100\nleader_election.notify = on");
my $watcher = session($node);
my $listener = session($node);
my $user = ask($watcher, 'SELECT current_user');
$node->safe_psql('postgres', 'CREATE TABLE held (); CREATE TABLE written (at bigserial, token bigint, who text)');
ask($listener, 'LISTEN leader_election');

# So many candidates that wait, in this order
sub candidates
{
	my ($name, $count) = @_;
	my @clients = map { session($node, app => "candidate $_") } 1 .. $count;
	my @ways = ("CALL le_campaign('$name')", "SELECT le_become_leader('$name')", "CALL le_campaign('$name', ttl => '1 h')");
	foreach my $i (0 .. $#clients)
	{
		post($clients[$i], $ways[ $i % @ways ]);
		wait_for_candidate($watcher, $clients[$i]);
	}
	return @clients;
}

# Each is elected in turn; the first one at once after the time
sub in_order
{
	my ($name, @clients) = @_;
	foreach my $client (@clients)
	{
		my $answer = collect($client) // '';
		like($answer, qr/^(?:t|\d+)$/, 'the next one is elected') or diag($client->{error});
		ask($client, $answer =~ /^\d/ && ask($client, "SELECT le_am_leader('$name')") eq 'f' ? "SELECT le_resign('$name', $answer)" : "SELECT le_resign('$name')");
	}
	kill_client(@clients);
	return;
}

# The announcements of this election, from the first event on
sub events
{
	my ($name, $count) = @_;
	my @events;
	while (@events < $count)
	{
		my $heard = next_notification($listener, 20, sub { $_->{payload} =~ /"election": "\Q$name\E"/ }) or last;
		push @events, $heard->{payload};
	}
	return @events;
}

sub process_state
{
	return ask($watcher, "SELECT concat_ws(' ', state, wait_event_type) FROM pg_stat_activity WHERE pid = $_[0]");
}

# What le_depose waits for
my $deposing = wait_event($node, 'Depose');

# What a leader can be doing
my @blocker = (session($node));
ask($blocker[0], 'BEGIN; LOCK held');
my %states = (
	'idle' => [ sub { }, 'idle Client' ],
	'in mid-statement' => [ sub { post($_[0], 'SELECT pg_sleep(600)') }, 'active Timeout' ],
	'idle in transaction' => [ sub { ask($_[0], 'BEGIN') }, 'idle in transaction Client' ],
	'in a failed transaction' => [ sub { ask($_[0], 'BEGIN; SELECT 1 / 0') }, 'idle in transaction (aborted) Client' ],
	'waiting for a lock' => [ sub { post($_[0], 'SELECT * FROM held') }, 'active Lock' ],
	'a candidate elsewhere' => [ sub { ask($blocker[0], q{SELECT le_try_become_leader('elsewhere')}); post($_[0], q{SELECT le_become_leader('elsewhere')}) }, 'active Lock' ],
	'an observer' => [ sub { post($_[0], q{CALL le_observe('nobody', } . version_of($_[0], 'nobody') . ')') }, 'active Extension' ],
	'sent a lot, which its client does not read' => [ sub { post($_[0], 'SELECT repeat($$x$$, 1000) FROM generate_series(1, 200000)') }, 'active Client' ],
	'in transaction scope' => [ sub { }, 'idle in transaction Client', 'le_become_leader_xact' ],
	'... in mid-statement' => [ sub { post($_[0], 'SAVEPOINT s; SELECT pg_sleep(600)') }, 'active Timeout', 'le_become_leader_xact' ],
	'... waiting for a lock' => [ sub { post($_[0], 'SELECT * FROM held') }, 'active Lock', 'le_become_leader_xact' ]);
foreach my $state (sort keys %states)
{
	subtest "a leader that is: $state" => sub {
		my ($enter, $seen, $function) = @{ $states{$state} };
		my $name = "state $state";
		my $session = session($node, app => "boss\n$state");
		my $pid = $session->{pid};
		$function //= 'le_become_leader';
		ask($session, 'BEGIN') if $function =~ /xact/;
		my $token = ask($session, "SELECT $function('$name', identity => E'boss\\n1')::text");
		is($token, 'true', 'it leads');
		$token = ask($watcher, "SELECT token FROM le_leader('$name')");
		$enter->($session);
		my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
		Time::HiRes::sleep(0.005) while process_state($pid) ne $seen && monotonic() < $patience;
		is(process_state($pid), $seen, $seen);
		my @clients = candidates($name, 5);
		my $offset = log_from($node);
		my $client = session($node);

		my $before = monotonic();
		is(ask($client, "SELECT le_depose('$name', E'it\\thangs: \"$state\"')"), 't', 'deposed');
		my $after = monotonic();
		is($client->{messages}, '', 'without a warning');
		is(ask($watcher, "SELECT count(*) FROM _le_locks WHERE pid = $pid AND granted"), '0', 'it has let go of the election');
		my $answer = collect($clients[0]);
		diag(sprintf '%s: le_depose took %.1f ms, a successor elected %.1f ms after it was called', $state,
			1000 * ($after - $before), 1000 * (monotonic() - $before));
		in_order($name, @clients);

		my @lines = grep { /"\Q$name\E"/ } term_lines($node, $offset);
		# the deposer and the deposed session write at the same time
		my $by = qq{election "$name": leader "boss\\x0a1" with token $token is deposed by role "$user", process $client->{pid}: it\\x09hangs: \\"$state\\"};
		is(scalar(grep { $_ eq $by } @lines), 1, 'the log names the deposer and the reason') or diag(join "\n", @lines);
		my ($ended, $began) = grep { $_ ne $by } @lines;
		is($ended, qq{election "$name": term $token ended: deposed}, 'and how the term ended');
		like($began, qr/^election "\Q$name\E": term \d+ began: "candidate 1" leads/, 'and the next leader');
		is(ask($watcher, "SELECT terms, deposed, resigned, session_ended, transaction_ended FROM pg_stat_leader_election WHERE name = '$name'"), '6|1|5|0|0', 'counted');
		my $told = $function !~ /xact/;
		my @events = events($name, $told ? 12 : 10);
		(my $json = qq{it\\thangs: "$state"}) =~ s/"/\\"/g;
		my ($event) = grep { /"deposed"/ } @events;
		is($event, !$told ? undef : qq|{"election": "$name", "event": "ended", "token": $token, "identity": "boss\\n1", "reason": "deposed", "by": "$user", "why": "$json"}|, 'announced, with the deposer and the reason')
		  or diag(join "\n", @events);
		is(scalar(@events), $told ? 12 : 10, 'with all else');
		ok(ask_until($watcher, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'the session has ended');
		kill_client($client);
		end_session($session);
	};
}
kill_client(@blocker);

subtest 'a backend that is stopped' => sub {
	my ($leader, $client, $other) = map { session($node) } 1 .. 3;
	ask($leader, q{SELECT le_try_become_leader('stopped')});
	my ($first, $second) = candidates('stopped', 2);
	my $offset = log_from($node);
	pause_process($leader->{pid});
	post($client, q{SELECT le_depose('stopped')});
	ok(ask_until($watcher, "SELECT wait_event FROM pg_stat_activity WHERE pid = $client->{pid}", $deposing), 'le_depose waits');
	is(ask($watcher, q{SELECT count(*) FROM le_leader('stopped')}), '1', 'it leads');
	is(ask($watcher, "SELECT pg_cancel_backend($client->{pid})"), 't', 'cancel');
	collect($client);
	is($client->{code}, '57014', 'cancelled');
	is(ask($watcher, "SELECT count(*) FROM pg_locks WHERE pid = $client->{pid}"), '0', 'no lock is left');
	fails($client, q{SET statement_timeout = '100 ms'; SELECT le_depose('stopped', 'again')}, '57014', 'statement_timeout');
	ask($client, 'RESET statement_timeout');
	ask($client, 'ROLLBACK');
	post($client, q{SELECT le_depose('stopped', 'once more')});
	ok(ask_until($watcher, "SELECT wait_event FROM pg_stat_activity WHERE pid = $client->{pid}", $deposing), 'le_depose waits');
	post($other, q{SELECT le_depose('stopped', 'the other one')});
	ok(ask_until($watcher, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $other->{pid}", 'Lock'), 'another one waits for the deposer') or diag(process_state($other->{pid}));
	ask($watcher, "SELECT pg_terminate_backend($client->{pid})");
	ok(wait_for_end($client), 'the deposer is killed');
	ok(ask_until($watcher, "SELECT wait_event FROM pg_stat_activity WHERE pid = $other->{pid}", $deposing), 'the other one goes on');
	kill 'CONT', $leader->{pid};
	is(collect($other), 't', 'when it is woken, it ends');
	is(ask($watcher, q{SELECT deposed, session_ended FROM pg_stat_leader_election WHERE name = 'stopped'}), '1|0', 'deposed');
	is(scalar(grep { /^election "stopped": term \d+ ended: deposed$/ } term_lines($node, $offset)), 1, 'says the log');
	in_order('stopped', $first, $second);
	kill_client($leader, $other);
};

subtest 'deposed by a session that gave up' => sub {
	my ($leader, $client) = map { session($node) } 1 .. 2;
	ask($leader, q{SELECT le_try_become_leader('late')});
	pause_process($leader->{pid});
	fails($client, q{SET statement_timeout = '100 ms'; SELECT le_depose('late')}, '57014', 'too long');
	kill 'CONT', $leader->{pid};
	ok(ask_until($watcher, q{SELECT deposed FROM pg_stat_leader_election WHERE name = 'late'}, '1'), 'it ends all the same, deposed');
	ok(wait_for_end($leader), 'its session, too');
	kill_client($client);
};

subtest 'a leader that does not read, and a guarded transaction' => sub {
	my ($leader, $guarded, $client) = map { session($node) } 1 .. 3;
	lead_unread($watcher, $leader, q{SELECT le_try_become_leader('unread')});
	my $token = ask($watcher, q{SELECT token FROM le_leader('unread')});
	ask($guarded, 'BEGIN');
	lead_unread($watcher, $guarded, "SELECT le_assert_leader('unread', $token)");
	post($client, q{SELECT le_depose('unread')});
	is(collect_or_cancel($client, $watcher), 't', 'deposed');
	is(ask($client, q{SELECT le_try_become_leader('unread')}), 't', 'and the next one is elected');
	kill_client($leader, $guarded, $client);
};

# The first guard on this server.  A candidate skips the guard lock as long as
# no transaction has been guarded
foreach my $guarded_before (0, 1)
{
	subtest $guarded_before ? 'two deposers' : 'two deposers, where no transaction was guarded before' => sub {
		my $server = new_server("deposers_$guarded_before");
		my ($leader, $next, $second, $control, @deposers) = map { session($server) } 1 .. 6;
		ask($control, q{SELECT le_try_become_leader('other'), le_assert_leader('other')}) if $guarded_before;
		ask($leader, q{SELECT le_try_become_leader('job')});
		post($next, q{SELECT le_become_leader('job'); SELECT le_token('job')});
		ask_until($control, q{SELECT count(*) FROM le_candidates}, '1');
		pause_process($leader->{pid});
		post($deposers[0], q{SELECT le_depose('job', 'one')});
		ask_until($control, "SELECT wait_event FROM pg_stat_activity WHERE pid = $deposers[0]{pid}", $deposing);
		post($deposers[1], q{SELECT le_depose('job', 'two')});
		ask_until($control, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $deposers[1]{pid}", 'Lock');
		kill 'CONT', $leader->{pid};
		is(join(' ', map { collect($_) } @deposers), 't f', 'one deposes the leader, for the other one there is none');
		like(collect($next) // 'lost', qr/^t\n\d+$/, 'the next one is elected');
		is(ask($next, q{SELECT le_am_leader('job')}), 't', 'and still leads') or diag($next->{error});

		# what the next one guards is not guarded by the term that has ended
		($leader, $next) = map { session($server) } 1 .. 2 if $next->{closed};
		ask($next, q{SELECT le_resign_all()});
		$leader = session($server);
		is(ask($leader, q{SELECT le_try_become_leader('job')}), 't', 'a leader');
		pause_process($leader->{pid});
		post($next, q{SELECT le_become_leader('job'); BEGIN; SELECT le_assert_leader('job'); SELECT pg_sleep(0.5); SELECT 'done'; COMMIT});
		ask_until($control, q{SELECT count(*) FROM le_candidates}, '1');
		post($deposers[0], q{SELECT le_depose('job', 'one')});
		ask_until($control, "SELECT wait_event FROM pg_stat_activity WHERE pid = $deposers[0]{pid}", $deposing);
		# the deposer looks less and less often
		Time::HiRes::sleep(0.3);
		kill 'CONT', $leader->{pid};
		is(collect($deposers[0]), 't', 'deposed');
		like(collect($next) // 'lost', qr/done/, 'the transactions of the next one are left alone') or diag($next->{error});
		kill_client($leader, $next, $second, $control, @deposers);
		$server->stop;
	};
}

subtest 'guarded transactions on other connections' => sub {
	my ($taker, $deposer, $free, $waiting) = map { session($node) } 1 .. 4;
	my $token = ask($taker, q{SELECT le_lease('guarded', '1 h')});
	my @guarded = map { session($node) } 1 .. 12;
	foreach my $client (@guarded)
	{
		ask($client, "BEGIN; SAVEPOINT s; SELECT le_assert_leader('guarded', $token); INSERT INTO written (token, who) VALUES ($token, 'guarded')");
		is($client->{error}, '', 'guarded') if $client->{error};
	}
	post($guarded[0], 'SELECT pg_sleep(600)');
	ask($guarded[1], 'LOCK held');
	post($guarded[2], 'LOCK held');
	ask($guarded[3], 'SELECT 1 / 0');
	ask($guarded[4], 'ROLLBACK TO s');
	ask($free, 'BEGIN; INSERT INTO written (token, who) VALUES (0, $$free$$)');
	my @clients = candidates('guarded', 3);
	pause_process($guarded[5]{pid});
	post($deposer, q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; SELECT le_depose('guarded', 'now')});
	ok(ask_until($watcher, "SELECT wait_event FROM pg_stat_activity WHERE pid = $deposer->{pid}", $deposing), 'le_depose waits for one that is stopped');
	is(ask($watcher, "SELECT le_am_leader('guarded', $token)"), 'f', 'the lease is over');
	hear(0, @clients);
	ok(!grep({ $_->{ready} } @clients), 'none is elected');
	kill 'CONT', $guarded[5]{pid};
	is(collect($deposer), "1\nt", 'deposed');
	is($deposer->{messages}, '', 'without a warning');
	is(ask($watcher, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 19527 AND mode = 'RowShareLock'}), '0', 'nothing is guarded any more');
	ask($deposer, 'ROLLBACK');
	my @gone = grep { wait_for_end($guarded[$_]) } 0, 1, 2, 5 .. 11;
	is(scalar(@gone), 10, 'they have gone');
	is(ask($guarded[3], 'ROLLBACK; SELECT 1'), '1', 'but not one that had failed');
	is(ask($guarded[4], 'COMMIT; SELECT 1'), '1', 'nor one that was guarded in a subtransaction');
	is(ask($free, 'COMMIT; SELECT 1'), '1', 'nor one that never was');
	is(ask($watcher, q{SELECT string_agg(who, ' ') FROM written}), 'free', 'nothing of them is kept');
	in_order('guarded', @clients);
	ask($deposer, 'SELECT 1');
	ok(next_notification($listener, 20, sub { $_->{payload} =~ /"election": "guarded", "event": "ended", "token": $token,.*"reason": "deposed"/ }), 'announced, though it was rolled back');
	kill_client($taker, $deposer, $free, @guarded);
	ask($watcher, 'TRUNCATE written');
};

subtest 'through PgBouncer' => sub {
	plan skip_all => 'needs PgBouncer (Debian package pgbouncer), and not to run as root'
	  unless defined pooler_program();
	my $pooler = new_pooler($node, 'server_login_retry = 0');
	start_pooler($pooler);
	my ($boss, $guarded, $deposer) = map { pooled_session($pooler, 'job') } 1 .. 3;
	my $token = ask($boss, q{SELECT le_lease('pooled', '1 h', identity => 'boss')});
	like($token, qr/^\d+$/, 'a lease');
	ask($guarded, 'BEGIN');
	ask($guarded, "SELECT le_assert_leader('pooled', $token)");
	ask($guarded, "INSERT INTO written (token, who) VALUES ($token, 'pooled')");
	my $backend = ask($guarded, 'SELECT pg_backend_pid()');
	my ($next) = candidates('pooled', 1);
	is(ask($deposer, q{SELECT le_depose('pooled', 'through the pool')}), 't', 'deposed through the pool');
	ok(ask_until($watcher, "SELECT count(*) FROM pg_stat_activity WHERE pid = $backend", '0'), 'the server connection has gone');
	post($guarded, 'COMMIT');
	# the pool closes the client's connection, too
	ok(!defined eval { collect($guarded) } || $guarded->{messages} ne '', 'the client is told');
	is(ask($boss, "SELECT le_renew('pooled', $token)"), 'f', 'the leader hears that it leads no more, on another connection');
	ask($boss, "SELECT le_assert_leader('pooled', $token)");
	like($boss->{messages}, qr/ERROR:  LE001: token $token does not lead election "pooled"/, 'and writes no more');
	in_order('pooled', $next);
	is(ask($watcher, 'SELECT count(*) FROM written'), '0', 'nothing was written');
	end_session($boss, $guarded, $deposer);
	stop_pooler($pooler);
};

# A successor may be faster than the session that is about to tell of the end
subtest 'the log tells of every lease of a role' => sub {
	$node->safe_psql('postgres', 'CREATE ROLE regress_many LOGIN; GRANT CREATE ON SCHEMA public TO regress_many');
	my $many = session($node, user => 'regress_many');
	my @candidates = map { session($node) } 1 .. 8;
	is(ask($many, q{SELECT count(le_lease('many ' || i, '1 h')) FROM generate_series(1, 800) i}), '800', 'it has many');
	post($candidates[$_], "SELECT le_become_leader('many ' || 100 * $_ + 1)") foreach 0 .. 7;
	ok(ask_until($watcher, q{SELECT count(*) FROM le_candidates WHERE name LIKE 'many %'}, '8'), 'candidates wait');
	my $offset = -s $node->logfile;
	is(ask($watcher, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_many'}), '800', 'all are deposed');
	is(collect($_), 't', 'a candidate is elected') foreach @candidates;
	my $ended = () = slurp_file($node->logfile, $offset) =~ /election "many \d+": term \d+ ended: deposed/g;
	is($ended, 800, 'and logged');
	kill_client(@candidates);

	# one that is guarded by a process which does not end
	is(ask($many, q{SELECT count(le_lease('some ' || i, '1 h')) FROM generate_series(1, 20) i}), '20', 'it has some again');
	my $guarded = session($node, user => 'regress_many');
	ask($guarded, $_) foreach 'BEGIN', q{SELECT le_assert_leader('some 1', token) FROM le_leader('some 1')};
	is($guarded->{code}, '', 'guarded') or diag($guarded->{error});
	my $candidate = session($node);
	post($candidate, q{CALL le_campaign(ARRAY['} . join(q{','}, map { "some $_" } 2 .. 20) . q{'])});
	ok(ask_until($watcher, q{SELECT count(*) FROM le_candidates WHERE name LIKE 'some %'}, '19'), 'a candidate waits for many');
	kill 'STOP', $guarded->{pid};
	ask($watcher, q{SET statement_timeout = '2 s'});
	fails($watcher, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_many'}, '57014', 'it is not deposed as a whole');
	kill 'CONT', $guarded->{pid};
	ask($watcher, 'RESET statement_timeout');
	like(ask($watcher, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_many'}), qr/^\d+$/, 'the next call goes on with the rest');
	is(ask($watcher, q{SELECT count(*) FROM le_leaders WHERE usename = 'regress_many'}), '0', 'all are ended');
	like(collect($candidate) // 'not elected', qr/^\d+\|some \d+$/, 'and the candidate has heard of it');
	kill_client($many, $guarded, $candidate);
};

subtest 'a crash right after a lease was deposed' => sub {
	my $token = ask($watcher, q{SELECT le_lease('crash', '1 h')});
	my $other = ask($watcher, q{SELECT le_lease('other', '1 h')});
	is(ask($watcher, q{BEGIN; SELECT le_depose('crash')}), 't', 'deposed, and not committed');
	kill_server($node);
	kill_client($watcher, $listener);
	$node->start;
	$watcher = session($node);
	is(ask($watcher, "SELECT le_renew('crash', $token), le_am_leader('crash', $token), le_renew('other', $other)"), 'f|f|t', 'it stays deposed');
	is(ask($watcher, q{SELECT le_depose('crash'), le_try_become_leader('crash')}), 'f|t', 'another one is elected');
	like($watcher->{messages}, qr/WARNING:  01000: election "crash" has no leader to depose/, 'said so');
	is(ask($watcher, q{SELECT le_depose('other', 'a lease that ran on over the restart')}), 't', 'a lease that ran on is deposed');
};

subtest 'on a standby' => sub {
	my $token = ask($watcher, q{SELECT le_lease('job', '1 h')});
	kill_client($watcher);
	$node->stop;
	$node->set_standby_mode;
	$node->start;
	$watcher = session($node);
	is(ask($watcher, q{SELECT token FROM le_leader('job')}), $token, 'it knows the leader');
	fails($watcher, "SELECT $_", '25006', $_) foreach q{le_depose('job')}, q{le_depose('nobody', 'why')};
	fails($watcher, q{SELECT le_depose('job', '')}, '2200F', 'an empty reason');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
kill_client($watcher);
$node->stop;
done_testing();
