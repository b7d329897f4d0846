# Leases through PgBouncer in transaction mode: each statement on whatever server
# connection it gets, and one leader at a time.  Session scope behind session
# mode: the term ends with the client.  Session scope behind transaction mode, which
# is a mistake: clients on one server connection are told apart by their identities.
#
# editions: C, SQL

use strict;
use warnings;

use POSIX ();
use Test::More;
use Time::HiRes qw(usleep);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Pooler;

plan skip_all => 'needs PgBouncer (Debian package pgbouncer), and not to run as root'
  unless defined pooler_program();

my $ttl = 2;
my $node = new_server('lease_pgbouncer');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $owner = $$;

my $pooler = new_pooler($node, q{
min_pool_size = 3
server_lifetime = 3600
max_client_conn = 50
});

sub bounce_session
{
	return pooled_session($pooler, @_);
}

# A program's loop: become or stay leader by one statement, through the pooler,
# and record when it asked, when it got the answer, the token, and the server
# process.  It runs in a process of its own until there is a file called stop.
# While there is one called pause.TOKEN, the program that has that token stops
# asking.  A lost connection is made again.
sub run_program
{
	my ($me) = @_;
	my ($session, $token);
	my $sql = "SELECT pg_backend_pid(), le_lease('job', '$ttl s', identity => '$me', token => TOKEN)";

	open my $log, '>', "$dir/$me.log" or die $!;
	$log->autoflush(1);
	until (-e "$dir/stop")
	{
		if (defined $token && -e "$dir/pause.$token")
		{
			# long enough for another to be elected
			usleep(20_000) until -e "$dir/stop" || -e "$dir/go.$token";
			$token = undef;
			next;
		}
		$session //= eval { bounce_session('job') };
		if (defined $session)
		{
			(my $statement = $sql) =~ s/TOKEN/$token \/\/ 'NULL'/e;
			my $asked = monotonic();
			my $answer = eval { ask($session, $statement) };
			if (defined $answer && $answer =~ /^(\d+)\|(\d*)$/)
			{
				printf $log "%s %.6f %.6f %d %s\n", $me, $asked, monotonic(), $1, $2 || 0;
				$token = $2 || undef;
			}
			else
			{
				printf $log "%s lost\n", $me;
				eval { end_session($session) };
				$session = undef;
			}
		}
		usleep(20_000);
	}
	end_session($session) if $session;
	return;
}

sub start_program
{
	my ($me) = @_;
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	return $pid if $pid;
	eval { run_program($me) };
	# without the cleaning up of the process that this is a copy of
	POSIX::_exit($@ ? 1 : 0);
}

# What the programs have heard until now, in the order of time
sub heard
{
	my @heard;
	my $lost = 0;
	foreach my $file (glob "$dir/program*.log")
	{
		foreach my $line (split /\n/, slurp_file($file))
		{
			my ($me, $asked, $at, $backend, $token) = split / /, $line;
			if ($asked eq 'lost') { $lost++; next; }
			next unless defined $token;
			push @heard, { me => $me, asked => $asked, at => $at, backend => $backend, token => $token };
		}
	}
	@heard = sort { $a->{at} <=> $b->{at} } @heard;
	return (\@heard, $lost);
}

# Wait until the programs have heard something; the last one that satisfies it
sub wait_heard
{
	my ($what, $condition) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	while (monotonic() < $patience)
	{
		my ($heard) = heard();
		my @found = grep { $condition->($_) } @$heard;
		return $found[-1] if @found;
		usleep(20_000);
	}
	die "waited in vain for: $what";
}

sub create_file
{
	my ($name) = @_;
	append_to_file("$dir/$name", '');
	return;
}

require IO::Socket::INET;
start_pooler($pooler);
my @programs = map { start_program("program$_") } 1 .. 3;
my @handovers;

subtest 'the leader stops renewing: the next one leads' => sub {
	my $last = 0;
	foreach my $i (1, 2)
	{
		my $first = wait_heard('a leader', sub { $_[0]->{token} > $last });
		my $token = $first->{token};
		wait_heard('a while of leading', sub { $_[0]->{token} == $token && $_[0]->{asked} > $first->{at} + 0.4 });
		create_file("pause.$token");
		my $next = wait_heard('the next leader', sub { $_[0]->{token} > $token });
		cmp_ok($next->{token}, '>', $token, 'a greater token');
		isnt($next->{me}, $first->{me}, 'another program');
		create_file("go.$token");
		push @handovers, $token;
		$last = $token;
	}
};

subtest 'PgBouncer is restarted in mid-term: the holder goes on' => sub {
	my $before = wait_heard('a leader', sub { $_[0]->{token} > $handovers[-1] });
	# all have asked, so that all have connections to lose
	my $since = monotonic();
	foreach my $i (1 .. 3)
	{
		wait_heard("program $i", sub { $_[0]->{me} eq "program$i" && $_[0]->{asked} > $since });
	}
	my $down = monotonic();
	stop_pooler($pooler);
	start_pooler($pooler);
	my $up = monotonic();
	my $after = wait_heard('the leader again', sub { $_[0]->{token} && $_[0]->{asked} > $up });
	diag(sprintf 'PgBouncer was down for %.0f ms, the leader without it for %.0f ms', 1000 * ($up - $down), 1000 * ($after->{at} - $down));
	wait_heard('each program again', do { my $i = $_; sub { $_[0]->{me} eq "program$i" && $_[0]->{asked} > $up } }) foreach 1 .. 3;
	my (undef, $lost) = heard();
	cmp_ok($lost, '>=', 3, 'all have lost their connections');
  SKIP:
	{
		skip 'the machine needed longer than the ttl', 2 if $after->{at} - $down > $ttl;
		is($after->{token}, $before->{token}, 'with the same token');
		is($after->{me}, $before->{me}, 'in the same program');
	}
};

create_file('stop');
foreach my $pid (@programs)
{
	waitpid $pid, 0;
	is($?, 0, 'a program has come to its end');
}

subtest 'what the programs have noted' => sub {
	my ($heard) = heard();
	my (%term, %backends, %programs);
	foreach my $one (@$heard)
	{
		$programs{ $one->{me} }++;
		next unless $one->{token};
		my $term = $term{ $one->{token} } //= { %$one, first => $one };
		$backends{ $one->{token} }{ $one->{backend} }++;
		is($one->{me}, $term->{me}, "only one has token $one->{token}") if $one->{me} ne $term->{me};
		$term->{last} = $one;
		$term->{count}++;
	}
	my @tokens = sort { $a <=> $b } keys %term;
	cmp_ok(scalar(@tokens), '>=', 3, 'terms: ' . scalar(@tokens));
	is(scalar(keys %programs), 3, 'three programs: ' . join(', ', map { "$_ asked $programs{$_} times" } sort keys %programs));
	foreach my $token (@tokens)
	{
		diag("token $token: told $term{$token}{count} times that it leads, on " . keys(%{ $backends{$token} }) . ' server connections');
	}
	cmp_ok(scalar(grep { keys %{ $backends{$_} } > 1 } @tokens), '>=', 1, 'leaders were on more than one server connection');

	# a leader may rely on its term until the ttl after it has last asked
	my $before;
	foreach my $token (@tokens)
	{
		my $term = $term{$token};
		if ($before)
		{
			my $until = $before->{last}{asked} + $ttl;
			cmp_ok($term->{first}{at}, '>=', $until, "token $token: one leader at a time");
			my $delay = $term->{first}{at} - $until;
			diag(sprintf 'the next one led %.1f ms after the ttl of the one that stopped (polling at 20 ms)', 1000 * $delay);
			cmp_ok($delay, '<', 15, 'and it was not long without one');
		}
		$before = $term;
	}

	# no program was denied for long without a leader, nor told that it leads
	# while another did
	my @false = grep { my $one = $_; $one->{token} && grep { $_ > $one->{token} && $term{$_}{first}{at} < $one->{asked} } @tokens } @$heard;
	is(scalar(@false), 0, 'no answer with a token that has a successor');
};

subtest 'resignation on whatever connection' => sub {
	my $session = bounce_session('job');
	my $second = bounce_session('job');
	my $patience = monotonic() + 30;
	my $token = '';
	# the last program's lease runs out
	$token = ask($session, q{SELECT le_lease('job', '1 h', identity => 'x')}) until $token ne '' || monotonic() > $patience;
	# the pool opens as many connections as it needs
	ask($second, 'BEGIN; SELECT 1');
	is(ask($session, "SELECT le_renew('job', $token)"), 't', 'renewed');
	ask($second, 'COMMIT');
	my %backends = map { ask($session, "SELECT pg_backend_pid() || '|' || le_am_leader('job', $token)") => 1 } 1 .. 9;
	is(scalar(grep { /\|true$/ } keys %backends), scalar(keys %backends), 'it leads, on ' . keys(%backends) . ' connections');
	cmp_ok(scalar(keys %backends), '>', 1, 'more than one');
	ask($second, 'BEGIN; SELECT 1');
	is(ask($session, "SELECT le_resign('job', $token)"), 't', 'resigned');
	is(ask($second, q{SELECT le_lease('job', '1 h', identity => 'y') > 0}), 't', 'another takes it, in a transaction');
	is(ask($session, q{SELECT le_lease('job', '1 h', identity => 'x')}), '', 'which is denied');
	ask($second, 'ROLLBACK');
	is(ask($session, q{SELECT le_lease('job', '1 h', identity => 'x') > 0}), 't', 'and not after the rollback');
	end_session($session, $second);
};

subtest 'session scope behind session mode' => sub {
	foreach my $way ('disconnects', 'is killed')
	{
		my $one = bounce_session('session');
		my $two = bounce_session('session');
		my $pid = ask($one, 'SELECT pg_backend_pid()');
		is(ask($one, q{SELECT le_try_become_leader('session job', identity => 'one')}), 't', 'elected');
		is(ask($two, q{SELECT le_try_become_leader('session job', identity => 'two')}), 'f', 'denied');
		my $token = ask($one, q{SELECT le_token('session job')});
		$way eq 'is killed' ? kill_client($one) : end_session($one);
		ok( $node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM le_leader('session job')}),
			"the term ends when the client $way");
		is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid"), '1', 'though the server process stays');
		is(ask($two, q{SELECT le_try_become_leader('session job', identity => 'two')}), 't', 'another is elected');
		cmp_ok(ask($two, q{SELECT le_token('session job')}), '>', $token, 'with a greater token');
		end_session($one, $two);
		$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM le_leader('session job')});
	}
};

subtest 'session scope behind transaction mode: two clients, one server connection' => sub {
	my $narrow = new_pooler($node, "default_pool_size = 1\n");
	start_pooler($narrow);
	my %client = map { $_ => pooled_session($narrow, 'transaction') } 'one', 'two';
	my %pid = map { $_ => ask($client{$_}, 'SELECT pg_backend_pid()') } keys %client;
	is($pid{one}, $pid{two}, 'they share a server connection');
	my $warning = qr/WARNING: .*this session leads election "shared" as "one".*HINT: .*a pooler in transaction mode/s;

	like(ask($client{one}, q{CALL le_campaign('shared', identity => 'one')}), qr/^\d+$/, 'one is elected');
	foreach my $bid (
		q{SELECT le_try_become_leader('shared', identity => 'two')},
		q{SELECT le_am_leader('shared', identity => 'two')},
		q{SELECT le_resign('shared', identity => 'two')})
	{
		is(ask($client{two}, $bid), 'f', "two: $bid");
		like($client{two}{messages}, $warning, 'with a warning about the leader and the pooler') unless $bid =~ /am_leader/;
	}
	ask($client{two}, q{CALL le_campaign('shared', identity => 'two')});
	like($client{two}{messages}, qr/ERROR: .*cannot wait to lead election "shared", which this session leads already\nDETAIL:  The session leads it as "one"\./, 'two: le_campaign');
	is(ask($client{one}, q{SELECT le_am_leader('shared', identity => 'one')}), 't', 'one leads on');
	is(ask($client{one}, q{SELECT le_try_become_leader('shared', identity => 'one')}), 't', 'and is confirmed');
	is($node->safe_psql('postgres', q{SELECT identity FROM le_leader('shared')}), 'one', 'no other does');
	is(ask($client{one}, q{SELECT le_resign('shared', identity => 'one')}), 't', 'one resigns');
	is(ask($client{two}, q{SELECT le_try_become_leader('shared', identity => 'two')}), 't', 'then two is elected');
	is(ask($client{one}, q{SELECT le_am_leader('shared', identity => 'one')}), 'f', 'and one does not lead');
	end_session(values %client);
	stop_pooler($narrow);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
stop_pooler($pooler);
$node->stop;
done_testing();

END
{
	# the programs are copies of this process
	if (defined $owner && $$ == $owner)
	{
		my $status = $?;
		create_file('stop') if defined $dir;
		stop_pooler($pooler);
		$? = $status;
	}
}
