# What a crash or a restart leaves: of sessions nothing, and no token is handed out twice; of
# leases those that ran, which go on for their ttl from the first look, with the same token.

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# nothing in the background flushes the log for us
my $node = new_server('crash', conf => qq{
synchronous_commit = off
wal_writer_delay = '10s'
autovacuum = off
checkpoint_timeout = '1h'
restart_after_crash = on
});
my $greatest = 0;

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

# Sessions that lead, one of them in a transaction that goes through $blocks
# blocks of tokens and never commits
sub lead_much
{
	my ($blocks) = @_;
	my ($plain, $open) = map { session($node) } 1 .. 2;
	my $count = 1024 * $blocks + 1;

	is(ask($plain, q{SELECT le_try_become_leader('one'), le_try_become_leader('two'), le_try_become_leader('12')}), 't|t|t', 'one, two, and a number');
	new_token(ask($plain, "SELECT le_token($_)"), 'a token') foreach q{'one'}, q{'two'}, q{'12'};
	ask($open, 'BEGIN');
	is(ask($open, "SELECT count(*) FROM generate_series(1, $count) i WHERE le_try_become_leader('many ' || i % 10) AND le_resign('many ' || i % 10)"),
		$count, "$count elections in an open transaction");
	is(ask($open, q{SELECT le_try_become_leader_xact('three')}), 't', 'three');
	new_token(ask($open, q{SELECT le_token('three')}), 'a token');
	return ($plain, $open);
}

sub vacant
{
	is( $node->safe_psql('postgres', q{
SELECT (SELECT count(*) FROM le_leaders), (SELECT count(*) FROM le_candidates),
	(SELECT count(*) FROM _le_registry_terms()), (SELECT count(*) FROM _le_registry_candidates(false)),
	(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')}),
		'0|0|0|0|0', 'nothing is taken');
	my $session = session($node);
	foreach my $election (q{'one'}, q{'two'}, q{'three'}, q{'12'})
	{
		is(ask($session, "SELECT le_try_become_leader($election)"), 't', "$election can be had");
		new_token(ask($session, "SELECT le_token($election)"), 'a token');
	}
	end_session($session);
	return;
}

sub is_running
{
	my ($pid) = @_;
	return 0 unless kill 0, $pid;
	open my $stat, '<', "/proc/$pid/stat" or return 1;
	return <$stat> !~ /^\d+ \(.*\) [ZX] /;
}

# SIGKILL to the postmaster: the other processes notice, and end
sub kill_postmaster
{
	my @pids = split /\n/, $node->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()');
	push @pids, (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	$node->kill9;

	# Where process 1 does not collect its children, the dead postmaster still
	# has a process ID, and so lock files that the next one believes in.
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	Time::HiRes::sleep(0.02) while monotonic() < $patience && grep { is_running($_) } @pids;
	is(scalar(grep { is_running($_) } @pids), 0, 'all processes have gone');
	unlink $node->data_dir . '/postmaster.pid', $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

# Whatever the first look is, the ttl counts from it, and not from before
my @looks = (
	{ what => 'le_leaders', sql => q{SELECT count(*) FROM le_leaders WHERE name = 'job'}, answer => '1' },
	{ what => 'le_leader', sql => q{SELECT identity FROM le_leader('job')}, answer => 'holder' },
	{ what => 'le_renew', sql => q{SELECT le_renew('job', TOKEN)}, answer => 't' },
	{ what => 'le_renew in a read-only transaction that is rolled back', sql => q{BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT 1; SELECT le_renew('job', TOKEN); ROLLBACK}, answer => "1\nt" },
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
my $ttl = 1;

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
		ask($victim, q{SELECT le_try_become_leader('victim')});
		new_token(ask($victim, q{SELECT le_token('victim')}), 'a token of the victim');
		crash_backend($node, $victim->{pid});
		end_session($victim);
		return;
	}
	if ($way eq 'death of the postmaster') { kill_postmaster(); }
	else { $node->stop($way); }
	$node->start;
	return;
}

foreach my $way ('immediate', 'fast', 'crash of a backend', 'death of the postmaster')
{
	subtest "sessions, and first looks at leases, after: $way" => sub {
		foreach my $look (@looks)
		{
			my $session = session($node, db => $look->{db});
			$look->{token} = ask($session, "SELECT le_lease('job', '$ttl s', identity => 'holder')");
			like($look->{token}, qr/^\d+$/, "$look->{what}: lease is taken");
			end_session($session);
		}
		my @sessions = lead_much($way eq 'immediate' ? 2 : 1);
		if ($way eq 'immediate')
		{
			push @sessions, session($node);
			post($sessions[-1], q{SELECT le_become_leader('one')});
			wait_until_waiting($node, $sessions[-1]{pid});
		}
		my $offset = log_from($node);
		go_down_and_up($way);
		my $up = monotonic();
		end_session(@sessions);
		is(scalar(grep { /^election "(?:one|two|three|12)": .* ended: session ended$/ } term_lines($node, $offset)), 4, 'the log tells that the terms of sessions ended')
		  if $way eq 'fast';
		vacant();
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
		sql => q{SELECT le_renew('job', TOKEN, '1 h')}, new_ttl => '1 h' },
	# bidders, observers and listeners have been told that it is over
	map { { what => "$_, in vain, as a guarded transaction is open after the lease was over", ttl => '500 ms', guard => 1, sql => $_, answer => qr/^f?$/ } }
	q{SELECT le_lease('job', '1 min')}, q{SELECT le_try_become_leader('job')}, q{SELECT le_become_leader('job', '200 ms')});
foreach my $case (@last)
{
	subtest "the last thing before a crash: $case->{what}" => sub {
		my $session = session($node);
		my $token = take_new($session, 'job', $case->{ttl});
		my $writer = session($node);
		ask($writer, "BEGIN; SELECT le_assert_leader('job', $token)") if $case->{guard};
		is($writer->{error}, '', 'guarded') if $case->{guard};
		sleep_past(monotonic() + $1 / 1000 + 0.01) if $case->{ttl} =~ /(\d+) ms/;
		(my $sql = $case->{sql}) =~ s/TOKEN/$token/g;
		like(ask($session, $sql), $case->{answer} // qr/^t$/, 'done');
		crash($session, $writer);
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

subtest 'DROP EXTENSION' => sub {
	my ($session, $other) = map { session($node) } 1 .. 2;
	my @names = ('job', 'second', 'third');
	my %token = map { $_ => take_new($session, $_, '1 h') } @names;
	is(ask($other, "SELECT le_renew('job', $token{job})"), 't', 'both sessions know it');
	my $offset = log_from($node);
	ask($other, 'DROP EXTENSION leader_election');
	unlike($other->{messages}, qr/ERROR|WARNING/, 'dropped by another session while leases run');
	fails($session, "SELECT le_renew('job', $token{job})", '42883', 'it is gone');
	create_extension($node);
	take_new($other, 'job', '1 h');
	is(ask($other, q{SELECT le_try_become_leader('second')}), 't', 'elected for the session');
	is(ask($session, "SELECT le_renew('$_', $token{$_})"), 'f', "$_: its lease is over") foreach @names;
	my %told;
	/^election "(.*)": term \d+ ended: extension dropped$/ and $told{$1}++ foreach term_lines($node, $offset);
	is(join(' ', map { $told{$_} // 0 } @names), '1 1 1', 'the log tells of each');

	# and by the session itself, with one of its leases not committed
	ask($session, 'BEGIN');
	my $uncommitted = take_new($session, 'uncommitted', '1 h');
	ask($session, 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election; COMMIT');
	unlike($session->{messages}, qr/ERROR|WARNING/, 'dropped and created again in the transaction that takes a lease');
	is(ask($session, "SELECT le_renew('uncommitted', $uncommitted)"), 'f', 'the lease never was');
	take_new($session, 'uncommitted', '1 min');
	crash($session, $other);
	is($node->safe_psql('postgres', q{SELECT string_agg(name, ' ') FROM le_leaders}), 'uncommitted', 'only the last one runs on after a crash');
};

my %ends;
/term (\d+) ended/ and $ends{$1}++ foreach term_lines($node, 0);
is(join(' ', grep { $ends{$_} > 1 } sort keys %ends), '', 'the log tells of the end of each term once');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|segmentation|could not open relation/i, 'no accident in the log');
$node->stop;
done_testing();
