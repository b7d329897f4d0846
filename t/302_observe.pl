# A session that waits in le_observe is told every change at once, holds back
# no other session meanwhile, and leaves nothing behind.
#
# An observer that is not woken checks its state after 5 seconds all the same.
# So the bound proves that it was woken.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# Fast enough to be woken up; the look-up interval is 5 seconds
my $bound = 4;
my $node = new_server('observe', conf => "autovacuum = off\nleader_election.max_tracked = 100");
my $control = session($node);
my @observers = map { session($node, app => 'observer') } 1 .. 3;
my $number = 0;
my $slowest = 0;

# An answer without its version
sub state_of
{
	my ($answer) = @_;
	return $answer =~ s/^[1-9]\d*\|//r;
}

# What a session sees that knows that version
sub seen_after
{
	my ($version, $name) = @_;
	return state_of(ask($control, "CALL le_observe('$name', $version, '1 min')"));
}

# By statements, in a transaction block, and in a function.  Returns the token and the version.
sub start_observing
{
	my ($name) = @_;
	my ($version, $token) = split /\|/, ask($control, "CALL le_observe('$name')");
	my $call = "CALL le_observe('$name', $version, '1 min')";
	ask($observers[1], 'BEGIN');
	post($observers[0], $call);
	post($observers[1], $call);
	post($observers[2], "DO \$\$ DECLARE o bigint := $version; t bigint; i text; v text; BEGIN CALL le_observe('$name', o, '1 min', t, i, v); "
		  . q{RAISE NOTICE 'seen %', concat_ws('|', o, coalesce(t::text, ''), coalesce(i, ''), coalesce(v, '')); END $$});
	wait_for_event($node, $control, 'Observe', @observers);
	return ($token // '', $version);
}

# All have the answer, soon after that time
sub heard_since
{
	my ($time, $what, $expected) = @_;
	foreach my $observer (@observers)
	{
		my $answer = collect($observer);
		my $took = monotonic() - $time;
		$answer = $1 if $answer eq '' && $observer->{messages} =~ /: seen (.*)$/m;
		$answer = state_of($answer);
		$slowest = $took if $took > $slowest;
		ref $expected ? like($answer, $expected, "$what: seen") : is($answer, $expected, "$what: seen");
		cmp_ok($took, '<', $bound, sprintf '%s: at once (%.0f ms)', $what, 1000 * $took);
	}
	ask($observers[1], 'COMMIT');
	return;
}

sub nobody_hears
{
	my ($what) = @_;
	hear(0, @observers);
	is(scalar(grep { $_->{ready} } @observers), 0, "$what: not seen");
	return;
}

# How a term begins, and what ends it
my @session = (q{SELECT le_try_become_leader('%s')});
my @transaction = ('BEGIN', q{SELECT le_try_become_leader_xact('%s')});
foreach my $case (
	[ 'le_resign', \@session, q{SELECT le_resign('%s')} ],
	[ 'le_resign in a transaction block', \@session, q{BEGIN; SELECT le_resign('%s')} ],
	[ 'le_resign_all', \@session, q{SELECT le_resign_all()} ],
	[ 'DISCARD ALL', \@session, q{DISCARD ALL} ],
	[ 'pg_advisory_unlock_all', \@session, q{SELECT pg_advisory_unlock_all()} ],
	[ 'an error in the statement that resigns', \@session, q{SELECT 1 / (le_resign('%s')::int - 1)} ],
	[ 'the client leaves', \@session, \&leave ],
	[ 'SIGKILL', \@session, \&kill_client ],
	[ 'SIGKILL in a transaction', [ 'BEGIN', @session ], \&kill_client ],
	[ 'pg_terminate_backend', \@session, sub { ask($control, 'SELECT pg_terminate_backend(' . $_[0]{pid} . ')') } ],
	[ 'COMMIT', \@transaction, 'COMMIT' ],
	[ 'ROLLBACK', \@transaction, 'ROLLBACK' ],
	[ 'ROLLBACK TO', [ 'BEGIN', 'SAVEPOINT a', $transaction[1] ], 'ROLLBACK TO a' ],
	[ 'SIGKILL in the transaction that leads', \@transaction, \&kill_client ],
	[ 'an error', \@transaction, 'SELECT 1 / 0' ],
	[ 'le_resign by token', [q{SELECT le_lease('%s', '1 h')}], q{SELECT le_resign('%s', le_token)  FROM (SELECT token AS le_token FROM le_leader('%s')) l} ],
	[ 'le_resign by token, in a transaction block', [q{SELECT le_lease('%s', '1 h')}], q{BEGIN; SELECT le_resign('%s', token) FROM le_leader('%s')} ])
{
	my ($what, $begin, $end) = @$case;
	my $name = 'job ' . ++$number;
	my $leader = session($node, app => 'leader');
	ask($leader, s/%s/$name/gr) foreach @$begin;
	my ($token, $version) = start_observing($name);
	cmp_ok($token, '>', 0, "$what: there is a leader");
	my $time = monotonic();
	ref $end ? $end->($leader) : post($leader, $end =~ s/%s/$name/gr);
	heard_since($time, $what, '||');
	end_session($leader);
	is(seen_after($version, $name), '||', "$what: seen by a later observer");
}

subtest 'expiry' => sub {
	my $time = monotonic();
	my $token = ask($control, q{SELECT le_lease('expires', '700 ms')});
	is((start_observing('expires'))[0], $token, 'there is a lease');
	foreach (1 .. 2)
	{
		sleep_past($time + 0.4);
		my $asked = monotonic();
		if (ask($control, "SELECT le_renew('expires', $token)") eq 't') { $time = $asked; }
		else { note('too late'); }
	}
	heard_since($time + 0.7, 'expiry', '||');
	cmp_ok(monotonic(), '>=', $time + 0.7, 'not before the deadline');

	$token = ask($control, q{SELECT le_lease('expires', '1 h')});
	start_observing('expires');
	$time = monotonic();
	is(ask($control, "SELECT le_renew('expires', $token, '300 ms')"), 't', 'a shorter ttl');
	heard_since($time + 0.3, 'a deadline that comes nearer', '||');
	cmp_ok(monotonic(), '>=', $time + 0.3, 'not before the deadline');
};

# The next leader
my $leader = session($node, app => 'leader');
foreach my $case (
	[ 'le_try_become_leader', [q{SELECT le_try_become_leader('%s')}] ],
	[ 'le_try_become_leader_xact', [ 'BEGIN', q{SELECT le_try_become_leader_xact('%s')} ] ],
	[ 'le_campaign', [q{CALL le_campaign('%s')}] ],
	[ 'le_lease', [q{SELECT le_lease('%s', '1 h')}] ],
	[ 'le_campaign for a lease', [q{CALL le_campaign('%s', ttl => '1 h')}] ],
	[ 'le_campaign for any', [q{CALL le_campaign(array['%s', '%s 2'])}] ],
	[ 'le_lease, committed', [ 'BEGIN', q{SELECT le_lease('%s', '1 h')}, 'COMMIT' ], 1 ],
	[ 'le_lease at a savepoint, committed', [ 'BEGIN', 'SAVEPOINT a', q{SELECT le_lease('%s', '1 h')}, 'RELEASE a', 'COMMIT' ], 1 ])
{
	my ($what, $statements, $wait) = @$case;
	my $name = 'office ' . ++$number;
	my @statements = map { s/%s/$name/gr } @$statements;
	my $last = pop @statements;
	is((start_observing($name))[0], '', "$what: there is no leader, and there was none");
	ask($leader, $_) foreach @statements;
	nobody_hears($what) if $wait;
	my $time = monotonic();
	ask($leader, $last);
	heard_since($time, $what, qr/^[1-9]\d*\|leader\|$/);
	ask($leader, 'COMMIT') if $statements[0];
	ask($leader, 'SELECT le_resign_all()');
}

subtest 'a lease that is rolled back is never seen' => sub {
	start_observing('never');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_lease('never', '1 h')}, 'ROLLBACK';
	Time::HiRes::sleep(0.1);
	nobody_hears('rolled back');
	my $time = monotonic();
	ask($leader, q{SELECT le_try_become_leader('never')});
	heard_since($time, 'the next one', qr/^\d+\|leader\|$/);
};

subtest 'a handover' => sub {
	my $next = session($node, app => 'next');
	post($next, q{CALL le_campaign('never')});
	wait_for_candidate($control, $next);
	my (undef, $version) = start_observing('never');
	my $time = monotonic();
	ask($leader, q{SELECT le_resign('never')});
	my $new = collect($next);
	heard_since($time, 'handed over', qr/^(\|\||$new\|next\|)$/);
	is(seen_after($version, 'never'), "$new|next|", 'the new leader');
	kill_client($next);
};

subtest 'values' => sub {
	ask($leader, q{SELECT le_try_become_leader('value')});
	my ($token) = start_observing('value');
	my $time = monotonic();
	ask($leader, q{SELECT le_proclaim('value', 'a')});
	heard_since($time, 'published', "$token|leader|a");

	start_observing('value');
	ask($leader, q{SELECT le_proclaim('value', 'a')});
	Time::HiRes::sleep(0.1);
	nobody_hears('the same');
	$time = monotonic();
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_proclaim('value', 'b')};
	heard_since($time, 'before the commit', "$token|leader|b");
	my (undef, $version) = start_observing('value');
	ask($leader, 'ROLLBACK');
	nobody_hears('rolled back');
	$time = monotonic();
	ask($leader, q{SELECT le_proclaim('value', NULL)});
	heard_since($time, 'withdrawn', "$token|leader|");

	is(seen_after($version, 'value'), "$token|leader|", 'another value is seen at once');
	$token = ask($leader, q{SELECT le_lease('value 2', '1 h')});
	start_observing('value 2');
	$time = monotonic();
	is(ask($leader, "SELECT le_proclaim('value 2', 'c', $token)"), 't', 'by lease');
	heard_since($time, 'by lease', "$token|leader|c");
	start_observing('value 2');
	$time = monotonic();
	ask($leader, "SELECT le_resign('value 2', $token)");
	heard_since($time, 'gone with the lease', '||');
};

subtest 'nothing is missed between two calls' => sub {
	my ($known, $seen, $missed) = (version_of($control, 'quick'), 0, 0);
	my $observer = $observers[0];
	my $rounds = 0;
	my $over = monotonic() + 2;
	post($observer, "CALL le_observe('quick', $known, '1 min')");
	until ($missed || monotonic() > $over)
	{
		post($leader, ++$rounds % 2 ? q{SELECT le_try_become_leader('quick')} : q{SELECT le_resign('quick')});
		until ($leader->{ready})
		{
			hear(1, $leader, $observer);
			next unless $observer->{ready};
			$known = (split /\|/, $observer->{rows}[0])[0];
			$seen++;
			post($observer, "CALL le_observe('quick', $known, '1 min')");
		}
		next if rand() < 0.9;

		# now and then: the observer must come to know what is so now
		my $last = version_of($control, 'quick');
		my $time = monotonic();
		until ($known == $last || monotonic() > $time + $bound)
		{
			hear($bound, $observer);
			next unless $observer->{ready};
			$known = (split /\|/, $observer->{rows}[0])[0];
			$seen++;
			post($observer, "CALL le_observe('quick', $known, '1 min')");
		}
		$missed = $known != $last;
	}
	ok(!$missed, "it saw each change that was the last for a while: $rounds changes, $seen seen");
	ask($control, "SELECT pg_cancel_backend($observer->{pid})");
	collect($observer);
};

subtest 'it holds back no other session' => sub {
	my $other = session($node);
	ask($other, 'CREATE TABLE work (id int) WITH (autovacuum_enabled = false)');
	post($observers[0], q{CALL le_observe('job 1', } . version_of($control, 'job 1') . ')');
	wait_for_event($node, $control, 'Observe', $observers[0]);
	is(ask($control, "SELECT backend_xmin IS NULL, backend_xid IS NULL FROM pg_stat_activity WHERE pid = $observers[0]{pid}"), 't|t', 'no snapshot, no transaction ID');
	is(ask($control, "SELECT count(*) FROM pg_locks WHERE pid = $observers[0]{pid} AND locktype NOT IN ('virtualxid')"), '0', 'no lock');
	ask($other, 'INSERT INTO work SELECT generate_series(1, 100)');
	ask($other, 'DELETE FROM work');
	ask($other, 'VACUUM (VERBOSE) work');
	like($other->{messages}, qr/\b0 (?:are dead but not yet removable|dead row versions cannot be removed yet)/, 'VACUUM removes what was deleted since');
	ask($other, q{SET statement_timeout = '1 min'; });
	ask($other, 'CREATE INDEX CONCURRENTLY work_id ON work (id)');
	is($other->{messages}, '', 'CREATE INDEX CONCURRENTLY finishes');
	ok(!$observers[0]{ready}, 'meanwhile it waits');
	ask($control, "SELECT pg_cancel_backend($observers[0]{pid})");
	collect($observers[0]);
	is($observers[0]{code}, '57014', 'cancelled');
	end_session($other);
};

# Elections that are vacant are forgotten if there are many, unless they are observed
sub is_remembered
{
	my ($name) = @_;
	ask($control, q{SELECT le_try_become_leader(n) AND le_resign(n) FROM (SELECT 'some ' || generate_series(1, 250) AS n) s});
	return ask($control, "SELECT count(*) FROM pg_stat_leader_election WHERE name = '$name'");
}

# of an election of which no term is known
my $unknown = version_of($control, 'observed');
my %ends = (
	timeout => { timeout => q{'300 ms'}, answer => '||' },
	'statement_timeout' => { before => q{SET statement_timeout = '300 ms'}, code => '57014' },
	'pg_cancel_backend' => { act => sub { ask($control, "SELECT pg_cancel_backend($_[0]{pid})") }, code => '57014' },
	'pg_terminate_backend' => { act => sub { ask($control, "SELECT pg_terminate_backend($_[0]{pid})") }, code => '57P01' },
	'the death of the client' => { act => \&kill_client },
	'an answer' => { act => sub { ask($leader, q{SELECT le_try_become_leader('observed'), le_resign('observed')}) }, answer => qr/^(\d+\|leader)?\|+$/ });
foreach my $end (sort keys %ends)
{
	foreach my $block ('', 'BEGIN', 'BEGIN; SAVEPOINT a')
	{
		subtest "ended by $end" . ($block && ", in $block") => sub {
			my $case = $ends{$end};
			my $client = session($node, app => 'short-lived');
			is(is_remembered('observed'), 0, 'not remembered');
			ask($client, $case->{before}) if $case->{before};
			ask($client, $block) if $block;
			post($client, "CALL le_observe('observed', $unknown, " . ($case->{timeout} // 'NULL') . ')');
			wait_for_event($node, $control, 'Observe', $client) if $case->{act};
			is(is_remembered('observed'), 1, 'remembered while it is observed') if $case->{act};
			$case->{act}->($client) if $case->{act};
			my $answer = collect($client) unless $end =~ /death/;
			is($client->{code}, $case->{code} // '', 'error or not');
			ref $case->{answer} ? like(state_of($answer), $case->{answer}, 'answer') : is(state_of($answer), $case->{answer}, 'answer') if $case->{answer};
			is(ask($client, 'ROLLBACK; SELECT 1'), '1', 'the session goes on') unless $client->{closed};
			is(ask($client, q{DISCARD ALL}), '', 'DISCARD ALL') unless $client->{closed} || $block;
			ok(ask_until($control, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $client->{pid}"), 'gone') if $client->{closed};
			is(is_remembered('observed'), 0, 'not remembered any more');
			kill_client($client);
		};
	}
}
is(ask($control, q{SELECT count(*) FROM le_candidates}), '0', 'an observer is no candidate');

subtest 'restart' => sub {
	my $lease = ask($control, q{SELECT le_lease('leased', '1 h', identity => 'holder')});
	ask($leader, q{SELECT le_try_become_leader('led')});
	my $version = version_of($control, 'led');
	my $leased = version_of($control, 'leased');
	post($observers[0], "CALL le_observe('led', $version)");
	wait_for_event($node, $control, 'Observe', $observers[0]);
	$node->restart;
	like(collect($observers[0]) // '', qr/^(\d+\|\|\|)?$/, 'no answer, or that its leader has gone before');
	ok(wait_for_end($observers[0]), 'and it is gone');
	$control = session($node);
	@observers = map { session($node) } 1 .. 3;
	is(ask($control, "CALL le_observe('led', $version)"), "$unknown|||", 'vacant, and no term is known');
	is(ask($control, "CALL le_observe('led', $unknown, '10 ms')"), "$unknown|||", 'and that does not change');
	is(join('|', start_observing('leased')), "$lease|$leased", 'the lease still leads, in the same state');
	nobody_hears('nothing new');
	my $time = monotonic();
	is(ask($control, "SELECT le_resign('leased', $lease)"), 't', 'resigned');
	heard_since($time, 'resigned after the restart', '||');

	$lease = ask($control, q{SELECT le_lease('leased', '1 s', identity => 'holder')});
	$node->stop('immediate');
	$node->start;
	$control = session($node);
	@observers = map { session($node) } 1 .. 3;
	$time = monotonic();
	is((start_observing('leased'))[0], $lease, 'after a crash, too');
	$time = monotonic() if monotonic() < $time;
	heard_since($time + 1, 'expired after the crash', '||');
};

subtest 'a lock that is pulled away in a transaction, or by a statement that lasts' => sub {
	my $leader = session($node, app => 'leader');
	foreach my $sql ('BEGIN; SELECT pg_advisory_unlock_all()', 'SELECT pg_advisory_unlock_all(), pg_sleep(60)')
	{
		is(ask($leader, q{SELECT le_try_become_leader('pulled')}), 't', 'led');
		my $token = ask($leader, q{SELECT le_token('pulled')});
		ask($leader, q{SELECT le_proclaim('pulled', 'here')});
		is((start_observing('pulled'))[0], $token, 'observed');
		my $time = monotonic();
		post($leader, $sql);
		heard_since($time, $sql, '||');

		# the term is still on record
		my $version = version_of($control, 'pulled');
		post($observers[0], "CALL le_observe('pulled', $version, '3 s')");
		hear(1.5, $observers[0]);
		ok(!$observers[0]->{ready}, 'that is told once');
		ask($control, "SELECT pg_cancel_backend($leader->{pid})") if $sql =~ /sleep/;
		collect($leader);
		ask($leader, 'ROLLBACK');
		is(ask($leader, q{SELECT le_am_leader('pulled')}), 'f', 'the session does not lead');
		is(collect($observers[0]), "$version|||", 'nor again when the term is taken off the record');
		cmp_ok(monotonic(), '>=', $time + 3, 'but when the time is over');
	}
	kill_client($leader);
};

note(sprintf 'slowest: %.0f ms', 1000 * $slowest);
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring/, 'no accident in the log');
$node->stop;
done_testing();
