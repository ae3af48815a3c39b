#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What policies do to a real model: usage: run.sh PROGRAMS WORK [EVAL-OPTION...]
#
# PROGRAMS is the folder with sparsekv-eval and sparsekv-calibrate (build/engine); WORK gets the cases and the CSV
# files, and keeps what was fetched. Fetches the model and the texts (model.py, texts.py), calibrates once, lets dense
# attention filter the tasks (tasks.py), then runs every policy: those that select at 6.25, 12.5 and 25 %, those that evict at
# the last two. Needs python3 with pip and numpy. $TABLES is a pattern for the tables to make (grep -E).
#
# For a machine without network carry there, in WORK, what was made here: model/, 3k.jsonl, 7k.jsonl, tasks.jsonl and
# *.safetensors; python3 alone is needed then, and neither of the scripts that fetch. model/ is 540 MB, which model.py
# makes as well from the package's file (93 MB; that needs numpy); model/profile.json is bench/real/profile.json, unless
# it is to be calibrated anew.
set -eu
here=$(dirname "$(readlink -f "$0")")
programs=$1 work=$2
shift 2
mkdir -p "$work"
work=$(readlink -f "$work")
model=$work/model
[ -e "$model" ] || python3 "$here/model.py" "$model"
[ -e "$work/3k.jsonl" ] || python3 "$here/texts.py" "$work/3k.jsonl" 3000 96 "$work/texts"
[ -e "$work/7k.jsonl" ] || python3 "$here/texts.py" "$work/7k.jsonl" 7000 96 "$work/texts"
if [ ! -e "$work/tasks.jsonl" ]; then
	gzip -dc "$work/texts/usr/share/doc/jargon-text/jargon.txt.gz" >"$work/texts/jargon.txt"
	python3 "$here/tasks.py" "$work/tasks.jsonl" --each 12 --per-token 3.8 "$work/texts/jargon.txt"
fi
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

for kind in deltakv-pca palu; do
	file=$work/$kind.safetensors
	[ -e "$file" ] || "$programs/sparsekv-calibrate" --private --model "$model" --$kind "$file" --quiet
done

# table NAME POLICY...: of at most 14 beside full, for a connection may have 16 sessions
table() {
	name=$1 some="--policy full"
	shift
	echo "$name" | grep -qE "${TABLES-}" || return 0
	for p; do
		some="$some --policy $p"
	done
	# shellcheck disable=SC2086 # words
	eval_ --tasks "$work/answered.jsonl" --csv "$work/tasks-$name.csv" $some $options >/dev/null
	for n in 3k 7k; do
		# shellcheck disable=SC2086
		eval_ --tasks "$work/$n.jsonl" --compare --batch 4 --csv "$work/$n-$name.csv" $some $options >/dev/null
	done
	printf '\n%s\n\n' "$name"
	python3 "$here/summary.py" "$model" "$work/tasks-$name.csv" "$work/3k-$name.csv" "$work/7k-$name.csv"
}

# specs LIST [BUDGET]: the specs of a list of bench/policies.txt
specs() {
	PROFILE=$profile DIR=$work "$here/../specs.sh" "$1" "${2-1}" | cut -d' ' -f2
}

options=$*
# shellcheck disable=SC2046 # words
for b in 0.0625 0.125 0.25; do
	table "select-budget=$b" $(specs select $b)
done
table select-least $(specs least 0.03125)
for b in 0.125 0.25; do
	table "evict-budget=$b" $(specs evict $b)
done
table compress $(specs compress)
