# After a term that ended without resignation, the election stays vacant for
# the grace period, however the term ended: with the client, the session, the
# server.  Then the candidate that has waited longest is elected.
#
# Deadlines that must not have passed are checked by sessions with a grace of
# one hour, as the bidding session's setting applies.  So a busy machine causes
# no false failure.

use strict;
use warnings;

use POSIX ();
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $grace = 1;
my $node = new_server('grace', allows_streaming => 1,
	conf => "restart_after_crash = on\nleader_election.grace_period = '$grace s'\nleader_election.max_tracked = 100");

# A session that thinks an election is to be vacant for an hour
sub strict_one
{
	my ($server, %params) = @_;
	return session($server, %params, options => '-c leader_election.grace_period=1h');
}

# A session that waits to be elected
sub candidate
{
	my ($watcher, $client, $name, $function) = @_;
	$function //= 'le_become_leader';
	post($client, $function eq 'le_campaign' ? "CALL le_campaign(ARRAY['$name'])" :
		  ($function =~ /_xact$/ ? 'BEGIN; ' : '') . "SELECT $function('$name')");
	return wait_for_candidate($watcher, $client);
}

# The waiting candidate is elected at the end of the grace that has begun
# between these times
sub elected_after_grace
{
	my ($client, $from, $to, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $answer = collect($client) // 'connection lost';
	my $now = monotonic();

	like($answer, qr/^(?:t|\d+\|.*)$/, "$what: elected") or diag($client->{error});
	cmp_ok($now, '>=', $from + $grace, 'not before the grace is over');
	cmp_ok($now, '<', $to + $grace + 20, 'and not much later');
	diag(sprintf '%s: elected %.0f to %.0f ms after the grace', $what, 1000 * ($now - $to - $grace), 1000 * ($now - $from - $grace));
	return;
}

# No session is elected without waiting, in whatever way
sub denied
{
	my ($client, $name, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( join('|', map { ask($client, $_) }
			"SELECT le_try_become_leader('$name'), le_try_become_leader_xact('$name')",
			"SELECT le_lease('$name', '1 s')",
			"SELECT le_become_leader('$name', '50 ms')", "CALL le_campaign('$name', '50 ms')",
			"CALL le_campaign(ARRAY['$name'], '50 ms')"),
		'f|f||f|||', $test);
	return;
}

sub free_at_once
{
	my ($client, $name, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(ask($client, "SELECT le_try_become_leader('$name'), le_resign('$name')"), 't|t', $test);
	return;
}

subtest 'eviction' => sub {
	my $client = strict_one($node);
	my $other = session($node);
	my $fill = sub {
		my ($prefix) = @_;
		my $before = ask($client, 'SELECT evictions FROM pg_stat_leader_election_info');
		ask($client, "SELECT le_try_become_leader('$prefix ' || i), le_resign('$prefix ' || i) FROM generate_series(1, 150) i");
		cmp_ok(ask($client, 'SELECT evictions FROM pg_stat_leader_election_info'), '>', $before, 'elections are evicted');
	};
	my $known = sub { ask($client, "SELECT count(*) FROM pg_stat_leader_election WHERE name = '$_[0]'") };
	free_at_once($client, 'first', 'an election');
	$fill->('resigned');
	is($known->('first'), '0', 'forgotten');
	free_at_once($client, $_, "\"$_\" is free: all that were evicted had been resigned") foreach 'first', 'resigned 1', 'new';

	ask($other, q{SELECT le_try_become_leader('lost')});
	my $lost = monotonic();
	ask($other, q{SELECT pg_advisory_unlock_all()});
	denied($client, 'lost', 'one whose leader lost it is not');
	$fill->('more');
	is($known->('lost'), '0', 'forgotten');
	denied($client, 'lost', 'it keeps its grace');
	denied($client, 'never', 'and so does whatever is not known');
	ask($client, 'SET leader_election.grace_period = 0; SELECT le_try_become_leader_xact($$known$$)');
	ask($client, q{SET leader_election.grace_period = '1 h'});
	free_at_once($client, 'known', 'but not what is known to have ended');
	elected_after_grace(candidate($client, $other, 'lost'), $lost, monotonic(), 'evicted');
	kill_client($client, $other);
};

# Terms of other elections that are lost, and pushed out of the registry
subtest 'what others lose' => sub {
	my $client = session($node);
	my $other = session($node);
	my $flood = session($node, options => '-c leader_election.grace_period=0');
	my $lose = sub {
		ask($flood, q{DO $$ BEGIN FOR i IN 1 .. 300 LOOP
			PERFORM le_try_become_leader('flood ' || random() || i); PERFORM pg_advisory_unlock_all(); END LOOP; END $$});
		is($flood->{code}, '', 'many are lost') or diag($flood->{error});
	};
	ask($other, q{SELECT le_declare('declared', grace => '1 s'), le_declare('soon', grace => '1 s')});
	$lose->() for 1 .. 2;

	# it may have been led, and forgotten, before it was declared
	ok(ask_until($client, q{SELECT le_try_become_leader('declared')}, 't', 20), 'one that is declared, and has not been led since, waits once');
	ask($client, q{SELECT le_resign('declared')});
	ask($other, q{SELECT le_declare('declared', grace => '1 h')});
	is(ask($client, q{SELECT terms FROM pg_stat_leader_election WHERE name = 'declared'}), '1', 'this is counted');
	$lose->() for 1 .. 2;
	is(ask($client, q{SELECT terms, resigned FROM pg_stat_leader_election WHERE name = 'declared'}), '1|1', 'and not forgotten');
	free_at_once($client, 'declared', 'it is known to have been resigned');
	ok(ask_until($client, q{SELECT le_try_become_leader('soon')}, 't', 20), 'so does another one');
	my $lost = monotonic();
	ask($client, 'SELECT pg_advisory_unlock_all()');
	candidate($other, $client, 'soon');
	$lose->() for 1 .. 2;
	elected_after_grace($client, $lost, monotonic(), 'one that is declared, whatever others lose');
	ask($client, q{SELECT le_resign('soon')});

	# one that is not declared, and is not known, waits for one grace period at most
	$lose->() for 1 .. 2;
	candidate($other, $client, 'unknown');
	my $until = monotonic() + $grace + 15;
	my $led = 0;
	until ($led || monotonic() > $until)
	{
		$lose->();
		$led = ask($other, q{SELECT count(*) FROM le_leader('unknown')});
	}
	ok($led, 'an election with a candidate does not stay vacant');
	collect($client);
	ask($other, q{SELECT le_undeclare('declared'), le_undeclare('soon')});

	# of what is lost here, the others are to see nothing
	is(ask($other, q{SELECT le_become_leader('afterwards', '1 min')}), 't', 'this grace is over');
	kill_client($client, $other, $flood);
};

# How a session loses its leadership; each is done to a leader that has a session of its own
my %ends = (
	'kill -9 of the client' => sub { kill_client($_[0]) },
	'the client disconnects' => sub { end_session($_[0]) },
	'... in a transaction' => sub { ask($_[0], 'BEGIN'); end_session($_[0]) },
	'pg_terminate_backend' => sub { ask($_[1], 'SELECT pg_terminate_backend(' . $_[0]{pid} . ')') },
	'... in mid-statement' => sub {
		my $pid = $_[0]{pid};
		post($_[0], 'SELECT pg_sleep(600)');
		ask_until($_[1], "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid", 'PgSleep');
		ask($_[1], "SELECT pg_terminate_backend($pid)");
	},
	'idle_session_timeout' => sub { ask($_[0], q{SET idle_session_timeout = '1 ms'}) },
	'DISCARD ALL' => sub { ask($_[0], 'DISCARD ALL') });

subtest 'the end of a session' => sub {
	my $watcher = session($node);
	my @cases;
	my @ways = qw(le_become_leader le_become_leader_xact le_campaign);
	foreach my $end (sort keys %ends)
	{
		my $case = { end => $end, name => "ends by $end", way => $ways[ @cases % 3 ], leader => session($node, app => 'leader') };
		is(ask($case->{leader}, "SELECT le_try_become_leader('$case->{name}')"), 't', "$end: led");
		$case->{candidates} = [ session($node, app => 'first'), strict_one($node, app => 'second') ];
		candidate($watcher, $case->{candidates}[0], $case->{name}, $case->{way});
		candidate($watcher, $case->{candidates}[1], $case->{name});
		push @cases, $case;
	}
	my $strict = strict_one($node);
	foreach my $case (@cases)
	{
		$case->{from} = monotonic();
		$ends{ $case->{end} }->($case->{leader}, $watcher);
		ask_until($strict, "SELECT count(*) FROM le_leader('$case->{name}')", '0');
		$case->{to} = monotonic();
		is(ask($strict, "SELECT le_try_become_leader('$case->{name}')"), 'f', "$case->{end}: a try is denied");
	}
	foreach my $case (sort { $a->{from} <=> $b->{from} } @cases)
	{
		my ($first, $second) = @{ $case->{candidates} };
		# a campaign for many comes after a candidate in line
		if ($case->{way} eq 'le_campaign')
		{
			is(ask($strict, "SELECT waits_for FROM le_candidates WHERE pid = $second->{pid}"), 'grace', 'the candidate in line waits for the grace to end');
			ok(ask_until($strict, "SELECT wait_event FROM pg_stat_activity WHERE pid = $second->{pid}", wait_event($node, 'Grace')), 'which pg_stat_activity shows, too');
			ask($strict, "SELECT pg_terminate_backend($second->{pid}, 10000)");
		}
		elected_after_grace($first, $case->{from}, $case->{to}, $case->{end});
		next if $case->{way} eq 'le_campaign';
		hear(0, $second);
		ok(!$second->{ready}, 'the next one waits');
		# this one has thought that the grace is an hour
		ask($first, $case->{way} eq 'le_become_leader_xact' ? 'COMMIT' : "SELECT le_resign('$case->{name}')");
		is(collect($second), 't', 'after a resignation there is no grace, and it is elected')
	}
	kill_client($watcher, $strict, map { @{ $_->{candidates} } } @cases);
	end_session(map { $_->{leader} } @cases);
};

subtest 'how it shows, and how a wait ends' => sub {
	my $watcher = session($node);
	my @waiting = (strict_one($node, app => 'one'), session($node, app => 'two'));
	my $leader = session($node);
	ask($leader, q{SELECT le_try_become_leader('shown'), le_token('shown')});
	candidate($watcher, $_, 'shown') foreach @waiting;
	kill_client($leader);
	ok(ask_until($watcher, q{SELECT string_agg(concat_ws(' ', identity, position, waits_for), ', ' ORDER BY position) FROM le_candidates WHERE name = 'shown'},
			'one 1 grace, two 2 leader'), 'le_candidates shows what each one waits for');
	is(ask($watcher, "SELECT count(*) FROM pg_locks WHERE pid = $waiting[0]{pid} AND locktype = 'advisory' AND granted"), '1', 'the first one has the lock');
	like(ask($watcher, q{CALL le_observe('shown')}), qr/^\d+\|\|\|$/, 'observers see a vacancy');
	ask($watcher, "SELECT pg_cancel_backend($waiting[0]{pid})");
	collect($waiting[0]);
	is($waiting[0]{code}, '57014', 'it is cancelled');
	no_trace($node, $waiting[0]{pid}, 'nothing of it is left');
	is(collect($waiting[1]), 't', 'the next one, with a shorter grace, is elected');
	kill_client($watcher, @waiting);
};

subtest 'settings' => sub {
	my $watcher = session($node);
	my $lose = sub {
		my $leader = session($node);
		is(ask($leader, 'SET leader_election.grace_period = 0; SELECT le_try_become_leader($$set$$)'), 't', 'with none at all, elected at once');
		kill_client($leader);
		ask_until($watcher, q{SELECT count(*) FROM le_leader('set')}, '0');
	};
	$node->safe_psql('postgres', q{CREATE ROLE app LOGIN});
	foreach my $sql ('ROLE app', 'DATABASE postgres', 'ROLE app IN DATABASE postgres')
	{
		$lose->() foreach 1, 2;
		ask($watcher, "ALTER $sql SET leader_election.grace_period = '1 h'");
		my $client = session($node, user => 'app');
		denied($client, 'set', $sql);
		is(ask($client, 'SHOW leader_election.grace_period'), '1h', 'shown');
		fails($client, 'SET leader_election.grace_period = 0', '42501', 'no user can set it');
		kill_client($client);
		ask($watcher, "ALTER $sql SET leader_election.grace_period = 0");
		$client = session($node, user => 'app');
		free_at_once($client, 'set', 'none');
		kill_client($client);
		ask($watcher, "ALTER $sql RESET leader_election.grace_period");
	}
	kill_client($watcher);
};

subtest 'a lease: from its deadline' => sub {
	my ($watcher, $waiting, $second) = map { session($node) } 1 .. 3;
	my $from = monotonic() + 0.3;
	ask($watcher, q{SELECT le_lease('lease', '300 ms')});
	my $to = monotonic() + 0.3;
	candidate($watcher, $waiting, 'lease');
	candidate($watcher, $second, 'lease');
	elected_after_grace($waiting, $from, $to, 'a candidate');
	hear(0, $second);
	ok(!$second->{ready}, 'the next one waits');
	kill_client($second);
	# no session has looked at this one before
	$from = monotonic() + 0.1;
	ask($watcher, q{SELECT le_lease('unseen', '100 ms')});
	$to = monotonic() + 0.1;
	sleep_past($to + $grace);
	is(ask($watcher, q{SELECT le_try_become_leader('unseen')}), 't', 'when it was found out does not matter');
	denied($watcher, 'lease', 'the other one is led');
	kill_client($watcher, $waiting);
};

# What is there before a restart
sub prepare
{
	my ($server) = @_;
	my @clients = map { session($server) } 1 .. 2;
	my %there = (clients => \@clients);

	is(ask($clients[0], q{SET leader_election.grace_period = 0; SELECT le_try_become_leader('led'), le_try_become_leader('led, and resigned'), le_try_become_leader('none'), le_resign('led, and resigned')}),
		't|t|t|t', 'elections that are led, or were');
	$there{token} = ask($clients[0], q{SELECT coalesce(le_lease('held', '1 h'), (SELECT le_lease('held', '1 h', token => token) FROM le_leader('held')))});
	like($there{token}, qr/^\d+$/, 'a lease');
	return \%there;
}

# And what is to be seen after it
sub vacant_after
{
	my ($server, $there, $what) = @_;
	my $strict = strict_one($server);
	my @waiting = map { session($server) } 1 .. 3;
	my $watcher = session($server);
	my $fresh = strict_one($server, db => 'fresh');
	kill_client(@{ $there->{clients} });

	my $from = monotonic();
	is(ask($strict, "SELECT le_renew('held', $there->{token})"), 't', 'the lease that runs on is renewed at once');
	my $to = monotonic();
	denied($strict, 'led', 'the election that was led is not to be had');
	denied($strict, 'led, and resigned', 'nor the one that was resigned before, which is not on record');
	my $free = session($server, options => '-c leader_election.grace_period=0');
	is(ask($free, q{SELECT le_try_become_leader('none')}), 't', 'without grace, it is');
	free_at_once($fresh, 'led', 'in a database that never had a term, it is, too');
	denied($strict, 'held', 'the lease is held');

	candidate($watcher, $waiting[0], 'led');
	candidate($watcher, $waiting[1], 'led');
	candidate($watcher, $waiting[2], 'led, and resigned');
	elected_after_grace($waiting[0], $from, $to, $what);
	hear(0, $waiting[1]);
	ok(!$waiting[1]{ready}, 'the next one waits');
	is(collect($waiting[2]), 't', 'elected, too');
	is(ask($waiting[2], q{SELECT le_resign('led, and resigned')}), 't', 'resigned after the start');
	free_at_once($strict, 'led, and resigned', 'then it is to be had at once');
	ask($waiting[0], q{SELECT le_resign('led')});
	is(collect($waiting[1]), 't', 'the order is kept');
	ask($waiting[1], q{SELECT le_resign('led')});

	$from = monotonic() + 0.1;
	is(ask($watcher, "SELECT le_renew('held', $there->{token}, '100 ms')"), 't', 'the lease is about to run out');
	$to = monotonic() + 0.1;
	candidate($watcher, $waiting[0], 'held');
	elected_after_grace($waiting[0], $from, $to, "$what, a lease that ran on");
	denied($strict, 'held', 'led by another session');
	kill_client($strict, @waiting, $watcher, $free, $fresh);
	return;
}

$node->safe_psql('postgres', 'CREATE DATABASE fresh');
create_extension($node, 'fresh');
$node->safe_psql('fresh', q{SELECT le_am_leader('nobody was ever elected')});
my %restarts = (
	'a crash' => sub { $node->stop('immediate'); $node->start },
	'kill -9 of all processes' => sub { kill_server($node); $node->start },
	'a fast restart' => sub { $node->restart },
	'kill -9 of a backend' => sub { crash_backend($node, $_[0]{clients}[1]{pid}) });
foreach my $restart ('a crash', 'kill -9 of all processes', 'a fast restart', 'kill -9 of a backend')
{
	subtest $restart => sub {
		my $there = prepare($node);
		$restarts{$restart}->($there);
		# the time that the server runs before the first bid does not count
		sleep_past(monotonic() + $grace) if $restart eq 'a crash';
		vacant_after($node, $there, $restart);
		# had its first terms there
		$node->safe_psql('postgres', 'DROP DATABASE fresh');
		$node->safe_psql('postgres', 'CREATE DATABASE fresh');
		create_extension($node, 'fresh');
	};
}

subtest 'promotion of a standby' => sub {
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my $there = prepare($node);
	$node->safe_psql('postgres', 'SELECT pg_logical_emit_message(true, $$$$, $$$$)');
	$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
	my $client = session($standby);
	is(ask($client, q{SELECT identity FROM le_leader('held')}), getpwuid($>) . '@local', 'the standby knows of the lease');
	fails($client, "SELECT $_", '25006', "$_ on a standby") foreach q{le_depose('held')}, "le_resign('held', $there->{token})";
	kill_server($node);
	$standby->promote;
	sleep_past(monotonic() + $grace);
	vacant_after($standby, $there, 'promotion');
	kill_client($client);
	unlike(slurp_file($standby->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
	$standby->stop;
	$node->start;
};

# A program that asks once in a while whether it still leads, and acts in between because
# it believes so.  It writes down when it acts.
sub believer
{
	my ($name, $believes, $file) = @_;
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	return $pid if $pid;
	eval {
		my $client = session($node, options => '-c leader_election.grace_period=0');
		my $asked = monotonic();
		open my $log, '>', $file or die $!;
		$log->autoflush(1);
		ask($client, "SELECT le_become_leader('$name')");
		while (1)
		{
			my $now = monotonic();
			if ($now > $asked + $believes)
			{
				last unless (ask($client, "SELECT le_am_leader('$name')") // '') eq 't';
				$asked = $now;
			}
			# this is the latest time to act
			printf $log "%.6f\n", $now if $now <= $asked + $believes;
			Time::HiRes::sleep(0.01);
		}
		print $log "over\n";
	};
	# without the cleaning up of the process that this is a copy of
	POSIX::_exit(0);
}

# Terminate the session of a program that relies on its term for so long, and
# see when it has acted last, and when the next one could act first
sub overlap
{
	my ($name, $believes, $grace_period, $stopped) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/acts';
	my $watcher = session($node);
	my $next = session($node, options => "-c leader_election.grace_period=${grace_period}s");
	my $acts = sub { -e $file ? split(/\n/, slurp_file($file)) : () };
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	my $program = believer($name, $believes, $file);
	until ($acts->() || monotonic() > $patience) { Time::HiRes::sleep(0.01) }
	my $pid = ask($watcher, "SELECT pid FROM le_leader('$name')");
	candidate($watcher, $next, $name);
	kill 'STOP', $program if $stopped;
	is(ask($watcher, "SELECT pg_terminate_backend($pid, 10000)"), 't', 'its session is terminated');
	if ($stopped)
	{
		sleep_past(monotonic() + 0.6 * $believes);
		kill 'CONT', $program;
	}
	is(collect($next), 't', 'another session is elected');
	my $elected = monotonic();
	waitpid $program, 0;
	my @times = $acts->();
	is(pop @times, 'over', 'the program has noticed');
	my $last = $times[-1];
	diag(sprintf '%s, grace %.1f s: it acts until %.0f ms %s the next one is elected', $stopped ? 'stopped' : 'slow', $grace_period,
		1000 * abs($last - $elected), $last > $elected ? 'after' : 'before');
	kill_client($watcher, $next);
	return $last > $elected;
}

subtest 'no leader acts while another relies on its term' => sub {
	ok(overlap('acts', 1.5, 0, 0), 'without grace, two act at a time');
	ok(!overlap('acts', 1.5, 2, 0), 'with a grace that is longer than one believes, they do not');
	ok(!overlap('acts', 1.5, 2, 1), 'nor when that one is stopped in between');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|segmentation/i, 'no accident in the log');
$node->stop;
done_testing();
