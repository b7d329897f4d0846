# Sixty sessions ask for elections at the same time.  However they come together, neither
# the limit of their role nor that of the server is exceeded, and what is reserved stays
# free: declared elections and superusers are elected.  The elections cannot be won at
# once, so that the sessions go on waiting.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $sessions = 60;
my $per_role = 500;
my $max = 2000;

my $node = new_server('limits_at_once', allows_streaming => 1, conf => qq{
max_connections = 100
autovacuum = off
log_statement = none
leader_election.log_terms = off
leader_election.max_tracked = 100
leader_election.max_elections = $max
leader_election.max_elections_per_role = $per_role
});
$node->safe_psql('postgres', q{
CREATE ROLE regress_mallory LOGIN;
CREATE ROLE regress_w1 LOGIN;
SELECT le_declare('vital', 'regress_w1');
INSERT INTO _le_declarations (name, grace) SELECT 'T' || k || '/' || i, '1 day' FROM generate_series(1, 60) k, generate_series(1, 30) i;
-- so that after a restart, elections that are not known may have had a leader
SELECT le_try_become_leader('before');
});

my @mallory;
my ($postgres, $w1);

sub start_anew
{
	my (%settings) = @_;
	kill_client($_) foreach @mallory, grep { defined } $postgres, $w1;
	my @settings = map { "ALTER ROLE regress_mallory SET $_ = '$settings{$_}'" } keys %settings;
	$node->safe_psql('postgres', join ';', 'SET synchronous_commit = local', 'ALTER ROLE regress_mallory RESET ALL', @settings);
	$node->restart;
	$postgres = session($node);
	$w1 = session($node, user => 'regress_w1');
	@mallory = map { session($node, user => 'regress_mallory') } 1 .. $sessions;
	ask($_, 'SET client_min_messages = error; SET statement_timeout = 0') foreach @mallory;
	return;
}

sub known { return ask($postgres, 'SELECT elections FROM pg_stat_leader_election_info'); }

# All of them call at the same moment: when a lock is released that they wait for
sub all_at_once
{
	my ($call) = @_;
	ask($postgres, 'SELECT pg_advisory_lock(0, 7)');
	post($mallory[$_], 'DO $$ DECLARE t bigint; n text; l record; BEGIN PERFORM pg_advisory_lock_shared(0, 7); PERFORM pg_advisory_unlock_shared(0, 7); '
		  . ($call =~ s/#/$_ + 1/egr) . ' END $$') foreach 0 .. $#mallory;
	ask_until($postgres, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, $sessions, 30);
	ask($postgres, 'SELECT pg_advisory_unlock(0, 7)');
	return;
}

# The greatest number that is seen until all have an answer, or for three seconds
sub greatest
{
	my ($query) = @_;
	my $greatest = 0;
	my $until = monotonic() + 3;
	while (monotonic() < $until)
	{
		my $now = ask($postgres, $query);
		$greatest = $now if $now > $greatest;
	}
	return $greatest;
}

# That a limit is nearly reached, by calls for 100 elections each, and not exceeded
sub is_nearly
{
	my ($number, $limit, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($number, '<=', $limit, $what);
	cmp_ok($number, '>=', $limit - 102, 'though nearly as many');
	return;
}

sub others_are_elected
{
	my (%what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(ask($w1, q{SELECT le_try_become_leader('vital'), le_resign('vital')}), 't|t', 'the declared election has a leader');
	is(ask($postgres, q{SELECT le_try_become_leader('root'), le_resign('root')}), 't|t', 'a superuser is elected');
	is(ask($w1, q{SELECT le_try_become_leader('plain'), le_resign('plain')}), 't|t', 'and another role') if $what{plain};
	return;
}

sub wait_for_answers
{
	ask($postgres, q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'regress_mallory'});
	collect($_) foreach @mallory;
	ask_until($postgres, 'SELECT count(*) FROM le_candidates', '0', 10);
	return;
}

# Bid for so many elections that those which may be evicted are
sub evict_others
{
	ask($w1, q{SELECT le_resign_all()});
	foreach (1 .. 4)
	{
		my $name = 'flood ' . ++(our $floods);
		ask($w1, "SELECT count(le_try_become_leader('$name/' || i)) FROM generate_series(1, 500) i");
		ask($w1, q{SELECT le_resign_all()});
	}
	return;
}

my $campaign = q{CALL le_campaign(le_seats('T#', 100), timeout => '20 s', token => t, name => n);};
my $in_line = q{SELECT count(*) FROM le_candidates};

subtest 'a role, in elections that are declared' => sub {
	my $campaign = $campaign =~ s/100/30/r;
	start_anew();
	all_at_once($campaign);
	cmp_ok(greatest($in_line), '<=', $per_role, 'no more candidates than the role may have');
	others_are_elected(plain => 1);
	wait_for_answers();
	all_at_once($campaign);
	cmp_ok(greatest($in_line), '>=', $per_role - 30, 'all is given back');
	wait_for_answers();
};

subtest 'a role, in elections in their grace period' => sub {
	start_anew('leader_election.grace_period' => '1 h');
	all_at_once($campaign =~ s/T#/Q#/r);
	is_nearly(greatest($in_line), $per_role, 'no more candidates than the role may have');
	cmp_ok(known(), '<=', $per_role + 100, 'and the server knows of no more');
	others_are_elected(plain => 1);
	wait_for_answers();
};

subtest 'a role, while the synchronous standby is away' => sub {
	kill_client($_) foreach @mallory;
	@mallory = ();
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nosuch'");
	$node->restart;
	start_anew();
	all_at_once($campaign =~ s/T#/Q#/r);
	is_nearly(greatest($in_line), $per_role, 'no more candidates than the role may have');
	wait_for_answers();
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	ask_until($w1, 'SHOW synchronous_standby_names', '', 10);
	others_are_elected(plain => 1);
};

subtest 'a role, in elections that are led' => sub {
	start_anew();
	ask($postgres, q{SELECT count(le_try_become_leader(n)) FROM unnest(le_seats('led', 100)) n});
	all_at_once($campaign =~ s/T#/led/r);
	is_nearly(greatest($in_line), $per_role, 'no more candidates than the role may have');
	others_are_elected(plain => 1);
	wait_for_answers();
};

subtest 'a role, by leases' => sub {
	start_anew();
	all_at_once(q{PERFORM le_lease('lease#/' || i, '1 h') FROM generate_series(1, 20) i;});
	cmp_ok(greatest(q{SELECT count(*) FROM le_leaders WHERE scope = 'lease'}), '<=', $per_role, 'no more leases than the role may have');
	wait_for_answers();
	is(ask($postgres, q{SELECT count(*) FILTER (WHERE le_depose(name)) > 0 FROM le_leaders WHERE usename = 'regress_mallory'}), 't', 'they are ended');

	# a lease that was resigned, or rolled back, makes room at once
	start_anew('leader_election.max_elections_per_role' => 2);
	my $take = q{SELECT count(le_lease('%s' || i, '1 h')) FROM generate_series(1, 2) i};
	is(ask($mallory[0], sprintf $take, 'l'), '2', 'all that it may have');
	fails($mallory[0], q{SELECT le_lease('l3', '1 h')}, '53400', 'one more');
	is(ask($mallory[0], q{SELECT count(le_resign(name, token)) FROM le_leaders}), '2', 'resigned');
	ask($mallory[0], 'BEGIN');
	is(ask($mallory[0], sprintf $take, 'm'), '2', 'as many again at once');
	ask($mallory[0], 'ROLLBACK');
	is(ask($mallory[0], sprintf $take, 'n'), '2', 'and again');
	is(ask($mallory[0], q{SELECT count(le_resign(name, token)) FROM le_leaders}), '2', 'resigned');

	# the one that a campaign wins counts once
	like(ask($mallory[0], q{CALL le_campaign('{o, p}'::text[], ttl => '1 h')}), qr/^\d+\|o$/, 'a campaign for as many')
	  or diag($mallory[0]{error});
	is(ask($mallory[0], sprintf $take, 'q'), '', 'one more is one too many');
	is(ask($mallory[0], q{SELECT le_lease('q1', '1 h') > 0}), 't', 'and one is left');

	ask($postgres, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_mallory'});

	# those that have ended in another database keep their room, so they keep counting, until they are cleared away there
	start_anew('leader_election.max_elections_per_role' => 2);
	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
	$node->safe_psql('elsewhere', q{CREATE EXTENSION leader_election; SELECT le_declare('r1'), le_declare('r2')});
	my $elsewhere = session($node, db => 'elsewhere', user => 'regress_mallory');
	my $expired = session($node, db => 'elsewhere');
	my $leases = q{SELECT count(*) FROM generate_series(1, 2) i WHERE le_resign('s' || i, le_lease('s' || i, '1 h'))};
	is(ask($elsewhere, q{SELECT count(le_lease('r' || i, '1 s')) FROM generate_series(1, 2) i}), '2', 'all that it may have');
	ok(ask_until($expired, 'SELECT count(*) FROM le_leaders', '0', 10), 'which expire');
	fails($mallory[0], $leases, '53400', 'and keep counting in other databases');
	is(ask($elsewhere, $leases), '2', 'but make room in their own');
	fails($mallory[0], $leases, '53400', 'and keep counting in other databases, though they were resigned');
	is(ask($elsewhere, q{SELECT le_try_become_leader(n), le_resign(n) FROM unnest('{t1,t2}'::text[]) n}), "t|t\nt|t", 'until they are cleared away');
	is(ask($mallory[0], $leases), '2', 'and then they count no longer');
	is(ask($mallory[0], q{SELECT le_try_become_leader('t1'), le_resign('t1')}), 't|t', 'nor here, likewise');

	# nor does a role fill the server by leases that it rolls back, in a transaction whose sweeps are rolled back as well
	my $before = known();
	ask($elsewhere, q{DO $$ BEGIN FOR i IN 1 .. 800 LOOP
		BEGIN PERFORM le_lease('u' || i, '1 h'); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END; END LOOP; END $$});
	is($elsewhere->{error}, '', 'hundreds are rolled back') or diag($elsewhere->{error});
	cmp_ok(known(), '<', $before + 200, 'and keep no room');
	end_session($elsewhere, $expired);
};

# Leases keep counting for their role, whether their database is used or not: otherwise the role
# could fill one database after another, and the rows would come back with a restart
subtest 'leases of databases without sessions' => sub {
	start_anew('leader_election.max_elections_per_role' => 500);
	my @databases = map { "unused$_" } 1 .. 3;
	$node->safe_psql('postgres', "CREATE DATABASE $_") foreach @databases;
	$node->safe_psql($_, q{CREATE EXTENSION leader_election; SELECT le_declare('crit', candidates => 'regress_w1')}) foreach @databases;
	my $there = session($node, db => $databases[0], user => 'regress_mallory');
	is(ask($there, q{SELECT count(*) FROM generate_series(1, 500) i WHERE le_lease('u' || i, '1 s') IS NOT NULL}), '500', 'all that it may have');
	ok(ask_until($there, q{SELECT count(*) FROM le_leaders}, '0', 10), 'which expire');
	end_session($there);
	foreach my $database (@databases[1, 2])
	{
		$there = session($node, db => $database, user => 'regress_mallory');
		fails($there, q{SELECT le_lease('more', '1 s')}, '53400', "and keep it from another database, $database");
		end_session($there);
	}
	$node->restart;
	$postgres = session($node);
	my $elsewhere = session($node, user => 'regress_mallory');
	foreach my $database (@databases)
	{
		$there = session($node, db => $database, user => 'regress_w1');
		is(ask($there, q{SELECT le_try_become_leader('crit')}), 't', 'a declared election is led after a restart');
		end_session($there);
	}
	cmp_ok(known(), '<', 600, 'the server knows of no more than there were');
	$there = session($node, db => $databases[0], user => 'regress_mallory');
	ok(ask_until($there, q{SELECT count(*) FROM le_leaders WHERE name <> 'crit'}, '0', 10), 'they expire again');
	ok(ask_until($there, q{SELECT le_lease('more', '1 s') > 0}, 't', 10), 'and make room in their own database');
	end_session($there);

	# without the extension, too
	$there = session($node, db => $databases[1], user => 'regress_mallory');
	is(ask($there, q{SELECT count(*) FROM generate_series(1, 400) i WHERE le_lease('u' || i, '1 h') IS NOT NULL}), '400', 'others, of an hour');
	end_session($there);
	$node->safe_psql($databases[1], 'DROP EXTENSION leader_election');
	fails($elsewhere, q{SELECT count(le_lease('m' || i, '1 s')) FROM generate_series(1, 300) i}, '53400', 'count');
	$node->safe_psql($databases[1], 'CREATE EXTENSION leader_election; SELECT count(*) FROM le_leaders');
	is(ask($elsewhere, q{SELECT count(le_lease('n' || i, '1 s')) FROM generate_series(1, 90) i}), '90', 'until the extension is created anew');
	end_session($elsewhere);
	$node->safe_psql('postgres', "DROP DATABASE $_") foreach @databases;
};

# Rows of ended leases, in any number, take no room from others after a restart, or in a copy
subtest 'rows of leases that have ended' => sub {
	start_anew('leader_election.max_elections_per_role' => 500);
	$node->safe_psql('postgres', 'CREATE DATABASE rows');
	$node->safe_psql('rows', 'CREATE EXTENSION leader_election');
	my $there = session($node, db => 'rows', user => 'regress_mallory');
	foreach my $round (1 .. 5)
	{
		is(ask($there, qq{SELECT count(le_lease('$round/' || i, '1 s')) FROM generate_series(1, 500) i}), '500', 'all that it may have');
		ok(ask_until($there, q{SELECT count(*) FROM le_leaders}, '0', 10), 'which expire');
		ask($there, 'BEGIN', q{SELECT le_lease('more', '1 s')}, 'ROLLBACK');
	}
	end_session($there);
	cmp_ok($node->safe_psql('rows', 'SELECT count(*) FROM le_leases'), '>=', 2000, 'are cleared away in vain');
	$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE rows');
	$node->restart;
	is($node->safe_psql($_, 'SELECT count(*) FROM le_leaders'), '0', "nobody leads there: $_") foreach 'rows', 'copy';
	$postgres = session($node);
	cmp_ok(known(), '<', 200, 'the server remembers no more than it may');
	is($node->safe_psql('rows', q{SELECT le_lease('1/1', '1 s') > 0}), 't', 'nor must they be known to be followed');
	$node->safe_psql('postgres', "DROP DATABASE $_") foreach 'rows', 'copy';
};

# Each database has room of its own, whoever owns it
subtest 'a database, by its owner' => sub {
	my $part = ($max - $max / 10) / 2;
	start_anew();
	$node->safe_psql('postgres', 'CREATE ROLE regress_owner LOGIN; ALTER ROLE regress_owner SET leader_election.max_elections_per_role = 1000000');
	my @there;
	foreach my $database ('first', 'second')
	{
		$node->safe_psql('postgres', "CREATE DATABASE $database OWNER regress_owner");
		push @there, session($node, db => $database, user => 'regress_owner');
		ask($there[-1], 'SET client_min_messages = error; CREATE EXTENSION leader_election');
	}
	my $taker = session($node, db => 'first', user => 'regress_owner');
	ask($taker, "DO \$\$ BEGIN FOR i IN 1 .. $part LOOP PERFORM le_lease('l' || i, '1 h'); COMMIT; END LOOP; END \$\$");
	is($taker->{error}, '', 'it leads as many as there is room for in the first') or diag($taker->{error});
	fails($there[0], q{SELECT le_try_become_leader('a')}, '53400', 'and no more');
	like($there[0]{error}, qr/too many elections led in this database: at most/, 'as it is told');
	is(ask($there[1], "SELECT count(le_try_become_leader('b' || i)) FROM generate_series(1, 10) i"), '10', 'but some in the second');

	# not even by elections that it declares, in both
	foreach my $owner (@there)
	{
		ask($owner, "INSERT INTO _le_declarations (name) SELECT 'd' || i FROM generate_series(1, $max) i");
		ask($owner, "DO \$\$ BEGIN FOR i IN 1 .. $max LOOP PERFORM le_lease('d' || i, '1 h'); COMMIT; END LOOP; END \$\$");
		is($owner->{code}, '53400', 'it does not get all that it declares');
	}
	is(ask($postgres, q{SELECT le_try_become_leader('root'), le_resign('root')}), 't|t', 'some stays for superusers') or diag($postgres->{error});
	end_session(@there, $taker);
};

subtest 'a role, by jobs' => sub {
	start_anew();
	all_at_once(q{FOR i IN 1 .. 20 LOOP PERFORM le_try_become_leader('job#/' || i); PERFORM le_once('job#/' || i, now()); END LOOP;});
	collect($_) foreach @mallory;
	my $rows = ask($postgres, 'SELECT count(*) FROM le_once_done');
	cmp_ok($rows, '<=', $per_role, 'no more rows than the role may have');
	cmp_ok($rows, '>', 0, 'but some');

	# a row that another role has taken over counts for that one
	start_anew('leader_election.max_elections_per_role' => 2);
	$node->safe_psql('postgres', q{DELETE FROM _le_once_done; SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_mallory'; CREATE ROLE regress_group; GRANT regress_group TO regress_mallory; ALTER ROLE regress_group SET leader_election.max_elections_per_role = 2});
	my $jobs = q{SELECT count(*) FROM generate_series(%d, %d) i WHERE le_try_become_leader('j' || i) AND le_once('j' || i, now())};
	is(ask($mallory[0], sprintf $jobs, 1, 2), '2', 'its jobs');
	ask($mallory[0], 'SELECT le_resign_all(); SET ROLE regress_group');
	is(ask($mallory[0], sprintf $jobs, 1, 2), '2', 'the same by another role');
	ask($mallory[0], 'SELECT le_resign_all(); RESET ROLE');
	is(ask($mallory[0], sprintf $jobs, 3, 4), '2', 'others');
	ask($mallory[0], 'SELECT le_resign_all(); SET ROLE regress_group');
	fails($mallory[0], sprintf($jobs, 3, 4), '53400', 'which the other role may not take over');
};

subtest 'an error that the client does not read keeps no election' => sub {
	start_anew('leader_election.max_elections_per_role' => 2);
	my ($holder, $reckless) = @mallory;
	is(ask($holder, q{SELECT le_try_become_leader('one'), le_try_become_leader('two')}), 't|t', 'all that it may have');
	ask($postgres, q{SELECT le_declare('next')});
	foreach my $call (map({ "SELECT $_" } q{le_try_become_leader('next')}, q{le_become_leader('next', '1 s')}, q{le_try_become_leader_xact('next')},
			q{le_become_leader_xact('next', '1 s')}, q{le_lease('next', '1 h')}), q{CALL le_campaign('next', '1 s')}, q{CALL le_campaign('next', '1 s', ttl => '1 h')})
	{
		# the error contains the statement, which is longer than what the server can send
		post($reckless, "DO \$\$ BEGIN EXECUTE \$x\$$call\$x\$ || ' /*' || repeat('x', 1000000) || '*/'; END \$\$");
		ok(ask_until($postgres, "SELECT wait_event FROM pg_stat_activity WHERE pid = $reckless->{pid}", 'ClientWrite', 5), "it fails: $call");
		is(ask($w1, q{SELECT le_try_become_leader('next'), le_resign('next')}), 't|t', 'another role is elected');
		collect($reckless);
		is($reckless->{code}, '53400', 'the limit') or diag($reckless->{messages});
	}
	is(ask($holder, q{SELECT le_resign('one')}), 't', 'there is room for one');
	is(ask($reckless, q{SELECT le_try_become_leader('next'), le_resign('next')}), 't|t', 'and it is elected');
};

subtest 'the server, by a role with a limit of its own' => sub {
	start_anew('leader_election.grace_period' => '1 h', 'leader_election.max_elections_per_role' => '1000000');
	all_at_once($campaign =~ s/T#/Q#/r);
	is_nearly(greatest('SELECT elections FROM pg_stat_leader_election_info'), $max - $max / 10 + 2, 'what is reserved stays free');
	others_are_elected();
	wait_for_answers();
	others_are_elected(plain => 1);
};

# All of them take more leases together than the database may have: $most
sub fill
{
	my ($most) = @_;
	all_at_once(q{FOR i IN 1 .. 30 LOOP PERFORM le_lease('part#/' || i, '1 h'); COMMIT; END LOOP;});
	# places that are given back at once can be missed
	my $last = session($node, user => 'regress_mallory');
	foreach my $try (1 .. 100)
	{
		last if ask($last, 'SELECT count(*) FROM le_leaders') >= $most;
		ask($last, q{DO $$ BEGIN FOR i IN 1 .. 30 LOOP PERFORM le_lease('rest' || i, '1 h'); COMMIT; END LOOP; END $$});
	}
	end_session($last);
	return;
}

subtest 'a database, by leases' => sub {
	my $part = ($max - $max / 10) / 2;
	start_anew('leader_election.max_elections_per_role' => '1000000');
	fill($part);
	is(greatest(q{SELECT count(*) FROM le_leaders}), $part, 'as many as the database may have, and no more');
	others_are_elected();
	fails($w1, q{SELECT le_try_become_leader('plain')}, '53400', 'there is no room for another role');
	wait_for_answers();
	is(ask($postgres, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_mallory'}), $part, 'all are ended');
	ok(ask_until($w1, q{SELECT le_try_become_leader('plain'), le_resign('plain')}, 't|t', 10), 'there is room for all');

	# what is rolled back is given back
	start_anew('leader_election.max_elections_per_role' => '1000000');
	all_at_once(q{FOR i IN 1 .. 40 LOOP PERFORM le_lease('back#/' || i, '1 h'); ROLLBACK; END LOOP;});
	collect($_) foreach @mallory;
	fill($part);
	is(greatest(q{SELECT count(*) FROM le_leaders}), $part, 'as many again');
	wait_for_answers();
	is(ask($postgres, q{SELECT count(*) FILTER (WHERE le_depose(name)) FROM le_leaders WHERE usename = 'regress_mallory'}), $part, 'all are ended');
};

# A grace period is kept, whatever becomes of the declaration: in databases whose elections are
# otherwise all known
subtest 'elections that are declared late' => sub {
	start_anew();
	my %session;
	foreach my $database ('late', 'stale')
	{
		$node->safe_psql('postgres', "CREATE DATABASE $database");
		$node->safe_psql($database, 'CREATE EXTENSION leader_election');
		$session{$database} = [ map { session($node, db => $database) } 1 .. 4 ];
	}

	# evicted while it is not declared
	my ($leader, $boss, $next) = @{ $session{late} };
	ask($boss, q{SELECT le_declare('job', grace => '0')});
	ask($leader, q{SELECT le_try_become_leader('job')});
	kill_client($leader);
	ask($boss, q{SELECT le_undeclare('job')});
	ask($boss, q{SELECT le_try_become_leader('other')});
	evict_others();
	ask($boss, q{SELECT le_declare('job', grace => '1 h')});
	is(ask($next, q{SELECT le_try_become_leader('job')}), 'f', 'declared anew: its grace period is kept');

	# declared while a candidate waits, which knows nothing of that when it gives up
	($leader, $boss, $next, my $candidate) = @{ $session{stale} };
	ask($leader, q{SELECT le_try_become_leader('job')});
	post($candidate, q{SELECT le_become_leader('job', '2 s')});
	ask_until($boss, 'SELECT count(*) FROM le_candidates', '1', 10);
	ask($boss, q{SELECT le_declare('job', grace => '1 h')});
	is(ask($next, q{SELECT le_try_become_leader('other')}), 't', 'another session knows it');
	is(collect($candidate), 'f', 'the candidate gives up');
	kill_client($leader);
	evict_others();
	is(ask($next, q{SELECT le_try_become_leader('job')}), 'f', 'its grace period is kept');
};

# Declared elections are evicted last, but those of many databases leave room for others
subtest 'declared elections of many databases' => sub {
	start_anew();
	my $kept = $max / 10;
	foreach my $i (1 .. 12)
	{
		$node->safe_psql('postgres', "CREATE DATABASE d$i OWNER regress_mallory");
		my $owner = session($node, db => "d$i", user => 'regress_mallory');
		ask($owner, "CREATE EXTENSION leader_election; INSERT INTO _le_declarations (name) SELECT 'd' || i FROM generate_series(1, $kept) i");
		is(ask($owner, "SELECT count(*) FROM generate_series(1, $kept) i WHERE le_try_become_leader('d' || i) AND le_resign('d' || i)"), $kept, "database $i")
		  or diag($owner->{error});
		end_session($owner);
	}
	is(ask($w1, q{SELECT count(*) FROM generate_series(1, 300) i WHERE le_try_become_leader('plain' || i)}), '300', 'other roles are elected')
	  or diag($w1->{error});
	others_are_elected(plain => 1);

	# One that has just been led is known, and one that was evicted is not taken for new
	$node->safe_psql('postgres', 'CREATE DATABASE small');
	$node->safe_psql('small', q{CREATE EXTENSION leader_election; SELECT le_declare(n, grace => '1 h') FROM unnest('{first,second}'::text[]) n});
	my $leader = session($node, db => 'small');
	ask($leader, q{SELECT le_try_become_leader('first'), le_try_become_leader('second'), le_try_become_leader('undeclared')});
	kill_client($leader);
	evict_others();
	my $next = session($node, db => 'small');
	is(ask($next, q{SELECT string_agg(name, ' ' ORDER BY name) FROM pg_stat_leader_election}), 'first second', 'they are evicted last');
	is(ask($next, q{SELECT le_try_become_leader('first')}), 'f', 'the grace period is kept');
	ask($next, q{SELECT le_declare('undeclared', grace => '1 h')});
	is(ask($next, q{SELECT le_try_become_leader('undeclared')}), 'f', 'also of what was evicted');
	end_session($next);
};

$node->stop;
done_testing();
