#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-sizes.sh [ROOT] - keeps units of code short: a file has at most 600 lines, a function at most 70 between its
# braces. A header that many files need must have one purpose: a header outside tests/ that more than 12 files include
# is in the list below, with the reason that they have in common.
# First the script checks itself: it must find planted files and functions that are too long, and a header with too many
# includes.
set -u
export LC_ALL=C
max_file=600 max_function=70 max_includes=12

# header | why the files that include it need it
headers='
bench/bench.h                     | a subcommand of sparsekv-bench: its report, its clock, its random numbers
common/clock.h                    | the monotonic time
common/fd.h                       | file descriptors that close themselves
common/spec.h                     | specs of policies
common/wire.h                     | messages
daemon/core/memory/charge.h       | what a user is charged for
daemon/core/state/core-priv.h     | struct skv_core
daemon/core/state/refuse.h        | why a call is refused
daemon/server/server-priv.h       | what the parts of the server share
daemon/sys/log.h                  | log lines
engine/error.h                    | an error of the engine, and its text
kernels/compress.h                | how a compressed token is stored
kernels/cuda/runtime/convert.cuh  | loads and stores of the dtypes of a pool
kernels/cuda/runtime/cuda.h       | launches
kernels/host/runtime/host.h       | work items on threads
kernels/host/runtime/simd.h       | vectors of the ISA
kernels/kernels.h                 | the table of kernels
libclient/conn/conn.h             | a connection, and requests on it
libclient/conn/fence.h            | the door of every public function
libclient/device/device.h         | the device of a session
libclient/device/steps.h          | which entries of tables on a device are old
libclient/error.h                 | error_set()
libclient/feature.h               | the row of a feature in the life of a step
libclient/pages/pages.h           | pages that a table takes and gives up
libclient/seq.h                   | struct skv_seq
libclient/session.h               | struct skv_session
sparsekv/client.h                 | the interface of the library
sparsekv/policy.h                 | the interface of policies
sparsekv/types.h                  | the types of both
'

# check ROOT: prints one line for each fault
check() (
	cd "$1" || exit 99
	find bench common daemon engine formats kernels libclient policies tests -name '.?*' -prune -o -type f \
		\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' -o -name '*.pl' \) -print 2>/dev/null |
		sort >"$tmp/files"
	xargs awk -v most=$max_file -v longest=$max_function '
		function file_ends() { if (lines > most) print last ": " lines " lines, expected at most " most }
		FNR == 1 { file_ends(); last = FILENAME; from = 0; code = FILENAME ~ /\.(c|h|cu|cuh)$/ }
		{ lines = FNR }
		code && /^\{/ { from = FNR }
		code && /^\}/ {
			if (from && FNR - from - 1 > longest)
				print FILENAME ":" from ": a function of " FNR - from - 1 " lines, expected at most " longest
			from = 0
		}
		END { file_ends() }' <"$tmp/files"
	grep -E '\.(c|h|cu|cuh)$' "$tmp/files" | grep -v '^tests/' |
		xargs sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]([a-z]+\/[^">]*)[">].*/\1/p' | sort | uniq -c |
		while read -r n header; do
			[ "$n" -gt $max_includes ] && [[ $header != sys/* ]] || continue
			grep -qF -- "$header " <<<"$headers" || echo "$header: $n files include it, expected at most $max_includes"
		done
)

tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

mkdir -p "$tmp/tree/bench"
{ echo '{'; yes 'x;' | head -71; echo '}'; yes '//' | head -528; } >"$tmp/tree/bench/long.c"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
	printf '#include "bench/all.h"\n#include <sparsekv/types.h>\n{\n}\n' >"$tmp/tree/bench/$i.c"
done
check "$tmp/tree" >"$tmp/out"
expected='bench/long.c:1: a function of 71 lines, expected at most 70
bench/long.c: 601 lines, expected at most 600
bench/all.h: 13 files include it, expected at most 12'
[ "$(cat "$tmp/out")" = "$expected" ] || { cat "$tmp/out"; echo "check-sizes: expected the planted faults" >&2; exit 1; }

check "${1:-${srcdir:-$(dirname "$0")/..}}" >"$tmp/out"
cat "$tmp/out"
[ ! -s "$tmp/out" ]
