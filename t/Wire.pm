# A client that speaks the protocol itself: see wire().
package Wire;

use strict;
use warnings;

use Exporter 'import';
use IO::Select;
use IO::Socket::UNIX;
use Test::More;
use Time::HiRes;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  wire wire_send wire_execute wire_hear wire_answer wire_ask wire_fails wire_elect wire_until wire_heard
  wire_ended wire_drop
);

# A client that speaks the protocol itself: many of them cost little, and what the
# server sends unasked is heard when it comes; %params: db, user, app, options
#
# {pid}; {rows} and {error}, {code} of the last answer; {notices}; {heard}, the
# notifications with their {time}; {ready}: nothing is outstanding; {closed}.
sub wire
{
	my ($node, %params) = @_;
	my $path = $node->host . '/.s.PGSQL.' . $node->port;
	my %startup = (
		user => $params{user} // scalar getpwuid($>),
		database => $params{db} // 'postgres');
	$startup{application_name} = $params{app} if defined $params{app};
	$startup{options} = $params{options} if defined $params{options};

	my $message = pack('N', 3 << 16) . join('', map { "$_\0" } %startup) . "\0";
	my $client = { buffer => '', heard => [], notices => '' };
	$client->{socket} = IO::Socket::UNIX->new(Peer => $path) or die "connect: $!";
	wire_forget($client);
	syswrite $client->{socket}, pack('N', 4 + length $message) . $message;
	wire_answer($client);
	die "cannot connect: $client->{error}" if $client->{closed};
	return $client;
}

sub wire_forget
{
	my ($client) = @_;
	@$client{qw(ready rows error code)} = (0, [], '', '');
	return;
}

sub wire_send
{
	my ($client, $sql) = @_;
	wire_forget($client);
	local $SIG{PIPE} = 'IGNORE';
	syswrite $client->{socket}, 'Q' . pack('N', 5 + length $sql) . "$sql\0";
	return;
}

# The same by the extended protocol, with parameters as text, and without types
sub wire_execute
{
	my ($client, $sql, @values) = @_;
	my $send = sub { $_[0] . pack('N', 4 + length $_[1]) . $_[1] };
	my $bound = join '', map { pack('N/a*', $_) } @values;

	wire_forget($client);
	local $SIG{PIPE} = 'IGNORE';
	syswrite $client->{socket},
		$send->('P', "\0$sql\0" . pack('n', 0))
	  . $send->('B', "\0\0" . pack('nn', 0, scalar @values) . $bound . pack('n', 0))
	  . $send->('E', "\0" . pack('N', 0))
	  . $send->('S', '');
	return wire_answer($client);
}

sub wire_message
{
	my ($client, $type, $body) = @_;
	if ($type eq 'D')
	{
		my ($fields, @values) = unpack 'n', $body;
		my $at = 2;
		foreach (1 .. $fields)
		{
			my $length = unpack 'l>', substr($body, $at, 4);
			push @values, $length < 0 ? '' : substr($body, $at + 4, $length);
			$at += 4 + ($length < 0 ? 0 : $length);
		}
		push @{ $client->{rows} }, join '|', @values;
	}
	elsif ($type eq 'E' || $type eq 'N')
	{
		my %fields = map { /\A(.)(.*)\z/s ? ($1 => $2) : () } split /\0/, $body;
		$client->{notices} .= "$fields{S}:  $fields{M}\n" if $type eq 'N';
		@$client{qw(error code)} = @fields{qw(M C)} if $type eq 'E';
	}
	elsif ($type eq 'A')
	{
		my ($pid, $channel, $payload) = unpack 'NZ*Z*', $body;
		push @{ $client->{heard} },
		  { pid => $pid, channel => $channel, payload => $payload, time => monotonic() };
	}
	elsif ($type eq 'K') { $client->{pid} = unpack 'N', $body; }
	elsif ($type eq 'Z') { $client->{ready} = 1; }
	return;
}

# Take in what the server has sent to any of these clients, after waiting for it for
# so many seconds at most
sub wire_hear
{
	my ($seconds, @clients) = @_;
	my %by_socket = map { $_->{socket} => $_ } grep { !$_->{closed} } @clients;
	my $select = IO::Select->new(map { $_->{socket} } values %by_socket);

	foreach my $socket ($select->can_read($seconds))
	{
		my $client = $by_socket{$socket};
		my $read = sysread $socket, $client->{buffer}, 65536, length $client->{buffer};
		wire_drop($client) unless $read;
		while (length $client->{buffer} >= 5)
		{
			my ($type, $length) = unpack 'aN', $client->{buffer};
			last if length $client->{buffer} < 1 + $length;
			wire_message($client, $type, substr($client->{buffer}, 5, $length - 4));
			substr($client->{buffer}, 0, 1 + $length) = '';
		}
	}
	return;
}

# Wait for the answer; undef if the connection has ended, or after so many seconds
sub wire_answer
{
	my ($client, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	until ($client->{ready} || $client->{closed})
	{
		my $left = $patience - monotonic();
		return if defined $seconds && $left <= 0;
		die 'session timed out' if $left <= 0;
		wire_hear($left, $client);
	}
	return $client->{ready} ? join("\n", @{ $client->{rows} }) : undef;
}

sub wire_ask
{
	my ($client, $sql) = @_;
	wire_send($client, $sql);
	return wire_answer($client);
}

# The statement fails with this SQLSTATE
sub wire_fails
{
	my ($client, $sql, $code, $test) = @_;
	my $answer = wire_ask($client, $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($client->{code}, $code, $test)
	  or diag("$sql: " . ($answer // 'connection lost') . " $client->{error}");
	return;
}

# Lead, resign, and return the token
sub wire_elect
{
	my ($client, $name, $function) = @_;
	$function //= 'le_try_become_leader';
	my @answers = split /\n/,
	  wire_ask($client, "BEGIN; SELECT $function('$name'); SELECT le_token('$name'); COMMIT");
	wire_ask($client, "SELECT le_resign('$name')") unless $function =~ /_xact$/;
	return $answers[1];
}

# Ask until this is the answer; false if it never is
sub wire_until
{
	my ($client, $sql, $expected, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);
	my $answer;

	until (($answer = wire_ask($client, $sql)) eq ($expected // 't'))
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

# Wait for the first notification, from {heard} on, that satisfies the condition, and
# take it and all before it off; undef after so many seconds
sub wire_heard
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
		wire_hear($left, $client);
	}
}

# Wait until the server has closed the connection; false if it does not
sub wire_ended
{
	my ($client, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	wire_hear(1, $client) until $client->{closed} || monotonic() > $patience;
	return $client->{closed};
}

# Close the connection without a word: the server sees what it sees of a client that
# was killed
sub wire_drop
{
	my (@clients) = @_;
	foreach my $client (@clients)
	{
		close $client->{socket} unless $client->{closed};
		$client->{closed} = 1;
	}
	return;
}

1;
