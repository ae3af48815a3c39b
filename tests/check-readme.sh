#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What README.md and doc/ show is true: the programs compile and run; every command in a shell block runs here, on a
# daemon of its own, or is one that another test runs (root, systemd, the whole of `./setup check`); links have targets;
# sparsekv-bench draws the chart from its data; the data and the README's table have figures of bench/RESULTS.md; and
# the README links to every page.
export LC_ALL=C.UTF-8 # elsewhere [a-z] may lack letters
srcdir=$(readlink -f "${srcdir:-$(dirname "$0")/..}")
build=$PWD
tmp=$(mktemp -d) || exit 99
daemon=
trap '[ -z "$daemon" ] || kill "$daemon"; rm -rf "$tmp"' EXIT
pages=(README.md doc/engines.md doc/policies.md doc/operate.md)
work=$tmp/work

die() {
	echo "check-readme: $*" >&2
	exit 1
}

# block FILE LANGUAGE N: prints the Nth block of the language.
block() {
	awk -v fence="\`\`\`$2" -v n="$3" '/^```/ { on = $0 == fence && ++seen == n; next } on' "$srcdir/$1"
}
# commands FILE: prints the lines of its shell blocks, without comments.
commands() {
	awk '/^```/ { on = $0 == "```sh"; next } on' "$srcdir/$1" | sed 's/[[:space:]]\+#.*//'
}

# ---- what the commands of the pages use: this build's programs, and files under the names that the pages use

include=$srcdir/libclient/include libs=$build/libclient/.libs
flags="-Wall -Wextra -Werror -D_DEFAULT_SOURCE"
nm -D "$libs/libsparsekv-client.so" | grep -q __asan_init && flags+=" -fsanitize=address,undefined"
cc() {
	command ${CC:-cc} $flags "$@"
}
# shellcheck disable=SC2317 # called by the pages' commands
pkg-config() {
	case $* in
	*--libs*) echo "-I$include -L$libs -Wl,-rpath,$libs -lsparsekv-client" ;;
	*) echo "-I$include" ;;
	esac
}
# shellcheck disable=SC2317
sparsekvctl() {
	case $* in "policy verify"*) set -- "$@" -n 4 ;; esac # of 300 cases, which take a minute
	"$build/daemon/ctl/sparsekvctl" "$@" </dev/null
}
# shellcheck disable=SC2317
sparsekv-calibrate() {
	case $* in *--by?loss*) set -- "$@" --texts 1 --context 512 --rows 8 ;; esac # the whole search takes ten minutes
	(cd "$build" && engine/sparsekv-calibrate --private "$@") </dev/null
}

# A command that other tests run: one of those tests must contain it. Status 1: no other test runs it.
elsewhere() {
	local where
	case $1 in
	"./setup deb") where=packages.sh ;;
	"apt install ./build/deb/"*) return 0 ;; # tests/e2e/packages-guest.sh
	"vllm serve"*) return 0 ;; # python/tests/vllm/server.py
	./setup*) where=chroot.sh ;;
	systemctl* | systemd-*) where=guest.sh ;;
	"mkdir -p build" | "cd build" | ../configure* | make) return 0 ;; # as setup does: tests/e2e/chroot.sh
	"make install") return 0 ;; # tests/e2e/systemd/run.sh
	*) return 1 ;;
	esac
	find "$srcdir/tests" -name $where -exec grep -qF -- "$1" {} + || die "\"$1\" is in no $where"
}

# run LINE: all of its commands run in other tests, or it runs here and succeeds
run() {
	local part
	if elsewhere "$(sed 's/ *&&.*//; s/^sudo //' <<<"$1")"; then
		while read -r part; do
			elsewhere "$part" || die "\"$part\" of \"$1\" runs in no test"
		done < <(sed 's/ *&& */\n/g; s/^sudo //; s/\nsudo /\n/g' <<<"$1" | sed 's/^sudo //')
		return
	fi
	# With absolute file names: sparsekv-calibrate runs in the build directory.
	(cd "$work" && eval "$(sed -E "s@/etc/sparsekv/@$work/@g; s@(--(tasks|svg)) @\1 $work/@g; s@ DIR@ $work/DIR@g" <<<"$1")") \
		>"$tmp/said" 2>&1 || { cat "$tmp/said" >&2; die "failed: $1"; }
}

# ---- programs and commands

mkdir -p "$work/DIR"
cp "$srcdir"/models/reference/{config.json,model.safetensors} "$work/DIR/"
grep '"size": 512' "$srcdir/models/reference/tasks-dev.jsonl" | sed -n '1p;9p' >"$work/tasks.jsonl"
block doc/engines.md c 1 >"$work/engine.c"
block doc/policies.md c 1 >"$work/recent.c"
block README.md c 1 >"$work/decode.c"
cc -O2 "-I$include" -c "$work/decode.c" -o "$tmp/decode.o" || die "README.md's function does not compile"

daemon/sparsekvd --config=/dev/null --log-level=warning --socket="$tmp/socket" --policy-path="$PWD/policies/.libs" &
daemon=$!
export SPARSEKV_SOCKET=$tmp/socket
for _ in $(seq 100); do
	[ -S "$tmp/socket" ] && break
	sleep 0.1
done
ran=0
for page in "${pages[@]}"; do
	while read -r line <&3; do
		[ -z "$line" ] && continue
		run "$line"
		ran=$((ran + 1))
	done 3< <(commands "$page")
done
[ $ran -ge 25 ] || die "only $ran commands were found in ${pages[*]}"
case $("$work/engine") in "10 tokens, out[0] = "*) ;; *) die "the engine of doc/engines.md prints something else" ;; esac
sparsekvctl policy list | grep -q "^recent" || die "the policy recent is not in the list"

# ---- links, the chart and the figures

# slugs FILE: prints the anchors of its headings
slugs() {
	sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}
for page in "${pages[@]}" HACKING.md doc/design.md bench/RESULTS.md models/reference/README.md; do
	while read -r link; do
		case $link in http*) continue ;; esac
		to=$srcdir/$(dirname "$page")/${link%%#*}
		[ -n "${link%%#*}" ] || to=$srcdir/$page
		[ -e "$to" ] || die "$page: $link is not there"
		[[ $link != *#* ]] || slugs "$to" | grep -qx -- "${link#*#}" || die "$page: $link: no such heading"
	done < <(grep -oE '\]\([^) ]+\)|src="[^"]+"' "$srcdir/$page" | sed -E 's/^\]\(|\)$|^src="|"$//g')
done

title='SmolLM2-135M-Instruct, budget 12.5 %, texts of 3,000 tokens'
y=$(head -n 1 "$srcdir/doc/policies.csv" | cut -d, -f3-)
bench/sparsekv-bench plot --x policy --by method --y "$y" --title "$title" --output "$tmp/policies.svg" "$srcdir/doc/policies.csv" &&
	cmp "$tmp/policies.svg" "$srcdir/doc/policies.svg" || die "doc/policies.svg is not drawn from doc/policies.csv"

# figure POLICY FIGURE FILE: the figure is in a row of bench/RESULTS.md that begins with the policy
figure() {
	grep -E "^\| ?\`?$1(\`| *\||,)" "$srcdir/bench/RESULTS.md" | tr '|*' ' ' | grep -qw -- "$2" ||
		die "$3: $2 of $1 is not in its rows of bench/RESULTS.md"
}
while IFS=, read -r policy _ loss reads; do
	figure "$policy" "$loss" doc/policies.csv
	figure "$policy" "$reads" doc/policies.csv
done < <(tail -n +2 "$srcdir/doc/policies.csv")
while IFS='|' read -r _ policy _ figures; do
	for cell in $(tr '|' ' ' <<<"$figures"); do
		figure "$(tr -d ' `' <<<"$policy")" "$cell" README.md
	done
done < <(grep '^| `' "$srcdir/README.md")
for page in "$srcdir"/doc/*.md "$srcdir"/man/*.[0-9]; do
	grep -qF "(${page#"$srcdir/"})" "$srcdir/README.md" || die "README.md has no link to ${page#"$srcdir/"}"
done
[ "$(wc -l <"$srcdir/README.md")" -le 100 ] || die "README.md has more than 100 lines"
