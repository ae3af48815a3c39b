#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# field.sh BUILD OUT WORK|- [OPTION...] - what policies lose against what they read in a step, as a curve over budgets each.
#
# BUILD is the build directory, OUT gets field.csv and the charts, and what each run of sparsekv-eval wrote (which is not
# done again where it is there). Policies are those of the lists field ($LIST) and real of bench/policies.txt. On the
# reference model tasks are decoded; with WORK, which bench/real/run.sh fills (model, 3k.jsonl and 7k.jsonl are needed),
# the next tokens of SmolLM2's texts are compared, too. Options go to sparsekv-eval: --device, --kv-dtype. $BUDGETS are
# the shares, $SIZES the lengths of the tasks in bytes, $ONLY is a pattern for names of policies, $SETS for the three
# sets (grep -E): these can be run at the same time, and a call after that collects all of them.
set -eu
build=$(realpath "$1") work=$3
mkdir -p "$2"
out=$(realpath "$2")
shift 3
here=$(dirname "$(readlink -f "$0")")
budgets=${BUDGETS-0.03125 0.0625 0.125 0.25 0.5}
reference=$here/../models/reference
rows=$(mktemp -p "$out")
trap 'rm -f "$rows"' EXIT
export EVAL=$build/engine/sparsekv-eval PROFILE=$here/real/profile.json

# measure SET LIST MODEL OPTION...
measure() {
	local set=$1 model=$3 b csv
	export LIST=$2
	shift 3
	grep -qE "${SETS-}" <<<"$set" || return 0
	for b in $budgets; do
		csv=$out/$set-$b.csv
		if [ ! -e "$csv" ]; then
			"$here/equal.sh" "$b" --private --quiet --model "$model" "$@" --csv "$csv.part" >"$out/$set-$b.txt"
			mv "$csv.part" "$csv"
		fi
		"$here/field.py" "$set" "$LIST" "$b" "$model" "$csv" >>"$rows"
	done
}

# Each policy has the same colour in all charts.
styles=sketch,streaming,quest,delta,omnikv,kascade,full,omnikv-more,sketch-1-bit,rkv,tidal,lessismore,h2o,snapkv,exact-top-k

# draw SET FIGURE TITLE OPTION...: where there are figures
draw() {
	local set=$1 figure=$2 title=$3
	shift 3
	grep -q "^$set," "$rows" || return 0
	"$build/bench/sparsekv-bench" plot --where "set=$set" --by policy --x 'share of K and V read in a step' \
		--y "$figure" --title "$title" --styles "$styles" "$@" --output "$out/$set.svg" "$rows"
}

"$here/field.py" >"$rows"
measure reference "${LIST-field}" "$reference" --tasks "$reference/tasks-dev.jsonl" \
	--sizes "${SIZES-1024,2048,4096}" "$@"
if [ "$work" != - ]; then
	for n in 3k 7k; do
		measure "smollm2-$n" real "$work/model" --tasks "$work/$n.jsonl" --compare --batch 9 "$@"
	done
fi
draw reference 'share of answer lines wrong' 'Reference model, tasks of 1,024 to 4,096 bytes' --log
draw smollm2-3k 'KL divergence from dense attention' 'SmolLM2-135M, texts of 3,000 tokens' --log
draw smollm2-7k 'KL divergence from dense attention' 'SmolLM2-135M, texts of 7,000 tokens' --log
chmod 644 "$rows"
mv "$rows" "$out/field.csv"
