# The client of all tests.  It speaks the server's protocol itself: it waits only where the
# test asks for that, hears at once what the server sends unasked, and is the same whichever
# version of the server there is.  Many of them cost little.
package Client;

use strict;
use warnings;

use Exporter 'import';
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  session post collect ask ask_with ask_until fails lead_once
  hear next_notification wait_for_end end_session leave kill_client
  monotonic
);

# Connect a client; %params: db, user, app (its application_name), options, and host and
# port where it does not use the server's socket.
#
# These fields are there to be read:
#	pid			the process ID of its backend
#	ready		whether all statements have been answered
#	rows		the rows of the last answer, with | between columns
#	messages	the notices and errors of the last answer, as psql shows them verbosely
#	error, code	message and SQLSTATE of the last error among these
#	heard		notifications that next_notification has not returned yet
#	closed		whether the connection has ended
sub session
{
	my ($node, %params) = @_;
	my %startup = (
		user => $params{user} // scalar getpwuid($>),
		database => $params{db} // 'postgres');
	$startup{application_name} = $params{app} if defined $params{app};
	$startup{options} = $params{options} if defined $params{options};

	my $message = pack('N', 3 << 16) . join('', map { "$_\0" } %startup) . "\0";
	my $client = { buffer => '', heard => [] };
	$client->{socket} =
	  defined $params{host}
	  ? IO::Socket::INET->new(PeerAddr => $params{host}, PeerPort => $params{port} // $node->port, Timeout => 10)
	  : IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port);
	$client->{socket} or die "connect: $!";
	send_to_server($client, 1, pack('N', 4 + length $message) . $message);
	collect($client);
	die "cannot connect: $client->{error}" if $client->{closed};
	return $client;
}

# Send bytes that the server answers so many times, and forget the last answer.  A server
# that has closed the connection leaves its last words to be read.
sub send_to_server
{
	my ($client, $count, $bytes) = @_;

	@$client{qw(outstanding ready rows messages error code)} = ($count, 0, [], '', '', '');
	local $SIG{PIPE} = 'IGNORE';
	while (!$client->{closed} && length $bytes)
	{
		my $sent = syswrite($client->{socket}, $bytes) // last;
		substr($bytes, 0, $sent) = '';
	}
	return;
}

# Send statements, without waiting for what they return.  Those in one string are one
# transaction, as the server has it, where no statement among them is BEGIN or the like.
sub post
{
	my ($client, @sql) = @_;

	die "\"@sql\": the last statement has not been answered" unless $client->{ready} || $client->{closed};
	send_to_server($client, scalar @sql, join '', map { 'Q' . pack('N', 5 + length $_) . "$_\0" } @sql);
	return;
}

# Wait for the answer, and return its rows; undef if the connection has ended, or after so
# many seconds
sub collect
{
	my ($client, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	until ($client->{ready} || $client->{closed})
	{
		my $left = $patience - monotonic();
		return if defined $seconds && $left <= 0;
		die 'session timed out' if $left <= 0;
		hear($left, $client);
	}
	return $client->{ready} ? join("\n", @{ $client->{rows} }) : undef;
}

sub ask
{
	my ($client, @sql) = @_;
	post($client, @sql);
	return collect($client);
}

# Ask by the extended protocol, with parameters as text, and without types
sub ask_with
{
	my ($client, $sql, @values) = @_;
	my $message = sub { $_[0] . pack('N', 4 + length $_[1]) . $_[1] };
	my $bound = join '', map { pack('N/a*', $_) } @values;

	send_to_server($client, 1,
		$message->('P', "\0$sql\0" . pack('n', 0))
	  . $message->('B', "\0\0" . pack('nn', 0, scalar @values) . $bound . pack('n', 0))
	  . $message->('E', "\0" . pack('N', 0))
	  . $message->('S', ''));
	return collect($client);
}

# Ask until this is the answer; false if it never is
sub ask_until
{
	my ($client, $sql, $expected, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);
	my $answer;

	until (($answer = ask($client, $sql)) eq ($expected // 't'))
	{
		if (monotonic() > $patience)
		{
			diag("$sql: $answer $client->{error}");
			return 0;
		}
		Time::HiRes::sleep(0.005);
	}
	return 1;
}

# The statement fails with this SQLSTATE
sub fails
{
	my ($client, $sql, $code, $test) = @_;
	my $answer = ask($client, $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($client->{code}, $code, $test)
	  or diag("$sql: " . ($answer // 'connection lost') . " $client->{error}");
	return;
}

# Lead, resign, and return the token
sub lead_once
{
	my ($client, $name, $function) = @_;
	$function //= 'le_try_become_leader';
	my @answers = split /\n/,
	  ask($client, "BEGIN; SELECT $function('$name'); SELECT le_token('$name'); COMMIT");
	ask($client, "SELECT le_resign('$name')") unless $function =~ /_xact$/;
	return $answers[1];
}

# Note what a notice or an error says
sub note_message
{
	my ($client, $type, $body) = @_;
	my %field = map { /\A(.)(.*)\z/s ? ($1 => $2) : () } split /\0/, $body;
	my %labels = (D => 'DETAIL', H => 'HINT', W => 'CONTEXT');

	$client->{messages} .= "$field{S}:  $field{C}: $field{M}\n";
	$client->{messages} .= "$labels{$_}:  $field{$_}\n" foreach grep { defined $field{$_} } qw(D H W);
	@$client{qw(error code)} = @field{qw(M C)} if $type eq 'E';
	return;
}

sub note_row
{
	my ($client, $body) = @_;
	my ($fields, @values) = unpack 'n', $body;
	my $at = 2;

	foreach (1 .. $fields)
	{
		my $length = unpack 'l>', substr($body, $at, 4);
		push @values, $length < 0 ? '' : substr($body, $at + 4, $length);
		$at += 4 + ($length < 0 ? 0 : $length);
	}
	push @{ $client->{rows} }, join '|', @values;
	return;
}

sub note_notification
{
	my ($client, $body) = @_;
	my ($pid, $channel, $payload) = unpack 'NZ*Z*', $body;

	push @{ $client->{heard} },
	  { pid => $pid, channel => $channel, payload => $payload, time => monotonic() };
	return;
}

# Take in what the server has sent to any of these clients, after waiting for it for
# so many seconds at most
sub hear
{
	my ($seconds, @clients) = @_;
	my %by_socket = map { $_->{socket} => $_ } grep { !$_->{closed} } @clients;
	my $select = IO::Select->new(map { $_->{socket} } values %by_socket);

	foreach my $socket ($select->can_read($seconds))
	{
		my $client = $by_socket{$socket};
		my $read = sysread $socket, $client->{buffer}, 65536, length $client->{buffer};
		kill_client($client) unless $read;
		take_in($client);
	}
	return;
}

# Take in the messages that have been read as a whole
sub take_in
{
	my ($client) = @_;

	while (length $client->{buffer} >= 5)
	{
		my ($type, $length) = unpack 'aN', $client->{buffer};
		last if length $client->{buffer} < 1 + $length;
		my $body = substr($client->{buffer}, 5, $length - 4);
		substr($client->{buffer}, 0, 1 + $length) = '';

		if ($type eq 'D') { note_row($client, $body); }
		elsif ($type eq 'E' || $type eq 'N') { note_message($client, $type, $body); }
		elsif ($type eq 'A') { note_notification($client, $body); }
		elsif ($type eq 'K') { $client->{pid} = unpack 'N', $body; }
		elsif ($type eq 'Z') { $client->{ready} = --$client->{outstanding} == 0; }
	}
	return;
}

# Wait for the first notification that satisfies the condition, and take it and all before
# it off {heard}; undef after so many seconds.  It has pid, channel, payload, and the time.
sub next_notification
{
	my ($client, $seconds, $condition) = @_;
	my $patience = monotonic() + $seconds;

	while (1)
	{
		while (my $heard = shift @{ $client->{heard} })
		{
			local $_ = $heard;
			return $heard if $condition->();
		}
		my $left = $patience - monotonic();
		return if $left <= 0 || $client->{closed};
		hear($left, $client);
	}
}

# Wait until the server has closed the connection; false if it does not
sub wait_for_end
{
	my ($client, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	hear(1, $client) until $client->{closed} || monotonic() > $patience;
	return $client->{closed};
}

# End sessions, however far they have got: wait for the answer to the last statement, and
# until the backend has gone
sub end_session
{
	my (@clients) = @_;
	foreach my $client (grep { !$_->{closed} } @clients)
	{
		collect($client);
		send_to_server($client, 1, pack('aN', 'X', 4));
		wait_for_end($client);
	}
	return;
}

# Leave, without waiting until the backend has noticed
sub leave
{
	my ($client) = @_;
	send_to_server($client, 1, pack('aN', 'X', 4));
	kill_client($client);
	return;
}

# Close the connection without a word: the server sees what it sees of a client that
# was killed
sub kill_client
{
	my (@clients) = @_;
	foreach my $client (@clients)
	{
		close $client->{socket} unless $client->{closed};
		$client->{closed} = 1;
	}
	return;
}

# Seconds on the clock by which leases run
sub monotonic
{
	return clock_gettime(CLOCK_MONOTONIC);
}

1;
