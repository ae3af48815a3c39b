#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual is complete and its commands work: every message, field, hook and primitive of the headers is in its page,
# every page is free of markup errors, and the commands of sparsekv-policy(7) build, load, verify and swap to the
# template policy.
export LC_ALL=C.UTF-8 # elsewhere [a-z] may lack letters
srcdir=${srcdir:-$(dirname "$0")/..}
failed=0
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT || exit 99

complain() {
	echo "$*"
	failed=1
}

# Names of the fields (including function pointers) of the structs in a header that match a pattern.
fields() {
	awk -v want="$2" '
		/^struct [a-z_]+ [{]/ { inside = $2 ~ want; next }
		/^}/ { inside = 0 }
		inside' "$1" | sed 's@/\*.*\*/@@; s@/\*.*@@; /^[[:space:]]*\*/d' |
		sed -n 's/.*(\*\([a-z_]*\)).*/\1/p; /(/!s/^[[:space:]]*[a-z0-9_]*[ ]*\(struct [a-z_]* \)*\(.*\);.*/\2/p' |
		tr -d '*' | tr ',' '\n' | sed 's/.* //; s/\[.*//' | grep -E '^[a-z_]+$' | sort -u
}

# Each of the words on stdin must be in the page.
expect() {
	while read -r word; do
		grep -qw -- "$word" "$1" || echo "$1: nothing about \"$word\""
	done > "$tmp/missing"
	[ -s "$tmp/missing" ] || return 0
	cat "$tmp/missing"
	failed=1
}

protocol=$srcdir/man/sparsekv-protocol.7
policy=$srcdir/man/sparsekv-policy.7
wire=$srcdir/common/wire.h
abi=$srcdir/libclient/include/sparsekv/policy.h

sed -n 's/^\tSKV_MSG_\([A-Z_]*\) = .*/\1/p' "$wire" > "$tmp/types"
[ "$(wc -l < "$tmp/types")" -ge 21 ] || complain "found only some message types in $wire"
expect "$protocol" < "$tmp/types"
fields "$wire" '^skv_(msg|wire)_|_page$' > "$tmp/fields"
[ "$(wc -l < "$tmp/fields")" -ge 40 ] || complain "found only some fields in $wire"
expect "$protocol" < "$tmp/fields"
grep -oE '^struct skv_msg_[a-z_]+' "$wire" | cut -d' ' -f2 | grep -vx skv_msg_header > "$tmp/structs"
expect "$protocol" < "$tmp/structs"

fields "$abi" '^skv_(policy|plan|window|evict|compress|prefill|evict_to_budget|touch_pages|prims|select|param|policy_ctx)$' | grep -vx size > "$tmp/fields"
[ "$(wc -l < "$tmp/fields")" -ge 40 ] || complain "found only some fields in $abi"
expect "$policy" < "$tmp/fields"
sed -nE 's/^\t(SKV_(PARAM|ATTEND|SCORES|REDUCE|COMPRESS|PREFILL|CORRECT)_[A-Z_]+) .*/\1/p' "$abi" > "$tmp/values"
expect "$policy" < "$tmp/values"

fields "$srcdir/daemon/disk/parked.h" '^skv_parked_header$' > "$tmp/fields"
[ "$(wc -l < "$tmp/fields")" -ge 25 ] || complain "found only some fields in daemon/disk/parked.h"
expect "$srcdir/man/sparsekv-parked.5" < "$tmp/fields"

sed -n 's/^\t{"\([a-z-]*\)", [A-Z]*, AT(.*/\1/p' "$srcdir/daemon/sys/config.c" > "$tmp/settings"
[ "$(wc -l < "$tmp/settings")" -ge 20 ] || complain "found only some settings in daemon/sys/config.c"
expect "$srcdir/man/sparsekvd.conf.5" < "$tmp/settings"
sed -nE 's/^\t\{"([a-z]+)", (NULL|"([a-z]+)"), .*TAKES.*|^\t\{"([a-z]+)", (NULL|"([a-z]+)"), .*, 0, .*/\1\4 \3\6/p' \
	"$srcdir/daemon/ctl/main.c" | sed 's/ $//' > "$tmp/commands"
[ "$(wc -l < "$tmp/commands")" -ge 9 ] || complain "found only some commands in daemon/ctl/main.c"
expect "$srcdir/man/sparsekvctl.1" < "$tmp/commands"
sed -n 's/^\t{"\([a-z]*\)", ".*", bench_[a-z]*},$/\1/p' "$srcdir/bench/main.c" > "$tmp/commands"
[ "$(wc -l < "$tmp/commands")" -ge 4 ] || complain "found only some commands in bench/main.c"
expect "$srcdir/man/sparsekv-bench.1" < "$tmp/commands"

if command -v groff > /dev/null; then
	for page in "$srcdir"/man/*.[0-9]; do
		groff -mandoc -ww -Tascii "$page" 2> "$tmp/groff" > /dev/null
		[ -s "$tmp/groff" ] && complain "$page: $(cat "$tmp/groff")"
	done
fi

# Runs the commands of the page unchanged on a daemon, with the headers of this source instead of installed ones.
awk '/^sed .* >mine.c$/, /^\.Ed/' "$policy" | grep -v '^\.' |
	sed "s@policy verify .*@& -n 20@; s@^cc@${CC:-cc}@; s@\$(pkg-config --cflags sparsekv-client)@-Wall -Wextra -Werror -I'$(cd "$srcdir" && pwd)'/libclient/include@" \
	> "$tmp/commands"
for word in mine.so 'policy load' 'policy list' 'policy verify' 'policy swap'; do
	grep -q "$word" "$tmp/commands" || complain "$policy: no command with $word to write a policy"
done
cp "$srcdir/policies/template.c" "$tmp"
export SPARSEKV_SOCKET="$tmp/socket" OMP_WAIT_POLICY=passive
daemon/sparsekvd --socket="$SPARSEKV_SOCKET" --policy-path=policies/.libs --pool-bytes=64M --segment-bytes=1M --cuda=off \
	> "$tmp/log" 2>&1 &
daemon=$!
PATH=$PWD/daemon/ctl:$PATH
for i in 1 2 3 4 5 6 7 8 9 10; do
	sparsekvctl status > /dev/null 2>&1 && break
	sleep 0.5
done
(cd "$tmp" && sh -e commands > said 2>&1) || complain "following $policy fails: $(cat "$tmp/said" "$tmp/log")"
for says in 'loaded mine 1' '^passed' 'sessions will switch'; do
	grep -q "$says" "$tmp/said" || complain "following $policy does not say \"$says\": $(cat "$tmp/said")"
done
kill $daemon && wait $daemon || complain "the daemon: $(cat "$tmp/log")"
# -fsanitize in CC may add symbols of its own; without it there is only one
exported=$(nm -D --defined-only "$tmp/mine.so" | awk '$2 == "T" { print $3 }' | grep -v '^_')
[ "$exported" = sparsekv_policy ] || complain "the template exports \"$exported\", expected sparsekv_policy"

exit $failed
