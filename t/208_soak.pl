# First, eight sessions of pgbench elect and resign as fast as they can.  Then fifty
# candidates on two elections and three seats, in every way there is to wait, and
# two observers of each; for a minute they are killed, cancelled, terminated and deposed at
# random, and leaders do jobs, resign, die, hang, and let their leases run out, while other
# sessions write under the guard of these leases.
#
# Wrong outcomes: two lead at a time; a job is done twice, or recorded and not
# done; a guarded write comes after one of a later term; there is no leader although a
# candidate waits; an observer misses a change; a token is not greater than the one before;
# what has gone has left something behind.
#
# The seed and the length of the soak can be set: LE_SOAK_SEED, LE_SOAK_SECONDS.

use strict;
use warnings;

use List::Util qw(shuffle sum0);
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $seconds = $ENV{LE_SOAK_SECONDS} // 60;
my $seed = $ENV{LE_SOAK_SEED} // int(rand(2**31));
my $candidates = 50;
my @elections = ((map { "soak $_" } 1 .. 2), (map { "soak/$_" } 1 .. 3));

# A vacancy is to be filled at once; but the machine may be busy
my $bound = 10;

srand($seed);
diag("seed $seed");

my $node = new_server('soak', conf => "max_connections = 120\nclient_connection_check_interval = 500ms\nleader_election.notify = on");
my $control = session($node, app => 'control');
my $listener = session($node, app => 'listener');
ask($control, 'CREATE TABLE job (name text, due timestamptz); CREATE TABLE written (at bigserial, name text, token bigint, other boolean)');
my (@clients, @observers, @others, %lease, %done, @failures, %longest);
my $born = 0;

sub failed
{
	my ($what) = @_;
	push @failures, $what;
	diag($what) if @failures <= 10;
	return;
}

# Sessions of pgbench try or wait, in one way or another, and when they lead, change a counter in
# two statements, with time to lose an update in between; one counter is shared with plain locks.
subtest 'as fast as they can' => sub {
	my $script = $node->basedir . '/elect.sql';
	my $counted = sub {
		my ($counter, $token) = @_;
		return "SELECT n AS n FROM counter WHERE name = '$counter' \\gset\n"
		  . "UPDATE counter SET n = :n + 1 WHERE name = '$counter';\nINSERT INTO term VALUES ('$counter', $token, :n);\n";
	};
	my @scripts = (
		"SELECT le_try_become_leader('mutex') AS leads \\gset\n\\if :leads\n" . $counted->('mutex', q{le_token('mutex')}) . "SELECT le_resign('mutex');\n\\endif\n",
		"SELECT le_become_leader('mutex');\n" . $counted->('mutex', q{le_token('mutex')}) . "SELECT le_resign('mutex');\n",
		"SELECT le_become_leader('mutex', '5ms') AS leads \\gset\n\\if :leads\n" . $counted->('mutex', q{le_token('mutex')}) . "SELECT pg_advisory_unlock_all();\n\\endif\n",
		"BEGIN;\nSELECT le_become_leader_xact('mutex');\n" . $counted->('mutex', q{le_token('mutex')}) . "COMMIT;\n");
	append_to_file("$script.$_", $scripts[$_]) foreach 0 .. $#scripts;
	ask($control, q{CREATE UNLOGGED TABLE counter (name text PRIMARY KEY, n bigint) WITH (fillfactor = 10);
		CREATE UNLOGGED TABLE term (name text, token bigint, n bigint); INSERT INTO counter VALUES ('mutex', 0)});
	$node->command_ok([ 'pgbench', '-n', '-c', '8', '-j', '2', '-T', '4', (map { ('-f', "$script.$_") } 0 .. $#scripts), $node->connstr('postgres') ], 'pgbench');
	my ($terms, $sum, $numbers) = split /\|/, ask($control, "SELECT count(*), (SELECT n FROM counter WHERE name = 'mutex'), count(DISTINCT n) FROM term WHERE name = 'mutex'");
	cmp_ok($terms, '>', 10, "$terms terms");
	is($sum, $terms, 'no update was lost');
	is($numbers, $terms, 'no two leaders saw the same number');
	is(ask($control, "SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM term WHERE name = 'mutex') t WHERE token <= before"),
		0, 'tokens grow in the order of the terms');
	is(ask($control, q{SELECT terms FROM pg_stat_leader_election WHERE name = 'mutex'}), ask($control, q{SELECT count(*) FROM term WHERE name = 'mutex'}), 'each term is counted');
	ok(ask_until($control, 'SELECT (SELECT count(*) FROM le_leaders) + (SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL)', 0), 'vacant in the end');
};

ask($listener, 'LISTEN leader_election');

# What clients do when they are not asked to do anything else: wait to be elected
my @ways = (
	{ way => 'le_campaign', sql => sub { "CALL le_campaign('$_[0]')" } },
	{ way => 'le_campaign, timeout', sql => sub { "CALL le_campaign('$_[0]', '" . (1 + int rand 3) . " s')" } },
	{ way => 'le_campaign for a lease', sql => sub { "CALL le_campaign('$_[0]', ttl => '" . (100 + int rand 900) . " ms')" }, lease => 1 },
	{ way => 'le_campaign for any', sql => sub { 'CALL le_campaign(ARRAY[' . join(', ', map { "'$_'" } shuffle(@elections)) . '])' }, any => 1 },
	{ way => 'le_campaign for any lease', sql => sub { "CALL le_campaign(ARRAY['$_[0]', '" . some(@elections) . "'], ttl => '" . (100 + int rand 900) . " ms')" }, any => 1, lease => 1 },
	{ way => 'le_campaign for a seat', sql => sub { q{CALL le_campaign(le_seats('soak', 3))} }, any => 1 },
	{ way => 'le_become_leader', sql => sub { "SELECT le_become_leader('$_[0]')" } },
	{ way => 'le_campaign with a heartbeat', sql => sub { "CALL le_campaign('$_[0]', heartbeat => '" . (100 + int rand 900) . " ms')" }, beats => 1 },
	{ way => 'le_campaign for any with a heartbeat', sql => sub { 'CALL le_campaign(ARRAY[' . join(', ', map { "'$_'" } shuffle(@elections)) . "], heartbeat => '500 ms')" }, any => 1, beats => 1 },
	{ way => 'le_become_leader with a heartbeat in a transaction block', sql => sub { "BEGIN; SELECT le_become_leader('$_[0]', heartbeat => '300 ms')" }, beats => 1 },
	{ way => 'le_become_leader_xact', sql => sub { "BEGIN; SELECT le_become_leader_xact('$_[0]')" }, block => 1 },
	{ way => 'le_campaign in a transaction block', sql => sub { "BEGIN; CALL le_campaign('$_[0]')" }, block => 1 });

sub stand
{
	my ($client) = @_;
	my $way = some(@ways);

	@$client{qw(way waits leads token name then at busy)} = ($way, 1, undef, undef, some(@elections), undef, undef, undef);
	$done{ $way->{way} }++;
	post($client, $way->{sql}->($client->{name}));
	return;
}

sub bear
{
	my $client = session($node, app => 'candidate ' . ++$born);
	push @clients, $client;
	stand($client);
	return;
}

# A candidate has an answer; if it was elected, it leads for a while
sub answered
{
	my ($client) = @_;
	my $answer = $client->{rows}[-1] // '';

	$client->{waits} = 0;
	return if $client->{code} && $client->{code} =~ /^(?:57P01|LE004)$/;
	if ($client->{then}) { return $client->{then}->($client); }
	if ($client->{code} || $answer =~ /^(f|\|?)$/)
	{
		failed("$client->{way}{way}: $client->{error}") if $client->{code} && $client->{code} ne '57014';
		@$client{qw(at then)} = (monotonic(), \&stand);
		post($client, 'ROLLBACK');
		return;
	}
	(my $token, my $name) = split /\|/, $answer, 2;
	$client->{name} = $name if $client->{way}{any};
	$client->{token} = $lease{ $client->{name} } = $token if $client->{way}{lease};
	$client->{leads} = $client->{name};
	$client->{at} = monotonic() + rand(some(0.001, 0.001, 0.15, 0.15, 0.15, 1.5));
	return;
}

# A cancel that was meant for the wait may strike when it is over: what was to end the term is asked again
sub resigned
{
	my ($client) = @_;

	return stand($client) unless $client->{code} && $client->{code} eq '57014';
	return give_up($client);
}

# Whatever the transaction has come to, it is rolled back, and all that the session leads is resigned
sub give_up
{
	my ($client) = @_;

	$client->{then} = \&resigned;
	return post($client, 'ROLLBACK; SELECT le_resign_all()');
}

sub job_done
{
	my ($client) = @_;

	if ($client->{code})
	{
		$client->{leads} = undef;
		return give_up($client);
	}
	@$client{qw(at then)} = (monotonic(), undef);
	return;
}

# A guarded write, by the leader or by another session for a lease
sub write_of
{
	my ($name, $token, $other) = @_;
	return "BEGIN; SELECT le_assert_leader('$name', $token); SELECT pg_sleep(" . ($other eq 'true' ? 0.001 * int(rand 20) : 0)
	  . "); INSERT INTO written (name, token, other) SELECT '$name', coalesce($token, le_token('$name')), $other; COMMIT";
}

# A leader does the job of this fifth of a second, unless that is done; then its term ends
sub do_job
{
	my ($client) = @_;
	my $name = $client->{leads};
	my $token = $client->{token} // 'NULL';

	$done{'a job'}++;
	@$client{qw(busy at then)} = (1, undef, \&job_done);
	return post($client, write_of($name, $token, 'false')) if rand() < 0.5;
	return post($client, "BEGIN; INSERT INTO job SELECT '$name', due FROM
		(SELECT to_timestamp(floor(5 * extract(epoch FROM clock_timestamp())) / 5) AS due) d WHERE le_once('$name', due, $token); COMMIT");
}

# A leader has led for long enough: one way or the other its term ends
sub act
{
	my ($client) = @_;
	my $what = int rand 10;
	my $name = $client->{leads};

	return do_job($client) if !$client->{busy} && !$client->{way}{block} && rand() < 0.7;
	$client->{leads} = undef;
	if ($client->{way}{lease})
	{
		# run out; be renewed and resigned from; resigned from by a dying client
		$client->{at} = undef;
		$client->{then} = \&stand;
		return post($client, 'SELECT 1') if $what < 4;
		return post($client, "SELECT le_renew('$name', $client->{token}); SELECT le_resign('$name', $client->{token})");
	}
	if ($client->{way}{beats})
	{
		# it may have been silent long before; where none waits, its session goes on
		@$client{qw(at then)} = (undef, \&give_up);
		if ($what < 4)
		{
			$done{'hung leading'}++;
			return post($client, some('SELECT pg_sleep(2)', 'BEGIN; SELECT pg_sleep(2)', 'ROLLBACK; BEGIN; SELECT 1 / 0'));
		}
		return post($client, "SELECT le_heartbeat('$name')");
	}
	if ($what == 0) { $done{'died leading'}++; return kill_client($client); }
	if ($what == 1)
	{
		$done{'terminated leading'}++;
		$client->{then} = sub { };
		$client->{at} = undef;
		post($client, 'SELECT pg_terminate_backend(pg_backend_pid())');
		return;
	}
	@$client{qw(at then)} = (undef, \&resigned);
	return post($client, $what < 4 ? 'DISCARD ALL' : "SELECT le_resign('$name')") unless $client->{way}{block};
	my $end = some('COMMIT', 'ROLLBACK', 'SELECT 1 / 0; ');
	$client->{then} = \&give_up;
	return post($client, $end);
}

# A random session is hit, whatever it does
sub hit
{
	my $client = some(@clients) // return;
	my $what = some('cancel', 'cancel', 'terminate', 'kill', 'kill');

	return if $client->{closed};
	$done{"$what " . ($client->{waits} ? 'a candidate' : 'another')}++;
	if ($what eq 'kill') { return kill_client($client); }
	ask($control, "SELECT pg_${what}_backend($client->{pid})");
	return;
}

# Sessions that write for leases, and sessions that depose leaders
sub start_other
{
	my ($does) = @_;
	my $other = session($node, app => $does);
	@$other{qw(does at asked)} = ($does, 0, '');
	push @others, $other;
	return;
}

sub other
{
	my ($other) = @_;
	my $name = some(@elections);

	return if $other->{code} && $other->{code} eq '57P01';
	failed("$other->{asked}: $other->{error}") if $other->{code} && $other->{code} !~ /^(?:LE001|57014)$/;
	return if monotonic() < $other->{at};
	$other->{at} = monotonic() + rand($other->{does} eq 'writer' ? 0.02 : 0.5);
	$other->{asked} =
	    $other->{code} ? 'ROLLBACK'
	  : $other->{does} eq 'writer' ? ($lease{$name} ? write_of($name, $lease{$name}, 'true') : 'SELECT 1')
	  : 'SET statement_timeout = ' . some(0, 0, 3) . "; SELECT le_depose('$name', 'soak')";
	return post($other, $other->{asked});
}

sub observe
{
	my ($observer) = @_;
	post($observer, "CALL le_observe('$observer->{name}', $observer->{version})");
	return;
}

sub start_observer
{
	my ($name) = @_;
	my $observer = session($node, app => 'observer');
	@$observer{qw(name version token seen)} = ($name, 0, 0, 0);
	push @observers, $observer;
	observe($observer);
	return;
}

sub observed
{
	my ($observer) = @_;
	return if $observer->{code} && $observer->{code} eq '57P01';
	if ($observer->{code})
	{
		failed("observer: $observer->{error}") unless $observer->{code} eq '57014';
		return observe($observer);
	}
	my ($version, $token) = split /\|/, $observer->{rows}[0];
	$token ||= $observer->{token};	# vacant
	failed("observer of $observer->{name} saw $token after $observer->{token}") if $token < $observer->{token};
	@$observer{qw(version token)} = ($version, $token);
	$observer->{seen}++;
	return observe($observer);
}

# At any time: one leader at most; with candidates, not none for long
my %vacant_since;
sub look
{
	my %candidates;
	foreach (split /\n/, ask($control, 'SELECT e, (SELECT count(*) FROM le_leaders WHERE name = e), (SELECT count(*) FROM le_candidates WHERE name = e)
		FROM (VALUES ' . join(', ', map { "('$_')" } @elections) . ') v (e)'))
	{
		my ($name, $leaders, $waiting) = split /\|/;
		failed("$leaders lead $name") if $leaders > 1;
		$vacant_since{$name} = undef if $leaders || !$waiting;
		next if $leaders || !$waiting;
		$vacant_since{$name} //= monotonic();
		my $vacant = monotonic() - $vacant_since{$name};
		$longest{$name} = $vacant if $vacant > ($longest{$name} // 0);
		if ($vacant > $bound)
		{
			failed("$name is vacant, and $waiting wait");
			diag(ask($control, "SELECT name, position, pid, identity, wait_event_type, wait_event, query FROM le_candidates JOIN pg_stat_activity USING (pid) WHERE name = '$name'"));
			$vacant_since{$name} = undef;
		}
	}
	return;
}

sub reap
{
	@clients = grep { !$_->{closed} } @clients;
	@observers = grep { !$_->{closed} } @observers;
	@others = grep { !$_->{closed} } @others;
	foreach my $does ('writer', 'deposer')
	{
		start_other($does) while ($does eq 'writer' ? 6 : 2) > grep { $_->{does} eq $does } @others;
	}
	bear() while @clients < $candidates;
	foreach my $name (@elections)
	{
		start_observer($name) while 2 > grep { $_->{name} eq $name } @observers;
	}
	return;
}

sub turn
{
	my ($wait) = @_;
	hear($wait, @clients, @observers, @others, $listener);
	foreach my $client (grep { !$_->{closed} } @clients)
	{
		if ($client->{ready} && ($client->{waits} || $client->{then})) { answered($client); }
		if (!$client->{closed} && $client->{ready} && $client->{leads} && monotonic() > ($client->{at} // 0)) { act($client); }
	}
	observed($_) foreach grep { !$_->{closed} && $_->{ready} } @observers;
	other($_) foreach grep { !$_->{closed} && $_->{ready} } @others;
	return;
}

my $over = monotonic() + $seconds;
my ($next_look, $next_hit) = (0, 0);
while (monotonic() < $over && @failures < 100)
{
	reap();
	turn(0.02);
	if (monotonic() > $next_hit)
	{
		hit();
		kill_client(some(@observers)) if rand() < 0.02;
		ask($control, 'SELECT pg_cancel_backend(' . some(@observers)->{pid} . ')') if rand() < 0.02;
		$next_hit = monotonic() + rand(0.1);
	}
	if (monotonic() > $next_look)
	{
		look();
		$next_look = monotonic() + 0.25;
	}
}
# the observers that the last fault has ended
turn(0.1);
reap();
note(join ', ', map { "$_: $done{$_}" } sort keys %done);
note(join ', ', map { sprintf '%s vacant for %.1f s', $_, $longest{$_} } sort keys %longest);
is(scalar @failures, 0, 'no failure') or diag(join "\n", @failures[ 0 .. ($#failures > 20 ? 20 : $#failures) ]);

# All candidates leave, and the last of each election's leaders
kill_client(@clients, @others);
ok(ask_until($control, q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'candidate%' OR application_name IN ('writer', 'deposer')}, 0), 'all candidates go');
ok(ask_until($control, q{SELECT count(*) FROM le_leaders}, 0), 'and the last leases run out');
@clients = @others = ();
foreach my $round (1 .. 2)
{
	my $leader = session($node, app => 'last');
	my $right = 0;
	foreach my $name (@elections)
	{
		ask($leader, $round == 1 ? "SELECT le_try_become_leader('$name')" : 'SELECT 1');
	}
	my $patience = monotonic() + 2.5;
	my %now;
	foreach my $name (@elections)
	{
		my ($version, $token) = split /\|/, ask($control, "CALL le_observe('$name')");
		failed("$name: " . ($token // 'vacant')) unless $round == 1 ? $token : !$token;
		$now{$name} = $version;
	}
	while (monotonic() < $patience)
	{
		turn(0.1);
		$right = grep { $_->{version} == $now{ $_->{name} } } @observers;
		last if $right == @observers;
	}
	is($right, scalar @observers, 'all observers know the leader: ' . ($round == 1 ? 'the last' : 'none'));
	kill_client($leader);
	ask_until($control, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'last'}, 0);
}
note(sum0(map { $_->{seen} } @observers) . ' changes seen by the last observers');

# Nothing is left behind
is(ask($control, q{SELECT (SELECT count(*) FROM le_candidates), (SELECT count(*) FROM _le_registry_candidates(false)), (SELECT sum(candidates) FROM pg_stat_leader_election)}), '0|0|0', 'no candidate');
is(ask($control, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock');
is(ask($control, q{SELECT count(*) FROM pg_stat_leader_election WHERE terms <> resigned + deposed + session_ended + transaction_ended + expired + lock_released + extension_dropped + silent}), '0', 'each term has ended, and once');
is(ask($control, 'SELECT name, due FROM job GROUP BY 1, 2 HAVING count(*) > 1'), '', 'no job was done twice');
is(ask($control, 'SELECT count(*) FROM le_once_done o FULL JOIN (SELECT name, max(due) AS due FROM job GROUP BY 1) j USING (name) WHERE o.due IS DISTINCT FROM j.due'),
	'0', 'what is recorded was done');
cmp_ok(ask($control, 'SELECT count(*) FROM job'), '>', $seconds, 'many were done');
is(ask($control, q{SELECT count(*) FROM (SELECT name, token, max(token) OVER (PARTITION BY name ORDER BY at ROWS UNBOUNDED PRECEDING EXCLUDE CURRENT ROW) AS before FROM written) w WHERE token < before}),
	'0', 'no guarded write comes after one of a later term');
cmp_ok(ask($control, "SELECT count(*) FROM written WHERE $_"), '>', $seconds, 'many have written') foreach 'other', 'NOT other';
kill_client(@observers);

# The log has all terms: one after the other, with growing tokens
my (%last, %runs, %overlapped, %began, %ended);
my ($terms, $deposed) = (0, 0);
foreach my $line (term_lines($node, 0))
{
	next unless $line =~ /^election (.*?): (?:term (\d+) (began|ended: (.*))|.* is deposed by)/;
	my ($name, $token, $what, $reason) = ($1, $2, $3, $4);
	if (!$what) { $deposed++; }
	elsif ($reason)
	{
		# where sessions die and are deposed, or a lock is let go behind our back, the end may be told a little later
		failed("$name: term $token runs as another begins") if delete $overlapped{$token} && $name !~ /"soak/ && $reason ne 'lock released';
		delete $runs{$name}{$token};
		failed("$name: term $token ends twice") if $ended{$token}++;
		$done{$reason}++;
	}
	else
	{
		failed("$name: $token after " . ($last{$name} // 0)) if $token <= ($last{$name} // 0);
		failed("$name: term $token begins twice") if $began{$token}++;
		$last{$name} = $token;
		$overlapped{$_} = 1 foreach keys %{ $runs{$name} };
		$runs{$name}{$token} = 1;
		$terms++ if $name =~ /"soak/;
	}
}
is(scalar @failures, 0, 'tokens grow, and one term follows the other') or diag(join "\n", @failures[ 0 .. ($#failures > 20 ? 20 : $#failures) ]);
is_deeply([ sort { $a <=> $b } keys %began ], [ sort { $a <=> $b } keys %ended ], 'what began has ended');
is(ask($control, q{SELECT sum(terms) FROM pg_stat_leader_election}), scalar keys %began, 'and is counted');
foreach my $case ([ 'resigned', 'resigned' ], [ 'session ended', 'session_ended' ], [ 'transaction ended', 'transaction_ended' ], [ 'expired', 'expired' ], [ 'lock released', 'lock_released' ], [ 'silent', 'silent' ], [ 'deposed', 'deposed' ])
{
	is(ask($control, "SELECT sum($case->[1]) FROM pg_stat_leader_election"), $done{ $case->[0] } // 0, "$case->[0]: counted as logged");
}
# one that is cancelled once it has ended a lease does not say so
cmp_ok($deposed, '>=', 0.5 * ($done{deposed} // 0), "by a session: $deposed");
cmp_ok($done{deposed} // 0, '>', $seconds / 10, 'many were deposed');
cmp_ok($terms, '>', $seconds, "$terms terms");

# None was announced twice
ask($listener, 'SELECT 1');
my %told;
foreach my $heard (@{ $listener->{heard} })
{
	$told{"$1 $2"}++ if $heard->{payload} =~ /"event": "(elected|ended)", "token": (\d+)/;
}
is_deeply([ grep { $told{$_} > 1 } sort keys %told ], [], 'no beginning and no end was announced twice');
cmp_ok(scalar keys %told, '>', $seconds, 'announced: ' . keys %told);

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring/, 'no accident in the log');
my %errors;
$errors{$_}++ foreach grep { !/division by zero|user request|administrator command|statement timeout|connection to client lost|missing heartbeat in election|does not lead election/ }
	map { /(?:ERROR|FATAL):  (.*)/ ? $1 : () } split /\n/, slurp_file($node->logfile);
is_deeply(\%errors, {}, 'no unexpected error in the log');
$node->stop;
done_testing();
