# A package replaces the library under a running server: sessions that have loaded the old
# one go on with it, new ones load the new one.  They share the registry if both lay it out
# in the same way; else the new ones are told so, and do nothing at all.
#
# alone: it replaces the installed library

use strict;
use warnings;

use File::Basename;
use File::Copy;
use File::Path qw(make_path);
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $source = "$FindBin::RealBin/..";
my $pg_config = $ENV{PG_CONFIG} // 'pg_config';

my $node = new_server('upgrade');
my $installed = $node->safe_psql('postgres', q{SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'}) . '/leader_election.so';
my $original = $node->basedir . '/original.so';
my $is_replaced = 0;

if (!-w $installed)
{
	note 'the library cannot be replaced where it is installed';
	$node->stop;
	done_testing();
	exit;
}
copy($installed, $original) or die "$original: $!";

# Install another library in the way a package does: the file that runs is not written to
sub replace_by
{
	my ($library) = @_;
	$is_replaced = 1;
	copy($library, "$installed.new") or die "$installed.new: $!";
	rename "$installed.new", $installed or die "$installed: $!";
}

END
{
	my $status = $?;
	replace_by($original) if $is_replaced;
	$? = $status;
}

# Build the library with other options, and return where it is
sub build_library
{
	my ($name, $options) = @_;
	my $dir = $node->basedir . "/$name";
	mkdir $dir or die "$dir: $!";
	foreach my $file (glob "$source/src/*/*.[ch]")
	{
		my $copy = $file =~ s/^\Q$source\E/$dir/r;
		make_path(dirname($copy));
		copy($file, $copy) or die "$copy: $!";
	}
	copy("$source/$_", $dir) foreach ('Makefile', 'leader_election.control');
	system_or_bail('make', '-s', '-C', $dir, "PG_CONFIG=$pg_config", 'with_llvm=no', "COPT=$options", 'leader_election.so');
	return "$dir/leader_election.so";
}

my $other_layout = build_library('other_layout', '-DLE_REGISTRY_VERSION=4711');
my $same_layout = build_library('same_layout', '-O1');

sub fails_as_another_version
{
	my ($session, $statement) = @_;
	ask($session, $statement);
	my $said = $session->{messages};
	return is(scalar($said =~ /ERROR:  55000: the registry of elections was made by another version of leader_election\nDETAIL:  The registry has version 1, and this session's library uses version 4711\.\nHINT:  Restart the server, so that all sessions use the same library\./),
		1, "refused: $statement") || diag $said;
}

my $leader = session($node, app => 'leader');
is(ask($leader, q{SELECT le_try_become_leader('job'), le_try_become_leader('other')}), 't|t', 'a leader');
my $lease = ask($leader, q{SELECT le_lease('lease', '1 hour')});
my $candidate = session($node, app => 'candidate');
my $candidate_pid = $candidate->{pid};
post($candidate, q{SELECT le_become_leader('job')});
wait_until_waiting($node, $candidate_pid);

subtest 'a library that shares the registry' => sub {
	replace_by($same_layout);
	my $new = session($node);
	is(ask($new, q{SELECT le_try_become_leader('job'), le_try_become_leader('of its own')}), 'f|t', 'knows the leader');
	is(ask($new, qq{SELECT le_renew('lease', $lease), (SELECT count(*) FROM le_leaders), (SELECT count(*) FROM le_candidates)}), 't|4|1', 'shares leases and views');
	is(ask($leader, q{SELECT identity IS NOT NULL FROM le_leader('of its own')}), 't', 'is known to the old one');
	end_session($new);
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM le_leader('of its own')});
};

subtest 'a library of another layout' => sub {
	replace_by($other_layout);
	my $new = session($node);
	my $pid = $new->{pid};
	fails_as_another_version($new, $_) foreach (
		q{SELECT le_try_become_leader('job')},
		q{SELECT le_try_become_leader('vacant')},
		q{SELECT le_try_become_leader('third')},
		q{SELECT le_become_leader('job', '1 s')},
		q{SELECT le_try_become_leader_xact('vacant')},
		q{CALL le_campaign('vacant')},
		q{CALL le_campaign(ARRAY['vacant', 'job'])},
		q{SELECT le_lease('vacant', '1 s')},
		qq{SELECT le_lease('lease', '1 s', token => $lease)},
		qq{SELECT le_renew('lease', $lease)},
		qq{SELECT le_resign('lease', $lease)},
		qq{SELECT le_assert_leader('lease', $lease)},
		qq{SELECT le_proclaim('lease', 'value', $lease)},
		q{CALL le_observe('job')},
		q{SELECT le_depose('job')},
		q{SELECT * FROM le_leaders},
		q{SELECT * FROM le_leader('job')},
		q{SELECT * FROM le_candidates},
		q{SELECT * FROM pg_stat_leader_election},
		q{SELECT * FROM pg_stat_leader_election_info},
		q{SELECT pg_stat_leader_election_reset()});
	fails_as_another_version($new, "BEGIN; SAVEPOINT a; SELECT le_try_become_leader('vacant')");
	is(ask($new, q{ROLLBACK TO a; SELECT 'goes on'; COMMIT}), 'goes on', 'nothing but the statement fails');
	isnt(ask($new, q{SELECT le_am_leader('job')}), 't', 'it does not lead what another leads');
	is(ask($new, "SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'"), '0', 'nothing is left of bids');
	is(ask($new, q{BEGIN; DROP EXTENSION leader_election; ROLLBACK; SELECT 'still there'}), 'still there', 'the extension can be dropped');
	is($new->{messages}, '', 'without complaint');
	end_session($new);
};

subtest 'sessions of the old library' => sub {
	is(ask($leader, qq{SELECT le_am_leader('job'), le_renew('lease', $lease), (SELECT count(*) FROM le_leaders)}), 't|t|3', 'lead on');
	is(ask($leader, q{SELECT le_resign('job')}), 't', 'resign');
	is(collect($candidate), 't', 'and elect each other');
	is(ask($candidate, q{SELECT le_resign('job')}), 't', 'all the time');
	is($leader->{messages} . $candidate->{messages}, '', 'without complaint');
};

subtest 'after a restart' => sub {
	end_session($leader, $candidate);
	$node->restart;
	my $new = session($node);
	is(ask($new, qq{SELECT le_try_become_leader('job'), le_token('job') > $lease}), 't|t', 'tokens grow');
	is(ask($new, qq{SELECT le_renew('lease', $lease), le_resign('lease', $lease)}), 't|t', 'leases run on');
	all_consistent($node, 'nothing half done');

	# and back
	replace_by($original);
	my $old = session($node);
	ask($old, q{SELECT le_try_become_leader('job')});
	like($old->{messages}, qr/ERROR:  55000: the registry of elections was made by another version/, 'nor does an old library touch a new registry');
	is(ask($new, q{SELECT le_am_leader('job')}), 't', 'whose sessions lead on');
	end_session($old, $new);
	$node->restart;
	is($node->safe_psql('postgres', q{SELECT le_try_become_leader('job')}), 't', 'back, with another restart');
};

# A next version, made up: it adds a column to a view
subtest 'an update of the SQL objects' => sub {
	my $script = $node->safe_psql('postgres', q{SELECT setting FROM pg_config WHERE name = 'SHAREDIR'}) .
		'/extension/leader_election--1.0.0--99.sql';
	append_to_file($script, <<'SQL');
CREATE OR REPLACE VIEW pg_stat_leader_election_info AS
SELECT elections, evictions, stats_reset, 99 AS made_up FROM _le_registry_info();
COMMENT ON COLUMN pg_stat_leader_election_info.made_up IS 'made up';
SQL
	my $objects = q{SELECT string_agg(concat_ws('|', pg_describe_object(d.classid, d.objid, 0),
			coalesce(pg_get_functiondef(p.oid), pg_get_viewdef(c.oid)), obj_description(d.objid, d.classid::regclass::name),
			coalesce(p.proacl, c.relacl)), E'\n' ORDER BY 1)
		FROM pg_depend d
		LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
		LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind = 'v'
		WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
		  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')};
	$node->safe_psql('postgres', q{
		CREATE ROLE others;
		CREATE VIEW of_others AS SELECT elections FROM pg_stat_leader_election_info;
		CREATE TABLE guarded (id int);
		CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT EXECUTE FUNCTION le_guard('up job');
		REVOKE SELECT ON pg_stat_leader_election_info FROM PUBLIC;
		GRANT SELECT ON pg_stat_leader_election_info TO others});
	my $before = $node->safe_psql('postgres', $objects);
	my $session = session($node);
	my $leased = ask($session, q{SELECT le_lease('up lease', '1 h')});
	is(ask($session, q{SELECT le_try_become_leader('up job'), le_try_become_leader('up other')}), 't|t', 'terms run');

	$node->safe_psql('postgres', q{BEGIN; ALTER EXTENSION leader_election UPDATE TO '99'; SELECT made_up FROM pg_stat_leader_election_info; ROLLBACK});
	is($node->safe_psql('postgres', $objects), $before, 'a rollback leaves all as it was');
	$node->safe_psql('postgres', q{ALTER EXTENSION leader_election UPDATE TO '99'});
	is($node->safe_psql('postgres', q{SELECT extversion FROM pg_extension WHERE extname = 'leader_election'}), '99', 'updated');
	my %before = map { $_ => 1 } split /\n/, $before;
	my @changed = grep { !$before{$_} } split /\n/, $node->safe_psql('postgres', $objects);
	is(scalar(grep { /^[a-z]+ / && !/^view pg_stat_leader_election_info/ } @changed), 0, 'what was to change has changed, and nothing else');
	is($node->safe_psql('postgres', q{SELECT elections > 0 FROM of_others}), 't', 'views of others stay');
	is($node->safe_psql('postgres', q{SELECT has_table_privilege('public', 'pg_stat_leader_election_info', 'SELECT'), has_table_privilege('others', 'pg_stat_leader_election_info', 'SELECT')}),
		'f|t', 'and rights');
	is(ask($session, qq{SELECT le_am_leader('up job'), le_am_leader('up other'), le_renew('up lease', $leased)}), 't|t|t', 'leaders lead on');
	ask($session, q{INSERT INTO guarded VALUES (1)});
	is($session->{messages}, '', 'guards let them write');
	is(ask($session, qq{SELECT le_resign('up lease', $leased), le_resign_all()}), 't|2', 'they resign');
	end_session($session);
	unlink $script or die "$script: $!";
};

my $log = slurp_file($node->logfile);
unlike($log, qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
is(join("\n", grep { /WARNING|could not bring/ } split /\n/, $log), '', 'no warnings');
$node->stop;
done_testing();
