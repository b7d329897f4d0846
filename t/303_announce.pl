# With leader_election.notify, a session announces what it does and finds: with its commit, once
# it has become true.  It holds up no other session, and is held up by none that it need not wait
# for.

use strict;
use warnings;
use utf8;

use Encode qw(encode_utf8);
use JSON::PP;
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $bound = $PostgreSQL::Test::Utils::timeout_default;
my $node = new_server('announce', conf => "wal_level = replica\nmax_wal_senders = 2\nmax_prepared_transactions = 2\nsynchronous_commit = local\nleader_election.notify = on");
my $control = session($node);
my $listener = session($node);
my $leader = session($node, app => 'leader');
my $follower = session($node, app => 'follower');
ask($control, 'CREATE TABLE written (id int)');
ask($listener, 'LISTEN leader_election');

# The next ones are these, as "election event identity reason", and no other is sent before this
# returns: a notification of this test comes after all that were sent
sub announced
{
	my ($what, @expected) = @_;
	my @events;
	ask($control, q{NOTIFY leader_election, 'that is all'});
	while (my $heard = next_notification($listener, $bound, sub { 1 }))
	{
		last if $heard->{payload} eq 'that is all';
		my $event = JSON::PP->new->utf8->decode($heard->{payload});
		push @events, join ' ', @$event{qw(election event identity)}, $event->{reason} // ();
	}
	is_deeply(\@events, \@expected, $what);
	return;
}

# One session: what it does, and what is announced
foreach my $case (
	[ 'session scope', [q{SELECT le_try_become_leader('job')}], 'elected' ],
	[ 'asked again', [q{SELECT le_try_become_leader('job')}] ],
	[ 'le_resign', [q{SELECT le_resign('job')}], 'ended|resigned' ],
	[ 'both in one transaction', [q{SELECT le_try_become_leader('job') AND le_resign('job')}], 'elected', 'ended|resigned' ],
	[ 'DISCARD ALL', [ q{SELECT le_try_become_leader('job')}, 'DISCARD ALL', 'SELECT 1' ], 'elected', 'ended|lock released' ],
	[ 'transaction scope', [ 'BEGIN', q{SELECT le_try_become_leader_xact('job')}, q{SELECT le_proclaim('job', 'x')}, 'COMMIT', 'SELECT 1' ] ],
	[ 'session scope, rolled back', [ 'BEGIN', q{SELECT le_try_become_leader('job')}, 'ROLLBACK', 'SELECT 1' ], 'elected' ],
	[ 'an error in autocommit', [ q{SELECT 1 / (le_resign('job')::int - 1)}, 'SELECT 1' ], 'ended|resigned' ],
	[ 'an error at the commit', [ 'CREATE TEMP TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)', 'BEGIN', 'INSERT INTO once VALUES (1), (1)', q{SELECT le_try_become_leader('job')}, 'COMMIT', 'SELECT 1' ], 'elected' ],
	[ 'le_resign_all, in a block that fails twice', [ 'BEGIN', 'SELECT le_resign_all()', 'SELECT 1 / 0', 'ROLLBACK AND CHAIN', 'SELECT 1 / 0', 'ROLLBACK', 'SELECT 1' ], 'ended|resigned' ],
	[ 'a lease', [q{SELECT le_lease('job', '1 h')}], 'elected' ],
	[ 'a lease resigned, rolled back', [ 'BEGIN', q{SELECT le_resign('job', token) FROM le_leader('job')}, 'ROLLBACK', 'SELECT 1' ], 'ended|resigned' ],
	[ 'a lease rolled back', [ 'BEGIN', q{SELECT le_lease('job', '1 h')}, 'ROLLBACK', 'SELECT 1' ] ],
	[ 'a lease committed', [ 'BEGIN', 'SAVEPOINT a', q{SELECT le_lease('job', '1 h')}, 'COMMIT' ], 'elected' ],
	[ 'resigned', [q{SELECT le_resign('job', token) FROM le_leader('job')}], 'ended|resigned' ],
	[ 'le_campaign', [q{CALL le_campaign('job')}], 'elected' ],
	[ 'le_proclaim', [q{SELECT le_proclaim('job', 'x')}], 'proclaimed' ],
	[ 'le_proclaim, rolled back', [ 'BEGIN', q{SELECT le_proclaim('job', 'y')}, 'ROLLBACK', 'SELECT 1' ], 'proclaimed' ],
	[ 'resigned', [q{SELECT le_resign('job')}], 'ended|resigned' ],
	[ 'PREPARE TRANSACTION', [ 'BEGIN', 'INSERT INTO written VALUES (1)', q{SELECT le_try_become_leader('job') AND le_resign('job')}, q{PREPARE TRANSACTION 'a'}, q{ROLLBACK PREPARED 'a'} ], 'elected', 'ended|resigned' ],
	[ 'notify off', [ 'SET leader_election.notify = off', q{SELECT le_try_become_leader('job') AND le_proclaim('job', 'x') AND le_resign('job')}, 'RESET leader_election.notify', 'SELECT 1' ] ])
{
	my ($what, $statements, @expected) = @$case;
	ask($leader, $_) foreach @$statements;
	announced("$what: announced", map { my ($event, $reason) = split /\|/; join ' ', 'job', $event, 'leader', $reason // () } @expected);
}

subtest 'a failed transaction block announces with the next commit' => sub {
	ask($leader, $_) foreach q{SELECT le_try_become_leader('job')}, 'BEGIN', q{SELECT le_resign('job')}, 'SELECT 1 / 0';
	is(ask($follower, q{SELECT le_try_become_leader('job')}), 't', 'the election is free');
	announced('the next leader does not wait for that', 'job elected leader', 'job elected follower');
	ask($leader, $_) foreach 'ROLLBACK', 'SELECT 1';
	announced('which comes late, with a lower token', 'job ended leader resigned');
	ask($follower, q{SELECT le_resign('job')});
	announced('the next end', 'job ended follower resigned');
};

subtest 'a commit that fails' => sub {
	my $token = ask($leader, q{SELECT le_lease('leased', '1 h')});
	ask($leader, q{SELECT le_try_become_leader('job')});
	announced('elected', 'leased elected leader', 'job elected leader');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_proclaim('job', 'x')}, q{SELECT le_lease('new', '1 h')}, "SELECT le_assert_leader('leased', $token)", q{SELECT le_resign('job')};
	ask($follower, "SELECT le_resign('leased', $token)");
	ask($leader, 'COMMIT');
	is($leader->{code}, 'LE001', 'the commit fails');
	announced('nothing of it is announced', 'leased ended leader resigned');
	ask($leader, 'SELECT 1');
	announced('what is true all the same is, later', 'job proclaimed leader', 'job ended leader resigned');
	my $id = ask($control, 'SELECT pg_current_xact_id()::text::bigint');
	ask($leader, 'SELECT 1') foreach 1 .. 3;
	is(ask($control, 'SELECT pg_current_xact_id()::text::bigint') - $id, 1, 'and then no commit needs an ID');
};

subtest 'expiry, and an extension that was dropped, are announced by the session that finds them' => sub {
	my %finder = (
		bidder => sub { sleep_past($_[0]); ask($follower, q{SELECT le_try_become_leader('job')}); ask($follower, q{SELECT le_resign('job')}) },
		observer => sub { ask($follower, q{CALL le_observe('job', } . version_of($follower, 'job') . q{)}) },
		candidate => sub { ask($follower, q{CALL le_campaign('job')}); ask($follower, q{SELECT le_resign('job')}) },
		'candidate for any' => sub { ask($follower, q{CALL le_campaign(array['other', 'job'])}); ask($follower, q{SELECT le_resign('job')}) });
	my $quiet = session($node, options => '-c leader_election.notify=off');
	ask($quiet, q{SELECT le_try_become_leader('other')});
	foreach my $finder (sort keys %finder)
	{
		ask($quiet, q{SELECT le_lease('job', '200 ms', identity => 'quiet')});
		$finder{$finder}->(monotonic() + 0.2);
		announced("$finder: expired, once", 'job ended quiet expired', $finder eq 'observer' ? () : ('job elected follower', 'job ended follower resigned'));
	}
	ask($quiet, q{SELECT le_lease('dropped', '1 h', identity => 'holder')});
	ask($control, 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');
	my $reader = session($node);
	ask($reader, 'SELECT count(*) FROM pg_stat_leader_election');
	announced('its end', 'dropped ended holder extension dropped');
	end_session($reader, $quiet);
};

subtest 'any name is valid JSON' => sub {
	my $next = sub { JSON::PP->new->utf8->decode(next_notification($listener, $bound, sub { 1 })->{payload}) };
	foreach my $text ('"', "a\\b\"c'", "line\nbreak\t\e", 'Wählerkür 選挙 🗳', "\x01" x 255, '"' x 255, '\\' x 255, '🗳' x 63, 'null', '{"a": 1},')
	{
		my $quoted = $text =~ s/'/''/gr =~ s/\\/\\\\/gr;
		ask($leader, encode_utf8("SELECT le_try_become_leader(E'$quoted', identity => E'$quoted')"));
		is($leader->{error}, '', 'elected');
		my $event = $next->();
		is_deeply([ @$event{qw(election identity event)} ], [ $text, $text, 'elected' ], 'name and identity come through');
		is($event->{token}, ask($control, 'SELECT max(token) FROM le_leaders'), 'and the token');
		ask($leader, encode_utf8("SELECT le_proclaim(E'$quoted', repeat(E'\\x01', 8192))"));
		is($next->()->{event}, 'proclaimed', 'with the greatest value');
		ask($leader, 'SELECT le_resign_all()');
		is($next->()->{reason}, 'resigned', 'and the end');
	}
	my $plain = session($node);
	ask($plain, $_) foreach 'RESET application_name', q{SELECT le_try_become_leader('job')};
	unlike($next->()->{identity}, qr/@/, 'no address of a client');
	end_session($plain);
};

subtest 'the end of a session is not announced' => sub {
	foreach my $end (sub { kill_client($_[0]) }, sub { end_session($_[0]) }, sub { ask($control, "SELECT pg_terminate_backend($_[0]{pid})"); wait_for_end($_[0]) })
	{
		my $going = session($node, app => 'going');
		ask($going, $_) foreach q{SELECT le_try_become_leader('left')}, 'BEGIN', q{SELECT le_resign('left')}, q{SELECT le_try_become_leader('left')};
		my $version = version_of($follower, 'left');
		post($follower, "CALL le_observe('left', $version)");
		$end->($going);
		like(collect($follower), qr/^\d+\|\|\|$/, 'le_observe tells it at once');
		ok(ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $going->{pid}", '0'), 'the session is gone');
		ask($follower, q{SELECT le_try_become_leader('left')});
		announced('the beginning of the next term tells it', 'left elected going', 'left elected follower');
		ask($follower, q{SELECT le_resign('left')});
		announced('which ends', 'left ended follower resigned');
	}
};

# Wrong outcome: a commit takes the lock that all commits which notify share before it does what
# may take long, so that no session can NOTIFY meanwhile
subtest 'a slow commit does not hold up the notifications of others' => sub {
	my ($slow, $blocker, $other) = map { session($node) } 1 .. 3;
	ask($slow, 'CREATE TEMP TABLE emptied (id int) ON COMMIT DELETE ROWS');
	my $table = ask($slow, q{SELECT format('%s.emptied', pg_my_temp_schema()::regnamespace)});
	ask($blocker, $_) foreach 'BEGIN', "LOCK TABLE $table IN ACCESS SHARE MODE";
	is($blocker->{error}, '', 'its table is locked');
	ask($slow, $_) foreach 'BEGIN', 'INSERT INTO emptied VALUES (1)', q{SELECT le_try_become_leader('slow', identity => 'slow')};
	post($slow, 'COMMIT');
	ok(ask_until($control, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $slow->{pid}", 'Lock'), 'so its commit waits');
	post($other, q{NOTIFY other});
	is(collect($other, $bound), '', 'another session notifies');
	ask($blocker, 'ROLLBACK');
	is(collect($slow), '', 'the commit is done');
	announced('and what it has done is announced', 'slow elected slow');
	kill_client($slow, $blocker, $other);
};

# Wrong outcome: the commit waits for the remote one, which waits for the lock that it holds
subtest 'a foreign table whose trigger notifies' => sub {
	my ($host, $port) = ($node->host, $node->port);
	ask($control, $_) foreach 'CREATE EXTENSION postgres_fdw', "CREATE SERVER self FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres')",
	  'CREATE USER MAPPING FOR CURRENT_USER SERVER self', 'CREATE TABLE remote (id int)',
	  q{CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''remote'', ''x''); RETURN NULL; END'},
	  'CREATE TRIGGER tell AFTER INSERT ON remote FOR EACH ROW EXECUTE FUNCTION tell()',
	  q{CREATE FOREIGN TABLE here (id int) SERVER self OPTIONS (table_name 'remote')};
	is($control->{error}, '', 'a foreign table');
	my $client = session($node);
	ask($client, 'INSERT INTO here VALUES (0)');
	ask($client, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('foreign', identity => 'client')}, 'INSERT INTO here VALUES (1)';
	post($client, 'COMMIT');
	is(collect($client, $bound), '', 'its commit does not hang');
	is(ask($control, 'SELECT count(*) FROM remote'), '2', 'and has written');
	announced('it is announced', 'foreign elected client');
	kill_client($client);
};

# As any NOTIFY: the commit waits for another one that notifies, which waits for a standby
subtest 'another commit is notifying, and hangs' => sub {
	my $blocker = session($node);
	my $leaving = session($node, app => 'leaving');
	ask($leaving, q{SELECT le_try_become_leader('leaving')});
	announced('one leads', 'leaving elected leaving');
	ask($control, q{ALTER SYSTEM SET synchronous_standby_names = 'missing'});
	$node->reload;
	ask_until($_, 'SHOW synchronous_standby_names', 'missing') foreach $blocker, $control;
	ask($blocker, 'SET synchronous_commit = on');
	post_until_it_hangs($blocker, 'INSERT INTO written VALUES (1); NOTIFY unheard');
	ok(ask_until($control, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $blocker->{pid}"), 'a commit hangs');

	ask($leader, q{SET lock_timeout = '50 ms'});
	ask($leader, q{SELECT le_try_become_leader('job')});
	is($leader->{code}, '55P03', 'a bid waits for it, until lock_timeout');
	is(ask($leader, q{SELECT le_am_leader('job')}), 't', 'and leads; no later statement fails for it');
	ask($follower, 'SET leader_election.notify = off');
	is(ask($follower, q{SELECT le_try_become_leader('quiet') AND le_resign('quiet')}), 't', 'one that announces nothing does not wait');

	# what it has to announce keeps no session alive
	ask($leaving, $_) foreach 'BEGIN', q{SELECT le_resign('leaving')}, q{SELECT le_try_become_leader('leaving')}, 'ROLLBACK';
	ask($control, "SELECT pg_terminate_backend($leaving->{pid})");
	ok(wait_for_end($leaving, $bound), 'a session that is terminated ends');
	is(ask($follower, q{SELECT le_try_become_leader('leaving')}), 't', 'and the next one leads');

	ask($control, q{ALTER SYSTEM RESET synchronous_standby_names});
	$node->reload;
	collect($blocker);
	kill_client($leader, $blocker, $leaving);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring|protocol synchronization|not announced/, 'no accident in the log');
$node->stop;
done_testing();
