#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# codes.sh BUDGET DIR [OPTION...] - a table of what is right and what is kept, of the list codes of bench/policies.txt.
#
# BUDGET is a share such as 0.25; compressors are in DIR, and rows whose file is not there are left out. Options go to
# sparsekv-eval: at least --model and --tasks. $EVAL is the program, $ONLY a pattern for names of rows. What it was
# called with comes first, so that a table can be made again.
#
#   kept  pages of K and V, codes and references at the cases' ends over those that full has, mean over cases
#   more  the same of tokens more: the slope of the one over the other, over cases; so these are of several sizes
set -eu
budget=$1 dir=$(realpath "$2")
shift 2
names=() policies=()
while read -r name spec; do
	file=$(sed -n 's/.*file=\([^&]*\).*/\1/p' <<<"$spec")
	if [ -n "$file" ] && [ ! -e "$file" ]; then
		echo "codes.sh: no $name: $file is not there" >&2
		continue
	fi
	names+=("$name")
	policies+=(--policy "$spec")
done < <(DIR=$dir "$(dirname "$0")/specs.sh" codes "$budget")

dump=$(mktemp)
trap 'rm -f "$dump"' EXIT
command=("${EVAL-sparsekv-eval}" "$@" "${policies[@]}" --dump "$dump")
printf '%q ' "${command[@]}"
echo
"${command[@]}" --summary >/dev/null
awk -v names="${names[*]}" '
	function value(key) {
		return match($0, "\"" key "\":[^,}]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "?"
	}
	{
		match($0, /"policy":"[^"]*"/)
		policy = substr($0, RSTART + 10, RLENGTH - 11)
		if (policy != last)
			spec[++rows] = last = policy
		n[rows]++
		exact[rows] += value("exact") == "true"
		line[rows] += value("line")
		token[rows] += value("token_accuracy")
		share[rows] += value("kept_share")
		x = value("pages")
		y = value("pages_kept")
		sx[rows] += x
		sy[rows] += y
		xx[rows] += x * x
		xy[rows] += x * y
	}
	END {
		split(names, name, " ")
		print "| | exact | line | token | kept | more |\n|---|---|---|---|---|---|"
		for (i = 1; i <= rows; i++) {
			spread = xx[i] - sx[i] * sx[i] / n[i]
			more = spread > 0 ? sprintf("%.3f", (xy[i] - sx[i] * sy[i] / n[i]) / spread) : "-"
			printf "| %s | %.3f | %.3f | %.3f | %.3f | %s |\n", name[i], exact[i] / n[i], line[i] / n[i],
				token[i] / n[i], share[i] / n[i], more
		}
	}' "$dump"
