#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-mutations.sh BUILD [NAME...] - faults that tests must find: tests/mutations/NAME.patch, all of them or those
# named.
#
# Each is applied alone to a copy of the source tree; the test that its header names is built there, and must fail. It
# must pass without the fault, too: a test that cannot run here finds nothing. The copy and its build stay in
# BUILD/check-mutations.d, so that the next run compiles only what has changed. The source tree is only read. The header
# of a patch has these lines:
#
#   What: one sentence
#   Found-by: [VARIABLE=VALUE...] PROGRAM [CASE...]    PROGRAM as in the build directory; cases are for the reader
#   Target: check | nightly | nth | asan | emulated | fake-device
#
# Target is the make target that runs the program. Those of asan have a build with AddressSanitizer and UBSan; those of
# emulated and fake-device run as in emulated.sh and fake-device.sh, so they need a configuration with CUDA.
#
# Prints a line for each: found (with the cases that failed), NOT FOUND, does not apply, or does not build; and seconds.
# Exit status 1 unless all are found.
set -u
build=$(cd "${1:?BUILD}" && pwd) || exit 99
shift
source=$(cd "$(dirname "$0")/.." && pwd) || exit 99
top=$build/check-mutations.d copy=$build/check-mutations.d/source
limit=1800 # seconds: a fault may be an endless loop outside of a test case
mkdir -p "$copy" || exit 99
log=$top/log
export OMP_WAIT_POLICY=passive SKV_SHARE="${SKV_SHARE:-all}" # see AM_TESTS_ENVIRONMENT

# ---- the copy ---------------------------------------------------------------------------------

# Lists the files of the source tree, without built ones.
list_files() {
	if git -C "$source" rev-parse --show-prefix 2>/dev/null | grep -qx ''; then
		git -C "$source" ls-files --cached --others --exclude-standard
	else
		(cd "$source" && find . -path "./${build#"$source"/}" -prune -o -type f -printf '%P\n')
	fi | sort
}
# Updates a file that differs, with a new time, so that make compiles it again. A new file keeps its time, as a tarball
# has generated files.
take() {
	[ -f "$source/$1" ] || return 0
	if [ ! -e "$copy/$1" ]; then
		mkdir -p "$(dirname "$copy/$1")" && cp -p "$source/$1" "$copy/$1"
	elif ! cmp -s "$source/$1" "$copy/$1"; then
		cp "$source/$1" "$copy/$1"
	fi
}
update_copy() {
	local f
	list_files >"$top/files.new" || return
	[ ! -e "$top/files" ] || comm -23 "$top/files" "$top/files.new" | while IFS= read -r f; do rm -f "$copy/$f"; done
	while IFS= read -r f; do
		take "$f" || return
	done <"$top/files.new"
	mv "$top/files.new" "$top/files"
	[ -e "$copy/configure" ] || (cd "$copy" && autoreconf -fi)
}

# ---- builds -----------------------------------------------------------------------------------

# configured NAME ARGUMENTS...: makes the build of that name if it does not exist
configured() {
	local dir=$top/$1
	shift
	[ -e "$dir/config.status" ] || { mkdir -p "$dir" && (cd "$dir" && "$copy/configure" -q "$@"); }
}
# The build that has a target's programs.
build_of() {
	case $1 in
	asan) echo asan ;;
	*) echo build ;;
	esac
}
configure_for() {
	case $(build_of "$1") in
	asan) configured asan --with-sanitizer=address,undefined CFLAGS='-O1 -g' --without-cuda ;;
	*) configured build ;;
	esac
}
# What a program starts and loads: daemon, policies, plugins; also the engine's programs.
needs() {
	case $2 in
	tests/unit/core/* | tests/unit/formats/* | tests/fuzz/fuzz-[^r]* | tests/check-[als]*.sh) ;;
	tests/check-*.sh | tests/e2e/test-engine-* | tests/e2e/test-prefix-*) echo mutations-need mutations-need-programs ;;
	*) echo mutations-need ;;
	esac
	case $1 in
	emulated) echo tests/emulate/sparsekv-cuda.so ;;
	esac
}
# make_all TARGET PROGRAM, in the build directory. Does nothing without targets, as make would build everything.
make_all() {
	local targets
	targets=$(needs "$1" "$2")
	case $2 in
	*.sh) ;;
	*) targets+=" $2" ;;
	esac
	# shellcheck disable=SC2086 # words
	[ -z "$targets" ] || make -s $targets >"$log" 2>&1
}

# ---- a mutation -------------------------------------------------------------------------------

field() {
	sed -n "/^--- /q; s/^$1: *//p" "$patch"
}
# The environment that the target's script sets for its programs.
surroundings() {
	case $target in
	emulated) echo "SPARSEKV_CUDA_MODULE=$PWD/tests/emulate/sparsekv-cuda.so SPARSEKV_REQUIRE_GPU=1 SKV_SLOW=1" ;;
	fake-device)
		rm -rf "$top/fake-device" && mkdir "$top/fake-device"
		echo "SKV_TEST_DEVICE=1 FAKE_CUDA_DIR=$top/fake-device LD_LIBRARY_PATH=$PWD/tests/fake-cuda CK_EXCLUDE_TAGS=real" \
			"SPARSEKV_CUDA_MODULE=$PWD/tests/support/.libs/fake-backend.so SKV_ORACLE_CASES=16"
		;;
	esac
}
# The cases that failed, as Check prints them.
failed_cases() {
	sed -nE 's/^[^ ]+:[0-9]+:[EF]:[^:]*:([^:]*):.*/\1/p' "$log" | sort -u | head -n 4 | tr '\n' ' '
}
# Builds the test with what it needs, and runs it. Status: the test's, or `unbuilt`.
unbuilt=250
run_test() {
	local words command=() environment=() word
	configure_for "$target" >"$log" 2>&1 || return $unbuilt
	cd "$top/$(build_of "$target")" || return $unbuilt
	eval "words=($(field Found-by))"
	# shellcheck disable=SC2207 # words
	environment=($(surroundings))
	for word in "${words[@]}"; do
		case $word in
		*=*) environment+=("$word") ;;
		*)
			command=("$word")
			break
			;;
		esac
	done
	case ${command[0]} in
	*.sh) command=(bash "$copy/${command[0]}") environment+=("srcdir=$copy") ;;
	esac
	make_all "$target" "$word" || return $unbuilt
	env "${environment[@]}" timeout --foreground -k 10 $limit "${command[@]}" >"$log" 2>&1
}
# Applies the patch to the copy; takes the source tree's files back.
apply() {
	patch -d "$copy" -p1 -s -f -F0 --dry-run <"$patch" >"$log" 2>&1 && patch -d "$copy" -p1 -s -f -F0 <"$patch" >"$log" 2>&1
}
take_back() {
	local f
	while IFS= read -r f; do
		take "$f"
	done < <(sed -n 's/^+++ b\///p' "$patch")
}
# Prints the result. A test finds a fault if it fails with it and passes without it.
judge() {
	local r cases
	apply || { echo "does not apply"; return 1; }
	(run_test)
	r=$?
	cases=$(failed_cases)
	take_back
	case $r in
	0) echo "NOT FOUND" ;;
	77) echo "NOT FOUND: skipped" ;;
	124 | 137) echo "NOT FOUND: still running" ;;
	"$unbuilt") echo "does not build" ;;
	*) (run_test) && echo "found  $cases" && return 0 || echo "NOT FOUND: the test fails without the fault, too" ;;
	esac
	return 1
}
# check NAME
check() {
	local start=$SECONDS result target r
	patch=$source/tests/mutations/$1.patch
	target=$(field Target)
	result=$(judge)
	r=$?
	[ $r = 0 ] || cp "$log" "$top/$1.log"
	printf '%-36s %4d s  %s\n' "$1" $((SECONDS - start)) "$result"
	[ $r = 0 ] || echo "    $top/$1.log"
	return $r
}

update_copy >"$log" 2>&1 || { cat "$log" >&2; exit 99; }
if [ $# = 0 ]; then
	mapfile -t names < <(cd "$source/tests/mutations" && ls ./*.patch | sed 's/^\.\///; s/\.patch$//')
	set -- "${names[@]}"
fi
bad=0
for name; do
	check "$name" || bad=1
done
exit $bad
