#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-includes.sh [ROOT] - checks that includes and calls go in the directions of HACKING.md's map. Run it in the
# build directory.
#
# Inner layers see only what is below them, so that a change can be judged by reading downwards. The table below is the
# map's last column. Files that call each other in a cycle can only be read together, so a cycle has at most three
# files. Calls are read from object files, so only compiled files count. First the script checks itself: it must find a
# planted wrong include and a planted cycle.
set -eu
export LC_ALL=C

# folder (the longest match counts) | what it may include besides itself
rules='
libclient/include/sparsekv |
common                     | libclient/include/sparsekv
formats                    | libclient/include/sparsekv/types.h
kernels                    | libclient/include/sparsekv/policy.h libclient/include/sparsekv/types.h
libclient                  | libclient/include/sparsekv common formats kernels
policies                   | libclient/include/sparsekv/policy.h libclient/include/sparsekv/types.h
daemon                     | libclient/include/sparsekv common daemon
daemon/core                | libclient/include/sparsekv common daemon/mem/mem.h
daemon/mem                 | libclient/include/sparsekv common
daemon/sys                 | libclient/include/sparsekv common daemon/core/core.h
daemon/loop                | libclient/include/sparsekv common daemon/sys
daemon/ipc                 | libclient/include/sparsekv common daemon/sys daemon/loop
daemon/worker              | libclient/include/sparsekv common daemon/mem/cuda.h daemon/mem/mem.h daemon/sys daemon/loop
daemon/disk                | libclient/include/sparsekv common daemon/mem/cuda.h daemon/mem/driver.h daemon/mem/mem.h daemon/store/values.h daemon/sys/clock.h
daemon/store               | libclient/include/sparsekv common daemon/mem/cuda.h daemon/mem/driver.h daemon/mem/mem.h daemon/sys/clock.h daemon/disk
daemon/plugin              | libclient/include/sparsekv common daemon/sys daemon/loop
daemon/server              | libclient/include/sparsekv common daemon/core daemon/ipc daemon/loop daemon/mem daemon/plugin daemon/requests/lease.h daemon/sys daemon/worker
daemon/requests            | libclient/include/sparsekv common daemon/core daemon/ipc daemon/parked/parking.h daemon/prefix/prefix.h daemon/restart/handover.h daemon/server daemon/sys
daemon/parked              | libclient/include/sparsekv common daemon/core daemon/disk daemon/prefix/prefix-priv.h daemon/requests daemon/server daemon/sys daemon/worker
daemon/prefix              | libclient/include/sparsekv common daemon/core daemon/ipc daemon/parked/parking-priv.h daemon/requests daemon/server daemon/store daemon/sys
daemon/restart             | libclient/include/sparsekv common daemon/core daemon/requests daemon/server daemon/sys
daemon/ctl                 | libclient/include/sparsekv common tests/oracle/verify.h
engine                     | libclient/include/sparsekv formats common/process.h
tests/oracle               | libclient/include/sparsekv tests/ref/attention.h policies/names.h
'

# check ROOT: prints one line for each include in the wrong direction. Status 1 if there is one.
check() (
	cd "$1"
	find . -name '.?*' -prune -o -regex '.*\.\(c\|h\|cu\|cuh\)' -printf '%P\n' | sort |
		xargs grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' /dev/null |
		awk -v rules="$rules" '
		function exists(path,    line, there) {
			if (!(path in known)) {
				there = (getline line < path) >= 0
				close(path)
				known[path] = there
			}
			return known[path]
		}
		function within(path, folder) {
			return path == folder || index(path, folder "/") == 1
		}
		BEGIN {
			n = split(rules, rows, "\n")
			for (i = 1; i <= n; i++)
				if (split(rows[i], part, "|") == 2) {
					gsub(/ /, "", part[1])
					may[part[1]] = part[2]
				}
		}
		{
			split($0, at, ":")
			file = at[1]
			folder = ""
			for (f in may)
				if (within(file, f) && length(f) > length(folder))
					folder = f
			if (folder == "")
				next
			text = $0
			sub(/^[^:]*:[^:]*:[^<"]*/, "", text)
			name = substr(text, 2)
			sub(/[>"].*/, "", name)
			dir = file
			sub(/[^\/]*$/, "", dir)
			if (substr(text, 1, 1) == "\"")
				target = exists(dir name) ? dir name : name
			else
				target = "libclient/include/" name
			# simplify a/../b
			while (sub(/[^\/.]+\/\.\.\//, "", target))
				;
			if (name ~ /^cu(da|blas)/ || name ~ /^nv[a-z]*\.h$/) {
				if (!within(file, "kernels/cuda") && !within(file, "engine/cuda") &&
				    !within(file, "daemon/mem")) {
					print file ":" at[2] ": <" name "> outside the CUDA modules"
					bad = 1
				}
				next
			}
			if (!exists(target) || within(target, folder))
				next # a system header, config.h, or a file of the same folder
			m = split(may[folder], allowed, " ")
			for (i = 1; i <= m; i++)
				if (within(target, allowed[i]))
					next
			print file ":" at[2] ": " folder "/ may not include " target
			bad = 1
		}
		END { exit bad }'
)

# arrows ROOT FOLDER MOST UPWARDS ROOM...: counts the pairs of rooms, subfolders of FOLDER, of which one includes headers of the other.
# FOLDER itself is a room named "." The rooms are given from the lowest to the highest; an include of a higher room is an arrow upwards.
# Prints the number of arrows; status 1 if there are more than MOST, or more than UPWARDS of them point upwards.
arrows() (
	cd "$1"
	find "$2" -name '*.[ch]' -exec grep -HoE '^# *include *"[^"]+"' {} + | perl -e '
		my ($folder, $most, $most_upwards, @rooms) = @ARGV;
		my (%height, %arrows);
		@height{@rooms} = 0 .. $#rooms;
		sub room { $_[0] =~ m{^\Q$folder\E/(?:([^/]+)/)?[^/]+$} or return; $1 // "." }
		while (<STDIN>) {
			my ($file, $header) = /^([^:]+):.*"(.*)"/ or next;
			my ($from, $to) = (room($file), room($header));
			next if !defined $to || $from eq $to;
			exists $height{$_} or die "check-includes.sh: the room $_ of $folder/ has no place in the list\n" for $from, $to;
			$arrows{"$from -> $to"} = $height{$to} > $height{$from};
		}
		my @upwards = grep { $arrows{$_} } sort keys %arrows;
		printf "%s/: %d arrows, %d upwards: %s\n", $folder, scalar keys %arrows, scalar @upwards, join ", ", @upwards;
		exit(keys %arrows > $most || @upwards > $most_upwards)' "${@:2}"
)

# rings ROOT BUILD: prints one line for each cycle of more than three files. Status 1 if there is one.
rings() {
	(cd "$2" && find . -name '*.o' -not -path './tests/*' -exec nm -A --no-sort {} + 2>/dev/null) | perl -e '
		my ($root, %source, %defines, %calls, %out) = shift;
		# DIR/.libs/libx_la-name.o and DIR/prog-name.o are compiled from DIR/name.c; objects without a source
		# are left over
		sub source {
			my ($dir, $name) = $_[0] =~ m{^\./(?:(.*)/)?([^/]*)\.o$} or return "";
			$dir =~ s{(^|/)\.libs$}{} if defined $dir;
			$dir = defined $dir && $dir ne "" ? "$dir/" : "";
			-e "$root/$dir$name.c" and return "$dir$name.c";
			$name =~ s/^[^-]*-//;
			return -e "$root/$dir$name.c" ? "$dir$name.c" : "";
		}
		while (<STDIN>) {
			my ($object, $kind, $symbol) = /^(.*?):[0-9a-f]*\s+([A-Za-z]) (\S+)$/ or next;
			my $file = $source{$object} //= source($object);
			next if $file eq "";
			push @{$defines{$symbol}}, $file if $kind =~ /[TW]/;
			$calls{$file}{$symbol} = 1 if $kind eq "U";
		}
		for my $from (keys %calls) {
			for my $symbol (keys %{$calls{$from}}) {
				my %to = map { $_ => 1 } @{$defines{$symbol} || []};
				$out{$from}{$_} = 1 for grep { $_ ne $from } keys %to;
			}
		}
		# Tarjan: strongly connected components
		my ($n, @stack, %index, %low, %on, $bad) = (0);
		sub visit {
			my $v = shift;
			$index{$v} = $low{$v} = $n++;
			push @stack, $v;
			$on{$v} = 1;
			for my $w (keys %{$out{$v} || {}}) {
				visit($w) if !defined $index{$w};
				my $x = $on{$w} ? $low{$w} : $low{$v};
				$low{$v} = $x if $x < $low{$v};
			}
			return if $low{$v} != $index{$v};
			my @ring;
			do { push @ring, pop @stack; $on{$ring[-1]} = 0 } while $ring[-1] ne $v;
			print "ring: ", join(" ", sort @ring), "\n" if @ring > 1 && $ENV{RINGS};
			return if @ring <= 3;
			print scalar @ring, " files call each other in a ring: ", join(" ", sort @ring), "\n";
			$bad = 1;
		}
		defined $index{$_} or visit($_) for sort keys %out;
		%index or die "no object\n";
		exit($bad ? 1 : 0)' "$1"
}

root=${1:-${srcdir:-.}}
[ -e "$root/common/wire.h" ] || { echo "check-includes.sh: $root is not the source tree" >&2; exit 1; }

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
mkdir -p "$planted"/{common,daemon/core,daemon/ipc,policies,libclient/include/sparsekv}
touch "$planted"/common/wire.h "$planted"/daemon/ipc/peer.h "$planted"/libclient/include/sparsekv/{client,policy}.h
echo '#include "common/wire.h"' >"$planted/daemon/core/fine.c"
echo '#  include "../ipc/peer.h"' >"$planted/daemon/core/sideways.c"
echo '#include <sparsekv/client.h>' >"$planted/policies/upwards.c"
echo '#include <cuda.h>' >"$planted/common/device.c"
found=$(check "$planted" | cut -d: -f1 | sort | tr '\n' ' ' || true)
[ "$found" = "common/device.c daemon/core/sideways.c policies/upwards.c " ] ||
	{ echo "check-includes.sh: of three planted wrong includes it found: $found" >&2; exit 1; }

# a, b, c, d in a cycle; e calls into it, f and g call each other
mkdir "$planted/ring"
next() { printf 'void %s(void);\nvoid %s(void);\nvoid %s(void)\n{\n\t%s();\n}\n' "$1" "$2" "$1" "$2" >"$planted/ring/$1.c"; }
next a b && next b c && next c d && next d a && next e a && next f g && next g f
(cd "$planted/ring" && ${CC:-cc} -c ./*.c)
found=$(RINGS= rings "$planted/ring" "$planted/ring" || true)
[ "$found" = "4 files call each other in a ring: a.c b.c c.c d.c" ] ||
	{ echo "check-includes.sh: instead of the planted ring of four it found: $found" >&2; exit 1; }

mkdir -p "$planted"/rooms/{low,high}
echo '#include "rooms/low/x.h"' >"$planted/rooms/high/y.h"
echo '#include "rooms/high/y.h"' >"$planted/rooms/low/x.h"
found=$(arrows "$planted" rooms 2 0 low high || echo failed)
[ "$found" = "rooms/: 2 arrows, 1 upwards: low -> high
failed" ] || { echo "check-includes.sh: of two planted arrows it found: $found" >&2; exit 1; }

check "$root"
arrows "$root" daemon 60 8 sys loop mem plugin ipc core worker disk store server requests prefix parked restart ctl .
[ ! -e config.status ] || rings "$root" .
