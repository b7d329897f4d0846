# What happens to an election is announced: in time, after it has become true, and
# what was rolled back is not.  A follower that hears that a term has ended, and
# tries at once, leads.

use strict;
use warnings;
use utf8;

use Encode qw(encode_utf8 decode_utf8);
use IPC::Run;
use JSON::PP;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Psql;

# Fast enough to be woken up; the look-up interval is 5 seconds
my $bound = 4;
my $node = new_server('announce', conf => "wal_level = replica\nmax_wal_senders = 2\nclient_connection_check_interval = 50ms\nsynchronous_commit = local\nrestart_after_crash = on");
$node->safe_psql('postgres', 'CREATE TABLE written (id int)');
my $control = session($node);
my $listener = session($node, app => 'listener');
my $follower = session($node, app => 'follower');
ask($listener, 'LISTEN leader_election');
my $slowest = 0;

# The token of the last announcement of each election: they come in the order of the terms
my %last_token;

# The next announcement, decoded, with its time and process; undef after the bound
sub next_event
{
	my ($seconds) = @_;
	my $heard = next_notification($listener, $seconds // $bound, sub { 1 }) // return;
	is($heard->{channel}, 'leader_election', 'the channel') if $heard->{channel} ne 'leader_election';
	my $event = eval { JSON::PP->new->utf8->decode($heard->{payload}) };
	return fail("valid JSON: $heard->{payload}") unless $event;
	my $last = \($last_token{ $event->{election} // $event->{key} } //= 0);
	is($event->{token}, "$$last or greater", 'in the order of the terms') if $event->{token} < $$last;
	$$last = $event->{token};
	return { %$event, time => $heard->{time}, pid => $heard->{pid} };
}

# The next ones are these, as "election event identity reason", and no other comes
sub announced
{
	my ($what, @expected) = @_;
	my @events;
	push @events, next_event() foreach @expected;
	my $time = @events && $events[-1] ? $events[-1]{time} : 0;
	ask($listener, 'SELECT 1');
	push @events, next_event(0) while @{ $listener->{heard} };
	is_deeply([ map { join ' ', map { $_ // '' } @$_{qw(election event identity)}, $_->{reason} // () } grep { defined } @events ], \@expected, $what);
	return $time;
}

sub silence
{
	my ($what, $seconds) = @_;
	Time::HiRes::sleep($seconds // 0.5);
	announced($what);
	return;
}

sub in_time
{
	my ($since, $time) = @_;
	my $took = $time - $since;
	$slowest = $took if $took > $slowest;
	return $took < $bound;
}

# In each of these states of the leader, it ends in each of these ways, again and again
my %states = (
	idle => [q{SELECT le_try_become_leader('job')}],
	'in a transaction that has written' => [ q{SELECT le_try_become_leader('job')}, 'BEGIN', 'INSERT INTO written VALUES (1)' ],
	'in a transaction that was elected and has written' => [ 'BEGIN', 'INSERT INTO written VALUES (1)', q{SELECT le_try_become_leader('job')} ],
	'in a failed transaction' => [ q{SELECT le_try_become_leader('job')}, 'BEGIN', 'INSERT INTO written VALUES (1)', 'SELECT 1 / 0' ],
	'in a savepoint' => [ 'BEGIN', 'SAVEPOINT a', q{SELECT le_try_become_leader('job')}, 'INSERT INTO written VALUES (1)' ]);
my %ends = (
	'death of the client' => \&kill_client,
	'pg_terminate_backend' => sub { ask($control, "SELECT pg_terminate_backend($_[0]{pid})") },
	'the client leaves' => \&leave);

sub handed_over
{
	my ($name, $since, $pid) = @_;
	my $event;

	# what was elected in a transaction block that was not committed is told with its end
	do { $event = next_event() } while $event && $event->{event} eq 'elected';
	return "not announced" unless $event;
	return "not in time: @{[ $event->{time} - $since ]}" unless in_time($since, $event->{time});
	return "$event->{event} $event->{reason} by $event->{pid}" unless $event->{event} eq 'ended' && $event->{reason} eq 'session ended' && $event->{pid} == $pid;
	return 'denied' unless ask($follower, "SELECT le_try_become_leader('$name')") eq 't';
	ask($follower, "SELECT le_resign('$name')");
	foreach my $expected ('elected', 'ended')
	{
		$event = next_event();
		return "no '$expected' of the follower" unless $event && $event->{event} eq $expected;
	}
	return '';
}

foreach my $state (sort keys %states)
{
	foreach my $end (sort keys %ends)
	{
		my %failures;
		foreach my $repetition (1 .. $end =~ /death/ ? 30 : 10)
		{
			my $leader = session($node, app => 'leader');
			ask($leader, $_) foreach @{ $states{$state} };
			my $time = monotonic();
			$ends{$end}->($leader);
			my $failure = handed_over('job', $time, $leader->{pid});
			$failures{$failure}++ if $failure;
			kill_client($leader);
			last if $failure;
		}
		is_deeply(\%failures, {}, "$end, $state: a listener that tries is elected");
	}
}

# In mid-statement: the server looks after the client, or is told
foreach my $end (sort keys %ends)
{
	foreach my $begin ('', 'BEGIN; INSERT INTO written VALUES (1); ')
	{
		my %failures;
		foreach my $repetition (1 .. 10)
		{
			my $leader = session($node, app => 'leader');
			ask($leader, q{SELECT le_try_become_leader('job')});
			post($leader, $begin . 'SELECT pg_sleep(600)');
			ask_until($control, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $leader->{pid}");
			my $time = monotonic();
			$ends{$end}->($leader);
			my $failure = handed_over('job', $time, $leader->{pid});
			$failures{$failure}++ if $failure;
			kill_client($leader);
			last if $failure;
		}
		is_deeply(\%failures, {}, "$end, in mid-statement" . ($begin && ' of a transaction') . ': a listener that tries is elected');
	}
}

subtest 'SIGKILL of a real client' => sub {
	foreach my $repetition (1 .. 5)
	{
		my $leader = start_psql($node->connstr('postgres') . ' application_name=leader');
		psql_ask($leader, q{SELECT le_try_become_leader('job')});
		my $time = monotonic();
		kill_psql($leader);
		is(handed_over('job', $time, $leader->{pid}), '', 'a listener that tries is elected');
	}
};

# One session: what it does, and what is announced
my $leader = session($node, app => 'leader');
foreach my $case (
	[ 'session scope', [q{SELECT le_try_become_leader('job')}], 'elected' ],
	[ 'asked again', [q{SELECT le_try_become_leader('job')}] ],
	[ 'le_resign', [q{SELECT le_resign('job')}], 'ended|resigned' ],
	[ 'asked again', [q{SELECT le_resign('job')}] ],
	[ 'both in one transaction', [q{SELECT le_try_become_leader('job') AND le_resign('job')}], 'elected', 'ended|resigned' ],
	[ 'DISCARD ALL', [ q{SELECT le_try_become_leader('job')}, 'DISCARD ALL' ], 'elected', 'ended|lock released' ],
	[ 'commit', [ 'BEGIN', q{SELECT le_try_become_leader_xact('job')}, 'COMMIT' ], 'elected', 'ended|transaction ended' ],
	[ 'rollback', [ 'BEGIN', q{SELECT le_try_become_leader_xact('job')}, 'ROLLBACK' ], 'elected', 'ended|transaction ended' ],
	[ 'autocommit', [q{SELECT le_try_become_leader_xact('job')}], 'elected', 'ended|transaction ended' ],
	[ 'session scope, rolled back', [ 'BEGIN', q{SELECT le_try_become_leader('job')}, 'ROLLBACK' ], 'elected' ],
	[ 'le_resign, rolled back', [ 'BEGIN', q{SELECT le_resign('job')}, 'ROLLBACK' ], 'ended|resigned' ],
	[ 'session scope, rolled back to a savepoint', [ 'BEGIN', 'SAVEPOINT a', q{SELECT le_try_become_leader('job')}, 'ROLLBACK TO a', 'COMMIT' ], 'elected' ],
	[ 'an error in autocommit', [q{SELECT 1 / (le_resign('job')::int - 1)}], 'ended|resigned' ],
	[ 'an error at the commit', [ 'CREATE TEMP TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)', 'BEGIN', 'INSERT INTO once VALUES (1), (1)', q{SELECT le_try_become_leader('job')}, 'COMMIT' ], 'elected' ],
	[ 'le_resign_all', ['SELECT le_resign_all()'], 'ended|resigned' ],
	[ 'a lease', [q{SELECT le_lease('job', '1 h')}], 'elected' ],
	[ 'a lease resigned', [q{SELECT le_resign('job', token) FROM le_leader('job')}], 'ended|resigned' ],
	[ 'a lease rolled back', [ 'BEGIN', q{SELECT le_lease('job', '1 h')}, 'ROLLBACK' ] ],
	[ 'a lease rolled back to a savepoint', [ 'BEGIN', 'SAVEPOINT a', q{SELECT le_lease('job', '1 h')}, 'ROLLBACK TO a', 'COMMIT' ] ],
	[ 'a lease committed', [ 'BEGIN', 'SAVEPOINT a', q{SELECT le_lease('job', '1 h')}, 'COMMIT' ], 'elected' ],
	[ 'a lease resigned, rolled back', [ 'BEGIN', q{SELECT le_resign('job', token) FROM le_leader('job')}, 'ROLLBACK' ], 'ended|resigned' ],
	[ 'le_campaign', [q{CALL le_campaign('job')}], 'elected' ],
	[ 'le_proclaim', [q{SELECT le_proclaim('job', 'x')}], 'proclaimed' ],
	[ 'le_proclaim, rolled back', [ 'BEGIN', q{SELECT le_proclaim('job', 'y')}, 'ROLLBACK' ] ],
	[ 'le_proclaim, and resigned', [ 'BEGIN', q{SELECT le_proclaim('job', 'y')}, q{SELECT le_resign('job')}, 'COMMIT' ], 'ended|resigned' ],
	[ 'le_campaign for any', [q{CALL le_campaign(array['job'])}], 'elected' ],
	[ 'le_campaign for a lease, denied by itself', [q{SELECT le_lease('job', '1 h')}] ],
	[ 'resigned', [q{SELECT le_resign('job')}], 'ended|resigned' ],
	[ 'notify off', [ 'SET leader_election.notify = off', q{SELECT le_try_become_leader('job') AND le_proclaim('job', 'x') AND le_resign('job')}, 'RESET leader_election.notify' ] ])
{
	my ($what, $statements, @expected) = @$case;
	my $time = monotonic();
	# what could not go with its own commit goes with the next one
	ask($leader, $_) foreach @$statements, 'SELECT 1';
	my $told = announced("$what: announced", map { my ($event, $reason) = split /\|/; join ' ', 'job', $event, 'leader', $reason // () } @expected);
	ok(in_time($time, $told), "$what: in time") if @expected;
	silence("$what: never", 0.45) if !@expected && $what =~ /rolled|off/;
}

subtest 'a failed transaction block announces with the next commit' => sub {
	ask($leader, $_) foreach q{SELECT le_try_become_leader('job')}, 'BEGIN', q{SELECT le_resign('job')}, 'SELECT 1 / 0';
	announced('elected', 'job elected leader');
	silence('nothing while it is open', 0.6);
	my $time = monotonic();
	ask($leader, $_) foreach 'ROLLBACK', 'SELECT 1';
	ok(in_time($time, announced('then it is', 'job ended leader resigned')), 'in time');
};

subtest 'the next leader announces the end of a term whose leader has not' => sub {
	ask($leader, $_) foreach q{SELECT le_try_become_leader('job')}, 'BEGIN', q{SELECT le_resign('job')}, 'SELECT 1 / 0';
	announced('elected', 'job elected leader');
	my $time = monotonic();
	is(ask($follower, q{SELECT le_try_become_leader('job')}), 't', 'the election is free');
	ok(in_time($time, announced('before its own', 'job ended leader resigned', 'job elected follower')), 'in time');
	ask($leader, $_) foreach 'ROLLBACK', 'SELECT 1';
	silence('which has nothing more to tell');
	ask($follower, q{SELECT le_resign('job')});
	announced('the next term', 'job ended follower resigned');
};

# Histories, 1: what a session has not announced of a term must not come after a later one
subtest 'a term within an open block of a third session' => sub {
	my $third = session($node, app => 'third');
	ask($leader, q{SELECT le_try_become_leader('x')});
	announced('the first term', 'x elected leader');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_resign('x')};
	ask($third, $_) foreach 'BEGIN', 'SAVEPOINT a', q{SELECT le_try_become_leader_xact('x')}, 'ROLLBACK TO a';
	ask($leader, 'COMMIT');
	ask($follower, q{SELECT le_try_become_leader('x')});
	ask($follower, q{SELECT le_resign('x')});
	ask($follower, q{SELECT le_try_become_leader('x')});
	ask($third, $_) foreach 'COMMIT', 'SELECT 1';
	ask($follower, q{SELECT le_resign('x')});
	my (@events, $last);
	while (my $event = next_event(0.5))
	{
		push @events, "$event->{event} $event->{identity}";
		fail("$event->{event} of a term before $last") if $last && $event->{token} < $last;
		$last = $event->{token};
	}
	is_deeply([ @events[ -4 .. -1 ] ], [ ('elected follower', 'ended follower') x 2 ], 'the later terms, and nothing after them');
	kill_client($third);
};

subtest 'leases that end on another connection, beside commits that notify' => sub {
	my $script = PostgreSQL::Test::Utils::tempdir() . '/noise.sql';
	append_to_file($script, "SELECT pg_notify('noise', 'x');\n");
	my ($out, $err) = ('', '');
	my $noise = IPC::Run::start([ 'pgbench', '-n', '-c', '6', '-T', '600', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ], '>', \$out, '2>', \$err);
	my $third = session($node, app => 'third');
	my ($rounds, $late) = (0, 0);
	my %told;
	my $until = monotonic() + 4;
	while (monotonic() < $until)
	{
		$rounds++;
		ask($leader, qq{SELECT le_try_become_leader('r $rounds')});
		ask($leader, qq{SELECT le_resign('r $rounds')});
		my $token = ask($follower, qq{SELECT le_lease('r $rounds', '1 h')});
		ask($third, qq{SELECT le_resign('r $rounds', $token)});
	}
	$noise->signal('TERM');
	$noise->finish;
	$node->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')});
	ask($_, 'SELECT 1') foreach $leader, $follower, $third;
	while (my $heard = next_notification($listener, 0.5, sub { 1 }))
	{
		my $event = JSON::PP->new->utf8->decode($heard->{payload});
		my $last = \($told{ $event->{election} } //= [ 0, '' ]);
		$late++ if $event->{token} < $$last->[0] || $event->{token} == $$last->[0] && $$last->[1] eq 'ended';
		$$last = [ @$event{qw(token event)} ];
	}
	is($late, 0, "in order, in $rounds elections");
	diag(sprintf 'announced of %d elections: %d', $rounds, scalar keys %told);
	cmp_ok(scalar keys %told, '>=', 0.9 * $rounds, 'and most are told');
	kill_client($third);
};

subtest 'a commit that fails announces nothing of what was to come with it' => sub {
	my $token = ask($leader, q{SELECT le_lease('leased', '1 h')});
	ask($leader, q{SELECT le_try_become_leader('job')});
	announced('elected', 'leased elected leader', 'job elected leader');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_proclaim('job', 'x')}, q{SELECT le_lease('new', '1 h')}, "SELECT le_proclaim('leased', 'x', $token)";
	ask($follower, "SELECT le_resign('leased', $token)");
	ask($leader, 'COMMIT');
	is($leader->{code}, 'LE001', 'the commit fails');
	Time::HiRes::sleep(0.5);
	announced('only that the lease has ended', 'leased ended leader resigned');
	ask($leader, q{SELECT le_resign('job')});
	announced('nor later', 'job ended leader resigned');
};

subtest 'what is left is sent with the next commit or at the end' => sub {
	ask($leader, q{BEGIN; SELECT le_try_become_leader('job'); ROLLBACK; SELECT 1});
	ask($leader, q{BEGIN; SELECT le_resign('job'); SELECT 1 / 0});
	kill_client($leader);
	announced('at the end of the session', 'job elected leader', 'job ended leader resigned');
	$leader = session($node, app => 'leader');
};

subtest 'expiry is announced by the session that finds it' => sub {
	my %finder = (
		bidder => sub { sleep_past($_[0]); ask($follower, q{SELECT le_try_become_leader('job')}); ask($follower, q{SELECT le_resign('job')}) },
		observer => sub { ask($follower, q{CALL le_observe('job', } . version_of($follower, 'job') . q{, '1 s')}) },
		candidate => sub { ask($follower, q{CALL le_campaign('job')}); ask($follower, q{SELECT le_resign('job')}) },
		'candidate for any' => sub { ask($follower, q{CALL le_campaign(array['other', 'job'])}); ask($follower, q{SELECT le_resign('job')}) });
	ask($control, q{SELECT le_try_become_leader('other')});
	next_event();
	foreach my $finder (sort keys %finder)
	{
		my $time = monotonic();
		ask($leader, q{SELECT le_lease('job', '200 ms')});
		my $granted = monotonic();
		announced("$finder: elected", 'job elected leader');
		$finder{$finder}->($granted + 0.2);
		my @next = $finder eq 'observer' ? () : ('job elected follower', 'job ended follower resigned');
		cmp_ok(announced("$finder: expired, once", 'job ended leader expired', @next), '>', $time + 0.2, 'not before');
	}
	ask($control, q{SELECT le_resign('other')});
	next_event();
};

subtest 'any name is valid JSON' => sub {
	foreach my $text ('"', "a\\b\"c'", "line\nbreak\t\e", 'Wählerkür 選挙 🗳', "\x01" x 255, '"' x 255, '\\' x 255, '🗳' x 63, 'null', '{"a": 1},')
	{
		my $quoted = $text =~ s/'/''/gr =~ s/\\/\\\\/gr;
		ask($leader, encode_utf8("SELECT le_try_become_leader(E'$quoted', identity => E'$quoted')"));
		is($leader->{error}, '', 'elected');
		my $event = next_event();
		is_deeply([ @$event{qw(election identity event)} ], [ $text, $text, 'elected' ], 'name and identity come through');
		is($event->{token}, ask($control, 'SELECT max(token) FROM le_leaders'), 'and the token');
		ask($leader, encode_utf8("SELECT le_proclaim(E'$quoted', repeat(E'\\x01', 8192))"));
		is(next_event()->{event}, 'proclaimed', 'with the greatest value');
		ask($leader, 'SELECT le_resign_all()');
		is(next_event()->{reason}, 'resigned', 'and the end');
	}
	foreach my $key (0, 9223372036854775807, '(-9223372036854775808)')
	{
		ask($leader, "SELECT le_try_become_leader($key\::bigint), le_resign($key\::bigint)");
		my ($begin, $end) = (next_event(), next_event());
		ok(!defined $begin->{election} && exists $begin->{election}, 'a bare key has no name');
		is($begin->{key} . $end->{key} . $begin->{event} . $end->{event}, ($key =~ s/[()]//gr) x 2 . 'electedended', "but its key $key");
	}
	my $plain = session($node);
	ask($plain, q{RESET application_name});
	ask($plain, q{SELECT le_try_become_leader('job')});
	unlike(next_event()->{identity}, qr/@/, 'no address of a client');
	kill_client($plain);
	next_event();
};

subtest 'settings of a role and of a database' => sub {
	ask($control, 'CREATE DATABASE silent; ');
	create_extension($node, 'silent');
	ask($control, 'ALTER DATABASE silent SET leader_election.notify = off');
	ask($control, 'CREATE ROLE silent LOGIN');
	ask($control, 'ALTER ROLE silent SET leader_election.notify = off');
	my $quiet = session($node, user => 'silent');
	is(ask($quiet, q{SELECT le_try_become_leader('quiet')}), 't', 'elected');
	kill_client($quiet);
	ask_until($control, q{SELECT count(*) FROM le_leader('quiet')}, 0);
	silence('nothing of that role');
	my $here = session($node, db => 'silent');
	ask($here, 'LISTEN leader_election');
	ask($here, q{SELECT le_try_become_leader('here') AND le_resign('here')});
	ask($here, 'SELECT 1');
	is(scalar @{ $here->{heard} }, 0, 'nothing in that database');
	ask($here, 'SET leader_election.notify = on');
	ask($here, q{SELECT le_try_become_leader('here') AND le_resign('here')});
	is(scalar @{ $here->{heard} }, 2, 'but when it is set');
	silence('and nothing of it in another database');
	kill_client($here);
};

subtest 'a session that listens, and leads' => sub {
	ask($leader, 'LISTEN leader_election');
	ask($leader, q{SELECT le_try_become_leader('job')});
	ok(next_notification($leader, $bound, sub { $_->{payload} =~ /"elected"/ && $_->{pid} == $leader->{pid} }), 'hears itself');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_resign('job')}, 'ROLLBACK', 'SELECT 1';
	ok(next_notification($leader, $bound, sub { $_->{payload} =~ /"ended"/ && $_->{pid} == $leader->{pid} }), 'after a rollback, too');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('job')}, 'UNLISTEN *', 'ROLLBACK', 'SELECT 1';
	ok(next_notification($leader, $bound, sub { $_->{payload} =~ /"elected"/ }), 'a rollback restores what it listens to');
	ask($leader, 'UNLISTEN *');
	ask($leader, q{SELECT le_resign('job')});
	is(scalar @{ $leader->{heard} }, 0, 'not any more');
	@{ $listener->{heard} } = ();
	ask($listener, 'SELECT 1');
	@{ $listener->{heard} } = ();
};

subtest 'other notifications of the transaction' => sub {
	ask($listener, 'LISTEN other');
	ask($leader, q{BEGIN; NOTIFY other, 'mine'; SELECT le_try_become_leader('job'); COMMIT});
	my ($first, $second) = map { next_notification($listener, $bound, sub { 1 }) } 1 .. 2;
	is(join(' ', sort map { $_->{channel} } $first, $second), 'leader_election other', 'both are heard');
	ask($leader, q{BEGIN; NOTIFY other, 'mine'; SELECT le_resign('job'); ROLLBACK; SELECT 1});
	is(next_notification($listener, $bound, sub { 1 })->{channel}, 'leader_election', 'after a rollback only what remains true');
	ask($listener, 'UNLISTEN other');
};

# What was given to a commit that fails is given to the next one
subtest 'a commit that fails' => sub {
	ask($leader, q{SELECT le_try_become_leader('job')});
	announced('it leads', 'job elected leader');
	my $other = session($node);
	ask($_, 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM written') foreach $leader, $other;
	ask($_, 'INSERT INTO written VALUES (7)') foreach $leader, $other;
	ask($leader, q{SELECT le_resign('job')});
	ask($other, 'COMMIT');
	ask($leader, 'COMMIT');
	like($leader->{error}, qr/could not serialize/, 'it fails');
	silence('nothing was sent');
	ask($leader, 'SELECT 1');
	announced('its next one says so', 'job ended leader resigned');
	ask($leader, 'SELECT 1');
	silence('once');

	# together with what the term before has not announced yet
	my $open = session($node, app => 'open');
	ask($open, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('twice')}, q{SELECT le_resign('twice')};
	ask($_, 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM written') foreach $leader, $other;
	ask($_, 'INSERT INTO written VALUES (8)') foreach $leader, $other;
	ask($leader, q{SELECT le_try_become_leader('twice')});
	ask($other, 'COMMIT');
	ask($leader, 'COMMIT');
	like($leader->{error}, qr/could not serialize/, 'it fails');
	silence('nothing was sent');
	ask($open, 'COMMIT');
	announced('the term before is announced', 'twice elected open', 'twice ended open resigned');
	ask($leader, q{SELECT le_resign('twice')});
	announced('and the next one', 'twice elected leader', 'twice ended leader resigned');
	end_session($other, $open);
};

# Wrong outcome: the session's next commit gets a transaction ID, and the lock of all that notify
subtest 'nothing is left when all was sent' => sub {
	my $id = ask($control, 'SELECT pg_current_xact_id()::text::bigint');
	ask($leader, q{BEGIN; SELECT le_try_become_leader_xact('job'); COMMIT});
	announced('in one commit', 'job elected leader', 'job ended leader transaction ended');
	ask($leader, 'SELECT 1') foreach 1 .. 3;
	is(ask($control, 'SELECT pg_current_xact_id()::text::bigint') - $id, 2, 'which was the only one with an ID');
};

# The commit of another holds the lock by which notifications are put in order: it
# waits for a standby that there is none of
subtest 'another commit is sending, and hangs' => sub {
	my $blocker = session($node);
	my $publisher = session($node, app => 'publisher');
	ask($publisher, q{SELECT le_try_become_leader('value')});
	announced('one leads', 'value elected publisher');
	ask($control, q{ALTER SYSTEM SET synchronous_standby_names = 'missing'});
	$node->reload;
	ask_until($control, 'SHOW synchronous_standby_names', 'missing');
	ask($blocker, 'SET synchronous_commit = on');
	ask_until($blocker, 'SHOW synchronous_standby_names', 'missing');
	post_until_it_hangs($blocker, 'INSERT INTO written VALUES (1); NOTIFY unheard');
	ok(ask_until($control, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $blocker->{pid}"), 'it hangs');

	ask($publisher, $_) foreach q{SELECT le_proclaim('value', 'v')}, 'BEGIN', 'ROLLBACK';
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('job')}, 'ROLLBACK';
	silence('nothing can be announced', 0.6);
	ok(ask_until($control, "SELECT state, wait_event FROM pg_stat_activity WHERE pid = $leader->{pid}", 'idle|ClientRead'), 'the leader does not wait for it');
	my $pid = $leader->{pid};
	kill_client($leader);
	ask($follower, 'SET leader_election.notify = off');
	ok(ask_until($follower, q{SELECT le_try_become_leader('job')}, 't', $bound), 'it dies, and the next one leads before that is announced');
	ask($follower, $_) foreach q{SELECT le_resign('job')}, 'RESET leader_election.notify';
	is(ask($control, q{ALTER SYSTEM RESET synchronous_standby_names}), '', 'the standby is given up');
	$node->reload;
	collect($blocker);
	ask($follower, q{SELECT le_try_become_leader('job')});
	announced('elections go on', 'job elected follower');
	ask($follower, q{SELECT le_resign('job')});
	announced('in order', 'job ended follower resigned');
	ask($publisher, 'SELECT 1');
	announced('a value is announced, though a rollback came between', 'value proclaimed publisher');
	end_session($publisher);
	announced('and the end of the session', 'value ended publisher session ended');
	ok(ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0), 'the dead one is gone');
	kill_client($blocker);
	$leader = session($node, app => 'leader');
};

subtest 'an extension that was dropped with a lease, found by a session that only looks' => sub {
	ask($leader, q{SELECT le_lease('dropped', '1 h', identity => 'holder')});
	announced('it begins', 'dropped elected holder');
	ask($control, 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');
	my $reader = session($node);
	ask($reader, 'SELECT count(*) FROM pg_stat_leader_election');
	announced('its end', 'dropped ended holder extension dropped');
	kill_client($reader);
};

subtest 'fast shutdown with leaders connected' => sub {
	my @leaders = map { session($node, app => "leader $_") } 1 .. 10;
	ask($leaders[$_], "SELECT le_try_become_leader('shutdown $_')") foreach 0 .. 9;
	ask($leaders[$_], 'BEGIN; INSERT INTO written VALUES (1)') foreach 0 .. 4;
	post($leaders[$_], 'SELECT pg_sleep(600)') foreach 3 .. 6;
	post($leaders[$_], "CALL le_campaign('shutdown 0')") foreach 7, 8;
	ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name = 'shutdown 0'}, 2);
	my $offset = log_from($node);
	my $time = monotonic();
	$node->stop('fast');
	cmp_ok(monotonic() - $time, '<', 20, 'in time');
	my @lines = grep { !/terminating connection due to administrator command/ } grep { /WARNING|ERROR|FATAL|PANIC|TRAP/ } split /\n/, log_since($node, $offset);
	is_deeply(\@lines, [], 'no error in the log');
	is(scalar(grep { /ended: session ended/ } term_lines($node, $offset)), 10, 'each term has ended') or diag join "\n", term_lines($node, $offset);
	$node->start;
};

subtest 'crash' => sub {
	$listener = session($node);
	$leader = session($node, app => 'leader');
	$control = session($node);
	ask($listener, 'LISTEN leader_election');
	ask($leader, q{SELECT le_try_become_leader('job')});
	my $lease = ask($leader, q{SELECT le_lease('leased', '1 h')});
	ask($leader, 'BEGIN; INSERT INTO written VALUES (1)');
	$node->stop('immediate');
	$node->start;
	($listener, $leader, $control) = map { session($node, app => $_) } 'listener', 'leader', 'control';
	ask($listener, 'LISTEN leader_election');
	is(ask($control, q{SELECT count(*) FROM le_leader('job')}), '0', 'there is no leader');
	is(ask($leader, q{SELECT le_try_become_leader('job'), le_resign('job')}), 't|t', 'elections go on');
	announced('and are announced', 'job elected leader', 'job ended leader resigned');
	is(ask($leader, "SELECT le_resign('leased', $lease)"), 't', 'a lease that led on resigned');
	announced('and is announced', 'leased ended leader resigned');

	# a process that dies: the server starts again by itself
	ask($leader, q{SELECT le_try_become_leader('job')});
	kill 9, $leader->{pid};
	wait_for_end($_) foreach $leader, $listener, $control;
	$node->poll_query_until('postgres', undef, '');
	($listener, $leader) = map { session($node, app => $_) } 'listener', 'leader';
	ask($listener, 'LISTEN leader_election');
	is(ask($leader, q{SELECT le_try_become_leader('job')}), 't', 'elections go on');
	announced('and are announced', 'job elected leader');
};

note(sprintf 'slowest: %.0f ms', 1000 * $slowest);
my @accidents = grep { !/(server process|client backend) .* was terminated by signal 9/ } grep { /TRAP|PANIC|terminated by signal|could not bring|WARNING|is not announced|are not announced/ } split /\n/, slurp_file($node->logfile);
@accidents = grep { !/terminating connection because of crash|this session does not lead|there is already a transaction|in transaction blocks|begins when this transaction commits/ } @accidents;
is_deeply(\@accidents, [], 'no accident in the log');
my %errors;
$errors{$_}++ foreach grep { !/division by zero|could not serialize access|does not lead election "leased" any more|administrator command|connection to client lost|duplicate key|starting up|not yet accepting|recovery mode|shutting down/ }
	map { /(?:ERROR|FATAL):  (.*)/ ? $1 : () } split /\n/, slurp_file($node->logfile);
is_deeply(\%errors, {}, 'no unexpected error in the log');
$node->stop;
done_testing();
