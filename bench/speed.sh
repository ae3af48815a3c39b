#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# speed.sh BUILD OUT [OPTION...] - decode steps under the policies of bench/field.sh, and a table of how fast each is at the
# budget that it needs for equal quality.
#
# BUILD is the build directory; OUT has field.csv, if there is one, and gets speed.csv. Options go to sparsekv-bench policies:
# --device, --batch, --tokens, --layers; without them the shape is Llama-3.1-8B's with 16 sequences of 32,768 tokens, which takes
# 69 GB. Layers that select are the policies' own for so many. $BUDGETS are the shares, $ONLY is a pattern for names (grep -E).
set -eu
build=$1 out=$2
shift 2
here=$(dirname "$(readlink -f "$0")")
names=(name,budget full,1) specs=(--spec full)
while read -r name part spec; do
	case $name in '#'* | '' | full) continue ;; esac
	grep -qE "${ONLY-^(streaming|quest|delta|omnikv|omnikv-more|kascade|tidal|lessismore|sketch|sketch-1-bit)\$}" <<<"$name" || continue
	[ "$part" = 1 ] || continue
	for b in ${BUDGETS-0.03125 0.0625 0.125 0.25 0.5}; do
		names+=("$name,$b")
		specs+=(--spec "$(sed "s/@/$b/; s/&layers=[0-9,]*//" <<<"$spec")")
	done
done <"$here/equal.txt"
"$build/bench/sparsekv-bench" policies --heads 32/8 --dim 128 --layers 32 --batch 16 --tokens 32768 "$@" "${specs[@]}" --csv "$out/speed.part"
paste -d , <(printf '%s\n' "${names[@]}") "$out/speed.part" >"$out/speed.csv"
rm "$out/speed.part"
[ ! -e "$out/field.csv" ] || "$here/speed.py" "$out/field.csv" "$out/speed.csv"
