# A standby elects no leader.  After promotion it does, with greater tokens.  A
# block of tokens waits for the synchronous standby as a commit would.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $primary = new_server('primary', allows_streaming => 1);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "cluster_name = 'standby'\n");
$standby->append_conf('postgresql.conf', "primary_conninfo = '"
	  . $primary->connstr . " application_name=standby'\n");
$standby->start;

my $leader = session($primary, app => 'leader');
ask($leader, q{SELECT le_try_become_leader('job')});
ask($leader, q{SELECT le_try_become_leader('5')});
my $old = ask($leader, q{SELECT le_token('5')});
$primary->wait_for_catchup($standby);

my $there = session($standby, app => 'on standby');
my @bids = (
	(map { ("le_${_}become_leader('job')", "le_${_}become_leader('free')", "le_${_}become_leader('5')",
		"le_${_}become_leader_xact('job')", "le_${_}become_leader_xact('5')") } ('try_', '')),
	q{le_try_become_leader('job', heartbeat => '1 s')}, q{le_become_leader('job', '0')}, q{le_become_leader_xact('job', '1ms')});

subtest 'a standby refuses every bid' => sub {
	foreach my $block ('', 'BEGIN')
	{
		foreach my $bid (@bids)
		{
			ask($there, $block) if $block;
			ask($there, "SELECT $bid");
			like($there->{messages}, qr/ERROR:  25006: cannot elect a leader during recovery/, "$bid $block");
			unlike(slurp_file("/proc/$there->{pid}/timers"), qr/^ID:/m, 'without a timer');
			like($there->{messages}, qr/HINT:  Connect to the primary server\./, 'with the hint');
			ask($there, 'ROLLBACK') if $block;
		}
	}
	is( $standby->safe_psql('postgres',
			q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
		0, 'no lock is taken');
};

subtest 'a standby can be asked' => sub {
	is(ask($there, q{SELECT le_am_leader('job'), le_am_leader('5'), le_token('job') IS NULL, le_token('5') IS NULL}),
		'f|f|t|t', 'this session does not lead');
	is(ask($there, q{SELECT le_resign('job')}), 'f', 'nothing to resign from');
	like($there->{messages}, qr/WARNING:.*does not lead election "job"\nDETAIL:  The election is vacant\./, 'warning');
	is(ask($there, q{SELECT le_resign('5')}), 'f', 'nor from the other');
	is(ask($there, 'SELECT le_resign_all()'), '0', 'nor from any');
	is(ask($there, q{SELECT count(*) FROM le_leaders}), '0', 'le_leaders');
	is(ask($there, q{SELECT count(*) FROM le_candidates}), '0', 'le_candidates');
	is(ask($there, q{SELECT count(*) FROM le_leader('job')}), '0', 'le_leader');
	is($there->{messages}, '', 'without complaint');
};

sub waits_for_standby
{
	my ($setting) = @_;
	my $block = $primary->safe_psql('postgres', 'SELECT last_value FROM le_token_seq');
	my $session = session($primary);
	my $offset;
	ask($session, "SET synchronous_commit = $setting; SET client_min_messages = warning");
	ask($session, 'BEGIN');
	$standby->stop;
	post($session,
		q{SELECT count(*) FROM generate_series(1, 1024) WHERE le_become_leader('sync') AND le_resign('sync')},
		q{SELECT le_try_become_leader('sync'), le_token('sync')});
	return ($session, $block);
}

# also where the session's own commits would not: tokens are for all sessions
subtest 'a block of tokens waits for the synchronous standby' => sub {
	$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'\n");
	$primary->reload;
	$primary->poll_query_until('postgres',
		q{SELECT sync_state = 'sync' FROM pg_stat_replication});
	foreach my $setting ('on', 'remote_apply', 'local', 'off')
	{
		my ($session, $block) = waits_for_standby($setting);
		ok($primary->poll_query_until('postgres',
			"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $session->{pid}"),
			"$setting: the session waits");
		my $second = session($primary);
		ask($second, q{SET statement_timeout = '200ms'});
		is(ask($second, q{SELECT le_try_become_leader('sync')}), 'f', 'others are denied');
		ask($second, q{SELECT le_become_leader('other')});
		like($second->{messages}, qr/canceling statement due to statement timeout/,
			'or wait for the block, too, as none of it may be handed out');
		ask($second, 'RESET statement_timeout');
		is(ask($second, q{SELECT le_try_become_leader('other')}), 'f', 'or are denied, if they do not wait');
		is(ask($second, q{SELECT le_am_leader('other')}), 'f', 'and have not been elected then');
		is(ask($second, q{SELECT count(*) FROM le_leaders WHERE name = 'other'}), '0', 'no session has');
		$standby->start;
		my ($elections, $last) = split /\n/, collect($session);
		is($elections, '1024', 'it goes on when the standby is back');
		my ($elected, $token) = split /\|/, $last;
		is($elected, 't', 'elected');
		cmp_ok($token, '>', $block, 'from a new block');
		$old = $token;
		end_session($session, $second);
	}

	$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
	$primary->reload;
};

subtest 'promotion' => sub {
	$there = session($standby, app => 'was on standby');
	ask($there, q{SELECT le_am_leader('job')});
	my $more = session($primary);
	ask($more, 'BEGIN');
	$old = (split /\|/, ask($more, q{SELECT le_try_become_leader('more'), le_token('more')}))[1];
	is(ask($more, q{SELECT count(*) FROM generate_series(1, 1500) WHERE le_try_become_leader('x') AND le_resign('x')}), '1500', 'more tokens in an open transaction');
	ask($more, q{SELECT le_try_become_leader_xact('greatest')});
	$old = ask($more, q{SELECT le_token('greatest')});
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	$primary->stop('immediate');
	end_session($leader, $more);

	$standby->promote;
	is(ask($there, q{SELECT le_am_leader('job'), le_am_leader('5'), le_resign_all()}),
		'f|f|0', 'the session that was there before holds nothing');
	is(ask($there, q{SELECT count(*) FROM le_leaders}), '0', 'there is no leader');
	is(ask($there, q{SELECT le_try_become_leader('job')}), 't', 'it can be elected now');
	cmp_ok(ask($there, q{SELECT le_token('job')}), '>', $old, 'with a greater token');
	is(leads_in_view($standby, 'job'), 'was on standby/session', 'and is shown');
	is(ask($there, q{SELECT le_become_leader('5', '1s')}), 't', 'the other, too');
	is(ask($there, 'SELECT le_resign_all()'), '2', 'and can resign');
	end_session($there);
};

unlike(slurp_file($_->logfile), qr/TRAP|PANIC/, 'no accident in the log') foreach $primary, $standby;
$standby->stop;
done_testing();
