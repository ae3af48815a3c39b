#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every subcommand of sparsekv-bench with small inputs; its CSV must have the documented columns, and plot must
# draw it.
export LC_ALL=C.UTF-8 # elsewhere [a-z] may lack letters
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
bench=bench/sparsekv-bench

fail() {
	echo "$*" >&2
	exit 1
}
# table NAME ROWS COMMAND...: runs the command, which writes NAME.csv with so many rows of equal length
table() {
	local name=$1 rows=$2 found
	shift 2
	"$bench" "$@" --csv "$tmp/$name.csv" >"$tmp/$name.txt" || fail "$*: failed"
	found=$(awk -F, 'NR == 1 { n = NF } NF != n { exit 1 } END { print NR - 1 }' "$tmp/$name.csv") ||
		fail "$name.csv has rows of different lengths"
	[ "$found" = "$rows" ] || fail "$name.csv has $found rows, expected $rows"
	[ "$(wc -l <"$tmp/$name.txt")" = $((rows + 1)) ] || fail "$*: the table and the CSV differ"
}
# column NAME COLUMN [PATTERN]: prints the distinct values of a column, of the rows that match
column() {
	awk -F, -v want="$2" -v pattern="${3-}" '
		NR == 1 { for (i = 1; i <= NF; i++) if ($i == want) col = i; next }
		$0 ~ pattern { print $col }' "$tmp/$1.csv" | sort -u
}
positive() {
	[ -n "$(column "$@")" ] || fail "$1.csv has no $2 of ${3-any}"
	column "$@" | awk '!($1 > 0) { exit 1 }' || fail "$1.csv: $2 of ${3-any} is not above 0"
}

table attention 34 attention --memory 1 --tokens 256 --dim 32,32 --heads 4/2,8/2 --dtype bf16 --threads 1 --prefill 0 --repeat 1
positive attention ms
# for both kinds of rows: compressing twice, dense, and three ways to attend to each list
table codes 18 codes --tokens 512 --batch 2 --listed 64,256 --bits 4 --repeat 1
positive codes ms
[ "$(column codes of_dense '^dense' | tr '\n' ' ')" = "1.0000 " ] || fail "codes.csv: dense attention is not as fast as itself"
table correction 18 correction --tokens 704 --layers 1 --heads 2/1 --dim 32
positive correction recovered '^0.998,.*,streaming.delta'
[ "$(column correction cosine_last ',128,' | tr '\n' ' ')" = "1.000 " ] || fail "correction.csv: the tail is not dense"
table locality 12 correction --table locality --tokens 704 --layers 2 --heads 2/1 --dim 32
positive locality missed
table lemma 4 correction --table lemma --tokens 704 --layers 2 --heads 2/1 --dim 32 --topic 0.99
column lemma worst | awk '$1 > 1 { exit 1 }' || fail "lemma.csv: more than the bound"
table step 6 step --batch 2 --tokens 128 --budget 32 --layers 6 --heads 4/2 --dim 32 --repeat 4
positive step ms '^(delta|kascade)'
positive step whole_ms '^(delta|model)'
[ "$(column step speedup '^delta,full|^kascade,dense')" = 1.00 ] || fail "step.csv: dense steps are not as fast as themselves"
[ "$(column step attention | tr '\n' ' ')" = "delta dense full kascade " ] || fail "step.csv: not what was asked for"
table deltakv 6 step --setting deltakv --batch 2 --tokens 300 --budget 32 --layers 6 --heads 4/2 --dim 32 --repeat 2
positive deltakv whole_ms
positive deltakv codes_bytes ',deltakv,'
[ "$(column deltakv rows | tr '\n' ' ')" = "clustered random " ] || fail "deltakv.csv: not both kinds of rows"
[ -z "$(column deltakv codes_bytes ',omnikv,')" ] || fail "deltakv.csv: omnikv packs"
# 10 calls of an engine that joins and leaves; begin, end and layers of one, one and three kinds for each batch
table ipc 32 ipc --batch 1,3 --layers 4 --heads 4/2 --dim 32 --repeat 3
positive ipc median_us
[ -n "$(column ipc us_a_seq '^step_end,.*,3,')" ] || fail "ipc.csv: nothing of what a further sequence costs"
[ -z "$(column ipc us_a_seq '^step_end,.*,1,')" ] || fail "ipc.csv: further sequences in the smallest batch"
[ "$(column ipc samples '^attend pages')" = 6 ] || fail "ipc.csv: not a sample for each layer and step"
[ "$(column ipc samples '^attend select')" = 3 ] || fail "ipc.csv: not a sample for each step"
# a row every 64 steps for each policy
table memory 6 memory --policy full --policy 'streaming?budget=64' --tokens 256 --prompt 64 --every 64 --layers 2 --heads 4/2 --dim 32
positive memory kv_mib
[ "$(column memory kept ',full,' | tr '\n' ' ')" = "1.000 " ] || fail "memory.csv: full does not keep everything"
[ "$(column memory kv_mib ',streaming' | wc -l)" = 1 ] || fail "memory.csv: streaming's memory is not flat"

# figures computed from lengths equal those of the daemon
packing=(--layers 6 --heads 4/2 --dim 64 --lengths 200,801,1000 --policy full --policy 'deltakv?layers=2&bits=4&ref_bits=8&residual=32&block=16' \
	--policy 'deltakv?full_bits=2' --policy 'palu?bits=8' --policy kivi)
table appended 15 memory "${packing[@]}"
table lengths 15 memory --geometry "${packing[@]}"
positive lengths codes_mib ',(deltakv|palu|kivi)'
cmp "$tmp/appended.csv" "$tmp/lengths.csv" || fail "memory: lengths say $(cat "$tmp/lengths.csv"), the daemon $(cat "$tmp/appended.csv")"

table policies 3 policies --batch 2 --tokens 256 --layers 4 --heads 4/2 --dim 32 --repeat 2 --spec full --spec streaming?budget=128 --spec full
positive policies attention_ms
[ "$(column policies attended '^streaming')" = 0.487 ] || fail "policies.csv: not 128 of 262 and 263 tokens in the window"
[ "$(column policies kept '^full')" = 1.000 ] || fail "policies.csv: what one policy evicted, another one missed"

table traffic 4 traffic --rate 0.2 --prompt 100 --answer 12 --chunk 32 --most 4 --steps 200 --layers 2 --heads 4/2 --dim 32 \
	--policy full --policy quest --policy h2o?budget=64
positive traffic step_p50_us
[ "$(awk -F, 'NR > 1 { n += $2 } END { print n }' "$tmp/traffic.csv")" -gt 150 ] || fail "traffic.csv: hardly a step"

# bytes of a token; a trace that is written and replayed gives the same figures
table scale 12 scale --requests 300 --hosts 2 --workload chat --memory 100 --store 0,400 --layers 4 --heads 4/2 --dim 32 --policy full \
	--policy palu
[ "$(column scale bytes | tr '\n' ' ')" = "1024 512 " ] || fail "scale.csv: palu is not half of full"
positive scale store "random,400,"
table made 1 scale --requests 300 --workload chat --bytes 5000 --memory 10 --disk 10 --store 100 --ttl 600 --trace "$tmp/trace"
table replayed 1 scale --bytes 5000 --memory 10 --disk 10 --store 100 --ttl 600 --replay "$tmp/trace"
cut -d, -f3- "$tmp/made.csv" >"$tmp/made"
cut -d, -f3- "$tmp/replayed.csv" | cmp - "$tmp/made" || fail "scale: the trace of a file gives other figures"

# a prompt in three calls; Kascade has four kinds of layers
table prefill 11 prefill --tokens 300 --prefix 40 --chunk 128 --heads 4/2 --dim 32 --repeat 1
positive prefill ms
positive prefill lists_ms '^(hip|minference|kascade (first|anchor|mean))'
[ "$(column prefill speedup '^dense')" = 1.00 ] || fail "prefill.csv: dense attention is not as fast as itself"
[ "$(column prefill seen '^(dense|streaming)')" = 1.0000 ] || fail "prefill.csv: a window as long as the prompt does not see all of it"
column prefill seen '^kascade reuse' | awk '!($1 > 0.5 && $1 < 0.9) { exit 1 }' || fail "prefill.csv: Kascade sees all"

# drawing NAME PATTERN OPTION...: plots, and expects the pattern in the result
drawing() {
	local name=$1 pattern=$2
	shift 2
	"$bench" plot -o "$tmp/$name.svg" "$@" || fail "plot $*: failed"
	grep -q -- "$pattern" "$tmp/$name.svg" || fail "plot $*: nothing like '$pattern' in it"
	[ "$(tail -n 1 "$tmp/$name.svg")" = "</svg>" ] || fail "plot $*: it does not end"
	! grep -nE '"-?(nan|inf)' "$tmp/$name.svg" || fail "plot $*: places that are no numbers"
}
refused() {
	local why=$1
	shift
	! "$bench" plot -o "$tmp/refused.svg" "$@" 2>"$tmp/why" || fail "plot $*: was drawn"
	grep -q -- "$why" "$tmp/why" || fail "plot $*: $(cat "$tmp/why")"
}
drawing attention '>tokens/head<' --where heads=4/2 "$tmp/attention.csv"
drawing ipc '>median, µs (line: p99, µs)<' --log --whisker p99_us --by policy --where batch=3 "$tmp/ipc.csv"
drawing lines '<path d="M[0-9. ]* L' --x batch --by operation --where policy=delta "$tmp/ipc.csv"
printf 'policy,tokens,kept\n"delta?layers=2,7",1,0.5\n"delta?layers=2,7",2,0.6\n' >"$tmp/commas.csv"
drawing commas '>delta?layers=2,7<' --x tokens --by policy "$tmp/commas.csv"
drawing step '>speedup<' --y ms,speedup --x attention "$tmp/step.csv"
[ "$(grep -c '<rect' "$tmp/step.svg")" = 11 ] || fail "plot: expected 4 bars twice, a ground, a legend of two"
# of nine series the last one has the colour of the first; 28 values of x are more than fit
for s in 1 2 3 4 5 6 7 8 9; do
	for x in 0.03$s 0.11$s 0.26$s 0.55; do echo "p$s,$x,0.$s"; done
done | sed '1i policy,read,lost' >"$tmp/many.csv"
drawing many 'stroke="#0072b2" stroke-width="2" stroke-dasharray' --x read --by policy "$tmp/many.csv"
grep -q '>0.05<' "$tmp/many.svg" && ! grep -q '>0.111<' "$tmp/many.svg" || fail "plot: no round numbers below a full axis"
refused 'several figures in one place' --by policy "$tmp/ipc.csv"
refused 'no file has it' --y parsecs "$tmp/ipc.csv"
refused 'No such file' "$tmp/none.csv"
printf 'a,b\n1,2.0\n3\n' >"$tmp/torn.csv"
refused 'rows of different lengths' "$tmp/torn.csv"

# the table of policies that compress: the same accuracy, fewer bytes of a case, and still fewer for further tokens
# (every third commit)
if [ "${SKV_SHARE:-all}" = all ] || [ $((SKV_SHARE % 3)) = 0 ]; then
	model=${srcdir:-$(dirname "$0")/..}/models/reference
	EVAL=engine/sparsekv-eval ONLY='^(full|pca-4|palu-8)$' bash "$(dirname "$0")/../bench/codes.sh" 0.25 "$model" --private --quiet \
		--model "$model" --tasks "$model/tasks-dev.jsonl" --task kv --sizes 512,1024 --limit 1 >"$tmp/codes" || fail "codes.sh: failed"
	grep -qx '| full | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 |' "$tmp/codes" || fail "codes.sh: full keeps or knows less than all"
	awk -F' *[|] *' '/^[|] (pca|palu)/ { n += $4 > 0.5 && $6 < 0.7 && $7 < $6 } END { exit n != 2 }' "$tmp/codes" ||
		fail "codes.sh: $(cat "$tmp/codes")"
fi

# the table of the field, if there is a python3: quest reads its bounds, too: in 14 of 16 layers, a sixteenth
if python3 -c '' 2>/dev/null; then
	ONLY='^(full|quest)$' BUDGETS=0.25 SIZES=512 SETS=reference bash "$(dirname "$0")/../bench/field.sh" . "$tmp/field" - --task kv --limit 1 ||
		fail "field.sh: failed"
	awk -F, '/^reference,quest,0.25,/ { d = $5 - $8 - 14 / 256; found = d * d < 1e-9 && $6 ~ /^0[.]/ } END { exit !found }' "$tmp/field/field.csv" ||
		fail "field.sh: $(cat "$tmp/field/field.csv")"
	grep -q '>quest<' "$tmp/field/reference.svg" || fail "field.sh: no curve of quest"
fi

for wrong in "ipc --device tpu:0" "step --setting other" "step --heads 8/3" "policies --tokens 1" "prefill --methods other" "prefill --gamma 3" "correction --gamma 48" "correction --topic 1," "ipc --batch 0" "scale --rate 0" "scale --trace $tmp/a --replay $tmp/b" "plot $tmp/ipc.csv"; do
	$bench $wrong >/dev/null 2>"$tmp/why"
	[ $? = 2 ] && [ -s "$tmp/why" ] || fail "$wrong: was not refused"
done
exit 0
