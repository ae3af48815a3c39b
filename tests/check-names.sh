#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-names.sh [ROOT] - adding a policy is local: at most 12 files name any one.
#
# These are the policy's file, its oracle, the list of both (policies/local.mk), its tests (tests/support/policies.h,
# test-policies, test-oracle), its rows in bench/policies.txt, and documentation. A test that needs some policy of a
# kind has tests/support/policies.h for that, and a script of bench/ a list of bench/policies.txt.
#
# A name counts as a word: not as a part of a longer one, nor where it is a variant or a value (raas:quest,
# prefill=kascade). Some names are also words of English, of kernels, compressors and methods of prefill. These count
# where they begin a spec or a file of the policy, and not in documentation.
#
# Not counted: full, which every session runs that chooses no policy, and template, which the manual explains; drawings
# and their data; the independent simulation in models/; what runs policies as any user does (python/, examples/,
# engine/, setup, *.sh); and corpora.
# First the script checks itself: it must find a planted policy that too many files name.
set -u
export LC_ALL=C
max_files=12
words=' delta deltakv kascade palu sketch streaming '

# check ROOT: prints one line for each policy that too many files name
check() (
	cd "$1" || exit 99
	find bench common daemon doc formats kernels libclient man policies systemd tests README.md HACKING.md Makefile.am \
		\( -name '.?*' -o -path tests/fuzz/corpus -o -path tests/tokenizer -o -path tests/jinja \) -prune -o -type f \
		! -name '*.svg' ! -name '*.csv' ! -name '*.sh' ! -name '*.l[ao]' ! -name '*.log' ! -path policies/names.h \
		! -path bench/specs.h -print 2>/dev/null | sort >"$tmp/files"
	for file in policies/*.c; do
		name=$(basename "$file" .c)
		case $name in full | template) continue ;; esac
		if [[ $words == *" $name "* ]]; then
			grep -vE '\.md$|^man/|^doc/' "$tmp/files" >"$tmp/some"
			pattern="(?<![\\w=+:-])$name(?=\\?|:[a-z-]+\\?)|(policies|oracle)/$name\\.|POLICY_\\w+ \"$name\""
		else
			cp "$tmp/files" "$tmp/some"
			pattern="(?<![\\w=+:,-])(?<!variant\", \")$name(?![\\w+-])"
		fi
		n=$(xargs -d '\n' grep -IlP -- "$pattern" <"$tmp/some" | tee "$tmp/naming" | wc -l)
		[ "$n" -le $max_files ] || echo "$name: $n files name it, expected at most $max_files: $(tr '\n' ' ' <"$tmp/naming")"
	done
)

tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

mkdir -p "$tmp/tree/policies" "$tmp/tree/bench" "$tmp/tree/doc"
touch "$tmp"/tree/policies/{full,h2o,delta,quest}.c
for i in {1..13}; do
	echo 'under h2o, a delta of raas:quest' >"$tmp/tree/bench/$i.c"
	echo 'full, "delta?budget=4"' >"$tmp/tree/doc/$i.md"
done
found=$(check "$tmp/tree" | cut -d: -f1-2)
[ "$found" = "h2o: 13 files name it, expected at most 12" ] ||
	{ echo "check-names: instead of h2o it found: $found" >&2; exit 1; }

check "${1:-${srcdir:-$(dirname "$0")/..}}" >"$tmp/out"
cat "$tmp/out"
[ ! -s "$tmp/out" ]
