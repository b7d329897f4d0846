# A standby takes and renews no lease, and shows those that were replicated; after
# promotion, these run on for their full ttl from the first look, and those that had
# ended do not.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $primary = new_server('lease_primary', allows_streaming => 1, conf => "autovacuum = off\n");
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('lease_standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

my $ttl = 2;
my $holder = session($primary, app => 'holder');

my $job = lease_take($holder, 'job', '1 h');
my $dead = lease_take($holder, 'dead', "$ttl s");
my $longer = lease_take($holder, 'longer', '1 s');
is(ask($holder, "SELECT le_renew('longer', $longer, '1 h')"), 't', 'a longer ttl');
my $shorter = lease_take($holder, 'shorter', '1 h');
is(ask($holder, "SELECT le_renew('shorter', $shorter, '20 min')"), 't', 'a shorter ttl');
my $resigned = lease_take($holder, 'resigned', '1 h');
is(ask($holder, "BEGIN; SELECT le_resign('resigned', $resigned); ROLLBACK"), 't', 'one is resigned, whatever becomes of the transaction');
my $succeeded = lease_take($holder, 'succeeded', '100 ms');
sleep_past(monotonic() + 0.11);
my $successor = lease_take($holder, 'succeeded', '1 h');
my $overtaken = lease_take($holder, 'overtaken', '100 ms');
sleep_past(monotonic() + 0.11);
is(ask($holder, q{BEGIN; SELECT le_try_become_leader_xact('overtaken'); ROLLBACK}), 't', 'one is over, and another session was elected after it');
my $open = session($primary);
ask($open, 'BEGIN');
my $uncommitted = lease_take($open, 'uncommitted', '1 h');
# what is not committed is on the standby, too
$primary->safe_psql('postgres', 'CREATE TABLE flushed ()');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));

my $there = session($standby, app => 'there before');

subtest 'a standby refuses all that takes a token' => sub {
	foreach my $block (0, 1)
	{
		foreach my $call ("le_lease('job', '1 s')", "le_lease('free', '1 s')",
			"le_lease('job', '1 s', identity => 'holder', token => $job)", "le_lease('job', '1 s', identity => 'holder', token => 0)",
			"le_renew('job', $job)", "le_renew('job', 0)", "le_renew('job', $job, '1 s')",
			"le_am_leader('job', $job)", "le_am_leader('free', 1)",
			"le_resign('job', $job)", "le_resign('free', 1)")
		{
			ask($there, 'BEGIN') if $block;
			ask($there, "SELECT $call");
			like($there->{messages}, qr/ERROR:  25006: /, $call);
			ask($there, 'ROLLBACK') if $block;
		}
	}
	is(ask($there, q{SELECT string_agg(name, ' ' ORDER BY name), bool_and(scope = 'lease' AND expires_in IS NULL AND renewed_at IS NULL AND renewals IS NULL) FROM le_leaders}), 'dead job longer shorter succeeded|t', 'the replicated leases are shown');
	is($there->{messages}, '', 'without complaint');
	is(ask($there, q{SELECT token, identity, ttl FROM le_leader('job')}), "$job|holder|01:00:00", 'and one that is asked for by name');
	is(ask($there, q{SELECT count(*) FROM le_leader('resigned')}), '0', 'but none that is over');
	is(ask($there, q{SELECT le_am_leader('job')}), 'f', 'nor is this session one');
	is(ask($there, q{SELECT le_resign('job')}), 'f', 'nothing to resign from');
	my ($output, $errors);
	$standby->psql('postgres', slurp_file('monitoring/queries.sql'), stdout => \$output, stderr => \$errors);
	is($errors, '', 'the queries for psql run there');
	like($output, qr/^8\. .*^job\|holder\|01:00:00\|\|\|$/ms, 'and show the lease');
	is(ask($holder, "SELECT le_renew('job', $job)"), 't', 'on the primary the lease runs on');
};

subtest 'promotion' => sub {
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	$primary->stop('immediate');
	end_session($holder, $open);
	$standby->promote;

	# whatever the standby was asked before has not set the leases going
	sleep_past(monotonic() + $ttl + 0.1);
	my $new = session($standby, app => 'new');
	my $offset = log_from($standby);
	my $looked = monotonic();
	is(ask($there, "SELECT le_am_leader('dead', $dead)"), 't', 'it runs from the first look');
	is(ask($new, q{SELECT le_lease('dead', '1 s')}), '', 'others are denied');
	is(ask($new, q{SELECT le_try_become_leader('job'), le_lease('job', '1 s') IS NULL}), 'f|t', 'the other one, too');
	is(ask($there, "SELECT le_renew('job', $job), le_lease('job', '1 h', identity => 'holder', token => $job) = $job"), 't|t', 'its holder renews, in a session that was there before');
	is(ask($new, "SELECT le_renew('job', $job), le_am_leader('job', $job), le_renew('job', $job + 1)"), 't|t|f', 'and in a new one');
	is(ask($new, "SELECT ttl = '1 h' AND expires_in > '30 min' FROM le_leader('longer')"), 't', 'a longer ttl came over');
	is(ask($new, "SELECT ttl = '20 min' AND expires_in < '21 min' FROM le_leader('shorter')"), 't', 'a shorter one, too');
	is(ask($new, "SELECT string_agg(name, ' ' ORDER BY name) FROM le_leaders WHERE name <> 'dead'"), 'job longer shorter succeeded', 'and nothing else leads');
	is(ask($there, "SELECT le_renew('resigned', $resigned), le_renew('succeeded', $succeeded), le_renew('overtaken', $overtaken), le_renew('uncommitted', $uncommitted)"), 'f|f|f|f', 'what was over is over');
	is(ask($there, "SELECT le_renew('succeeded', $successor)"), 't', 'the successor goes on');

	$standby->append_conf('postgresql.conf', 'leader_election.max_ttl = 1s');
	$standby->reload;
	my ($answer, $asked);
	do
	{
		$asked = monotonic();
		$answer = ask($new, q{SELECT le_lease('dead', '1 s', identity => 'next')});
	} until ($answer ne '' || $asked > $looked + 60);
	cmp_ok(monotonic(), '>=', $looked + $ttl, 'without a renewal, no other is elected before the ttl is over');
	cmp_ok($asked, '<', $looked + $ttl + 20, 'and not much later');
	cmp_ok($answer, '>', $uncommitted, 'with a token greater than any of the old primary');
	is(ask($there, "SELECT le_renew('dead', $dead), le_am_leader('dead', $dead)"), 'f|f', 'the first holder comes too late');
	foreach my $name ('resigned', 'overtaken', 'uncommitted')
	{
		cmp_ok(ask($new, "SELECT le_lease('$name', '1 s')"), '>', $uncommitted, "$name can be had");
	}
	is(ask($there, "SELECT le_resign('job', $job), le_try_become_leader('job')"), 't|t', 'resigned, and elected for the session');
	is(ask($new, "SELECT le_renew('job', $job)"), 'f', 'which ends the token');
	end_session($new);
};

end_session($there);
unlike(slurp_file($_->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log') foreach $primary, $standby;
$standby->stop;
done_testing();
