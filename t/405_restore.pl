# Tokens grow through whatever can become of a database: crash, restart, point-in-time
# recovery, copies, dumps and upgrades.  Leases come along where the files do.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $max_ttl = 2;
our $greatest = 0;

my $node = new_server('origin', allows_streaming => 1,
	conf => "autovacuum = off\nmax_wal_senders = 5\n");
$node->enable_archiving;
$node->restart;

# When a token was the first one, by the clock
sub time_of
{
	my ($token) = @_;
	return ($token >> 22) + 1735689600;
}

# The next tokens are greater than all before, and without a gap, even those of the next
# block: after those of before, or from this time on
sub grows
{
	my ($from, $test, $in, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $now = time;
	my $client = session($from, db => $db // 'postgres');
	my $first = lead_once($client, 'job') // 0;
	cmp_ok($first, '>', $greatest, $test);
	ask($client, q{SELECT count(*) FROM generate_series(1, 1500) WHERE le_try_become_leader('more') AND le_resign('more')});
	my $last = lead_once($client, 'job', 'le_become_leader_xact') // 0;
	cmp_ok($last - $first, '>', 1500, 'and go on');
	cmp_ok($last - $first, '<=', 1500 + 1024, 'without a gap');
	cmp_ok($last, '<', 2**53, 'in the range where numbers are exact');
	if ($in eq 'same') { cmp_ok($first - $greatest, '<=', 10 * 1024, 'after those of before'); }
	elsif ($in eq 'new') { cmp_ok(time_of($first), '>=', $now, 'from this time on'); }
	kill_client($client);
	$greatest = $last if $last > $greatest;
	return $first;
}

sub take_new
{
	my ($name) = @_;
	my $token = $node->safe_psql('postgres', "SELECT le_lease('$name', '1 h', identity => 'holder')");
	cmp_ok($token, '>', $greatest, "lease \"$name\"");
	return $greatest = $token;
}

# This lease came along, and is held; others are granted when all that may have been
# granted elsewhere is over
sub lease_came_along
{
	my ($there, $name, $token) = @_;
	my $client = session($there);
	my $before = monotonic();
	my $now = time;
	my $answer;
	is(ask($client, "SELECT identity, token, ttl, expires_in BETWEEN '59 min' AND '1 h' FROM le_leader('$name')"), "holder|$token|01:00:00|t", 'a lease that came along runs for its full ttl');
	is(ask($client, "SELECT le_renew('$name', $token), le_lease('$name', '1 s') IS NULL, le_try_become_leader('$name')"), 't|t|f', 'held by the session that has its token');
	until (($answer = ask($client, q{SELECT le_lease('another', '1 s')})) ne '')
	{
		die $client->{error} if $client->{code} ne 'LE003' || monotonic() > $before + 60;
		Time::HiRes::sleep(0.02);
	}
	cmp_ok(monotonic(), '>=', $before + $max_ttl, 'another one is granted after the longest ttl, and not before');
	cmp_ok(monotonic(), '<', $before + $max_ttl + 20, 'nor much later');
	cmp_ok($answer, '>', $greatest, 'with a greater token');
	cmp_ok(time_of($answer), '>=', $now, 'by the clock');
	$greatest = $answer;
	is(ask($client, "SELECT le_resign('$name', $token), le_try_become_leader('$name')"), 't|t', 'the first one is resigned');
	kill_client($client);
	return;
}

# What is short enough to wait for
sub limit_ttl
{
	my ($there) = @_;
	$there->append_conf('postgresql.conf', "leader_election.max_ttl = '${max_ttl}s'");
	return;
}

subtest 'crash and restart' => sub {
	grows($node, 'at first', 'new');
	foreach my $mode ('immediate', 'fast')
	{
		take_new("before $mode");
		$node->stop($mode);
		$node->start;
		grows($node, "tokens grow: $mode", 'same');
	}
};

subtest 'point-in-time recovery' => sub {
	my $held = take_new('held');
	$node->backup('base');
	$node->safe_psql('postgres', q{SELECT pg_create_restore_point('target')});
	take_new('late');
	grows($node, 'tokens that are forgotten', 'same');
	$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
	local $greatest = $greatest;
	foreach my $action ('pause', 'promote')
	{
		my $there = PostgreSQL::Test::Cluster->new("to_$action");
		$there->init_from_backup($node, 'base', has_restoring => 1, standby => 0);
		limit_ttl($there);

		# none knows of the other, and both choose the same timeline
		$there->append_conf('postgresql.conf', "archive_mode = off\nrecovery_target_name = 'target'\nrecovery_target_action = '$action'");
		$there->start;
		if ($action eq 'pause')
		{
			$there->poll_query_until('postgres', q{SELECT pg_get_wal_replay_pause_state() = 'paused'});
			my $client = session($there);
			fails($client, q{SELECT le_try_become_leader('job')}, '25006', 'no session is elected while it is paused');
			is(ask($client, q{SELECT string_agg(name, ', ' ORDER BY name) FROM le_leaders WHERE name IN ('held', 'late')}), 'held', 'but what was there then is shown');
			kill_client($client);
			$there->promote;
		}
		$there->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
		lease_came_along($there, 'held', $held);
		is($there->safe_psql('postgres', q{SELECT count(*) FROM le_leader('late')}), '0', 'what was granted later is not known');

		grows($there, "tokens grow: $action", 'same');
		like($there->safe_psql('postgres', 'SELECT pg_walfile_name(pg_current_wal_lsn())'), qr/^00000002/, 'on timeline 2');
		$there->stop;
	}
};

subtest 'a copy of the files, promoted' => sub {
	my $held = take_new('copied');
	my $there = PostgreSQL::Test::Cluster->new('copy');
	$node->backup('copy');
	$there->init_from_backup($node, 'copy', has_restoring => 1);
	limit_ttl($there);
	grows($node, 'tokens that the copy does not know of', 'same');
	local $greatest = $greatest;
	$there->start;
	$there->promote;
	lease_came_along($there, 'copied', $held);
	grows($there, 'tokens grow', 'same');
	$there->stop;
};

sub dump_and_restore
{
	my ($format, $there, $db, $test) = @_;
	my $is_other = $there ne $node;
	my $dump = $node->basedir . "/dump.$format";
	$there->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0");
	$there->command_ok(
		$format eq 'plain'
		? [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $there->connstr($db), '-f', $dump ]
		: [ 'pg_restore', '-e', '-d', $there->connstr($db), $dump ], $test);

	# of two copies of one dump, the clock tells the later one
	sleep_past(monotonic() + 1);
	my $client = session($there, db => $db);
	is(ask($client, 'SELECT count(*) FROM le_leases'), '0', 'no lease comes along');
	if ($is_other)
	{
		fails($client, q{SELECT le_lease('another', '1 s')}, 'LE003', 'and none is granted yet');
	}
	else
	{
		my $token = ask($client, q{SELECT le_lease('another', '100 ms')});
		cmp_ok($token, '>', $greatest, 'one is granted at once');
		$greatest = $token;
	}
	kill_client($client);
	grows($there, 'tokens grow', $is_other ? 'new' : 'same', $db);
	return;
}

subtest 'dumps' => sub {
	my $new = new_server('new_cluster', extension => 0);
	take_new('not dumped');
	foreach my $format ('plain', 'custom')
	{
		$node->command_ok([ 'pg_dump', '-F', $format, '-f', $node->basedir . "/dump.$format", '-d', $node->connstr('postgres') ], $format);
	}
	grows($node, 'tokens after the dump', 'same');
	local $greatest = $greatest;
	foreach my $format ('plain', 'custom')
	{
		dump_and_restore($format, $new, "restored_$format", "$format, into another cluster");
		dump_and_restore($format, $node, "restored_$format", "$format, into the same");
	}
	$new->stop;
};

# Lead, and ask for that job; was it to be done?
sub do_job
{
	my ($client, $name, $due) = @_;
	ask($client, "SELECT le_try_become_leader('$name')");
	my $answer = ask($client, "SELECT le_once('$name', '$due')");
	ask($client, "SELECT le_resign('$name')");
	return $answer;
}

subtest 'dumps of jobs that are done' => sub {
	my ($owner, $superuser, $hour) = ('Odd owner', scalar(getpwuid $>), '2026-01-01 12:00+0');
	$node->safe_psql('postgres', qq{CREATE ROLE "$owner" LOGIN; CREATE DATABASE mine OWNER "$owner" TEMPLATE template0});
	my $there = session($node, db => 'mine', user => $owner);
	ask($there, 'CREATE EXTENSION leader_election');
	is(do_job($there, 'job', $hour), 't', 'a job of a database owner without superuser rights');
	is(ask($there, q{SELECT le_try_become_leader('other'), le_once('other', '2026-01-01 12:34:56.789012+0')}), 't|t', 'and another');
	my $file = $node->basedir . '/mine.sql';
	foreach my $role ($owner, $superuser)
	{
		my $copy = $role eq $owner ? 'by_owner' : 'by_superuser';
		$node->command_ok([ 'pg_dump', '-U', $role, '-f', $file, 'mine' ], "$role dumps it");
		$node->safe_psql('postgres', qq{CREATE DATABASE $copy OWNER "$owner" TEMPLATE template0});
		$node->command_checks_all([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', $role, '-d', $copy, '-f', $file ],
			0, [qr//], [qr/\A\z/], 'and restores it');
		my $restored = session($node, db => $copy, user => $owner);
		is(ask($restored, q{SELECT due = '2026-01-01 12:34:56.789012+0' FROM le_once_done WHERE name = 'other'}), 't', 'to the microsecond');
		is(do_job($restored, 'job', $hour), 'f', 'what is done is not done again');
		is(do_job($restored, 'job', '2026-01-01 13:00+0'), 't', 'what is not done is');

		# as the role that has created the extension there
		if ($role eq $owner)
		{
			ask($restored, q{UPDATE _le_once_done SET due = due - interval '1 day'; DELETE FROM _le_once_done WHERE name = 'other'});
			is($restored->{error}, '', 'the owner of the database can mend it');
		}
		else
		{
			fails($restored, $_, '42501', "another role cannot: $_") foreach q{UPDATE _le_once_done SET due = now()}, q{DELETE FROM _le_once_done};
		}
		end_session($restored);
	}
	end_session($there);
};

subtest 'a copy of a database' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE model');
	create_extension($node, 'model');
	local $greatest = 0;
	grows($node, 'in the model', 'new', 'model');
	my $held = $node->safe_psql('model', q{SELECT le_lease('held', '1 h')});
	$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE model');
	grows($node, 'more of them', 'same', 'model');
	is($node->safe_psql('copy', "SELECT le_renew('held', $held), count(*) FROM le_leaders"), 'f|0', 'a lease is of one database');
	grows($node, 'in the copy they grow', 'new', 'copy');
	$node->safe_psql('postgres', 'CREATE DATABASE copy_of_copy TEMPLATE copy');
	grows($node, 'in its copy, too', 'new', 'copy_of_copy');
};

# A role that may not write the sequences, and a tool that leaves their values out
subtest 'dumps without the last token' => sub {
	my $dump = $node->basedir . '/without';
	my $new = new_server('without_values', extension => 0);
	$node->safe_psql('postgres', 'CREATE ROLE restorer LOGIN');
	$node->command_ok([ 'pg_dump', '-f', "$dump.sql", '-d', $node->connstr('postgres') ], 'dumped');
	append_to_file("$dump.values", join '', grep { !/\bsetval\b/ } split /^/, slurp_file("$dump.sql"));
	foreach my $there ($new, $node)
	{
		local $greatest = $greatest;
		$there->safe_psql('postgres', "CREATE DATABASE without_$_ TEMPLATE template0") foreach 'rights', 'values';
		create_extension($there, 'without_rights');
		$there->safe_psql('postgres', 'CREATE ROLE restorer LOGIN') if $there ne $node;
		my (undef, undef, $complaints) = $there->psql('without_rights', slurp_file("$dump.sql"), on_error_stop => 0, extra_params => [ '-U', 'restorer' ]);
		like($complaints, qr/permission denied for sequence le_token_seq/, 'by a role without rights');
		grows($there, 'tokens grow', 'new', 'without_rights');
		$there->safe_psql('without_values', slurp_file("$dump.values"));
		grows($there, 'without values, too', 'new', 'without_values');
	}
	$new->stop;
};

subtest 'DROP EXTENSION, and CREATE EXTENSION' => sub {
	local $greatest = $greatest;
	$node->safe_psql('postgres', 'CREATE DATABASE replaced TEMPLATE model');
	foreach my $mode ('', 'fast', 'immediate')
	{
		grows($node, 'before', 'new', 'replaced');
		$node->safe_psql('replaced', 'DROP EXTENSION leader_election');
		$node->restart if $mode eq 'fast';
		if ($mode eq 'immediate')
		{
			$node->stop('immediate');
			$node->start;
		}
		create_extension($node, 'replaced');
	}
	grows($node, 'after', 'new', 'replaced');
};

# Wrong outcome: after a restart, the server goes on from where the sequence stands
subtest 'a sequence that was written by others' => sub {
	my $dump = $node->basedir . '/data';
	$node->command_ok([ 'pg_dump', '--data-only', '-f', $dump, '-d', $node->connstr('postgres') ], 'data only');
	grows($node, 'more of them', 'same');
	foreach my $case (
		[ 'RESTART', 'ALTER SEQUENCE le_token_seq RESTART' ],
		[ 'CACHE', 'ALTER SEQUENCE le_token_seq CACHE 1' ],
		[ 'setval', q{SELECT setval('le_token_seq', 1)} ],
		[ 'setval, of the last value', q{SELECT setval('le_token_seq', last_value) FROM le_token_seq} ],
		[ 'nextval', q{SELECT nextval('le_token_seq')} ],
		[ 'a dump of its data', slurp_file($dump) ])
	{
		my ($what, $sql) = @$case;
		foreach my $mode ('fast', 'immediate')
		{
			$node->psql('postgres', $sql, on_error_stop => 0);
			$node->stop($mode);
			$node->start;
			grows($node, "$what, $mode shutdown: tokens grow", 'new');
		}
		$node->psql('postgres', $sql, on_error_stop => 0);
		my $client = session($node);
		ask($client, q{SELECT count(*) FROM generate_series(1, 1024) WHERE le_try_become_leader('more') AND le_resign('more')});
		my $next = lead_once($client, 'job') // 0;
		cmp_ok($next, '>', $greatest, "$what, while the server runs: tokens grow");
		$greatest = $next;
		kill_client($client);
		$node->restart;
		grows($node, 'and then they go on', 'same');
	}

	# nextval logs another value than it leaves in the page
	$node->safe_psql('postgres', 'ALTER SEQUENCE le_token_seq INCREMENT -600000');
	$node->restart;
	grows($node, 'another increment', 'new');
	my $client = session($node);
	ask($client, 'CHECKPOINT', q{SELECT nextval('le_token_seq')},
		q{SELECT count(*) FROM generate_series(1, 2048) WHERE le_try_become_leader('more') AND le_resign('more')});
	my $last = ask($client, 'SELECT last_value, log_cnt FROM le_token_seq');
	kill_client($client);
	$node->stop('immediate');
	$node->start;
	is($node->safe_psql('postgres', 'SELECT last_value, log_cnt FROM le_token_seq'), $last, 'a crash leaves the sequence as it was');
	$node->safe_psql('postgres', 'ALTER SEQUENCE le_token_seq INCREMENT 1');
	grows($node, 'and tokens grow', 'new');
};

# A clock that was wrong is not followed back, and leaves half of the tokens that are left
subtest 'tokens that are ahead of the clock' => sub {
	my $leap = 2**33;
	my $end = 2**53 - 1;
	my $client;
	# returns the last token of the present block
	my $set = sub {
		my ($to) = @_;
		$node->safe_psql('model', "SELECT setval('le_token_seq', $to)");
		# what is left of the present block goes first
		$client = session($node, db => 'model');
		ask($client, q{SELECT count(*) FROM generate_series(1, 1024) WHERE le_try_become_leader('more') AND le_resign('more')});
		return ask($client, 'SELECT last_value FROM le_token_seq');
	};
	my $copy = sub {
		my ($db) = @_;
		local $greatest = $greatest;
		kill_client($client);
		$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'model'});
		$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE model");
		return grows($node, "tokens grow in $db", 'ahead', $db);
	};

	my $last = $set->((time + 86400 - 1735689600) << 22);
	is($copy->('ahead') - $last, $leap + 1, 'by a day: what may have been handed out is left out');
	$last = $set->($end - $leap);
	is($copy->('near_the_end') - $last, int(($end - $last) / 2) + 1, 'near the end: half of the rest');
	$last = $set->($end - 20000);
	is($copy->('nearer') - $last, int(($end - $last) / 2) + 1, 'nearer: likewise');

	$set->($end - 1500);
	ask($client, q{SELECT count(*) FROM generate_series(1, 1024) WHERE le_try_become_leader('more') AND le_resign('more')});
	is($client->{code}, '22003', 'at the end no session is elected');
	is(ask($client, q{SELECT string_agg(name, ', ') FROM le_leaders}), 'held', 'and only the lease is left');
	kill_client($client);
};

# pg_upgrade, to this version and all others that are installed with the extension
my $old_bin = $node->config_data('--bindir');
my ($old_major) = $node->config_data('--version') =~ /(\d+)/;
my @others = grep { !m{/$old_major\z} && -e "$_/bin/pg_upgrade" && -e "$_/lib/leader_election.so" }
  glob '/usr/lib/postgresql/*';
diag("pg_upgrade from $old_major to $old_major" . (@others ? " and @others" : ' only: no other version is installed with the extension'));

foreach my $path (undef, @others)
{
	subtest 'pg_upgrade' . (defined $path ? " to $path" : '') => sub {
		my $name = 'upgraded' . (defined $path ? '_' . $path =~ s{.*/}{}r : '');
		my $new = PostgreSQL::Test::Cluster->new($name, defined $path ? (install_path => $path) : ());
		my $held = take_new("held over $name");
		grows($node, 'before', 'same');
		local $greatest = $greatest;
		$new->init(extra => [ '--locale=C.UTF-8', '--encoding=UTF8' ]);
		limit_ttl($new);
		$node->stop;
		chdir $new->basedir or die;
		command_ok([ 'pg_upgrade', '--no-sync', '-b', $old_bin, '-B', $new->config_data('--bindir'),
				'-d', $node->data_dir, '-D', $new->data_dir, '-s', $new->host,
				'-p', $node->port, '-P', $new->port ], 'pg_upgrade');
		$new->start;
		lease_came_along($new, "held over $name", $held);
		grows($new, 'tokens grow', 'same');
		is($new->safe_psql('copy', 'SELECT count(*) FROM le_leaders'), '0', 'leases are of the same databases as before');
		is($new->safe_psql('model', q{SELECT string_agg(name, ', ') FROM le_leaders}), 'held', 'each');
		$new->stop;
		$node->start;
	};
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
