# What the documents say is so: their SQL runs, their psql sessions are what psql really
# says, and every object of the extension has its entry in the reference.  Their links are
# checked by tools/check-words.
#
# Each document has a database of its own.  Its blocks are run from the first to the last:
#
#	```psql NAME		What psql shows in the session NAME.  A line that begins with the
#						prompt "=# " (more lines: "-# ") is run, and what follows must be its
#						answer, but for process IDs.  Where nothing follows, the statement
#						waits; its answer begins the next block of that session.
#						A token (15 digits), or a version of le_observe (16 digits), of the
#						document stands for one of the server.
#	```sql				Runs without an error, in a session of its own that ends with it
#		session=NAME	in that session, which lasts until the end of the document
#		error=CODE		it fails with these SQLSTATEs, with commas between them
#		waits			the last statement still waits when the rest of the document goes on
#		skip=WHY		it is not run, for that reason, which is printed
#						\watch runs the statement once
#	<!-- sql ...		The same, not shown, up to a line of -->
#
# A session's application_name is its name.

use strict;
use warnings;

use File::Basename;
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Psql;

my @documents = ('README.md', 'CONTRIBUTING.md', 'SECURITY.md', sort glob 'doc/*.md');
my $reference = 'doc/reference.md';

# What is made for the views and the library only: its name is enough
my $internal = qr/^(?:_le_\w+|le_leases|le_\w+_seq)$/;

my $node = PostgreSQL::Test::Cluster->new('documents');
$node->init(extra => [ '--locale=C.UTF-8', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
$node->start;
create_extension($node);

# of the document that is run; the server's tokens and versions by those of the document
my ($database, %sessions, %token_of);
my $token = qr/\b\d{15,16}\b/;
my $version = qr/^[4-9]\d{15}$/;

# The blocks of a document: line, language, text, and what comes after the language
sub blocks_of
{
	my ($document) = @_;
	my (@blocks, $block, $end);
	my $number = 0;

	foreach my $line (split /^/, slurp_file($document))
	{
		$number++;
		if ($block && $line =~ $end)
		{
			push @blocks, $block;
			undef $block;
		}
		elsif ($block) { $block->{text} .= $line; }
		elsif ($line =~ /^(\s*)```(\w*) ?(.*)$/)
		{
			$end = qr/^\s*```\s*$/;
			$block = { line => $number, language => $2, more => $3, text => '' };
		}
		elsif ($line =~ /^<!-- sql ?(.*)$/)
		{
			$end = qr/^-->\s*$/;
			$block = { line => $number, language => 'sql', more => $1, text => '' };
		}
	}
	die "$document: block of line $block->{line} has no end" if $block;
	return @blocks;
}

# Fill in what the line of an SQL block says; what it cannot say is an error
sub read_attributes
{
	my ($block) = @_;
	my $more = $block->{more};

	$block->{skip} = $1 if $more =~ s/\bskip=(\S.*)$//;
	foreach my $word (split ' ', $more)
	{
		if ($word =~ /^(session|error)=(\S+)$/) { $block->{$1} = $2; }
		elsif ($word eq 'waits') { $block->{waits} = 1; }
		else { die "line $block->{line}: what is \"$word\"?"; }
	}
	return;
}

sub new_session
{
	my ($name) = @_;
	return start_psql($node->connstr($database) . " application_name='$name' options='-c statement_timeout=60s'");
}

sub session_of
{
	my ($name) = @_;
	return $sessions{$name} //= new_session($name);
}

sub waits
{
	my ($psql) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default / 6;
	my $waiting = '';

	$psql->{waits} = 1;
	while ($waiting ne 't' && monotonic() < $patience)
	{
		$waiting = $node->safe_psql('postgres',
			"SELECT state = 'active' AND wait_event_type IN ('Lock', 'Extension') FROM pg_stat_activity WHERE pid = $psql->{pid}");
	}
	return $waiting eq 't';
}

# What the session says to that; undef: to what it has waited for
sub answer
{
	my ($psql, $statement) = @_;

	psql_post($psql, $statement) if defined $statement;
	$psql->{waits} = 0;
	return psql_collect($psql);
}

# The server's tokens instead of the document's, as far as they have been seen
sub with_tokens
{
	my ($text) = @_;
	return $text =~ s/($token)/$token_of{$1} \/\/ $1/ger;
}

# How two tokens, or two versions, compare: tokens by size, versions by equality only
sub compare
{
	my ($one, $other) = @_;
	return $one =~ $version || $other =~ $version ? $one ne $other : $one <=> $other;
}

# Note which tokens of the server stand where the document has its own: the greater one
# there is the greater one here
sub note_tokens
{
	my ($expected, $said) = @_;
	my @documented = $expected =~ /$token/g;
	my @tokens = $said =~ /$token/g;

	return if @documented != @tokens;
	foreach my $i (0 .. $#tokens)
	{
		$token_of{$documented[$i]} //= $tokens[$i]
		  unless grep { compare($_, $documented[$i]) != compare($token_of{$_}, $tokens[$i]) } keys %token_of;
	}
	return;
}

sub is_answer
{
	my ($said, $expected, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	note_tokens($expected, $said);
	return is(normalize($said), normalize(with_tokens($expected)), $test);
}

# Leave out what differs from run to run, or does not show in print.
sub normalize
{
	my ($text) = @_;

	$text =~ s/psql:<stdin>:\d+: //g;
	$text =~ s/process ID \d+/process ID N/g;
	$text =~ s/[ \t]+$//gm;
	$text =~ s/\n+/\n/g;
	$text =~ s/^\n|\n$//g;
	return $text;
}

sub run_psql
{
	my ($document, $block) = @_;
	my $name = $block->{more};
	my $text = $block->{text};
	my $count = 0;

	die "$document, line $block->{line}: a psql block has a session" unless $name =~ /^[\w-]+$/;
	my $psql = session_of($name);
	$psql->{waits} || $text =~ /\A=# / or die "$document, line $block->{line}: nothing was asked";
	if ($psql->{waits})
	{
		$text =~ s/\A(.*?)(?==# |\z)//s;
		is_answer(answer($psql), $1, "$document, line $block->{line}: $name has waited");
		$count++;
	}
	while ($text =~ /^=# ([^\n]+(?:\n-# [^\n]+)*)\n(.*?)(?=^=# |\z)/gms)
	{
		my ($statement, $expected) = ($1, $2);
		my $test = "$document, line $block->{line}: $name: $statement";

		$statement = with_tokens($statement =~ s/^-# //gmr);
		$count++;
		if ($expected !~ /\S/)
		{
			psql_post($psql, $statement);
			ok(waits($psql), "$test waits");
		}
		else
		{
			is_answer(answer($psql, $statement), $expected, $test);
		}
	}
	return $count;
}

# What it led is free for the next block
sub end_reader
{
	my ($psql) = @_;

	end_psql($psql);
	return $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $psql->{pid}");
}

sub run_sql
{
	my ($document, $block) = @_;
	my $named = defined $block->{session};
	my $psql = $named ? session_of($block->{session}) : new_session('reader');
	my $test = "$document, line $block->{line}: SQL";
	my $text = with_tokens($block->{text} =~ s/^\\watch\b.*$/;/gmr);
	my $said;

	if ($psql->{waits})
	{
		unlike(answer($psql), qr/ERROR|FATAL/, "$test: what came before has been answered");
	}
	psql_ask($psql, '\set VERBOSITY verbose');
	if ($block->{waits})
	{
		psql_post($psql, $text);
		ok(waits($psql), "$test waits");
		$sessions{"$document $block->{line}"} = $psql unless $named;
		return;
	}
	$said = answer($psql, $text);
	is(join(',', $said =~ /(?:ERROR|FATAL):  (\w{5}):/g), $block->{error} // '', $test)
	  or diag($said);
	psql_ask($psql, '\set VERBOSITY default');
	end_reader($psql) unless $named;
	return;
}

sub run_document
{
	my ($document) = @_;
	my @blocks = blocks_of($document);
	my %count = (sql => 0, psql => 0, skipped => 0);

	read_attributes($_) foreach grep { $_->{language} eq 'sql' } @blocks;
	my ($first) = map { $_->{text} } grep { $_->{language} eq 'sql' } @blocks;
	create_extension($node, $database) if ($first // '') !~ /^CREATE EXTENSION/m;

	foreach my $block (@blocks)
	{
		if ($block->{skip})
		{
			note("$document, line $block->{line} is not run: $block->{skip}");
			$count{skipped}++;
		}
		elsif ($block->{language} eq 'psql') { $count{psql} += run_psql($document, $block); }
		elsif ($block->{language} eq 'sql')
		{
			run_sql($document, $block);
			$count{sql}++;
		}
	}
	pass("$document: $count{sql} blocks of SQL, $count{psql} statements in psql, $count{skipped} not run");
	return;
}

# Leave nothing of a document but its tests
sub clean_up
{
	my @waiting = map { $_->{pid} } grep { $_->{waits} } values %sessions;

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($_)") foreach @waiting;
	end_psql(values %sessions);
	%sessions = %token_of = ();
	$node->safe_psql('postgres', "DROP DATABASE $database WITH (FORCE)");
	$node->safe_psql('postgres', $_)
	  foreach split /\n/, $node->safe_psql('postgres',
		q{SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE oid >= 16384});
	return;
}

foreach my $document (@documents)
{
	$database = lc basename($document, '.md') =~ s/\W/_/gr;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	run_document($document);
	clean_up();
}

# What the client libraries ask is SQL of the server, with parameters
foreach my $block (grep { $_->{language} eq 'sql' } map { blocks_of($_) } glob 'clients/README.md clients/*/README.md')
{
	is($node->psql('postgres', "PREPARE question AS $block->{text}"), 0, "line $block->{line} of a library's README: SQL");
}

# The text below each heading of a document, by the heading without markup
sub sections_of
{
	my ($document) = @_;
	my (%sections, $heading, $fenced);

	foreach my $line (split /^/, slurp_file($document))
	{
		$fenced = !$fenced if $line =~ /^\s*```/;
		if (!$fenced && $line =~ /^#+ +(.*?)\s*$/)
		{
			$heading = $1 =~ s/`//gr;
			$sections{$heading} //= '';
		}
		elsif (defined $heading) { $sections{$heading} .= $line; }
	}
	return %sections;
}

my $text = slurp_file($reference);
my %sections = sections_of($reference);

# The rows of a query, as lists of fields
sub rows
{
	my ($query) = @_;
	return map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql('postgres', $query);
}

subtest 'every function and procedure is in the reference' => sub {
	foreach my $row (rows(q{
SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
ORDER BY 1, 2}))
	{
		my ($name, $arguments, $result) = @$row;

		if ($name =~ $internal)
		{
			ok($text =~ /`$name\b/, $name);
			next;
		}
		$arguments =~ s/(?:^|, )OUT .*//;
		$arguments =~ s/\bIN //g;
		$arguments =~ s/ DEFAULT (\w+)::[\w ]+/ DEFAULT $1/g;
		my $signature = "$name($arguments)" . ($result eq '' || $arguments =~ /INOUT/ ? '' : " → $result");
		ok(index(($sections{$name} // '') =~ s/\s+/ /gr, $signature) >= 0, $signature);
	}
};

subtest 'every table and view is in the reference, with its columns' => sub {
	foreach my $row (rows(q{
SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum)
FROM pg_depend d JOIN pg_class c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
GROUP BY c.oid ORDER BY 1}))
	{
		my ($name, $columns) = @$row;

		if ($name =~ $internal)
		{
			ok($text =~ /`$name\b/, $name);
			next;
		}
		is(join(' ', ($sections{$name} // '') =~ /^\| `(\w+)` \|/mg), $columns, $name);
	}
};

subtest 'every setting is in the reference, with its default' => sub {
	foreach my $row (rows(q{
LOAD 'leader_election';
SELECT name, coalesce(nullif(current_setting(name), ''), 'empty') FROM pg_settings
WHERE name LIKE 'leader\_election.%' ORDER BY 1}))
	{
		my ($name, $default) = @$row;
		ok($text =~ /^\| `\Q$name\E` \| `?\Q$default\E`? \|/m, "$name, $default by default");
	}
};

# What the server knows the error codes by that the sources name
my $sqlstate_of = q{
CREATE FUNCTION sqlstate_of(condition text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('DO $do$ BEGIN RAISE %s; END $do$', condition);
EXCEPTION WHEN OTHERS THEN
	RETURN CASE SQLERRM WHEN condition THEN SQLSTATE ELSE SQLERRM END;
END $$};

# The SQLSTATEs of all errors in the sources
sub sqlstates
{
	my $sources = join '', map { slurp_file($_) } glob 'src/*/*.[ch]';
	my %states = (ERRCODE_WARNING => '01000');
	my %used;

	while ($sources =~ /^#define (ERRCODE_\w+)\s+MAKE_SQLSTATE\((.*)\)/mg)
	{
		my ($name, $letters) = ($1, $2);
		$states{$name} = join '', $letters =~ /'(\w)'/g;
	}
	foreach my $name ($sources =~ /\b(ERRCODE_\w+)/g)
	{
		my $condition = lc $name =~ s/^ERRCODE_(?:E_R_I_E_|T_R_)?//r;
		$used{ $states{$name} //= $node->safe_psql('postgres', "SELECT sqlstate_of('$condition')") } = 1;
	}
	return sort keys %used;
}

subtest 'every SQLSTATE is in the reference' => sub {
	$node->safe_psql('postgres', $sqlstate_of);
	my @states = sqlstates();
	cmp_ok(scalar @states, '>', 10, 'the sources have some');
	ok($sections{Errors} =~ /^\| $_ \|/m, "SQLSTATE $_") foreach @states;
};

$node->stop;
done_testing();
