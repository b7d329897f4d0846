# What a restart or a crash leaves of leases: those that ran go on for their ttl
# from the first look, with the same token; those that were over stay so.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# nothing in the background flushes the log for us
my $node = new_server('lease_restart', conf => qq{
synchronous_commit = off
wal_writer_delay = '10s'
autovacuum = off
checkpoint_timeout = '1h'
restart_after_crash = on
max_prepared_transactions = 5
});
our $greatest = 0;

$node->safe_psql('postgres', 'CREATE DATABASE other');
create_extension($node, 'other');

# A token that is greater than all before
sub new_token
{
	my ($token, $test) = @_;
	like($token, qr/^\d+$/, $test) or return;
	cmp_ok($token, '>', $greatest, 'with a greater token');
	$greatest = $token if $token > $greatest;
	return $token;
}

sub take_new
{
	my ($session, $name, $ttl, $me) = @_;
	$me //= 'holder';
	return new_token(ask($session, "SELECT le_lease('$name', '$ttl', identity => '$me')"),
		"lease \"$name\" is taken");
}

sub crash
{
	my (@sessions) = @_;
	$node->stop('immediate');
	$node->start;
	end_session(@sessions);
	return;
}

# The holder goes on, and no other session is elected, in any scope
sub runs_on
{
	my ($session, $name, $token) = @_;
	is(ask($session, "SELECT le_lease('$name', '1 min', identity => 'other')"), '', "$name: a lease is denied");
	is(ask($session, "SELECT le_lease('$name', '1 min', identity => 'other', token => $token + 1)"), '', 'with a wrong token, too');
	is(ask($session, "SELECT le_try_become_leader('$name'), le_try_become_leader_xact('$name')"), 'f|f', 'so are sessions');
	is(ask($session, "SELECT le_am_leader('$name', $token), le_renew('$name', $token), le_am_leader('$name', $token + 1)"), 't|t|f', 'the holder renews with the same token');
	is(ask($session, "SELECT name, scope, identity, token FROM le_leader('$name')"), "$name|lease|holder|$token", 'and is shown');
	return;
}

# The token is void, and another session can be elected at once
sub is_over
{
	my ($session, $name, $token) = @_;
	is(ask($session, "SELECT le_am_leader('$name', $token), le_renew('$name', $token), le_renew('$name', $token, '5 s'), le_resign('$name', $token)"), 'f|f|f|f', "$name: the old token is refused");
	is(ask($session, "SELECT count(*) FROM le_leader('$name')"), '0', 'there is no leader');
	my $new = take_new($session, $name, '1 min', 'next');
	is(ask($session, "SELECT le_renew('$name', $token), le_renew('$name', $new)"), 'f|t', 'the successor has another token');
	is(ask($session, "SELECT le_resign('$name', $new)"), 't', 'and resigns');
	return;
}

subtest 'everything that can have become of a lease, and a crash' => sub {
	my $session = session($node);
	my $other = session($node, db => 'other');
	my (%running, %over, %ttl);

	# short ones first, so that they are over by the time that they are needed
	foreach my $name ('succeeded', 'overtaken', 'overtaken and back', 'overtaken by session')
	{
		$over{$name} = take_new($session, $name, '100 ms');
	}
	my $expired = monotonic() + 0.12;

	foreach my $name ('held', 'renewed', 'vacuumed', 'checkpointed')
	{
		$running{$name} = take_new($session, $name, '1 min');
	}
	is(ask($session, "SELECT le_renew('renewed', $running{renewed})"), 't', 'renewed');

	foreach my $function ('renew', 'lease')
	{
		foreach my $change ([ 'longer', '50 s', '1 h' ], [ 'shorter', '1 h', '50 s' ])
		{
			my ($what, $ttl, $new) = @$change;
			my $name = "$what by le_$function";
			my $token = take_new($session, $name, $ttl);
			is( ask($session, $function eq 'renew'
					? "SELECT le_renew('$name', $token, '$new')"
					: "SELECT le_lease('$name', '$new', identity => 'holder', token => $token) IS NOT NULL"),
				't', 'its ttl is changed');
			$running{$name} = $token;
			$ttl{$name} = $new;
		}
	}
	$running{'changed in a transaction that is rolled back'} = my $changed =
	  take_new($session, 'changed in a transaction that is rolled back', '50 s');
	$ttl{'changed in a transaction that is rolled back'} = '2 h';
	is(ask($session, "BEGIN; SELECT le_renew('changed in a transaction that is rolled back', $changed, '2 h'); ROLLBACK"), 't', 'changed');

	$over{resigned} = take_new($session, 'resigned', '1 min');
	is(ask($session, "SELECT le_resign('resigned', $over{resigned})"), 't', 'resigned');
	$over{'resigned in vain'} = take_new($session, 'resigned in vain', '1 min');
	is(ask($session, "BEGIN; SELECT le_resign('resigned in vain', $over{'resigned in vain'}); ROLLBACK"), 't', 'resigned in a transaction that is rolled back');
	$over{'changed and resigned'} = take_new($session, 'changed and resigned', '1 min');
	is(ask($session, "SELECT le_renew('changed and resigned', $over{'changed and resigned'}, '1 h')"), 't', 'changed');
	is(ask($session, "SELECT le_resign('changed and resigned', $over{'changed and resigned'})"), 't', 'and resigned');

	ask($session, 'BEGIN');
	$over{'taken and resigned'} = take_new($session, 'taken and resigned', '1 min');
	is(ask($session, "SELECT le_resign('taken and resigned', $over{'taken and resigned'})"), 't', 'resigned before it began');
	ask($session, 'COMMIT');
	ask($session, 'BEGIN');
	ask($session, 'SAVEPOINT one');
	$over{'rolled back to a savepoint'} = take_new($session, 'rolled back to a savepoint', '1 min');
	ask($session, 'ROLLBACK TO one');
	$running{'after a savepoint'} = take_new($session, 'after a savepoint', '1 min');
	ask($session, 'COMMIT');
	ask($session, 'BEGIN');
	$over{'rolled back'} = take_new($session, 'rolled back', '1 min');
	ask($session, 'ROLLBACK');
	ask($session, 'BEGIN');
	my $changed_before = take_new($session, 'changed before it began', '1 min');
	is(ask($session, "SELECT le_renew('changed before it began', $changed_before, '3 h')"), 't', 'changed before it began');
	ask($session, 'COMMIT');
	$running{'changed before it began'} = $changed_before;
	$ttl{'changed before it began'} = '3 h';

	sleep_past($expired);
	my $succeeded = delete $over{succeeded};
	$running{succeeded} = take_new($session, 'succeeded', '1 min');
	ask($session, 'BEGIN');
	is(ask($session, q{SELECT le_try_become_leader_xact('overtaken')}), 't', 'elected over a lease that is over');
	ask($session, 'ROLLBACK');
	ask($session, 'BEGIN');
	is(ask($session, q{SELECT le_try_become_leader('overtaken and back')}), 't', 'elected over another');
	is(ask($session, q{SELECT le_resign('overtaken and back')}), 't', 'and resigned');
	ask($session, 'ROLLBACK');
	my $leader = session($node);

	# the row is moved, by a change of the table's file
	ask($session, 'VACUUM FULL le_leases');
	is(ask($session, "SELECT le_renew('vacuumed', $running{vacuumed}, '55 s')"), 't', 'changed after VACUUM FULL');
	$ttl{vacuumed} = '55 s';
	is(ask($session, 'VACUUM (FREEZE) le_leases', 'CHECKPOINT', 'SELECT 1'), '1', 'vacuumed, and a checkpoint');
	is(ask($session, "SELECT le_renew('checkpointed', $running{checkpointed}, '56 s')"), 't', 'changed after that');
	$ttl{checkpointed} = '56 s';
	$over{'resigned after a checkpoint'} = take_new($session, 'resigned after a checkpoint', '1 min');
	is(ask($session, 'CHECKPOINT', 'SELECT 1'), '1', 'a checkpoint');
	is(ask($session, "SELECT le_resign('resigned after a checkpoint', $over{'resigned after a checkpoint'})"), 't', 'resigned after that');

	is(ask($leader, q{BEGIN; SELECT le_try_become_leader('overtaken by session')}), 't', 'elected over a third, in an open transaction');

	# open when the server crashes
	my $open = session($node);
	ask($open, 'BEGIN');
	$over{open} = take_new($open, 'open', '1 min');
	is(ask($open, "SELECT le_am_leader('open', $over{open})"), 't', 'in its own transaction it is there');
	my $open2 = session($node);
	$over{'resigned in an open transaction'} = take_new($session, 'resigned in an open transaction', '1 min');
	is(ask($open2, "BEGIN; SELECT le_resign('resigned in an open transaction', $over{'resigned in an open transaction'})"), 't', 'resigned in an open transaction');

	my $elsewhere = ask($other, q{SELECT le_lease('held', '5 s', identity => 'elsewhere')});
	like($elsewhere, qr/^\d+$/, 'in another database');
	# the last thing before the crash is a lease
	$running{last} = take_new($session, 'last', '1 min');

	my $offset = log_from($node);
	crash($session, $other, $open, $open2, $leader);
	is($node->safe_psql('postgres', q{SELECT vacant_since IS NULL FROM pg_stat_leader_election WHERE name = 'held'}), 't',
		'the statistics are the first to look at the leases');

	$session = session($node);
	is(ask($session, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock is taken');
	is_over($session, $_, $over{$_}) foreach sort keys %over;
	is(ask($session, "SELECT le_am_leader('succeeded', $succeeded), le_renew('succeeded', $succeeded)"), 'f|f', 'the predecessor is over');
	runs_on($session, $_, $running{$_}) foreach sort keys %running;
	is(ask($session, "SELECT ttl = '$ttl{$_}', expires_in <= '$ttl{$_}', expires_in > '$ttl{$_}' - interval '30 s' FROM le_leader('$_')"), 't|t|t', "$_: has its ttl of $ttl{$_}") foreach sort keys %ttl;
	my @lines = lease_lines($node, $offset);
	is(scalar(@lines), 1, 'one line in the log')
	  and like($lines[0], qr/^(\d+) leases still running in database "postgres"$/, 'tells so');
	is(($lines[0] =~ /^(\d+)/)[0], scalar(keys %running), 'how many run on');

	# the other database has not been looked at, however long this took: its
	# lease has not begun to run out
	$other = session($node, db => 'other');
	is(ask($other, q{SELECT le_lease('held', '1 s', identity => 'thief')}), '', 'in another database: denied');
	is(ask($other, "SELECT le_am_leader('held', $elsewhere), le_renew('held', $elsewhere)"), 't|t', 'and renewed');
	is(ask($other, q{SELECT count(*), max(identity) FROM le_leaders}), '1|elsewhere', 'the databases are apart');
	end_session($other, $session);
};

# Nothing after it that would flush the log for it
my @last = (
	{ what => 'a resignation', ttl => '1 h',
		sql => q{SELECT le_resign('job', TOKEN)} },
	{ what => 'a resignation in an open transaction', ttl => '1 h',
		sql => q{BEGIN; SELECT le_resign('job', TOKEN)} },
	{ what => 'an election for an open transaction, after the lease was over', ttl => '100 ms',
		sql => q{BEGIN; SELECT le_try_become_leader_xact('job')} },
	{ what => 'an election for the session, after the lease was over', ttl => '100 ms',
		sql => q{SELECT le_try_become_leader('job')} },
	{ what => 'a longer ttl by le_renew', ttl => '1 s',
		sql => q{SELECT le_renew('job', TOKEN, '1 h')}, new_ttl => '1 h' },
	{ what => 'a longer ttl by le_lease, in an open transaction', ttl => '1 s',
		sql => q{BEGIN; SELECT le_lease('job', '1 h', identity => 'holder', token => TOKEN) = TOKEN}, new_ttl => '1 h' },
	{ what => 'a shorter ttl', ttl => '2 h',
		sql => q{SELECT le_renew('job', TOKEN, '1 h')}, new_ttl => '1 h' });
foreach my $case (@last)
{
	subtest "the last thing before a crash: $case->{what}" => sub {
		my $session = session($node);
		my $token = take_new($session, 'job', $case->{ttl});
		sleep_past(monotonic() + 0.11) if $case->{ttl} eq '100 ms';
		(my $sql = $case->{sql}) =~ s/TOKEN/$token/g;
		is(ask($session, $sql), 't', 'done');
		crash($session);
		$session = session($node);
		if ($case->{new_ttl})
		{
			is(ask($session, "SELECT ttl FROM le_leader('job') WHERE token = $token AND ttl = '$case->{new_ttl}'"), '01:00:00', 'the new ttl counts');
			is(ask($session, "SELECT le_renew('job', $token), le_resign('job', $token)"), 't|t', 'the lease runs on');
		}
		else
		{
			is_over($session, 'job', $token);
		}
		end_session($session);
	};
}

# Whatever the first look is, the ttl counts from it, and not from before
my @looks = (
	{ what => 'le_leaders', sql => q{SELECT count(*) FROM le_leaders WHERE name = 'job'}, answer => '1' },
	{ what => 'le_leader', sql => q{SELECT identity FROM le_leader('job')}, answer => 'holder' },
	{ what => 'le_renew', sql => q{SELECT le_renew('job', TOKEN)}, answer => 't' },
	{ what => 'le_renew with a ttl', sql => q{SELECT le_renew('job', TOKEN, '1200 ms')}, answer => 't', ttl => 1.2 },
	{ what => 'le_lease by the holder', sql => q{SELECT le_lease('job', '2 s', identity => 'holder', token => TOKEN) = TOKEN}, answer => 't', ttl => 2 },
	{ what => 'le_lease by another', sql => q{SELECT le_lease('job', '1 h', identity => 'other')}, answer => '' },
	{ what => 'le_am_leader', sql => q{SELECT le_am_leader('job', TOKEN)}, answer => 't' },
	{ what => 'a bid in session scope', sql => q{SELECT le_try_become_leader('job')}, answer => 'f' },
	{ what => 'a bid in transaction scope', sql => q{SELECT le_try_become_leader_xact('job')}, answer => 'f' },
	{ what => 'a bid in another election', sql => q{SELECT le_try_become_leader('none') AND le_resign('none')}, answer => 't' },
	{ what => 'a wait', sql => q{SELECT le_become_leader('job', '10 ms')}, answer => 'f' },
	{ what => 'le_resign without a token', sql => q{SELECT le_resign('job')}, answer => 'f' },
	{ what => 'le_resign with a wrong token', sql => q{SELECT le_resign('job', TOKEN + 1)}, answer => 'f' },
);
my $ttl = 1.5;

# Each look in a database of its own, as the first look there
$node->safe_psql('postgres', 'CREATE DATABASE look TEMPLATE template0');
create_extension($node, 'look');
foreach my $i (0 .. $#looks)
{
	$looks[$i]{db} = "look$i";
	$node->safe_psql('postgres', "CREATE DATABASE look$i TEMPLATE look");
}

sub go_down_and_up
{
	my ($way) = @_;

	if ($way eq 'crash of a backend')
	{
		my $victim = session($node);
		crash_backend($node, $victim->{pid});
		end_session($victim);
	}
	else
	{
		$node->stop($way);
		$node->start;
	}
	return;
}

foreach my $way ('immediate', 'fast', 'crash of a backend')
{
	subtest "first looks after: $way" => sub {
		foreach my $look (@looks)
		{
			my $session = session($node, db => $look->{db});
			$look->{token} = ask($session, "SELECT le_lease('job', '$ttl s', identity => 'holder')");
			like($look->{token}, qr/^\d+$/, "$look->{what}: lease is taken");
			end_session($session);
		}
		go_down_and_up($way);
		my $up = monotonic();
		$_->{session} = session($node, db => $_->{db}) foreach @looks;

		# by now, each lease would be over had it gone on with the server's start
		sleep_past($up + $ttl);
		foreach my $look (@looks)
		{
			(my $sql = $look->{sql}) =~ s/TOKEN/$look->{token}/g;
			$look->{before} = monotonic();
			is(ask($look->{session}, $sql), $look->{answer}, "$look->{what}: it runs");
		}

		# the holder died with the server: another session is elected after the
		# ttl from the first look, and not before
		foreach my $look (@looks)
		{
			my ($answer, $asked);
			do
			{
				$asked = monotonic();
				$answer = ask($look->{session}, q{SELECT le_lease('job', '1 min', identity => 'successor')});
			} until ($answer ne '' || $asked > $look->{before} + 60);
			my $over = $look->{before} + ($look->{ttl} // $ttl);
			cmp_ok($answer, '>', $look->{token}, "$look->{what}: another session is elected");
			cmp_ok(monotonic(), '>=', $over, 'not before the ttl is over');
			cmp_ok($asked, '<', $over + 20, 'and not much later');
			is(ask($look->{session}, "SELECT le_renew('job', $look->{token}), le_am_leader('job', $look->{token}), le_resign('job', $answer)"),
				'f|f|t', 'the first holder comes too late');
			end_session($look->{session});
		}
	};
}

subtest 'a transaction that is open over the first look' => sub {
	my $session = session($node);
	my $token = take_new($session, 'job', '1 min');
	crash($session);

	# an old snapshot, and no permission to write
	$session = session($node);
	ask($session, 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT 1');
	is(ask($session, "SELECT le_renew('job', $token)"), 't', 'first look in a read-only transaction');
	ask($session, 'ROLLBACK');
	my $second = session($node);
	is(ask($second, "SELECT le_am_leader('job', $token), le_try_become_leader('job')"), 't|f', 'a rollback does not undo it');
	is(ask($second, "SELECT le_resign('job', $token)"), 't', 'resigned');
	end_session($session, $second);
};

# A pool opens connections at any time: their first renewal must not wait for
# maintenance of the table, once its leases have been looked at
subtest 'the first renewal of a new session, while le_leases is being vacuumed' => sub {
	my $session = session($node);
	my $token = take_new($session, 'job', '1 h');
	# the lock that VACUUM, ANALYZE and autovacuum hold
	is(ask($session, 'BEGIN; LOCK TABLE le_leases IN SHARE UPDATE EXCLUSIVE MODE; SELECT 1'), '1', 'locked');
	my $new = session($node);
	ask($new, q{SET statement_timeout = '5 s'});
	is(ask($new, "SELECT le_renew('job', $token)"), 't', 'renewed');
	is($new->{messages}, '', 'without waiting');
	ask($session, 'COMMIT');
	is(ask($new, "SELECT le_resign('job', $token)"), 't', 'resigned');
	end_session($session, $new);
};

subtest 'a dump carries the tokens on, and no lease' => sub {
	my $session = session($node);
	my $dump = $node->basedir . '/dump';
	my $token = take_new($session, 'job', '1 h');
	foreach my $format ('p', 'c')
	{
		my $database = "restored_$format";
		$node->command_ok([ 'pg_dump', '-F', $format, '-f', $dump, $node->connstr('postgres') ], "dumped, format $format");
		$node->safe_psql('postgres', "CREATE DATABASE $database TEMPLATE template0");
		$node->command_ok(
			$format eq 'p'
			? [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database), '-f', $dump ]
			: [ 'pg_restore', '-e', '-d', $node->connstr($database), $dump ], 'restored');
		my $there = session($node, db => $database);
		local $greatest = $token;
		is(ask($there, 'SELECT count(*) FROM le_leaders'), '0', 'there is no leader');
		is(ask($there, "SELECT le_renew('job', $token), le_am_leader('job', $token)"), 'f|f', 'the token is of no use there');
		take_new($there, 'job', '1 min');
		end_session($there);
	}
	is(ask($session, "SELECT le_renew('job', $token)"), 't', 'where it came from it runs on');
	is(ask($session, "SELECT le_resign('job', $token)"), 't', 'resigned');
	end_session($session);
};

subtest 'DROP EXTENSION' => sub {
	my $session = session($node);
	my $other = session($node);
	my $token = take_new($session, 'job', '1 h');
	my $second = take_new($session, 'second', '1 h');
	my $third = take_new($session, 'third', '1 h');
	is(ask($other, "SELECT le_renew('job', $token)"), 't', 'both sessions know it');

	ask($other, 'BEGIN; DROP EXTENSION leader_election; ROLLBACK');
	is(ask($other, "SELECT le_renew('job', $token), le_lease('job', '1 s') IS NULL"), 't|t', 'the lease runs on');
	is(ask($session, "SELECT le_renew('job', $token)"), 't', 'for others, too');

	my $offset = log_from($node);
	ask($other, 'DROP EXTENSION leader_election');
	unlike($other->{messages}, qr/ERROR|WARNING/, 'dropped by another session while leases run');
	ask($session, "SELECT le_renew('job', $token)");
	like($session->{messages}, qr/ERROR:  42883: function le_renew\(.*\) does not exist/, 'it is gone');
	create_extension($node);
	is(ask($session, "SELECT le_renew('job', $token), le_am_leader('job', $token)"), 'f|f', 'its leases are over');
	is(ask($session, 'SELECT count(*) FROM le_leaders'), '0', 'and not shown');
	take_new($other, 'job', '1 h');
	is(ask($other, q{SELECT le_try_become_leader('second')}), 't', 'elected for the session');
	is(ask($session, "SELECT le_renew('job', $token), le_renew('second', $second), le_renew('third', $third)"), 'f|f|f', 'over, all of them');
	my %told;
	/^election "(.*)": term \d+ ended: extension dropped$/ and $told{$1}++ foreach term_lines($node, $offset);
	is(join(' ', map { $told{$_} // 0 } 'job', 'second', 'third'), '1 1 1', 'the log tells of each');

	# and by the session itself, with one of its leases not committed
	ask($session, 'BEGIN');
	my $uncommitted = take_new($session, 'uncommitted', '1 h');
	ask($session, 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election; COMMIT');
	unlike($session->{messages}, qr/ERROR|WARNING/, 'dropped and created again in the transaction that takes a lease');
	is(ask($session, "SELECT le_renew('uncommitted', $uncommitted)"), 'f', 'the lease never was');
	is(ask($session, q{SELECT count(*) FROM le_leaders WHERE scope = 'lease'}), '0', 'there is none');
	take_new($session, 'uncommitted', '1 min');

	crash($session, $other);
	$session = session($node);
	is(ask($session, q{SELECT string_agg(name, ' ') FROM le_leaders}), 'uncommitted', 'only the last one runs on after a crash');
	end_session($session);
};

# A candidate that waits for the end of a lease when the extension is dropped
# must not keep others out until the ttl of the dropped lease is over
subtest 'DROP EXTENSION while a candidate waits for the end of a lease' => sub {
	my $session = session($node);
	my $candidate = session($node);
	my $pid = $candidate->{pid};
	take_new($session, 'job', '1 h');
	post($candidate, q{SELECT le_become_leader('job')});
	wait_until_sleeping($node, $pid);
	$node->safe_psql('postgres', 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');
	my $answer = collect_or_cancel($candidate, $session);
	ok(defined $answer, 'the wait is over');
	unlike($candidate->{messages}, qr/ERROR:  XX/, 'without an internal error');
	is($answer, 't', 'the candidate is elected, as there is no lease any more');
	end_session($candidate);
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM le_leaders WHERE name = 'job'});
	take_new($session, 'job', '1 min');
	end_session($session);
};

# Bidders, observers and listeners have been told that it is over
subtest 'a lease that has run out, and was bid for in vain as a guarded transaction was open' => sub {
	foreach my $bid (q{SELECT le_lease('guarded', '1 min')}, q{SELECT le_try_become_leader('guarded')}, q{SELECT le_become_leader('guarded', '200 ms')})
	{
		my ($session, $writer, $bidder) = map { session($node) } 1 .. 3;
		my $token = take_new($session, 'guarded', '500 ms');
		ask($writer, "BEGIN; SELECT le_assert_leader('guarded', $token)");
		sleep_past(monotonic() + 0.6);
		like(ask($bidder, $bid), qr/^f?$/, "$bid: denied");
		crash($session, $writer, $bidder);
		$session = session($node);
		is(ask($session, "SELECT le_am_leader('guarded', $token), le_renew('guarded', $token)"), 'f|f', 'it does not come back');
		new_token(ask($session, q{SELECT le_lease('guarded', '100 ms')}), 'and the next one is taken at once');
		sleep_past(monotonic() + 0.15);
		end_session($session);
	}
};

my %ends;
/term (\d+) ended/ and $ends{$1}++ foreach term_lines($node, 0);
is(join(' ', grep { $ends{$_} > 1 } sort keys %ends), '', 'the log tells of the end of each term once');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|segmentation|could not open relation/i, 'no accident in the log');
$node->stop;
done_testing();
