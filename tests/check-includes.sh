#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-includes.sh [ROOT] - checks that includes and calls go in the directions of HACKING.md's map. Run it in the
# build directory.
#
# Inner layers see only what is below them, so that a change can be judged by reading downwards. The table below is the
# map's last column. Files that need each other in a cycle can only be read together, so a cycle has at most three
# files. Calls are read from object files, so only compiled files count. Inside of libclient/ and daemon/, an include is
# a need as well: whatever a file uses of a header, a function, an inline function or a struct, it must include. There a
# source and its header, which have the same name, are one file. First the script checks itself: it must find a planted
# wrong include and planted cycles.
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
daemon/sys                 | libclient/include/sparsekv common
daemon/loop                | libclient/include/sparsekv common daemon/sys
daemon/ipc                 | libclient/include/sparsekv common daemon/sys daemon/loop
daemon/worker              | libclient/include/sparsekv common daemon/mem/cuda.h daemon/mem/mem.h daemon/sys daemon/loop
daemon/disk                | libclient/include/sparsekv common daemon/mem/cuda.h daemon/mem/driver.h daemon/mem/mem.h daemon/store/values.h
daemon/store               | libclient/include/sparsekv common daemon/mem/cuda.h daemon/mem/driver.h daemon/mem/mem.h daemon/disk
daemon/plugin              | libclient/include/sparsekv common daemon/sys daemon/loop
daemon/jobs                | libclient/include/sparsekv common daemon/core daemon/disk daemon/worker
daemon/server              | libclient/include/sparsekv common daemon/core daemon/ipc daemon/loop daemon/mem daemon/plugin daemon/requests/lease.h daemon/sys daemon/worker
daemon/requests            | libclient/include/sparsekv common daemon/core daemon/ipc daemon/jobs/jobs.h daemon/parked/parking.h daemon/prefix/prefix.h daemon/server daemon/sys
daemon/parked              | libclient/include/sparsekv common daemon/core daemon/disk daemon/jobs daemon/requests daemon/server daemon/sys
daemon/prefix              | libclient/include/sparsekv common daemon/core daemon/jobs daemon/parked/parking.h daemon/requests daemon/server daemon/store daemon/sys
daemon/restart             | libclient/include/sparsekv common daemon/core daemon/server daemon/sys
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
# FOLDER itself is a room named "."; a room has all that is below it. The rooms are given from the lowest to the highest; an include of a higher room is an arrow upwards.
# Prints the number of arrows; status 1 if there are more than MOST, or more than UPWARDS of them point upwards.
arrows() (
	cd "$1"
	find "$2" -name '*.[ch]' -exec grep -HoE '^# *include *"[^"]+"' {} + | perl -e '
		my ($folder, $most, $most_upwards, @rooms) = @ARGV;
		my (%height, %arrows);
		@height{@rooms} = 0 .. $#rooms;
		sub room { $_[0] =~ m{^\Q$folder\E/(?:([^/]+)/.+|[^/]+)$} or return; $1 // "." }
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

# rings ROOT BUILD MOST [FOLDER]: prints one line for each cycle of more than MOST files. Status 1 if there is one. With
# FOLDER, cycles are those of its files, and includes count.
rings() {
	(
		cd "$2" && find . -name '*.o' -not -path './tests/*' -exec nm -A --no-sort {} + 2>/dev/null
		[ -z "${4:-}" ] || (cd "$1" && find "$4" -name '*.[ch]' -exec grep -HoE '^# *include *"[^"]+"' {} +)
	) | perl -e '
		my ($root, $most, $folder, %source, %defines, %calls, %out) = @ARGV;
		sub unit { my $file = shift; $file =~ s/\.[ch]$// if $folder; return $file }
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
			if (my ($from, $to) = /^([^:]+):# *include *"(.*)"/) {
				next if index($to, "$folder/") != 0 || unit($from) eq unit($to);
				$out{unit($from)}{unit($to)} = 1;
				next;
			}
			my ($object, $kind, $symbol) = /^(.*?):[0-9a-f]*\s+([A-Za-z]) (\S+)$/ or next;
			my $file = $source{$object} //= source($object);
			next if $file eq "" || ($folder && index($file, "$folder/") != 0);
			$file = unit($file);
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
			return if @ring <= $most;
			print scalar @ring, " files need each other in a ring: ", join(" ", sort @ring), "\n";
			$bad = 1;
		}
		defined $index{$_} or visit($_) for sort keys %out;
		%index or die "no object\n";
		exit($bad ? 1 : 0)' "$1" "$3" "${4:-}"
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
found=$(rings "$planted/ring" "$planted/ring" 3 || true)
[ "$found" = "4 files need each other in a ring: a.c b.c c.c d.c" ] ||
	{ echo "check-includes.sh: instead of the planted ring of four it found: $found" >&2; exit 1; }

# f calls g, whose header includes that of f for an inline function
mkdir "$planted/ring/in"
mv "$planted"/ring/[fg].* "$planted/ring/in"
printf 'void g(void);\nvoid g(void)\n{\n}\n' >"$planted/ring/in/g.c"
echo '#include "in/f.h"' >"$planted/ring/in/g.h"
(cd "$planted/ring/in" && ${CC:-cc} -c ./*.c)
found=$(rings "$planted/ring" "$planted/ring" 1 in || true)
[ "$found" = "2 files need each other in a ring: in/f in/g" ] ||
	{ echo "check-includes.sh: instead of the planted ring of a header it found: $found" >&2; exit 1; }

mkdir -p "$planted"/rooms/{low,high/corner}
echo '#include "rooms/low/x.h"' >"$planted/rooms/high/corner/y.h"
echo '#include "rooms/high/corner/y.h"' >"$planted/rooms/low/x.h"
found=$(arrows "$planted" rooms 2 0 low high || echo failed)
[ "$found" = "rooms/: 2 arrows, 1 upwards: low -> high
failed" ] || { echo "check-includes.sh: of two planted arrows it found: $found" >&2; exit 1; }

check "$root"
arrows "$root" libclient 45 5 . conn device pages ranks layer compress evict prefill step session
arrows "$root" daemon 55 4 sys loop mem plugin ipc core worker disk store jobs server requests parked prefix restart ctl .
arrows "$root" daemon/core 14 0 . state memory sequences operations restart
if [ -e config.status ]; then
	rings "$root" . 3
	rings "$root" . 3 libclient
	rings "$root" . 40 daemon # those of core/ include core-priv.h, which has all that they share
fi
