#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# equal.sh BUDGET [OPTION...] - sparsekv-eval over all policies of a list at one budget, a share such as 0.25.
#
# Options go to sparsekv-eval: at least --model and --tasks. $LIST is a list of bench/policies.txt (equal, for the
# reference model), $EVAL the program; bench/specs.sh has further variables. What it was called with comes first, so
# that a table can be made again.
set -eu
budget=$1
shift
policies=()
while read -r _ spec; do
	policies+=(--policy "$spec")
done < <("$(dirname "$0")/specs.sh" "${LIST-equal}" "$budget")
command=("${EVAL-sparsekv-eval}" "$@" "${policies[@]}")
printf '%q ' "${command[@]}"
echo
exec "${command[@]}"
