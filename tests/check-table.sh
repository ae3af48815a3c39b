#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-table.sh BUILDDIR - checks the table of models/reference/README.md with the engine on a daemon.
#
# For `full`, `streaming`, `delta` and `quest` over the 120 dev cases of 1,024 to 4,096 bytes, `line` must be within 1.5
# points and the attended share within 2 points of the results of the independent simulation. Then 40 cases that are
# decoded freely must be exact where they are with forced decoding.
set -eu
build=$1
srcdir=${srcdir:-$(dirname "$0")/..}
model=$srcdir/models/reference
eval=("$build/engine/sparsekv-eval" --private --model "$model" --tasks "$model/tasks-dev.jsonl")
streaming='streaming?budget=0.25&dense=2'
delta='delta?budget=0.25&layers=2,7,12'

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

"${eval[@]}" --sizes 1024,2048,4096 --policy full --policy "$streaming" --policy "$delta" \
	--policy 'quest?budget=0.25' --policy 'quest:shared?budget=0.25' --csv "$tmp/csv"

# expect POLICY LINE ATTENDED: compares with the simulation's figures
expect() {
	local line attended
	read -r line attended < <(sed 's/"[^"]*"/quoted/' "$tmp/csv" |
		awk -F, -v p="${1//*,*/quoted}" '$1 == p && $2 == "all" && $3 == "all" { print $6, $9 }')
	awk -v l="$line" -v a="$attended" -v wl="$2" -v wa="$3" \
		'BEGIN { exit !(l - wl <= .015 && wl - l <= .015 && a - wa <= .02 && wa - a <= .02) }' && return
	echo "$1: line $line, attended $attended; the simulation has $2 and $3" >&2
	failed=1
}
expect full 0.949 1.00
expect "$streaming" 0.375 0.35
expect "$delta" 0.921 0.49
expect 'quest?budget=0.25' 0.929 0.35
expect 'quest:shared?budget=0.25' 0.915 0.35

for mode in forced free; do
	"${eval[@]}" --mode $mode --sizes 512,1024,2048,4096 --limit 2 --policy full --policy "$delta" \
		--dump "$tmp/$mode" >"$tmp/table"
	sed -E 's/^(.*"exact":(true|false)).*/\1/' "$tmp/$mode" >"$tmp/$mode.exact"
done
[ "$(wc -l <"$tmp/free.exact")" = 80 ] || { echo "40 cases and two policies expected" >&2; failed=1; }
if diff "$tmp/forced.exact" "$tmp/free.exact" >&2; then
	echo "forced and free decoding agree on exact: 40 cases, full and delta"
else
	failed=1
fi
exit $failed
