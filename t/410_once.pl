# A job of each point in time is done once, through all that can happen to leaders and their
# server: a crash before the commit and after it, a failover to a synchronous standby, and workers
# that are killed all the time.
#
# Wrong outcomes: a job is done twice, or is taken for done though its effects are lost; a
# time that a leader has come to is left out.
#
# editions: C, SQL

use strict;
use warnings;

use POSIX ();
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $hour = '2026-01-01 12:00+0';

sub create_work
{
	my ($client) = @_;
	ask($client, 'CREATE TABLE work (name text, due timestamptz, token bigint)');
	return;
}

# Do that job in a transaction that is not committed; is it to be done?
sub begin_job
{
	my ($client, $name, $due) = @_;
	my $answer = ask($client, "BEGIN; SELECT le_once('$name', '$due')");
	ask($client, "INSERT INTO work SELECT '$name', '$due', le_token('$name')") if ($answer // '') eq 't';
	return $answer // $client->{error};
}

# Lead, do that job, and resign; was it to be done?
sub do_job
{
	my ($client, $name, $due) = @_;
	ask($client, "SELECT le_become_leader('$name', '1 min')");
	my $answer = begin_job($client, $name, $due);
	ask($client, 'COMMIT');
	ask($client, "SELECT le_resign('$name')");
	return $answer;
}

# How often it was done
sub times_done
{
	my ($client, $name) = @_;
	return ask($client, "SELECT count(*) FROM work WHERE name = '$name'");
}

my $primary = new_server('primary', allows_streaming => 1,
	conf => "restart_after_crash = on\nmax_prepared_transactions = 5\nmax_wal_senders = 5\nmax_connections = 60\n");
my $client = session($primary);
create_work($client);

subtest 'the leader is terminated' => sub {
	foreach my $committed (0, 1)
	{
		my $name = 'terminated, ' . ($committed ? 'after' : 'before') . ' its commit';
		my $leader = session($primary);
		ask($leader, "SELECT le_try_become_leader('$name')");
		is(begin_job($leader, $name, $hour), 't', "$name: the job begins");
		ask($leader, 'COMMIT') if $committed;
		ask($client, "SELECT pg_terminate_backend($leader->{pid})");
		is(do_job($client, $name, $hour), $committed ? 'f' : 't', 'and the next leader is told');
		is(times_done($client, $name), '1', 'done once');
	}
};

subtest 'the server crashes' => sub {
	my @names = ('before its commit', 'after its commit', 'by lease', 'prepared');
	my %leader = map { ($_ => session($primary)) } @names;
	ask($leader{$_}, "SELECT le_try_become_leader('$_')") foreach grep { $_ ne 'by lease' } @names;
	my $token = ask($client, q{SELECT le_lease('by lease', '1 h')});
	is(begin_job($leader{$_}, $_, $hour), 't', "$_: the job begins") foreach grep { $_ ne 'by lease' } @names;
	is(ask($leader{'by lease'}, "BEGIN; SELECT le_once('by lease', '$hour', $token)"), 't', 'by lease: the job begins');
	ask($leader{'after its commit'}, 'COMMIT');
	ask($leader{prepared}, q{PREPARE TRANSACTION 'prepared'});
	is($leader{prepared}{error}, '', 'prepared');
	# the records of what is not committed are to be in the WAL that the server comes back with
	ask($client, q{INSERT INTO work VALUES ('flushed')});
	crash_backend($primary, $client->{pid});
	kill_client($client, values %leader);
	$client = session($primary);

	is(do_job($client, 'before its commit', $hour), 't', 'what was not committed is done');
	is(do_job($client, 'after its commit', $hour), 'f', 'what was committed is not done again');
	is(ask($client, "SELECT le_once('by lease', '$hour', $token)"), 't', 'a lease that runs on has it to do');
	ask($client, "INSERT INTO work VALUES ('by lease')");
	is(ask($client, q{SELECT le_try_become_leader('prepared')}), 'f', 'no session is elected beside a prepared transaction');
	ask($client, q{COMMIT PREPARED 'prepared'});
	is(do_job($client, 'prepared', $hour), 'f', 'what it has done is not done again');
	is(times_done($client, $_), '1', "$_: done once") foreach @names;
};

# Workers that are killed with SIGKILL, each of which is a process of its own

my $step = 0.1;     # seconds from one due time to the next: a busy machine does more than ten jobs a second
my $workers = 5;
my $kills = 110;    # of each kind of workers
my $dir = PostgreSQL::Test::Utils::tempdir();

# What a worker does next, of times that are multiples of the step.  "all": the one after the
# last that is done.  "last": the last one that has come, whatever was missed.
my %next = (
	all => "coalesce((SELECT due FROM le_once_done WHERE name = 'all') + '$step s', date_bin('$step s', clock_timestamp(), '2026-01-01+0'))",
	last => "date_bin('$step s', clock_timestamp(), '2026-01-01+0')");

# Campaign, and do what is due; write down each time before it is done, and when it has
sub work
{
	my ($kind, $log) = @_;
	my $conn = session($primary);
	my $seen = '';

	ask($conn, "CALL le_campaign('$kind', identity => '$$')");
	until ($conn->{closed})
	{
		my ($due, $has_come) = split /\|/, ask($conn, "SELECT d, d <= clock_timestamp() FROM $next{$kind} d");
		if ($has_come eq 't' && $due ne $seen)
		{
			print $log "begun $due\n";
			begin_job($conn, $kind, $due);
			# a job takes some time, in which the worker may be killed
			Time::HiRes::sleep(rand 0.02);
			ask($conn, 'COMMIT');
			die $conn->{error} if $conn->{code};
			print $log "ended $due\n";
			$seen = $due;
		}
		Time::HiRes::sleep(0.002);
	}
	die 'connection lost';
}

my $births = 0;

sub start_worker
{
	my ($kind) = @_;
	my $file = sprintf '%s/%s.%d', $dir, $kind, ++$births;
	my $pid = fork() // die "fork: $!";
	return $pid if $pid;
	open my $log, '>', $file or POSIX::_exit(1);
	$log->autoflush(1);
	srand($$);
	eval { work($kind, $log) };
	print $log "failed: $@";
	# without the cleaning up of the process that this is a copy of
	POSIX::_exit(1);
}

my %running;    # worker by process ID: its kind

sub kill_worker
{
	my ($pid) = @_;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	delete $running{$pid};
	return;
}

# The lines of all workers of a kind, without the half a line that one may have been killed in
sub lines_of
{
	my ($kind) = @_;
	return map { grep { /\n\z/ } split /^/, slurp_file($_) } glob "$dir/$kind.*";
}

subtest 'workers are killed' => sub {
	my %killed = (all => 0, last => 0);
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	foreach my $kind (keys %killed)
	{
		$running{ start_worker($kind) } = $kind foreach 1 .. $workers;
	}
	# "all" begins with the first one that is done, whatever was due when a worker was killed before
	ok(ask_until($client, q{SELECT count(*) FROM le_once_done WHERE name IN ('all', 'last')}, '2'), 'the first jobs are done');
	while (grep { $_ < $kills } values %killed)
	{
		die 'the kills come to no end' if monotonic() > $patience;
		Time::HiRes::sleep(rand 0.1);
		foreach my $kind (keys %killed)
		{
			# mostly the leader, wherever it is just now
			my $victim = ask($client, "SELECT identity FROM le_leader('$kind')");
			$victim = some(grep { $running{$_} eq $kind } keys %running) if $victim eq '' || rand() < 0.2;
			next unless $running{$victim};
			kill_worker($victim);
			$running{ start_worker($kind) } = $kind;
			$killed{$kind}++;
		}
	}
	foreach my $kind (keys %killed)
	{
		ok(ask_until($client, "SELECT due > now() - interval '1 s' FROM le_once_done WHERE name = '$kind'"), "\"$kind\" goes on");
		my $end = ask($client, 'SELECT clock_timestamp()');
		ok(ask_until($client, "SELECT due >= '$end' FROM le_once_done WHERE name = '$kind'"), 'to the end');
	}

	# there is no worker for a while
	kill_worker($_) foreach keys %running;
	my %last = map { ($_ => ask($client, "SELECT max(due) FROM work WHERE name = '$_'")) } keys %killed;
	ok(ask_until($client, q{SELECT count(*) FROM le_leaders WHERE name IN ('all', 'last')}, '0'), 'the last leaders have gone');
	ok(ask_until($client, "SELECT clock_timestamp() > '$last{last}'::timestamptz + interval '1 s'"), 'a second without a leader');
	my $back = ask($client, 'SELECT clock_timestamp()');
	$running{ start_worker($_) } = $_ foreach keys %killed;
	ok(ask_until($client, "SELECT due >= '$back' FROM le_once_done WHERE name = '$_'"), "\"$_\" goes on") foreach keys %killed;
	kill_worker($_) foreach keys %running;
	ok(ask_until($client, q{SELECT count(*) FROM le_leaders WHERE name IN ('all', 'last')}, '0'), 'the end');

	# none, if the next job is due before the first worker asks
	cmp_ok(ask($client, "SELECT count(*) FROM work WHERE name = 'last' AND due > '$last{last}' AND due <= '$back'::timestamptz"), '<=', 1, '"last" has caught up at most one of those missed')
	  or diag(ask($client, "SELECT string_agg(due::text, ' ') FROM work WHERE name = 'last' AND due > '$last{last}'"));
	cmp_ok(ask($client, "SELECT count(*) FROM work WHERE name = 'all' AND due > '$last{all}' AND due <= '$back'::timestamptz"), '>=', 1 / $step - 2, '"all" has caught up all');

	foreach my $kind (keys %killed)
	{
		my @lines = lines_of($kind);
		is(join('', grep { /^failed/ } @lines), '', "$kind: no worker has failed");
		is(ask($client, "SELECT string_agg(DISTINCT due::text, ' ') FROM (SELECT due FROM work WHERE name = '$kind' GROUP BY 1 HAVING count(*) > 1) d"), '', 'nothing is done twice');
		my %done = map { ($_ => 1) } split /\n/, ask($client, "SELECT due FROM work WHERE name = '$kind'");
		my @ended = map { /^ended (.*)/ ? $1 : () } @lines;
		my @begun = map { /^begun (.*)/ ? $1 : () } @lines;
		cmp_ok(scalar @ended, '>', 30, scalar(@ended) . ' jobs');
		is(join(' ', grep { !$done{$_} } @ended), '', 'each that a leader has ended is done');
		cmp_ok(@begun - @ended, '>', 2, @begun - @ended . ' were cut short');
		# all but the last, which is cut short, is as the last leader has left it
		my $latest = ask($client, "SELECT due FROM le_once_done WHERE name = '$kind'");
		is(join(' ', grep { !$done{$_} && $_ lt $latest } @begun), '', 'each that a leader has begun is done') if $kind eq 'all';
		is(ask($client, "SELECT count(*) FROM (SELECT due - lag(due) OVER (ORDER BY due) AS gap FROM work WHERE name = '$kind') g WHERE gap <> '$step s'"), '0', 'none is left out') if $kind eq 'all';
		is(ask($client, "SELECT count(*) FROM (SELECT token - lag(token) OVER (ORDER BY due) AS more FROM work WHERE name = '$kind') g WHERE more < 0"), '0', 'in the order of the leaders');
		is(ask($client, "SELECT max(due) FROM work WHERE name = '$kind'"), $latest, 'the last one is recorded');
	}
};

subtest 'failover to a synchronous standby' => sub {
	$primary->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	$primary->append_conf('postgresql.conf', q{synchronous_standby_names = '*'});
	$primary->reload;
	$primary->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'})
	  or die 'no synchronous standby';
	$client = session($primary);

	is(do_job($client, 'replicated', $hour), 't', 'a job is done');
	my %leader = map { ($_ => session($primary)) } 'uncommitted', 'unconfirmed';
	ask($leader{$_}, "SELECT le_try_become_leader('$_')") foreach keys %leader;
	is(begin_job($leader{$_}, $_, $hour), 't', "$_: the job begins") foreach keys %leader;
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	my $there = session($standby);
	is(ask($there, q{SELECT due = '2026-01-01 12:00+0' FROM le_once_done WHERE name = 'replicated'}), 't', 'the standby tells what is done');
	fails($there, "SELECT le_once('replicated', now())", '25006', 'but does nothing');
	kill_client($there);

	$standby->stop('immediate');
	post($leader{unconfirmed}, 'COMMIT');
	ok(ask_until($client, "SELECT wait_event FROM pg_stat_activity WHERE pid = $leader{unconfirmed}{pid}", 'SyncRep'), 'a commit waits for the standby');
	kill_server($primary);
	kill_client($client, values %leader);
	$standby->start;
	$standby->promote;

	$client = session($standby);
	is(do_job($client, 'replicated', $hour), 'f', 'what was confirmed is not done again');
	is(do_job($client, 'uncommitted', $hour), 't', 'what was not committed is done');
	is(do_job($client, 'unconfirmed', $hour), 't', 'nor is what the standby has not received');
	is(times_done($client, $_), '1', "$_: done once") foreach 'replicated', keys %leader;
	unlike(slurp_file($_->logfile), qr/TRAP|PANIC/, 'no accident in the log') foreach $primary, $standby;
	$standby->stop('immediate');
};

done_testing();

# also where the test has died
END
{
	my $status = $?;
	kill_worker($_) foreach keys %running;
	$? = $status;
}
