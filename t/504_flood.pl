# One session asks for more elections than an application needs.  A limit stops
# it, with an error that says so.  Meanwhile other sessions are still elected,
# and memory is used again.
#
# alone: it measures time

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('flood', conf => qq{
autovacuum = off
log_statement = none
leader_election.log_terms = off
leader_election.max_tracked = 1000
leader_election.max_elections = 1000000
});
$node->safe_psql('postgres', 'CREATE ROLE regress_flood LOGIN; ALTER ROLE regress_flood SET leader_election.max_elections_per_role = 1000000; GRANT CREATE ON SCHEMA public TO regress_flood; GRANT pg_read_all_stats TO regress_flood');
my $flood = session($node, user => 'regress_flood');
my $other = session($node);
my $session = session($node);

# Another session is elected, in no time
sub elected
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = monotonic();
	my $name = 'other ' . ++(our $elections);
	is(ask($other, "SELECT le_try_become_leader('$name'), le_become_leader_xact('$name x', '10 s'), le_resign('$name')"), 't|t|t', $test)
	  or diag($other->{error});
	cmp_ok(monotonic() - $before, '<', 8, 'without a wait, which lasts 10 s');
	return;
}

sub tracked
{
	return ask($other, 'SELECT elections FROM pg_stat_leader_election_info');
}

sub flood_memory
{
	return ask($flood, 'SELECT sum(used_bytes) FROM pg_backend_memory_contexts');
}

subtest 'in one transaction' => sub {
	foreach my $bid (q{le_try_become_leader('n' || i)}, q{le_become_leader('n' || i, '0')}, q{le_try_become_leader_xact('n' || i)},
		q{le_lease('n' || i, '1 h') > 0})
	{
		fails($flood, "SELECT count(*) FROM generate_series(1, 1000000::bigint) i WHERE $bid", '53400', "a million, by $bid");
		elected('others are elected');
		is(ask($flood, q{SELECT le_resign_all() IN (0, 1000)}), 't', 'what it has, it can resign from');
	}
	is(ask($other, 'SELECT count(*) FROM le_leaders'), '0', 'all free again');
	is(ask($other, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'in the lock table, too');
};

# Beyond leader_election.max_tracked come those that were in use when elections were last
# forgotten
my $many = 2200;

subtest 'in many transactions' => sub {
	my $statement = q{DO $$ BEGIN FOR i IN %d .. %d LOOP PERFORM le_try_become_leader('m' || i); PERFORM le_resign('m' || i); COMMIT; END LOOP; END $$};
	ask($flood, sprintf $statement, 1, 5000);
	is($flood->{code}, '', 'five times as many as are tracked');
	cmp_ok(tracked(), '<=', $many, 'most are forgotten');
	my $memory = flood_memory();
	my $shared = shared_size($session);
	ask($flood, sprintf $statement, 5001, 15000);
	cmp_ok(tracked(), '<=', $many, 'and of as many more');
	cmp_ok(shared_size($session), '<=', $shared, 'in the same shared memory');
	cmp_ok(flood_memory(), '<', $memory + 100_000, 'and the same memory of the session');
	elected('others are elected');
};

subtest 'observers' => sub {
	ask($flood, q{DO $$ DECLARE o bigint; t bigint; i text; v text; BEGIN FOR n IN 1 .. 5000 LOOP CALL le_observe('o' || n, o, '0', t, i, v); END LOOP; END $$});
	is($flood->{code}, '', 'observes many, one after another') or diag($flood->{error});
	cmp_ok(tracked(), '<=', $many, 'which are forgotten');
	my $before = tracked();
	ask($flood, q{SELECT count(*) FROM generate_series(1, 1000) n, LATERAL le_leader('l' || n)});
	cmp_ok(tracked(), '<=', $before, 'to look is to leave nothing');
	elected('others are elected');
};

# Each lease is an entry, as long as it runs: nothing but their ttl bounds them
subtest 'leases' => sub {
	my $statement = q{DO $$ BEGIN FOR i IN 1 .. 2000 LOOP PERFORM le_lease('%s' || i, '%s'); COMMIT; END LOOP; END $$};
	ask($flood, sprintf $statement, 'a', '3 s');
	is($flood->{code}, '', 'more than one session may lead');
	cmp_ok(ask($other, q{SELECT count(*) FROM le_leaders WHERE scope = 'lease'}), '>', 1000, 'all run');
	elected('others are elected');
	ask_until($other, 'SELECT count(*) FROM le_leaders', '0', 10);
	my @tracked;
	foreach my $round (1 .. 4)
	{
		ask($flood, sprintf $statement, "b$round", '100 ms');
		sleep_past(monotonic() + 0.1);	# a fast machine takes so many in less
		push @tracked, tracked();
	}
	my $shared = shared_size($session);
	cmp_ok($tracked[3], '<', 6000, "those that are over are forgotten: @tracked of 8000");
	ask_until($other, 'SELECT count(*) FROM le_leaders', '0', 10);
	ask($flood, sprintf $statement, 'c', '100 ms');
	cmp_ok(shared_size($session), '<=', $shared, 'as many again take no more memory');
	cmp_ok(ask($other, 'SELECT count(*) FROM le_leases'), '<', 6000, 'and their rows are cleared');
};

subtest 'a campaign for very many' => sub {
	# no session is elected in an election of which nothing is known
	my $names = q{SELECT set_config('flood.names', (SELECT array_agg('%s' || i)::text FROM generate_series(1, %d) i), false) IS NULL};
	my $campaign = q{DO $$ DECLARE t bigint; n text; BEGIN CALL le_campaign(current_setting('flood.names')::text[], '%s', token => t, name => n); END $$};
	ask($flood, 'SELECT le_try_become_leader($$a$$), le_resign($$a$$)');
	$node->safe_psql('postgres', q{ALTER ROLE regress_flood SET leader_election.grace_period = '1 h'});
	kill_client($flood, $other);
	end_session($session);
	$node->restart;
	$flood = session($node, user => 'regress_flood');
	$other = session($node);
	$session = session($node);

	ask($flood, sprintf $names, 'c', 200000);
	my $memory = flood_memory();
	post($flood, sprintf $campaign, '1 h');
	ok(ask_until($other, 'SELECT count(*) FROM le_candidates', '200000'), 'for 200,000 elections');
	elected('others are elected') for 1 .. 3;
	is(ask($other, q{SELECT le_try_become_leader('c77'), le_resign('c77')}), 't|t', 'in one of those, too');
	ask($other, "SELECT pg_cancel_backend($flood->{pid})");
	collect($flood);
	is($flood->{code}, '57014', 'until it is cancelled') or diag($flood->{error});
	cmp_ok(flood_memory(), '<', $memory + 1_000_000, 'memory is given back');
	is(ask($other, 'SELECT count(*) FROM le_candidates'), '0', 'there is no candidate');
	elected('others are elected');
	cmp_ok(tracked(), '<', 20000, 'most elections are forgotten');
	my $shared = shared_size($session);
	diag("200,000 names: $shared bytes of shared memory");
	my @sizes;
	foreach my $round (1 .. 3)
	{
		ask($flood, sprintf $names, "d$round", 50000);
		ask($flood, sprintf $campaign, '1 ms');
		is($flood->{code}, '', 'its time is over') or diag($flood->{error});
		elected('others are elected');
		push @sizes, shared_size($session);
		cmp_ok(tracked(), '<', 70000, 'and forgotten');
	}
	cmp_ok($sizes[2], '<=', $sizes[0], "others take the same memory: @sizes");

	# cancelled, and killed
	post($flood, sprintf $campaign, '1 h');
	ask_until($other, 'SELECT count(*) > 0 FROM le_candidates', 't', 20);
	ask($other, "SELECT pg_cancel_backend($flood->{pid})");
	collect($flood);
	is($flood->{code}, '57014', 'cancelled');
	post($flood, sprintf $campaign, '1 h');
	ask_until($other, 'SELECT count(*) > 0 FROM le_candidates', 't', 20);
	is(ask($other, "SELECT pg_terminate_backend($flood->{pid}, 20000)"), 't', 'terminated');
	is(ask($other, 'SELECT count(*) FROM le_candidates'), '0', 'nothing is left');
	elected('others are elected');
	cmp_ok(tracked(), '<', 70000, 'and all is forgotten');
};

subtest 'a limit for all' => sub {
	$node->safe_psql('postgres', 'ALTER ROLE regress_flood RESET leader_election.grace_period');
	$flood = session($node, user => 'regress_flood');
	my $mine = ask($other, q{SELECT le_lease('mine', '1 h')});
	ask($other, "ALTER SYSTEM SET leader_election.$_") foreach 'max_tracked = 100', 'max_elections = 3000';
	$node->reload;
	ask_until($other, 'SHOW leader_election.max_elections', '3000');
	ask_until($other, q{SELECT elections < 1000 FROM pg_stat_leader_election_info, le_try_become_leader('x'), le_resign('x')}, 't', 10);
	fails($flood, q{DO $$ DECLARE t bigint; n text; names text[] := (SELECT array_agg('m' || i) FROM generate_series(1, 3001) i); BEGIN CALL le_campaign(names, '0', token => t, name => n); END $$}, '53400', 'more names than the server may know of');
	fails($flood, q{DO $$ BEGIN FOR i IN 1 .. 4000 LOOP PERFORM le_lease('lim' || i, '1 h'); COMMIT; END LOOP; END $$}, '53400', 'more leases');
	cmp_ok(tracked(), '<=', 3000, 'it does not');
	is(ask($other, "SELECT le_renew('mine', $mine), le_resign('mine', $mine)"), 't|t', 'a leader renews, and resigns');
	cmp_ok(ask($flood, q{SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders}), '>', 1300, 'leases are given up');
	ok(ask_until($other, q{SELECT le_try_become_leader('y'), le_resign('y')}, 't|t', 10), 'and make room for others');
	ask($flood, q{DO $$ BEGIN FOR i IN 1 .. 4000 LOOP PERFORM le_lease('short' || i, '100 ms'); COMMIT; END LOOP; END $$});
	ok(ask_until($other, q{SELECT le_try_become_leader('z'), le_resign('z')}, 't|t', 10), 'so do those that run out');
	ask_until($other, 'SELECT count(*) FROM le_leaders', '0', 10);
	ask($other, "ALTER SYSTEM SET leader_election.$_") foreach 'max_tracked = 5000', 'max_elections = 1000';
	$node->reload;
	ask_until($other, 'SHOW leader_election.max_elections', '1000');

	# leases that are over are cleared away once a second
	ok(ask_until($other, q{SELECT le_try_become_leader('z'), le_resign('z')}, 't|t', 10), 'there is room within a lower limit');
	is(ask($flood, q{SELECT count(*) FROM generate_series(1, 3000) i WHERE le_try_become_leader('idle' || i) AND le_resign('idle' || i)}), '3000',
		'nor do elections without a leader take up room') or diag($flood->{error});
	elected('others are elected');
	kill_client($flood);
};

kill_client($other);
end_session($session);

# With the settings as they are by default
my $default = new_server('bounds', conf => "autovacuum = off\nlog_statement = none\nmax_prepared_transactions = 2\n");
$default->append_conf('postgresql.conf', 'leader_election.log_terms = off');
$default->reload;
$default->safe_psql('postgres', q{CREATE ROLE regress_flood LOGIN; CREATE ROLE regress_other LOGIN; SELECT le_declare('declared')});

# As many leases as it can have, so many in a transaction
sub take_all
{
	my ($client, $prefix, $ttl, $at_once) = @_;
	ask($client, qq{DO \$\$ BEGIN FOR r IN 0 .. 2000 LOOP
		PERFORM le_lease('$prefix ' || r * $at_once + i, '$ttl') FROM generate_series(1, $at_once) i; COMMIT; END LOOP; END \$\$});
	return $client->{code};
}

sub elects
{
	my ($client, $test, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$name //= 'other ' . ++(our $others);
	is(ask($client, "SELECT le_try_become_leader('$name'), le_resign('$name'), le_become_leader_xact('$name', '1 s')"), 't|t|t', $test)
	  or diag($client->{error});
	is(ask($client, "SELECT le_resign('$name', le_lease('$name', '1 min'))"), 't', '... and by a lease') or diag($client->{error});
	return;
}

subtest 'what one role can take' => sub {
	my $mallory = session($default, user => 'regress_flood');
	my $other_role = session($default, user => 'regress_other');
	my $boss = session($default);
	is(take_all($mallory, 'all', '1 h', 500), '53400', 'it cannot take them all');
	like($mallory->{error}, qr/too many elections for role "regress_flood": at most 10000 at a time/, 'which it is told');
	is(ask($boss, q{SELECT count(*) FROM le_leaders}), '10000', 'it has ten thousand');
	my $second = session($default, user => 'regress_flood');
	fails($second, q{SELECT le_lease('one more', '1 s')}, '53400', 'nor by another session');
	fails($second, q{CALL le_observe('one more', 1, '0')}, '53400', 'nor does it observe');
	fails($second, q{CALL le_campaign(ARRAY['one more'], '0')}, '53400', 'nor campaign for one of many');
	is(ask($second, q{SELECT count(*) FILTER (WHERE le_renew(name, token)) FROM le_leaders}), '10000', 'but it renews what it has');
	fails($second, q{SELECT le_try_become_leader('by a lock')}, '53400', 'and leads no more by a lock');
	elects($other_role, 'another role is elected');
	elects($boss, 'so is a superuser');

	# memory is not taken before that is looked at
	my $before = peak_memory($second);
	fails($second, q{DO $$ DECLARE t bigint; n text; names text[] := (SELECT array_agg('' || i || '.') FROM generate_series(1, 1000000) i);
		BEGIN CALL le_campaign(names, '0', token => t, name => n); END $$}, '53400', 'a million names are too many');
	cmp_ok(peak_memory($second) - $before, '<', 250_000, 'and take no memory but their own');

	# one lease less makes room for one
	is(ask($second, q{SELECT le_resign('all 7', token) FROM le_leader('all 7')}), 't', 'a lease is resigned');
	ask_until($second, q{SELECT le_lease('all 7', '1 h') > 0}, 't', 10);
	is($second->{code}, '', 'and another one taken') or diag($second->{error});

	# what is reserved
	ask($boss, "ALTER SYSTEM SET leader_election.$_") foreach 'max_elections = 22000', 'max_tracked = 100';
	$default->reload;
	ask_until($_, 'SHOW leader_election.max_elections', '22000') foreach $boss, $other_role;
	fails($other_role, $_, '53400', "the database's part is in use: $_")
	  foreach q{SELECT le_try_become_leader('undeclared')}, q{SELECT le_lease('undeclared', '1 s')}, q{CALL le_campaign(ARRAY['undeclared', 'declared'], '0')};
	like($other_role->{error}, qr/too many elections led in this database: at most 11000 at a time, which is half of what the server may know of/, 'with the limit');
	elects($other_role, 'a declared election has its room', 'declared');
	elects($boss, 'and so has a superuser');
	is(ask($other_role, q{SELECT le_try_become_leader('declared'), le_resign('declared')}), 't|t', 'again');

	# one statement ends it all
	my $start = monotonic();
	is(ask($boss, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_flood'}), '10000', 'all that it has is ended') or diag($boss->{error});
	diag(sprintf 'in %.1f s', monotonic() - $start);
	is(ask($boss, q{SELECT count(*) FROM le_leaders}), '0', 'there is no leader');
	is(ask($boss, q{SELECT count(*) FROM le_leases WHERE ttl > '0'}), '0', 'nor will after a restart');
	ok(ask_until($other_role, q{SELECT le_try_become_leader('undeclared'), le_resign('undeclared')}, 't|t', 30), 'there is room for all');
	ok(ask_until($mallory, q{SELECT le_lease('all 1', '100 ms') > 0}, 't', 30), 'for that role, too');
	$default->safe_psql('postgres', 'ALTER SYSTEM RESET ALL');
	$default->reload;
	ask_until($boss, 'SHOW leader_election.max_elections', '100000');

	# leases that have run out make room
	is(take_all($mallory, 'short', '5 s', 500), '53400', 'it takes all again') if ask_until($boss, 'SELECT count(*) FROM le_leaders', '0', 10);
	ok(ask_until($mallory, q{SELECT le_lease('again', '100 ms') > 0}, 't', 30), 'until they have run out');
	ask($boss, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_flood'});
	kill_client($mallory, $second, $other_role, $boss);
};

# The greatest size that the backend has had, in kB
sub peak_memory
{
	my ($client) = @_;
	return slurp_file("/proc/$client->{pid}/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 : die;
}

# The owner of a database can declare elections without end
subtest 'declared without end' => sub {
	$default->safe_psql('postgres', 'CREATE ROLE regress_tenant LOGIN CREATEDB; CREATE DATABASE tenant OWNER regress_tenant');
	# leases of the test before that have expired, but were not bid for, would run once more after the restart
	$default->safe_psql('postgres', 'DROP EXTENSION leader_election');
	create_extension($default, 'postgres');
	$default->append_conf('postgresql.conf', "leader_election.max_elections = 1000\nleader_election.max_elections_per_role = 200");
	$default->restart;
	my $tenant = session($default, db => 'tenant', user => 'regress_tenant');
	ask($tenant, 'CREATE EXTENSION leader_election');
	ask($tenant, q{SELECT count(le_declare('d' || i)) FROM generate_series(1, 1000) i});
	ask($tenant, q{SELECT count(*) FILTER (WHERE le_try_become_leader('d' || i) AND le_resign('d' || i)) FROM generate_series(1, 1000) i});
	is($tenant->{code}, '', 'the owner of a database declares and leads all there can be');
	my $other = session($default, user => 'regress_other');
	my $boss = session($default);
	ok(ask_until($other, q{SELECT le_try_become_leader('elsewhere'), le_resign('elsewhere')}, 't|t', 30), 'another role is elected elsewhere')
	  or diag($other->{error});
	is(ask($boss, q{SELECT le_try_become_leader('boss'), le_resign('boss')}), 't|t', 'and a superuser') or diag($boss->{error});
	kill_client($tenant, $other, $boss);
	$default->safe_psql('postgres', 'DROP DATABASE tenant WITH (FORCE); DROP ROLE regress_tenant');
	$default->append_conf('postgresql.conf', 'leader_election.max_elections_per_role = 10000');
};

# A database has less than half of the server's room, and its leases make room there only
subtest 'leases of other databases' => sub {
	my $parts = new_server('parts', conf => "autovacuum = off\nlog_statement = none\nleader_election.log_terms = off\nleader_election.max_tracked = 100\nleader_election.max_elections = 1000\n");
	$parts->safe_psql('postgres', q{CREATE ROLE regress_flood LOGIN; CREATE ROLE regress_other LOGIN});
	my %flood;
	foreach my $database ('one', 'two', 'three')
	{
		$parts->safe_psql('postgres', "CREATE DATABASE $database");
		create_extension($parts, $database);
	}
	my $other = session($parts, user => 'regress_other');
	my $boss = session($parts);
	foreach my $database ('one', 'two')
	{
		is(ask($other, q{SELECT le_try_become_leader('here'), le_resign('here')}), 't|t', "before $database, another role is elected");
		$flood{$database} = session($parts, db => $database, user => 'regress_flood');
		is(take_all($flood{$database}, 'n', '6 s', 1), '53400', "as many as there is room for in $database");
		like($flood{$database}{error}, qr/too many elections led in this database: at most 500/, 'which it is told') if $database eq 'one';
		is(ask($flood{$database}, q{SELECT count(*) FROM le_leaders}), '450', 'less than half of the server');
	}
	fails($other, q{SELECT le_try_become_leader('here')}, '53400', 'two such databases leave what is reserved');
	is(ask($boss, q{SELECT le_try_become_leader('boss'), le_resign('boss')}), 't|t', 'for a superuser');
	ok(ask_until($flood{one}, 'SELECT count(*) FROM le_leaders', '0', 20), 'they expire');
	ok(ask_until($flood{two}, 'SELECT count(*) FROM le_leaders', '0', 20), 'all');
	fails($other, q{SELECT le_try_become_leader('here')}, '53400', 'and make no room elsewhere');
	elects($flood{two}, 'but where they were');
	ok(ask_until($other, q{SELECT le_try_become_leader('here'), le_resign('here')}, 't|t', 20), 'so there is room for all');
	is(ask($other, q{SELECT count(le_lease('here ' || i, '1 h')) FROM generate_series(1, 400) i}), '400', 'for many') or diag($other->{error});

	# a database that is dropped makes room, too, and an extension that is created again
	$flood{three} = session($parts, db => 'three', user => 'regress_flood');
	is(take_all($flood{three}, 'n', '1 h', 1), '53400', 'all is taken again');
	kill_client(values %flood);
	fails($other, q{SELECT le_try_become_leader('here')}, '53400', 'for others, too');
	$parts->safe_psql('postgres', 'DROP DATABASE one WITH (FORCE)');
	ok(ask_until($other, q{SELECT le_try_become_leader('here'), le_resign('here')}, 't|t', 30), 'but after DROP DATABASE');
	$parts->safe_psql('three', 'DROP EXTENSION leader_election');
	create_extension($parts, 'three');
	$flood{three} = session($parts, db => 'three', user => 'regress_flood');
	elects($flood{three}, 'after DROP and CREATE EXTENSION, in that database');
	is(ask($flood{three}, q{SELECT count(le_lease('three ' || i, '1 h')) FROM generate_series(1, 400) i}), '400', 'for many') or diag($flood{three}{error});
	is(ask($other, q{SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders}), '400', 'those here are resigned');
	kill_client($other, $boss, $flood{three});
	unlike(slurp_file($parts->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
	$parts->stop;
};

unlike(slurp_file($default->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$default->stop;
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
