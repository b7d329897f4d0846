# Heartbeats that come right at the deadline, while a candidate waits: a leader that was told that
# its heartbeat has come in time leads on for that long, and one that is late is not told so.
# Nothing of a heartbeat outlives the server that it was given to.
#
# Wrong outcomes: a heartbeat is stored after its session was told to go, so that the next one is
# elected although the leader was told that it leads; two lead at a time; a session is terminated
# whose leader has just begun another term; the end of a term is lost between two that end it.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $bound = 10;
my $node = new_server('heartbeat_races', allows_streaming => 1);
$node->safe_psql('postgres', q{
CREATE TABLE written (id bigserial, name text, token bigint);
-- gives a heartbeat at the deadline, more or less, as long as it is in time; tells when it was
-- asked to
CREATE FUNCTION beat_at_deadline(election text, token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz;
	asked timestamptz;
BEGIN
	LOOP
		SELECT clock_timestamp() + expires_in + (random() - 0.6) * interval '1 ms' INTO at FROM le_leader(election);
		IF NOT FOUND THEN
			RETURN false;
		END IF;
		PERFORM pg_sleep(extract(epoch FROM at - clock_timestamp()) - 0.002);
		LOOP
			asked := clock_timestamp();
			EXIT WHEN asked >= at;
		END LOOP;
		IF NOT le_heartbeat(election, token) THEN
			RETURN false;
		END IF;
		RAISE NOTICE 'in time: %', extract(epoch FROM asked);
	END LOOP;
END $$;
-- writes as long as it is guarded by that term
CREATE PROCEDURE write_guarded(election text, token bigint) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		PERFORM le_assert_leader(election, token);
		INSERT INTO written (name, token) VALUES (election, token);
		COMMIT;
	END LOOP;
END $$});
my $watcher = session($node, app => 'watcher');

sub last_in_time
{
	my ($client) = @_;
	my @times = $client->{messages} =~ /in time: ([\d.]+)/g;
	return $times[-1] // 0;
}

subtest 'heartbeats at the deadline' => sub {
	my ($in_time, $rounds, @early, @failed) = (0, 0);
	foreach my $round (1 .. 12)
	{
		my @races = map { { name => "race $_" } } 1 .. 3;
		foreach my $race (@races)
		{
			my $name = $race->{name};
			@$race{qw(leader beater writer next)} = map { session($node, app => "$_ of $name") } qw(leader beater writer next);
			ask($race->{leader}, "SELECT le_try_become_leader('$name', heartbeat => '1 h')") eq 't' or die $race->{leader}{messages};
			$race->{token} = ask($race->{leader}, "SELECT le_token('$name')");
			post($race->{next}, "CALL le_campaign('$name')");
			wait_for_candidate($watcher, $race->{next});
			ask($race->{leader}, "SELECT le_try_become_leader('$name', heartbeat => '100 ms')");
			post($race->{writer}, "CALL write_guarded('$name', $race->{token})");
			# by its token in every other round, else in the session that leads
			$race->{beats} = $round % 2 ? 'beater' : 'leader';
			post($race->{ $race->{beats} }, "SELECT beat_at_deadline('$name', $race->{token})");
		}
		foreach my $race (@races)
		{
			my $name = $race->{name};
			my $beats = $race->{ $race->{beats} };
			my $new = collect($race->{next}, 60);
			push @failed, "$name: no election" and next unless defined $new && $new > $race->{token};
			my $since = ask($race->{next}, "SELECT extract(epoch FROM since) FROM le_leader('$name') WHERE token = $new");
			ask($race->{next}, "INSERT INTO written (name, token) SELECT '$name', $new FROM le_assert_leader('$name', $new)");
			collect($beats);
			collect($race->{writer});
			push @failed, "$name: the writer: $race->{writer}{error}" if $race->{writer}{code} ne 'LE001';
			push @failed, "$name: no end" unless wait_for_end($race->{leader}, $bound);
			# a call of its own session may come between the deadline and the timer
			push @failed, "$name: $race->{leader}{messages}" if $race->{leader}{code} !~ /^(57P01|LE004)$/;
			$in_time += () = $beats->{messages} =~ /in time/g;
			$rounds++;
			push @early, sprintf '%s: elected %.6f s after a heartbeat that was in time', $name, $since - last_in_time($beats)
			  if $since < last_in_time($beats) + 0.1;
			end_session(@$race{qw(next beater writer leader)});
		}
	}
	is_deeply(\@failed, [], "all went well in $rounds rounds with $in_time heartbeats in time");
	is_deeply(\@early, [], 'none is elected before the last heartbeat has run out');
	diag('the machine was too slow for any heartbeat in time') if $in_time == 0;
	is(ask($watcher, q{SELECT count(*) FROM (SELECT token < lag(token) OVER (PARTITION BY name ORDER BY id) AS back FROM written) w WHERE back}), '0', 'nothing is written in a term after the next one has begun');
	is(ask($watcher, q{SELECT count(*) FROM pg_stat_leader_election WHERE name LIKE 'race%' AND silent = terms / 2}), '3', 'each term has ended by silence, once');
};

# Its session bids again at the deadline; others bid, too.  At most one of them leads next
subtest 'all bid at the deadline' => sub {
	my @others = map { session($node) } 1, 2;
	my (%led, %ends);
	my $leader = session($node, app => 'leader');
	my $last = 0;
	foreach my $round (1 .. 40)
	{
		ask($leader, q{SELECT le_try_become_leader('place', heartbeat => '100 ms')}) eq 't' or die $leader->{messages};
		my @bidders = ($leader, @others);
		post($_, q{SELECT pg_sleep(least(extract(epoch FROM expires_in), 0.1) + random() * 0.001) FROM le_leader('place'); SELECT le_try_become_leader('place', heartbeat => '1 h'); SELECT le_token('place')}) foreach @bidders;
		collect($_) foreach @bidders;
		my @elected = grep { ($_->{rows}[-1] // '') =~ /^\d+$/ } grep { !$_->{closed} } @bidders;
		cmp_ok(scalar @elected, '<=', 1, 'two lead') if @elected > 1;
		my $new = @elected ? $elected[0]{rows}[-1] : 0;
		fail("token $new after $last") if $new && $new <= $last;
		$last = $new if $new;
		$led{ !@elected ? 'none' : $elected[0] == $leader ? 'the same' : 'another' }++;
		if ($leader->{closed})
		{
			$ends{ $leader->{code} }++;
			$leader = session($node, app => 'leader');
		}
		ask($_, q{SELECT le_resign_all()}) foreach grep { !$_->{closed} } @bidders;
		fail('another session has ended') if grep { $_->{closed} } @others;
	}
	note(join ', ', map { "$_ leads next: $led{$_}" } sort keys %led);
	diag(join ', ', map { "sessions ended with $_: $ends{$_}" } sort keys %ends) if %ends;
	end_session($leader, @others);
	is(ask($watcher, q{SELECT terms - resigned - silent - session_ended FROM pg_stat_leader_election WHERE name = 'place'}), '0', 'each term has ended, and once');
};

# Bids that find the leader silent must not move the time at which its term has ended
subtest 'many bids while a silent session has the lock' => sub {
	my $leader = session($node);
	my $bidder = session($node);
	ask($leader, q{SELECT le_try_become_leader('bids', heartbeat => '100 ms')});
	pause_process($leader->{pid});
	ask_until($watcher, q{SELECT count(*) FROM le_leader('bids')}, '0');
	my $led = ask($watcher, q{SELECT extract(epoch FROM time_led) FROM pg_stat_leader_election WHERE name = 'bids'});
	ask($bidder, q{DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM le_become_leader('bids', '1 ms'); END LOOP; END $$});
	my $later = ask($watcher, q{SELECT extract(epoch FROM time_led) FROM pg_stat_leader_election WHERE name = 'bids'});
	cmp_ok(abs($later - $led), '<=', 0.000002, 'the time that was led stays');
	kill 'CONT', $leader->{pid};
	ok(wait_for_end($leader, $bound), 'the session ends when it goes on');
	end_session($bidder);
};

no_candidates($watcher, 'no candidate is left');
all_consistent($node, 'each term has its lock');

subtest 'promotion, and restarts' => sub {
	my $client = session($node);
	ask($client, q{SELECT le_try_become_leader('server', heartbeat => '1 h')});
	my $token = ask($client, q{SELECT le_token('server')});
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	my $reader = session($standby);
	is(ask($reader, 'SELECT count(*) FROM le_leaders'), '0', 'a standby shows no term with a heartbeat');
	fails($reader, "SELECT le_heartbeat('server', $token)", '25006', 'and takes no heartbeat');
	fails($reader, q{SELECT le_heartbeat('server')}, '25006', 'in no way');
	fails($reader, q{SELECT le_try_become_leader('server', heartbeat => '1 s')}, '25006', 'nor a bid');
	end_session($reader);
	$standby->promote;
	$reader = session($standby);
	is(ask($reader, "SELECT le_heartbeat('server', $token), le_heartbeat('server')"), 'f|f', 'it knows of none when it is promoted');
	is(ask($reader, q{SELECT le_try_become_leader('server', heartbeat => '1 h'), le_heartbeat('server')}), 't|t', 'and elects a leader');
	cmp_ok(ask($reader, q{SELECT le_token('server')}), '>', $token, 'with a greater token');
	end_session($reader);
	$standby->stop;

	foreach my $how ('fast', 'immediate')
	{
		ask($client, q{SELECT le_try_become_leader('server', heartbeat => '1 h')});
		$token = ask($client, q{SELECT le_token('server')});
		kill_client($watcher);
		$node->stop($how);
		$node->start;
		$watcher = session($node);
		is(ask($watcher, "SELECT le_heartbeat('server', $token)"), 'f', "$how: the term has ended with the server");
		wait_for_end($client);
		is($client->{code}, '57P01', 'a session that is not silent is not told that it is') if $how eq 'fast';
		$client = session($node);
		is(ask($client, q{SELECT le_try_become_leader('server', heartbeat => '1 h')}), 't', 'the next one begins');
		cmp_ok(ask($client, q{SELECT le_token('server')}), '>', $token, 'with a greater token');
	}
	end_session($client);
};

is(ask($watcher, 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL'), '0', 'no term is left on record');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring/, 'no accident in the log');
end_session($watcher);
$node->stop;
done_testing();
