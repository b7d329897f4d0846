# The primary is killed while its standby lags behind: the standby that is promoted
# hands out greater tokens than were ever handed out, has the leases that it knows of
# held, and grants no other one before the longest that it may not know of is over.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $dead_port = PostgreSQL::Test::Cluster::get_free_port();
my $max_ttl = 3;
our $greatest = 0;

# A token that is greater than all before
sub is_new
{
	my ($token, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($token || 0, '>', $greatest, $test);
	$greatest = $token if ($token || 0) > $greatest;
	return $token;
}

sub take_new
{
	my ($client, $name, $ttl) = @_;
	# on a busy machine, the synchronous standby may answer too late
	my ($token, $tries) = ('', 30);
	$token = ask($client, "SELECT le_lease('$name', '$ttl', identity => 'holder')") until $token ne '' || !$tries--;
	return is_new($token, "lease \"$name\"");
}

# A standby that receives from that server
sub standby_of
{
	my ($name, $from, $backup_of) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($backup_of // $from, 'base', has_streaming => 1);
	$standby->append_conf('postgresql.conf',
		"primary_conninfo = '" . $from->connstr . " application_name=$name'");
	$standby->start;
	return $standby;
}

# The standby receives no more
sub cut_off
{
	my ($primary, $standby) = @_;
	$standby->append_conf('postgresql.conf',
		"primary_conninfo = '" . $primary->connstr . " port=$dead_port'");
	$standby->reload;
	$primary->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication')
	  or die 'the standby is still there';
	return;
}

sub catch_up
{
	my ($primary, $standby) = @_;
	# what is not committed is to arrive, too
	$primary->safe_psql('postgres', 'SELECT pg_logical_emit_message(true, $$$$, $$$$)');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	return;
}

# Programs that elect in all scopes, and one that renews, until they are stopped
sub start_load
{
	my ($node, $token) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my %scripts = (
		session => q{SELECT le_try_become_leader('s' || :client_id);
			SELECT le_resign('s' || :client_id);},
		transaction => q{BEGIN; SELECT le_try_become_leader_xact('t' || :client_id); COMMIT;},
		lease => q{SELECT coalesce(le_lease('l' || :client_id, '3 s'), 0) AS token \gset
			SELECT le_resign('l' || :client_id, :token);},
		renewal => "SELECT 1 / le_renew('held', $token)::int;");
	append_to_file("$dir/$_", $scripts{$_}) foreach keys %scripts;
	my $load = { output => '' };
	$load->{run} = IPC::Run::start([ 'pgbench', '-n', '-c', 3, '-T', 600, '-h', $node->host, '-p', $node->port,
			(map { ('-f', "$dir/$_") } sort keys %scripts), 'postgres' ], '>&', \$load->{output});
	return $load;
}

sub stop_load
{
	my ($load) = @_;
	eval { $load->{run}->signal('TERM'); $load->{run}->finish; };
	unlike($load->{output}, qr/ERROR/, 'no election or renewal has failed');
	return;
}

# Waits for the guard of a prepared transaction, on the new primary
sub prepared_holds
{
	my ($node, $token) = @_;
	my $client = session($node);
	my $waiting = session($node);
	is(ask($client, "SELECT le_renew('prepared', $token), le_resign('prepared', $token)"), 't|t', 'its lease ran on, and is resigned');
	is(ask($client, q{SELECT le_try_become_leader('prepared'), le_lease('prepared', '1 s') IS NULL}), 'f|t', 'no session is elected');
	post($waiting, q{CALL le_campaign('prepared')});
	ok(ask_until($client, "SELECT waits_for, blocked_by FROM le_candidates WHERE pid = $waiting->{pid}", 'guard|{0}'), 'the candidate waits for the guard');
	ask($client, q{COMMIT PREPARED 'guarded'});
	is(ask($client, 'SELECT count(*) FROM written'), '1', 'committed');
	is_new(collect($waiting), 'and the candidate is elected');
	kill_client($client, $waiting);
	return;
}

sub shown
{
	my ($client, $columns, $condition) = @_;
	return ask($client, "SELECT string_agg(concat_ws(' ', $columns), ', ' ORDER BY name) FROM le_leaders WHERE $condition");
}

sub reads_on_standby
{
	my ($there, $held) = @_;
	is(shown($there, 'name, scope, identity, token', q{name = 'held'}), "held lease holder $held", 'le_leaders shows a lease');
	is(ask($there, q{SELECT token, ttl, renewed_at IS NULL, renewals IS NULL, expires_in IS NULL, pid IS NULL, usename = current_user FROM le_leaders WHERE name = 'held'}),
		"$held|01:00:00|t|t|t|t|t", 'le_leader, too, without what is not replicated');
	is(shown($there, 'name, ttl', q{name !~ '^l[0-9]$'}), 'held 01:00:00, lasting 02:00:00, prepared 01:00:00, resigned late 01:00:00, shortened 00:20:00',
		'not what is resigned or not committed, and each with the ttl that it has now');
	foreach my $sql ("le_lease('held', '1 s', token => $held)", "le_lease('free', '1 s')", "le_renew('held', $held)",
		"le_am_leader('held', $held)", "le_resign('held', $held)", "le_assert_leader('held', $held)",
		"le_assert_leader('held')", "le_try_become_leader('free')", "le_become_leader_xact('free')")
	{
		fails($there, "SELECT $sql", '25006', $sql);
	}
	fails($there, "CALL $_", '25006', $_)
	  foreach q{le_campaign('free')}, q{le_campaign('free', ttl => '1 s')}, q{le_campaign(ARRAY['free'])},
	  q{le_campaign(ARRAY['free'], ttl => '1 s')}, q{le_observe('held')};
	is(ask($there, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}), '0', 'no lock is left');
	return;
}

# No session gets a lease that is held, nor one that might be held
sub no_lease_yet
{
	my ($node, $held) = @_;
	my $client = session($node);
	my $waiting = session($node);

	is(ask($client, q{SELECT le_lease('held', '1 s') IS NULL, le_try_become_leader('held')}), 't|f', 'a lease that is held is denied');
	fails($client, q{SELECT le_lease('lost', '1 s')}, 'LE003', 'the lease that did not arrive is not granted');
	is($client->{error}, 'cannot grant a lease of election "lost" yet', 'the message');
	fails($client, q{SELECT le_lease('lost', '1 s', token => 1)}, 'LE003', 'with another token');
	fails($client, q{CALL le_campaign('lost', timeout => '0', ttl => '1 s')}, 'LE003', 'nor to a campaign that does not wait');
	is(ask($client, q{SELECT max_ttl FROM le_declarations WHERE name = 'raised'}), '00:00:00.1', 'leases of an election were short, as far as is known here');
	fails($client, q{SELECT le_lease('raised', '100 ms')}, 'LE003', 'but a longer one may have been allowed later: none is granted');
	is(ask($client, q{BEGIN; SAVEPOINT s; SELECT le_try_become_leader('other') AND le_resign('other'); SAVEPOINT t}), 't', 'another scope');
	fails($client, q{SELECT le_lease('lost', '1 s')}, 'LE003', 'in a transaction');
	is(ask($client, q{ROLLBACK TO t; SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}), '0', 'leaves no lock behind');
	ask($client, 'COMMIT');

	is(ask($client, q{CALL le_campaign('lost', timeout => '100 ms', ttl => '1 s')}), '', 'a timeout that is too short: NULL');
	is(ask($client, q{CALL le_campaign(ARRAY['lost', 'held'], timeout => '100 ms', ttl => '1 s')}), '|', 'for many elections, too');
	ask($client, q{SET lock_timeout = '100 ms'});
	fails($client, q{CALL le_campaign('lost', ttl => '1 s')}, '55P03', 'lock_timeout');
	fails($client, q{CALL le_campaign(ARRAY['lost', 'held'], ttl => '1 s')}, '55P03', 'for many elections, too');
	ask($client, 'RESET lock_timeout');
	no_trace($node, $client->{pid}, 'nothing of it is left');

	post($waiting, q{CALL le_campaign('lost', ttl => '1 s', identity => 'patient')});
	ok(ask_until($client, q{SELECT name, position, identity, waits_for, blocked_by FROM le_candidates}, 'lost|1|patient|promotion|{}'), 'le_candidates says what is waited for');
	is(ask($client, "SELECT wait_event FROM pg_stat_activity WHERE pid = $waiting->{pid}"), wait_event($node, 'Promotion'), 'and so does pg_stat_activity');
	is(ask($client, q{SELECT le_try_become_leader('lost'), le_lease('lost', '1 s') IS NULL}), 'f|t', 'the candidate is not overtaken');
	ask($client, "SELECT pg_cancel_backend($waiting->{pid})");
	collect($waiting);
	is($waiting->{code}, '57014', 'cancelled');
	no_trace($node, $waiting->{pid}, 'nothing of that is left');
	is_new(lead_once($client, 'lost'), 'in session scope, it is led at once');
	is_new(lead_once($client, 'lost', 'le_try_become_leader_xact'), 'in transaction scope, too');
	is(ask($client, "SELECT le_renew('held', $held)"), 't', 'a lease that arrived is renewed');
	kill_client($client, $waiting);
	return;
}

# A wait that began before the server was started again is of no account; one that is
# over is never to be waited for again
sub wait_is_over_once
{
	my ($node, $held) = @_;
	$node->append_conf('postgresql.conf', "leader_election.max_ttl = '${max_ttl}s'");
	$node->restart;
	my @clients = map { session($node) } 1 .. 3;
	my $before = monotonic();
	post($clients[0], q{CALL le_campaign('lost', ttl => '1 s')});
	post($clients[1], q{CALL le_campaign(ARRAY['held', 'lost too', 'free'], ttl => '1 s')});
	my $early = 0;
	my $answer;
	until (($answer = ask($clients[2], q{SELECT le_lease('polled', '1 s')})) ne '')
	{
		die "no lease: $clients[2]->{error}" if $clients[2]->{code} ne 'LE003' || monotonic() > $before + 60;
		hear(0.02, @clients);
		$early ||= monotonic() < $before + $max_ttl && grep { $_->{ready} } @clients[0, 1];
	}
	cmp_ok(monotonic(), '>=', $before + $max_ttl, 'none is granted before the longest ttl from the start is over');
	ok(!$early, 'to no candidate');
	cmp_ok($_, '>', $greatest, 'then it is')
	  foreach $answer, collect($clients[0]), (split /\|/, collect($clients[1]))[0];
	cmp_ok(monotonic(), '<', $before + $max_ttl + 20, 'and not much later');
	$greatest = greatest_token($node);
	is(ask($clients[2], "SELECT le_renew('held', $held), le_lease('held', '1 s') IS NULL"), 't|t', 'none that is held was granted twice');
	kill_client(@clients);

	$node->append_conf('postgresql.conf', 'leader_election.max_ttl = 1d');
	$node->restart;
	my $client = session($node);
	is_new(ask($client, q{SELECT le_lease('after a restart', '1 h')}), 'once it is over, a restart does not begin it again');
	is(ask($client, "SELECT le_renew('held', $held)"), 't', 'and the old lease is held on');
	kill_client($client);
	return;
}

foreach my $synchronous (0, 1)
{
	subtest $synchronous ? 'a synchronous standby' : 'an asynchronous standby' => sub {
		my $suffix = $synchronous ? 'sync' : 'async';
		my $primary = new_server("primary_$suffix", allows_streaming => 1,
			conf => "autovacuum = off\nmax_prepared_transactions = 5\nmax_wal_senders = 5\n");
		local $greatest = 0;
		$primary->backup('base');
		my $standby = standby_of("standby_$suffix", $primary);
		$primary->append_conf('postgresql.conf', q{synchronous_standby_names = '*'}) if $synchronous;
		$primary->reload;
		# a lease is denied while the standby does not answer
		$primary->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'})
		  if $synchronous;

		my $client = session($primary);
		my $leader = session($primary);
		my $open = session($primary);
		my $resigned;
		my %lease = map { ($_ => take_new($client, $_, '1 h')) } 'held', 'prepared', 'resigned', 'resigned late', 'lasting', 'shortened';
		is(ask($client, "SELECT le_renew('lasting', $lease{lasting}, '2 h'), le_renew('shortened', $lease{shortened}, '20 min'), le_resign('resigned', $lease{resigned})"), 't|t|t', 'leases');
		ask($client, 'CREATE TABLE written ()');
		ask($client, "BEGIN; SELECT le_assert_leader('prepared', $lease{prepared}); INSERT INTO written DEFAULT VALUES; PREPARE TRANSACTION 'guarded'");
		is($client->{error}, '', 'a guarded transaction is prepared');
		is(ask($leader, q{SELECT le_try_become_leader('job'), le_try_become_leader('5')}), 't|t', 'leaders in session scope');
		ask($open, 'BEGIN');
		take_new($open, 'uncommitted', '1 h');
		my $load = start_load($primary, $lease{held});
		$primary->poll_query_until('postgres', q{SELECT count(DISTINCT name) = 10 FROM pg_stat_leader_election WHERE terms > 10 AND name ~ '^[slt][0-9]$' OR name = 'held'});
		stop_load($load) if $synchronous;
		ask($client, q{SELECT le_resign(name, token) FROM le_leaders WHERE name ~ '^l[0-9]$'});
		ask($client, q{SELECT le_declare('raised', max_ttl => '100 ms')});
		catch_up($primary, $standby);
		my $there = session($standby);
		reads_on_standby($there, $lease{held}) if $synchronous;

		cut_off($primary, $standby);
		if ($synchronous)
		{
			# the rest of the block
			my $last = ask($client, 'SELECT last_value FROM le_token_seq');
			my $rest = $last - lead_once($client, 'more');
			is(ask($client, "SELECT count(*) FROM generate_series(1, $rest - 1) WHERE le_try_become_leader('more') AND le_resign('more')"), $rest - 1, 'elections out of the present block do not wait');
			is(ask($client, q{SELECT le_try_become_leader('more'), le_token('more')}), "t|$last", 'to its last token');
			is(ask($client, "SELECT le_renew('held', $lease{held})"), 't', 'nor does a renewal');
			post($leader, q{SELECT le_become_leader('next'), le_token('next')});
			ok(ask_until($client, "SELECT wait_event FROM pg_stat_activity WHERE pid = $leader->{pid}", 'SyncRep'), 'the next block waits for the standby');
			is(ask($client, q{SELECT count(*) FROM le_leader('next')}), '0', 'before any session is elected');
			ask($client, q{SET statement_timeout = '200 ms'});
			fails($client, q{SELECT le_become_leader_xact('another')}, '57014', 'each session that needs one waits');
			is(ask($client, q{SELECT le_try_become_leader_xact('another')}), 'f', 'or is denied');
			is(greatest_token($primary), $last, 'none of it has been handed out');
			ask($client, 'RESET statement_timeout');
			ask($client, "SELECT pg_cancel_backend($leader->{pid})");
			collect($leader);
			is($leader->{code}, '57014', 'a wait that is cancelled');
			is(ask($client, q{SELECT count(*) FROM le_leader('next')}), '0', 'ends without an election');
			$primary->append_conf('postgresql.conf', q{synchronous_standby_names = ''});
			$primary->reload;
		}
		is(ask($client, q{SELECT count(*) FROM generate_series(1, 10000) WHERE le_try_become_leader('more') AND le_resign('more')}), '10000', '10,000 more elections');
		my $lost = take_new($client, 'lost', '1 h');
		is(ask($client, q{SELECT le_declare('raised', max_ttl => '1 h')}), '', 'a declaration that will not arrive');
		take_new($client, 'raised', '1 h');
		is(ask($client, "SELECT le_resign('resigned late', $lease{'resigned late'})"), 't', 'a resignation that will not arrive');
		kill_server($primary);
		stop_load($load) unless $synchronous;
		$greatest = greatest_token($primary);
		cmp_ok($greatest, '>', 10000, 'tokens were handed out');
		kill_client($client, $leader, $open);

		$standby->promote;
		is(ask($there, q{SELECT le_am_leader('job'), le_am_leader('5'), le_resign_all()}), 'f|f|0', 'a session that was there before holds nothing');
		is(shown($there, 'name', 'true') =~ s/, l[0-9]//gr, 'held, lasting, prepared, resigned late, shortened', 'the only leaders are those by leases that arrived');
		is(ask($there, "SELECT le_renew('lost', $lost), le_renew('resigned', $lease{resigned})"), 'f|f', 'no other one is renewed');
		my $first = is_new(lead_once($there, 'job'), 'it is elected, with a greater token');
		is(ask($there, q{SELECT le_try_become_leader('5')}), 't', 'the other, too');
		is_new(ask($there, q{SELECT le_token('5')}), 'tokens grow');
		is_new(lead_once($there, 'job', 'le_become_leader_xact'), 'in transaction scope, too');
		is(ask($there, "SELECT le_renew('$_', $lease{$_})"), 't', "\"$_\" is renewed") foreach 'held', 'lasting', 'shortened';
		is(ask($there, "SELECT le_am_leader('held', $lease{held}), le_assert_leader('held', $lease{held})"), 't|', 'and guards');

		subtest 'before the wait for other leases is over' => sub { no_lease_yet($standby, $lease{held}) };
		subtest 'a prepared transaction that is guarded' => sub { prepared_holds($standby, $lease{prepared}) };
		subtest 'when it is over' => sub { wait_is_over_once($standby, $lease{held}) } unless $synchronous;

		subtest 'the old primary beside the new one' => sub {
			$primary->start;
			my $zombie = session($primary);
			ask($zombie, q{SELECT count(*) FROM generate_series(1, 3000) WHERE le_try_become_leader('more') AND le_resign('more')});
			cmp_ok(lead_once($zombie, 'job'), '<', $first, 'its tokens are lower');
			cmp_ok(greatest_token($primary), '<', $first, 'all of them');
			kill_client($zombie);
			$primary->stop('immediate');
		};
		kill_client($there);
		second_promotion($standby) unless $synchronous;
		unlike(slurp_file($_->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log') foreach $primary, $standby;
		$standby->stop('immediate');
	};
}

# A standby of the new primary, and one of that one
sub second_promotion
{
	my ($node) = @_;
	$node->backup('base');
	my $second = standby_of('second', $node);
	my $third = standby_of('third', $second, $node);

	subtest 'the next promotion' => sub {
		my $client = session($node);
		catch_up($node, $second);
		cut_off($node, $second);
		is_new(lead_once($client, 'job'), 'a token that does not arrive');
		is(ask($client, q{SELECT count(*) FROM generate_series(1, 2000) WHERE le_try_become_leader('more') AND le_resign('more')}), '2000', 'and more of them');
		$greatest = greatest_token($node);
		kill_server($node);
		kill_client($client);

		# none is drawn before the third one has lost it
		$second->promote;
		ok($third->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE received_tli = 3}), 'its own standby follows it');
		cut_off($second, $third);
		$client = session($second);
		is_new(lead_once($client, 'job'), 'the token is greater');
		is(ask($client, q{SELECT count(*) FROM generate_series(1, 2000) WHERE le_try_become_leader('more') AND le_resign('more')}), '2000', 'and more of them');
		$greatest = greatest_token($second);
		kill_server($second);
		kill_client($client);

		$third->promote;
		$client = session($third);
		is_new(lead_once($client, 'job'), 'a promotion of which no token has arrived counts, too');
		kill_client($client);
		$third->stop('immediate');
	};
}

done_testing();
