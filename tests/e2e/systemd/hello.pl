#!/usr/bin/perl
# SPDX-License-Identifier: Apache-2.0
#
# hello.pl [SECONDS] - greet the daemon as sparsekv-protocol(7) says, with nothing of the project's own
# code. Prints "ok VERSION" or "error ERRNO TEXT", then keeps the connection for SECONDS.
use strict;
use warnings;
use Socket;

$| = 1;
socket(my $s, PF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
connect($s, pack_sockaddr_un('/run/sparsekv/sparsekvd.sock')) or die "connect: $!\n";
my $hello = pack('V V Q< a64', 1, 1, 0, 'hello.pl');
send($s, pack('V v v V V', 16 + length $hello, 2, 0, 7, 0) . $hello, 0) or die "send: $!\n";

local $SIG{ALRM} = sub { die "no answer in 20 s\n" };
alarm 20;
defined recv($s, my $packet, 65536, 0) or die "recv: $!\n";
alarm 0;
my ($length, $type, undef, $serial) = unpack('V v v V', $packet);
die "the connection was closed\n" unless defined $serial;
die "length $length of a packet of " . length($packet) . "\n" unless $length == length $packet;
die "serial $serial, expected 7\n" unless $serial == 7;
my $body = substr($packet, 16);
if ($type == 0x8002) {
	print 'ok ', unpack('V', $body), "\n";
} elsif ($type == 1) {
	my ($error, $text) = unpack('l< Z*', $body);
	print "error $error $text\n";
} else {
	die "type $type\n";
}
sleep($ARGV[0] // 0);
