#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# equal.sh BUDGET [OPTION...] - sparsekv-eval over all policies of a list at one budget, a share such as 0.25.
#
# Options go to sparsekv-eval: at least --model and --tasks. $LIST is the list (bench/equal.txt, for the reference model),
# $EVAL the program, $ONLY a pattern for names of rows (grep -E). What it was called with comes first, so that a table can be
# made again.
set -eu
budget=$1
shift
list=$(realpath "${LIST-$(dirname "$0")/equal.txt}")
policies=()
while read -r name part spec; do
	case $name in '#'* | '') continue ;; esac
	grep -qE "${ONLY-}" <<<"$name" || continue
	spec=${spec//@/$(awk -v b="$budget" -v p="$part" 'BEGIN { printf "%g", b * p }')}
	policies+=(--policy "${spec//%/$(dirname "$list")}")
done <"$list"
command=("${EVAL-sparsekv-eval}" "$@" "${policies[@]}")
printf '%q ' "${command[@]}"
echo
exec "${command[@]}"
