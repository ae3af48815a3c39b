# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Functions for the checks inside a machine of boot.sh. `failed` counts the checks that failed.
# shellcheck disable=SC2034 # the scripts that source this print it
failed=0

# check WHAT COMMAND…: runs the command, and prints one line with the result.
check() {
	local what=$1 said
	shift
	if said=$("$@" 2>&1); then
		echo "ok    $what"
	else
		printf 'FAIL  %s: %s\n' "$what" "$*"
		[ -z "$said" ] || printf '      %s\n' "$said"
		failed=$((failed + 1))
	fi
}

# is COMMAND… = WANTED: compares the command's output with a pattern.
is() {
	local wanted=${*: -1} got
	got=$("${@:1:$#-2}" 2>&1)
	# shellcheck disable=SC2053 # a pattern
	[[ $got == $wanted ]] || { echo "got \"$got\", expected $wanted"; return 1; }
}

# within SECONDS COMMAND…: waits until the command succeeds
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || { "$@"; return 1; }
		sleep 0.1
	done
}

show() {
	systemctl show --value -p "$1" "${2:-sparsekvd.service}"
}
