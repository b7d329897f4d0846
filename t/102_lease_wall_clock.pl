# A step of the wall clock neither ends nor prolongs a lease, a term with a heartbeat, nor a wait
# for its end, and a clock that is wrong takes no promotion back.  The clock is that of a library
# which is loaded into the server alone.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $library = build_test_library('set_clock', '-D_GNU_SOURCE');

# How far the server's clock is off, in nanoseconds; the server's processes have mapped the file
my $clock = PostgreSQL::Test::Utils::tempdir() . '/clock';
append_to_file($clock, pack 'q', 0);

sub set_clock
{
	my ($hours) = @_;
	open my $file, '+<', $clock or die $!;
	syswrite $file, pack 'q', $hours * 3600 * 1e9;
	close $file;
	return;
}

sub start_with_clock
{
	my ($node) = @_;
	local %ENV = (%ENV, LD_PRELOAD => $library, CLOCK_OFFSET => $clock);
	$node->start;
	return;
}

my $node = new_server('lease_wall_clock', extension => 0);
$node->stop;
start_with_clock($node);
create_extension($node);

my $holder = session($node, app => 'holder');
my $other = session($node, app => 'other');

# How far the server's wall clock is from ours, in hours
sub hours_off
{
	my $server = ask($holder, 'SELECT extract(epoch FROM clock_timestamp())');
	return sprintf '%.0f', ($server - time) / 3600;
}

sub expires_in
{
	my ($name) = @_;
	return ask($holder, "SELECT extract(epoch FROM expires_in) FROM le_leader('$name')");
}

is(hours_off(), '0', 'the clock is right to begin with');

my $jumps = 0;
foreach my $hours (1, -1)
{

	subtest "the clock jumps to $hours hours off" => sub {
		set_clock(0);
		is(hours_off(), '0', 'the clock is right');
		my $asked = monotonic();
		my $short = ask($holder, q{SELECT le_lease('short', '2 s')});
		my $begun = monotonic();
		my $long = ask($holder, q{SELECT le_lease('long', '10 min')});
		post($other, q{SELECT le_become_leader('short')});
		wait_until_sleeping($node, $other->{pid}, $asked + 2);

		set_clock($hours);
		is(hours_off(), $hours, 'now() has jumped') and $jumps++;

		# the short one before, so that the machine has all of its ttl to do this
		my $looked = monotonic();
		my $left = expires_in('short');
		if ($left)
		{
			cmp_ok($left, '<=', 2 - ($looked - $begun) + 0.001, 'the lease is not prolonged');
			cmp_ok($left, '>=', 2 - (monotonic() - $asked) - 0.001, 'nor cut short');
		}
		else
		{
			cmp_ok(monotonic(), '>', $asked + 2, 'the machine is too slow to see it run');
		}
		$left = expires_in('long');
		cmp_ok($left, '>', 540, 'a longer one runs on');
		cmp_ok($left, '<=', 600, 'for no longer than its ttl');
		is(ask($holder, "SELECT le_renew('long', $long), le_lease('long', '10 min') IS NULL"), 't|t', 'is renewed, and denied to others');
		is(ask($holder, q{SELECT renewed_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp() + interval '1 s' FROM le_leader('long')}), 't', 'renewed_at is on the clock as it is now');
		is(collect($other), 't', 'the candidate for the short one is elected');
		my $elected = monotonic();
		cmp_ok($elected, '>=', $asked + 2, 'not before the ttl is over');
		cmp_ok($elected, '<', $asked + 2 + 20, 'and not much later');
		diag(sprintf 'elected %.0f ms after the ttl', 1000 * ($elected - $asked - 2));
		is(ask($holder, "SELECT le_renew('short', $short), le_resign('long', $long)"), 'f|t', 'its lease is over, the longer one was not');
		is(ask($other, q{SELECT le_resign('short')}), 't', 'resigned');
	};
}
is($jumps, 2, 'the clock did jump');

subtest 'a candidate with a timeout, and the clock goes back' => sub {
	set_clock(0);
	my $asked = monotonic();
	my $token = ask($holder, q{SELECT le_lease('job', '2 s')});
	post($other, q{SELECT le_become_leader('job', '1 min')});
	wait_until_sleeping($node, $other->{pid}, $asked + 2);
	set_clock(-1);
	is(collect($other), 't', 'elected');
	cmp_ok(monotonic(), '>=', $asked + 2, 'not before the ttl is over');
	cmp_ok(monotonic(), '<', $asked + 22, 'and not much later');
	is(ask($other, q{SELECT le_resign('job')}), 't', 'resigned');

	# the limit itself
	set_clock(0);
	$token = ask($holder, q{SELECT le_lease('job', '1 h')});
	$asked = monotonic();
	post($other, q{SELECT le_become_leader('job', '1 s')});
	wait_until_sleeping($node, $other->{pid}, $asked + 1);
	set_clock(-1);
	my $answer = collect_or_cancel($other, $holder);
	ok(defined $answer, 'a wait of one second ends');
	is($answer, 'f', 'without election');
	is(ask($holder, "SELECT le_resign('job', $token)"), 't', 'resigned');
};

# The server's timer fires early, but the candidate waits on: in line, and for any of many
subtest 'a candidate waits for a session, and the clock goes forward' => sub {
	my @candidates = map { session($node, app => "candidate $_") } 1 .. 3;
	my @calls = (q{SELECT le_become_leader('held', '4 s')}, q{CALL le_campaign('held', '4 s')},
		q{CALL le_campaign('{held, held too}'::text[], '4 s')});
	set_clock(0);
	is(ask($holder, q{SELECT le_try_become_leader('held'), le_try_become_leader('held too')}), 't|t', 'a session leads');
	my $asked = monotonic();
	post($candidates[$_], $calls[$_]) foreach 0 .. 2;
	wait_for_candidate($holder, $_) foreach @candidates;
	set_clock(1);
	my @first = map { collect($_, $asked + 3.5 - monotonic()) } @candidates;
	is(scalar(grep { defined } @first), 0, 'none gives up early');
	is(collect($candidates[0]), 'f', 'a bid is denied');
	is(collect($_), '', 'a campaign ends') foreach $candidates[1];
	is(collect($_), '|', 'a campaign for many ends') foreach $candidates[2];
	cmp_ok(monotonic() - $asked, '>=', 4, 'after the timeout');
	cmp_ok(monotonic() - $asked, '<', 24, 'and not much later');

	# one that is elected meanwhile
	set_clock(0);
	post($candidates[0], q{SELECT le_become_leader('held', '1 min')});
	wait_for_candidate($holder, $candidates[0]);
	set_clock(1);
	wait_for_candidate($holder, $candidates[0]);
	is(ask($holder, q{SELECT le_resign('held')}), 't', 'resigned');
	is(collect($candidates[0]), 't', 'elected');

	# set back, the timer may be late, but the turn is not
	set_clock(0);
	ask($holder, q{SELECT le_try_become_leader('held back')});
	post($candidates[0], q{SELECT le_become_leader('held back', '1 s')});
	wait_for_candidate($holder, $candidates[0]);
	set_clock(-1);
	ask($holder, q{SELECT le_resign('held back')});
	like(collect($candidates[0]), qr/^[tf]$/, 'answered');
	is(ask($candidates[0], q{SELECT le_try_become_leader('held back')}), 't', 'elected');

	# a lock_timeout of the session is the server's, and follows the clock
	set_clock(0);
	ask($candidates[1], q{SET lock_timeout = '1 min'});
	post($candidates[1], q{SELECT le_become_leader('held', '10 min')});
	wait_for_candidate($holder, $candidates[1]);
	set_clock(1);
	collect($candidates[1]);
	is($candidates[1]{code}, '55P03', 'lock_timeout');
	ask($holder, 'SELECT le_resign_all()');
	end_session(@candidates);
};

foreach my $hours (1, -1)
{
	subtest "a term with a heartbeat, and the clock jumps to $hours hours off" => sub {
		my ($leader, $long) = map { session($node) } 1, 2;
		set_clock(0);
		ask($long, q{SELECT le_try_become_leader('long beat', heartbeat => '10 min')});
		post($other, q{SELECT le_become_leader('beat')}) if ask($leader, q{SELECT le_try_become_leader('beat', heartbeat => '10 min')}) eq 't';
		wait_for_candidate($holder, $other);
		my $asked = monotonic();
		ask($leader, q{SELECT le_try_become_leader('beat', heartbeat => '2 s')});
		set_clock($hours);
		is(collect($other), 't', 'the candidate is elected');
		my $elected = monotonic();
		cmp_ok($elected, '>=', $asked + 2, 'not before the deadline');
		cmp_ok($elected, '<', $asked + 2 + 20, 'and not much later');
		ok(wait_for_end($leader), 'the silent session is terminated');
		is($leader->{code}, '57P01', 'as it has given no heartbeat');
		is(ask($long, q{SELECT expires_in BETWEEN '8 min' AND '10 min' FROM le_leader('long beat')}), 't', 'a longer heartbeat keeps its deadline');
		is(ask($long, q{SELECT le_am_leader('long beat'), le_heartbeat('long beat')}), 't|t', 'and the term runs on');
		ask($other, q{SELECT le_resign('beat')});
		end_session($long);
	};
}
set_clock(0);

end_session($holder, $other);
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;

# the third server follows the second, and misses the tokens that it draws
subtest 'a promotion that is known by its timeline only' => sub {
	my $elect = q{SELECT le_token('job') FROM le_try_become_leader('job')};
	my $first = new_server('first', allows_streaming => 1);
	$first->safe_psql('postgres', $elect);
	$first->backup('base');
	my ($second, $third) = map { PostgreSQL::Test::Cluster->new($_) } 'second', 'third';
	$_->init_from_backup($first, 'base', has_streaming => 1) foreach $second, $third;
	$third->append_conf('postgresql.conf', "primary_conninfo = '" . $second->connstr . "'");
	$second->start;
	set_clock(-1);
	start_with_clock($third);

	$first->stop('immediate');
	$second->promote;
	ok($third->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE received_tli = 2'), 'its standby follows it');
	$third->append_conf('postgresql.conf', q{primary_conninfo = 'port=1'});
	$third->reload;
	ok($third->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver'), 'and is cut off');
	my $token = $second->safe_psql('postgres', $elect);
	$second->stop('immediate');
	$third->promote;
	cmp_ok($third->safe_psql('postgres', $elect), '>', $token, 'the token is greater, though the clock is an hour behind');
	$third->stop('immediate');
};
done_testing();
