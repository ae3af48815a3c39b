#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# speed.sh BUILD OUT [OPTION...] - decode steps under the policies of the list speed in bench/policies.txt, and a table
# of how fast each is at the budget that it needs for equal quality.
#
# BUILD is the build directory; OUT has field.csv, if there is one, and gets speed.csv. Options go to sparsekv-bench policies:
# --device, --batch, --tokens, --layers; without them the shape is Llama-3.1-8B's with 16 sequences of 32,768 tokens, which takes
# 69 GB. Layers that select are the policies' own for so many. $BUDGETS are the shares, $ONLY is a pattern for names.
set -eu
build=$1 out=$2
shift 2
here=$(dirname "$(readlink -f "$0")")
names=(name,budget full,1) specs=(--spec full)
for b in ${BUDGETS-0.03125 0.0625 0.125 0.25 0.5}; do
	while read -r name spec; do
		names+=("$name,$b")
		specs+=(--spec "$spec")
	done < <("$here/specs.sh" speed "$b")
done
"$build/bench/sparsekv-bench" policies --heads 32/8 --dim 128 --layers 32 --batch 16 --tokens 32768 "$@" "${specs[@]}" --csv "$out/speed.part"
paste -d , <(printf '%s\n' "${names[@]}") "$out/speed.part" >"$out/speed.csv"
rm "$out/speed.part"
[ ! -e "$out/field.csv" ] || "$here/speed.py" "$out/field.csv" "$out/speed.csv"
