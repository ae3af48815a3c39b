#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-lexicon.sh [ROOT] - one feature, one word: checks that the tree uses the terms of HACKING.md's glossary.
#
# 1. A search for a standard term leads somewhere: each word of the first table occurs in the file named beside it, or
#    the glossary has the term with a file that exists. Every file that HACKING.md and doc/ name exists.
# 2. Replaced words occur nowhere: the second table has them as Perl regular expressions, with the word to use; a space
#    in an expression also matches a line break, also in a comment. Each place is printed as FILE:LINE.
# 3. No file has an old name, and no homonym has two meanings.
#
# First the script checks itself: it must find planted words.
set -u
export LC_ALL=C

# ---- 1. word | regular expression | file

words='
quantization      | quantiz           | kernels/host/compress/quantize.c
eviction          | evict             | kernels/host/evict/evict.c
attention score   | attention scores? | kernels/host/decode/scores.c
block table       | block table       | libclient/include/sparsekv/types.h
page table        | page table        | common/seqmem.h
slot mapping      | slot mapping      | kernels/evict.h
split-KV          | split-KV          | kernels/cuda/decode/merge.cu
radix top-k       | radix             | kernels/cuda/select/topk.cuh
attention sink    | attention sink    | policies/streaming.c
low-rank          | low[- ]rank       | policies/palu.c
speculative       | speculative       | libclient/include/sparsekv/client.h
workspace         | workspace         | kernels/batch.h
compression ratio | compression ratio | bench/zero-weights.c
prefill           | prefill           | kernels/host/prefill/prefill.c
scheduler         | scheduler         | engine/evaluate.c
lease             | lease             | daemon/requests/lease.c
'

# ---- 2. where | word or phrase | what to say; where: any, code, text, or a part of the path. Case counts if the word
# has capitals.

old='
kernels/|libclient/|policies/|engine/|bench/|models/|doc/|man/(?:lib)?sparsekv-[bcep]|[A-Z]+\.md|tests/(?:oracle|ref)/ | \b(?:looks?|looked|looking) at\b | attends to (layers, rows), reads (code)
any  | less than rows                                   | KV cache compression
any  | (rows|weights) of noise                          | random Q, K, V; random weights
any  | of more tokens                                   | marginal bytes per token
any  | promises? most                                   | top-k pages by an upper bound of q·k
any  | right answers                                    | accuracy
any  | few bits                                         | quantized, quantization
any  | quantis                                          | quantiz
any  | \bpacked tokens?\b|\btokens? (?:is |are |were )?packed\b|\bpacks? tokens\b|\b(?:layers?|policies|sequences) (?:that |which )?packs?\b | compressed, compresses
any  | \b(?:un)?rebuil(?:d|ds|t|ding)\b                 | decompress
any  | \bvotes?\b|\bvoted\b|\bvoting\b                  | attention scores
any  | \btall(?:y|ies|ied)\b|_tally\b|\btally_           | accumulated attention scores, accumulate
any  | \bawake\b                                        | active
kernels/|libclient/|policies/ | \bsleeps?\b|\basleep\b  | inactive
any  | \bspeakers?\b|\bspoken\b|\bspeaks? for\b         | representative row, its dense output
any  | \bscrub(?:s|bed|bing|ber)?\b                     | zero, zeroed
any  | \bceilings?\b                                    | quota, limit
any  | \bbooks\b                                        | state, accounting
any  | \bwhoever\b|\bwho (?:attaches|holds|reads|calls|chooses|decodes|evicts|attends|maps|sees)\b | name the thing
any  | \bnotes\b|_notes?\b|\bnote_|_NOTES?\b|SKV_NOTE | slot metadata
code | (?m:^)(?!.*\bskv_evict_rule\b).*(?<!/)\bunits?\b(?=.*\b(?:kept|keeps?|evict)) | tokens or pages
any  | \benum quiet\b|\b(?:seq|slots|step|skv)_quiet\b|\bquiet (?:steps?|transactions?)\b  | maintenance transaction
any  | \bpromised?\b(?=.*\bquer)                       | upper bound of q·k
any  | scratch slots?|slots? of scores|score slots?|staging slots? | score ring, staging buffer
any  | SKV_LOOKED_\w+|\bskv_looked\w*                   | SKV_ATTEND_…, skv_selection_info
any  | \bn_later\b                                      | n_prompt_remaining
any  | \bskv_policy_reads_prompts\b                     | skv_policy_depends_on_prefill
any  | \bskv_keep\w*|\bSKV_KEEP\w*|\bkeep_best\b        | skv_evict…, evict_to_budget
any  | stamp_pages\b|\bskv_stamp\b                   | touch_pages
any  | \bSKV_PACK_\w+|\bskv_pack\w*|\bmax_pack\b        | SKV_COMPRESS_…, skv_compress
any  | \bSKV_EV_\w+|\bskv_evidence(?:_bits)?\b          | SKV_SCORES_…, skv_scores
libclient/\w+\.|bench/|engine/|kernels/|tests/unit/(?:engine|kernels) | \bevidence\b | attention scores; evidence is a field of the taxonomy
any  | \bSKV_POOL_(?:MAX|SUM|MEAN_Q)\b|\benum skv_pool\b | SKV_REDUCE_…
any  | \bSKV_PTE_FULL\b                                 | SKV_PTE_PRIVATE
any  | \bSKV_ACT_VISIBILITY\b                           | SKV_ACT_SELECT
any  | \bSKV_LINES?_(?:ROWS|FORCED)\b                   | SKV_MINFERENCE_…
any  | \bskv_allot\w*|\ballot(?:ment|s|ted)?\b          | head budget
any  | \bskv_sure_of\b|\bsure=|\bspread=            | safeguard, max_head_ratio
any  | [?&](?:again|raw|near|group)=                    | interval, residual, n_refs, scale_block
any  | \bskv_work\b|\bwork_bytes\b                      | skv_workspace
any  | \bskv_list(?:_row)?\b                            | skv_index_list
any  | \bskv_slots\b                                    | skv_slot_mapping
any  | \bskv_seen\b|\bskv_rebuilt\b|\bskv_codes(?:_wrong)?\b|\bskv_low\w*|\bSKV_LOW_\w+ | skv_attended, skv_decompressed, skv_codec, skv_quant…
any  | \bSKV_[A-Z_]+_MOST\b                                 | SKV_MAX_…
any  | \bkeep_queries\b|\bkept_rows\b|\bskv_kept_\w+    | save_queries, saved prefill queries
any  | \blist_awake\b|\btile_(?:best|stages|lines)\b|\bdecode_(?:chosen|codes)\b|\bsparse_bytes\b | list_active, kascade_lists, hip_lists, minference_lists, decode_topk, decode_latent
any  | \bskv_batch_groups?\b|\bstruct group\b(?! \*g;)  | struct policy_batch
any  | \bturn_(?:dims|scale)\b                          | rope_…
any  | \beng_place\w*|\bENG_PLACE\w*|\beng_(?:alike|differ|echo|settle)\w* | eng_backend…, delta-similarity, delta-error, recall-task, env
code | \bstruct (?:call|rig|bed|place|stint|world|books)\b | …_params, …_fixture, backend, state
kernels/ | \bstruct (?:job|owner)\b|\bjobs?\b          | work item, request
code | (?<![\w.>])fail\(                                | a prefixed name: Check has a macro fail
code | (?<!in)_place\b|\bplace_\w+|(?<![\w.>])place\(   | alloc_slots, backend, memory kind, publish, fixture
any  | \bpooled\b|\bpools? over\b                       | reduced
any  | \b(?:scale|quantization) groups?\b|\bgroups? of (?:elements|numbers|sequences)\b | scale block, policy batch
daemon/|common/wire|engine/ | (?<!hash.)\bslots?\b(?!.*(?:mapping|metadata|KV|rows?|page|token))          | entry, buffer, index
'

# ---- 3. old names of renamed files

files='
bench/bed.* bench/rig.* bench/stack.* bench/latent.* engine/place.* engine/alike.* engine/differ.* engine/echo.* engine/settle.*
daemon/core/books.h daemon/core/making.c daemon/core/settle.c libclient/internal.h libclient/slots.c libclient/packs.c
libclient/packing.* libclient/packed.c libclient/coded.c libclient/looked.c libclient/keep.c kernels/codes.h kernels/sparse.h
tests/world* tests/place.* tests/ref-*.* tests/test-*.c tests/oracle/bed.* tests/oracle/stint.* tests/oracle/kept.c tests/oracle/packed.*
'

# ---- functions

# The files of the tree that people wrote, except this table.
tree() {
	find bench common daemon doc engine formats kernels libclient man models policies systemd tests setup \
		README.md HACKING.md Makefile.am configure.ac cuda.mk \
		-name '.?*' -prune -o -type f \( -name '*.[ch1-8]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.md' -o -name '*.sh' \
		-o -name '*.py' -o -name '*.pl' -o -name '*.mk' -o -name '*.am' -o -name '*.ac' -o -name '*.txt' -o -name '*.conf' \
		-o -name '*.svg' -o -name '*.csv' -o -name setup \) -print 2>/dev/null |
		grep -vE '(^|/)(check-lexicon\.sh|(eval|prose)\.txt)$|/corpus/' | sort
}

# Finds old words in the files on stdin. grep selects the files that have any, ten times as fast as perl, which then
# finds the places.
old_words() {
	OLD=$old perl -e '
		my @rules;
		for (grep { /\|/ } split /\n/, $ENV{OLD}) {
			# the regular expression may contain bars without spaces
			my ($where, $what, $say) = /^(\S+)\s+\|\s(.*\S)\s+\|\s+(.*)$/ or die "not a rule: $_\n";
			my $case = $what =~ /[A-Z]/ ? 1 : 0;
			$what =~ s/ /(?:[ \\t]+|\\s*\\n[ \\t]*(?:\\*|#|\/\/)?[ \\t]*)/g;
			push @rules, [$where, $what, $say, $case];
		}
		chomp(my @files = <STDIN>);
		for my $r (@rules) {
			my ($where, $what, $say, $case) = @$r;
			my @in = grep {
				my $code = /\.(c|h|cu|cuh)$/;
				$where eq "any" || ($where eq "code" ? $code : $where eq "text" ? !$code : m{^(?:$where)});
			} @files or next;
			open my $found, "-|", "grep", ($case ? () : "-i"), "-lzP", "-e", $what, "--", @in or die "grep: $!\n";
			chomp(my @found = <$found>);
			close $found;
			$? >> 8 < 2 or die "grep does not take $what\n";
			for my $file (@found) {
				open my $f, "<", $file or next;
				my $text = do { local $/; <$f> };
				my $lower = lc $text;
				my ($in, $re) = ($case ? \$text : \$lower, qr/$what/);
				while ($$in =~ /$re/g) {
					my ($found, $line) = (substr($text, $-[0], $+[0] - $-[0]), 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
					$found =~ s/\s+/ /g;
					print "$file:$line: \"$found\": say $say\n";
				}
			}
		}'
}

glossary() {
	awk '/^## / { on = /Glossary/ } on && /^\| / { split($0, cell, "|"); print cell[2] "|" cell[4] }' HACKING.md
}

# check ROOT: prints a line for each fault. Status 1 if there is one.
check() (
	cd "$1" || exit 99
	{
		while IFS='|' read -r word re file; do
			[ -n "${re// }" ] || continue
			word=$(echo $word) re=$(echo $re) file=$(echo $file)
			[ -e "$file" ] && grep -qiE -- "$re" "$file" && continue
			at=$(glossary | grep -iE -- "^ *([^|]*, )?$word" | cut -d'|' -f2 | tr -d '`,')
			ok=
			for f in $at; do
				[ -e "$f" ] && ok=1
			done
			[ -n "$ok" ] || echo "\"$word\" is not in $file, and the glossary of HACKING.md has no such term with a file that exists"
		done <<<"$words"

		grep -noE '`(bench|common|daemon|doc|engine|formats|kernels|libclient|man|models|policies|tests|sparsekv)/[a-zA-Z0-9_./-]*`' \
			HACKING.md doc/*.md | tr -d '`' |
			while IFS=: read -r page line path; do
				[ -e "$path" ] || [ -e "libclient/include/$path" ] || echo "$page:$line: $path is not there"
			done

		tree | old_words

		for f in $files; do
			[ ! -e "$f" ] || echo "$f: the file has a new name"
		done

		n=$(grep -rlE --include='*.c' '^[a-z].*\bskv_refuse\(.*[^;]$' libclient common daemon 2>/dev/null | wc -l)
		[ "$n" -le 1 ] || echo "skv_refuse is defined in $n files"
	} >"$2"
	[ ! -s "$2" ]
)

tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

# A tree in which every kind of fault is planted, and one without any.
plant() {
	mkdir -p "$tmp/$1"/{doc,engine,kernels/host/compress,libclient/include/sparsekv,bench}
	printf '## Glossary\n| Term | Here | File |\n|---|---|---|\n' >"$tmp/$1/HACKING.md"
	while IFS='|' read -r word _ _; do
		[ -z "${word// }" ] || echo "| $(echo $word) | x | \`HACKING.md\` |"
	done <<<"$words" >>"$tmp/$1/HACKING.md"
	: >"$tmp/$1/doc/a.md"
}
plant clean
printf '/* What a layer attends to; in place of it; a notebook; slot mapping. */\nint in_place, skv_selection_info;\n' >"$tmp/clean/engine/a.c"
check "$tmp/clean" "$tmp/out" || { cat "$tmp/out"; echo "check-lexicon: a clean tree is refused" >&2; exit 1; }

plant faulty
sed -i '/| lease |/d; s/`HACKING.md`/`gone.c`/2' "$tmp/faulty/HACKING.md"
sed -i '/| prefill |/s/`HACKING.md`/`gone.c`/' "$tmp/faulty/HACKING.md"
printf '/*\n * What a layer looks\n * at, and tokens kept in less\n * than rows; n_later.\n */\nstruct call { int slots; };\nvoid f(void) { fail("x"); place(1); }\n' >"$tmp/faulty/engine/a.c"
echo 'quantisation; `doc/gone.md`; keys promise most' >"$tmp/faulty/doc/a.md"
: >"$tmp/faulty/bench/rig.c"
check "$tmp/faulty" "$tmp/out" && { echo "check-lexicon: planted faults were not found" >&2; exit 1; }
for fault in '"lease" is not in' '"prefill" is not in' 'engine/a.c:2: "looks ' 'engine/a.c:3: "less ' 'engine/a.c:4: "n_later"' \
	'engine/a.c:6: "struct call"' 'engine/a.c:6: "slots"' 'engine/a.c:7: "fail("' 'engine/a.c:7: "place("' 'doc/a.md:1: "quantis"' \
	'doc/a.md:1: doc/gone.md' 'doc/a.md:1: "promise most"' 'bench/rig.c: '; do
	grep -qF -- "$fault" "$tmp/out" || { cat "$tmp/out"; echo "check-lexicon: the planted $fault… was not found" >&2; exit 1; }
done

check "${1:-${srcdir:-$(dirname "$0")/..}}" "$tmp/out" && exit 0
cat "$tmp/out"
echo "check-lexicon: $(wc -l <"$tmp/out") places speak an old language" >&2
exit 1
