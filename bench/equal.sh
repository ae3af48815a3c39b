#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# equal.sh BUDGET [OPTION...] - sparsekv-eval over all policies of bench/equal.txt at one budget, a share such as 0.25.
#
# Options go to sparsekv-eval: at least --model and --tasks. $EVAL is the program, $ONLY a pattern for names of rows (grep
# -E). What it was called with comes first, so that a table can be made again.
set -eu
budget=$1
shift
policies=()
while read -r name part spec; do
	case $name in '#'* | '') continue ;; esac
	grep -qE "${ONLY-}" <<<"$name" || continue
	policies+=(--policy "${spec//@/$(awk -v b="$budget" -v p="$part" 'BEGIN { printf "%g", b * p }')}")
done <"$(dirname "$0")/equal.txt"
command=("${EVAL-sparsekv-eval}" "$@" "${policies[@]}")
printf '%q ' "${command[@]}"
echo
exec "${command[@]}"
