# At most three of thirty workers lead, as le_seats has three names for them: in session scope,
# by leases through PgBouncer in transaction mode, waiting or not, while workers are killed,
# and while the number of seats grows and shrinks.
#
# Wrong outcomes: more workers lead than there are seats; a seat stays empty though a worker
# waits for it; a worker that has a seat loses it because the number has changed.
#
# editions: C, SQL

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use Actors;
use LeaderElection;
use Pooler;

my $seats = 3;
my $workers = 30;
my $seconds = $ENV{LE_SOAK_SECONDS} // 8;

my $node = new_server('seats', conf => "max_connections = 60\nclient_connection_check_interval = 500ms\n");
my $control = session($node);
my $pooler;

# The leader of each seat, as an administrator sees it
sub taken
{
	my ($pool, $n) = @_;
	return ask($control, "SELECT string_agg(name || ' ' || identity, ', ' ORDER BY name) FROM le_leaders WHERE name = ANY (le_seats('$pool', $n))");
}

# The seats of these workers, once they have one each
sub seats_of
{
	return join ' ', sort map { (split /\|/, collect($_) // '')[1] // 'none' } @_;
}

# Wait until that many have an answer, and return these and the others
sub await
{
	my ($count, @clients) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	while ($count > grep { $_->{ready} } @clients)
	{
		die "not $count are elected" if monotonic() > $patience;
		hear(0.01, @clients);
	}
	return ([ grep { $_->{ready} } @clients ], [ grep { !$_->{ready} } @clients ]);
}

subtest 'thirty sessions wait for three seats' => sub {
	my @clients = map { session($node, app => "w$_") } 1 .. $workers;
	my $rounds = 0;
	my %tokens;

	post($clients[$_], "CALL le_campaign(le_seats('pool', $seats), identity => 'w$_')") foreach 0 .. $#clients;
	my ($leading, $waiting) = await($seats, @clients);
	is(seats_of(@$leading), 'pool/1 pool/2 pool/3', 'three lead, each in a seat of its own');
	while (@$waiting)
	{
		$tokens{ (split /\|/, $_->{rows}[0])[0] } = 1 foreach @$leading;
		# one resigns, or dies
		my $client = shift @$leading;
		my $seat = (split /\|/, $client->{rows}[0])[1];
		if ($rounds++ % 2) { kill_client($client); }
		else { is(ask($client, "SELECT le_resign('$seat')"), 't', "$seat is resigned"); }
		my ($next, $others) = await(1, @$waiting);
		is(seats_of(@$next), $seat, 'and taken by one of those that wait');
		push @$leading, @$next;
		$waiting = $others;
		is(ask($control, q{SELECT count(*), count(DISTINCT identity) FROM le_leaders WHERE name ^@ 'pool/'}), "$seats|$seats", 'three lead');
	}
	is($rounds, $workers - $seats, 'all had a turn');
	is(keys %tokens, $workers - $seats + 2, 'with a token each');
	kill_client(@clients);
	ok(ask_until($control, 'SELECT count(*) FROM le_leaders', '0'), 'no seat is kept');
};

subtest 'without waiting' => sub {
	my @clients = map { session($node, app => "w$_") } 1 .. $workers;
	post($clients[$_], "CALL le_campaign(le_seats('pool', $seats), timeout => '0', identity => 'w$_')") foreach 0 .. $#clients;
	my @answers = map { collect($_) } @clients;
	# with the SQL edition, those that bid at the same moment can deny one another
	if (ask($control, q{SELECT count(*) FROM pg_extension WHERE extname = 'leader_election'}) == 0)
	{
		foreach (grep { $answers[$_] eq '|' } 0 .. $#clients)
		{
			last if (grep { $_ ne '|' } @answers) == $seats;
			$answers[$_] = ask($clients[$_], "CALL le_campaign(le_seats('pool', $seats), timeout => '0', identity => 'w$_')");
		}
	}
	is(scalar(grep { $_ ne '|' } @answers), $seats, 'three are elected, the others have NULLs at once');
	is(join(' ', sort map { /\|(.+)/ ? $1 : () } @answers), 'pool/1 pool/2 pool/3', 'to a seat each');
	is(ask($control, 'SELECT count(*) FROM le_candidates'), '0', 'none of them waits');
	kill_client(@clients);
	ok(ask_until($control, 'SELECT count(*) FROM le_leaders', '0'), 'no seat is kept');
};

subtest 'the number of seats changes' => sub {
	my @clients = map { session($node, app => "w$_") } 0 .. 9;
	my $campaign = sub {
		my ($worker, $n, $how) = @_;
		post($clients[$worker], "CALL le_campaign(le_seats('pool', $n), identity => 'w$worker'" . ($how // '') . ')');
		return $clients[$worker];
	};
	$campaign->($_, 3) && collect($clients[$_]) foreach 0 .. 2;
	is(taken('pool', 3), 'pool/1 w0, pool/2 w1, pool/3 w2', 'three lead');
	wait_until_asleep($control, $campaign->(3, 3));

	# it grows: a campaign with the greater number leads at once, one that
	# waits already does not
	is(seats_of($campaign->($_, 5)), "pool/$_", 'one more seat') foreach 4, 5;
	ok(!$clients[3]{ready}, 'one that waits for three does not come to know of them');
	is(taken('pool', 5), 'pool/1 w0, pool/2 w1, pool/3 w2, pool/4 w4, pool/5 w5', 'five lead');

	# it shrinks: the leaders lead on, and no new worker takes what is left
	wait_until_asleep($control, $campaign->(6, 2));
	is(taken('pool', 5), 'pool/1 w0, pool/2 w1, pool/3 w2, pool/4 w4, pool/5 w5', 'five lead on');
	is(ask($clients[4], q{SELECT le_am_leader('pool/4')}), 't', 'in their own eyes, too');
	ask($clients[4], q{SELECT le_resign('pool/4')});
	is(collect($campaign->(7, 2, q{, timeout => '0'})), '|', 'a seat that is too many is not taken');
	ask($clients[2], q{SELECT le_resign('pool/3')});
	is(seats_of($clients[3]), 'pool/3', 'but by one that has waited for three');
	ok(!$clients[6]{ready}, 'one that waits for two waits on');
	is(taken('pool', 5), 'pool/1 w0, pool/2 w1, pool/3 w3, pool/5 w5', 'four lead');
	ask($clients[3], q{SELECT le_resign('pool/3')});
	ask($clients[5], q{SELECT le_resign('pool/5')});
	is(taken('pool', 5), 'pool/1 w0, pool/2 w1', 'two lead when the others have resigned');
	ask($clients[1], q{SELECT le_resign('pool/2')});
	is(seats_of($clients[6]), 'pool/2', 'and the next of two');

	# a worker that calls again has a second seat
	is(seats_of($campaign->(0, 3)), 'pool/3', 'one that calls again takes another seat');
	is(ask($clients[0], 'SELECT le_resign_all()'), '2', 'and has two');
	kill_client(@clients);
	ok(ask_until($control, 'SELECT count(*) FROM le_leaders', '0'), 'no seat is kept');
};

# Those that believe to lead, and the most that ever did
my (@actors, $most, %terms);

sub believers
{
	my $now = monotonic();
	my $count = grep { ($_->{leads_until} // 0) > $now } @actors;
	$most = $count if $count > $most;
	return $count;
}

# Thirty workers that follow the script, and are killed at random once all seats are taken,
# leaders most of all
sub soak
{
	my ($scope, $script, $kill_every, %params) = @_;
	my ($killed, $next_kill) = (0, 0);

	($most, %terms) = (0);
	@actors = map { actor($node, $script, %params, app => "w$_") } 1 .. $workers;
	my $late = [ play($seconds, sub {
		believers();
		return if $most < $seats || monotonic() < $next_kill;
		$next_kill = monotonic() + rand 2 * $kill_every;
		my @leaders = grep { ($_->{leads_until} // 0) > monotonic() } @actors;
		my $victim = some(@leaders && rand() < 0.8 ? @leaders : @actors);
		$victim->{leads_until} = 0;
		lose($victim);
		$killed++;
	}, @actors) ];
	is(@$late, 0, 'all come to an end');
	my $elected = 0;
	$elected += $_ foreach values %terms;
	is($most, $seats, "at most $seats lead, and $seats do");
	cmp_ok($killed, '>', $seats, "$killed were killed");
	cmp_ok($elected, '>', 3 * $seats, "$elected terms");
	is(join(' ', grep { $_ } map { $_->{client}{error} } @actors), '', 'no errors');
	kill_client(map { $_->{client} } @actors);
	ok(ask_until($control, q{SELECT count(*) FROM le_leaders}, '0'), 'all seats are free');
	is(join(' ', sort keys %terms), join(' ', map { "$scope/$_" } 1 .. $seats), 'all of them were used, and no other one');
	return;
}

# Lead for a while in session scope, then resign
sub by_session
{
	my ($actor, $answer) = @_;

	return if $actor->{stop} && !$actor->{seat};
	if ($actor->{seat} && defined $answer)
	{
		my $seat = $actor->{seat};
		return ('SELECT 1', 0.02) if $actor->{more}-- > 0 && !$actor->{stop};
		@$actor{qw(seat leads_until)} = (undef, 0);
		return "SELECT le_resign('$seat')";
	}
	undef $actor->{seat};
	if (defined $answer && $answer =~ /^\d+\|(.*)/)
	{
		@$actor{qw(seat leads_until more)} = ($1, 'inf', int rand 4);
		$terms{$1}++;
		believers();
		return ('SELECT 1', 0.02);
	}
	# some wait, and some ask now and then
	my $waits = rand() < 0.5 ? '1 s' : '0';
	return ("CALL le_campaign(le_seats('session', $seats), timeout => '$waits')", rand 0.05);
}

# By a lease, on whatever connection the pooler has; two thirds of it count, from before the question
my $ttl = 0.6;

sub by_lease
{
	my ($actor, $answer) = @_;

	@$actor{qw(seat token leads_until)} = () unless defined $answer;
	if ($actor->{seat})
	{
		$actor->{leads_until} = $answer eq 't' ? $actor->{asked} + $ttl * 2 / 3 : 0 if $actor->{renews};
		believers();
		my ($seat, $token) = @$actor{qw(seat token)};
		if ($actor->{stop} || $actor->{more}-- <= 0 || $actor->{leads_until} < monotonic())
		{
			@$actor{qw(seat token leads_until renews)} = ();
			return "SELECT le_resign('$seat', $token)";
		}
		@$actor{qw(asked renews)} = (monotonic(), 1);
		return ("SELECT le_renew('$seat', $token)", 0);
	}
	return if $actor->{stop};
	if (defined $answer && $answer =~ /^(\d+)\|(.*)/)
	{
		@$actor{qw(token seat leads_until more renews)} = ($1, $2, $actor->{asked} + $ttl * 2 / 3, int rand 4, 0);
		$terms{$2}++;
		believers();
		return ('SELECT 1', 0.1);
	}
	$actor->{asked} = monotonic();
	return "CALL le_campaign(le_seats('lease', $seats), timeout => '0', ttl => '$ttl s')";
}

srand(my $seed = $ENV{LE_SOAK_SEED} // int(rand(2**31)));
diag("seed $seed");
subtest 'a soak in session scope' => sub { soak('session', \&by_session, 0.03) };
subtest 'a soak by leases through PgBouncer' => sub {
	plan skip_all => 'needs PgBouncer (Debian package pgbouncer), and not to run as root'
	  unless defined pooler_program();
	$pooler = new_pooler($node, "max_client_conn = 100\n");
	start_pooler($pooler);
	# one that is killed keeps its seat for the ttl
	soak('lease', \&by_lease, 0.2, host => '127.0.0.1', port => $pooler->{port}, db => 'transaction');
	stop_pooler($pooler);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();

# also where the test has died
END
{
	my $status = $?;
	stop_pooler($pooler);
	$? = $status;
}
