#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What policies do to a real model: usage: run.sh PROGRAMS WORK [EVAL-OPTION...]
#
# PROGRAMS is the folder with sparsekv-eval and sparsekv-calibrate (build/engine); WORK gets the cases and the CSV
# files, and keeps what was fetched. Fetches the model and the texts (model.py, texts.py), calibrates once, lets dense
# attention filter the tasks (tasks.py), then runs every policy at 12.5 % and 25 %. Needs python3 with pip and numpy.
set -eu
here=$(dirname "$(readlink -f "$0")")
programs=$1 work=$2
shift 2
mkdir -p "$work"
model=$work/model
[ -e "$model" ] || python3 "$here/model.py" "$model"
[ -e "$work/3k.jsonl" ] || python3 "$here/texts.py" "$work/3k.jsonl" 3000 96 "$work/texts"
[ -e "$work/7k.jsonl" ] || python3 "$here/texts.py" "$work/7k.jsonl" 7000 96 "$work/texts"
[ -e "$work/tasks.jsonl" ] || python3 "$here/tasks.py" "$work/tasks.jsonl" --each 12
profile=$model/profile.json
[ -e "$profile" ] || "$programs/sparsekv-calibrate" --private --model "$model" --by loss -o "$profile" --quiet

eval_() {
	"$programs/sparsekv-eval" --private --model "$model" --quiet "$@"
}

# The cases that dense attention answers.
if [ ! -e "$work/answered.jsonl" ]; then
	eval_ --tasks "$work/tasks.jsonl" --policy full --dump "$work/dense.jsonl" "$@" >&2
	python3 - "$work" <<'END'
import json, sys
work = sys.argv[1]
right = {c["id"] for c in map(json.loads, open(work + "/dense.jsonl")) if c["exact"]}
with open(work + "/answered.jsonl", "w") as f:
    f.writelines(line for line in open(work + "/tasks.jsonl") if json.loads(line)["id"] in right)
END
fi

# A connection may have 16 sessions: a budget at a time.
for b in 0.125 0.25; do
	policies="full quest?budget=$b tidal?budget=$b lessismore?budget=$b streaming?budget=$b h2o?budget=$b snapkv?budget=$b adakv?budget=$b"
	for p in omnikv delta kascade; do
		policies="$policies $p?budget=$b $p?budget=$b&profile=$profile"
	done
	some=
	for p in $policies; do
		some="$some --policy $p"
	done
	# shellcheck disable=SC2086 # words
	eval_ --tasks "$work/answered.jsonl" --csv "$work/tasks-$b.csv" $some "$@"
	for n in 3k 7k; do
		# shellcheck disable=SC2086
		eval_ --tasks "$work/$n.jsonl" --compare --batch 4 --csv "$work/$n-$b.csv" $some "$@"
	done
	python3 "$here/summary.py" "$work/tasks-$b.csv" "$work/3k-$b.csv" "$work/7k-$b.csv"
done
