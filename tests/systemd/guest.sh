#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the checks, inside the machine that run.sh boots.
set -u
failed=0

# check WHAT COMMAND…: one line with the outcome.
check() {
	local what=$1
	shift
	if "$@"; then
		echo "ok    $what"
	else
		echo "FAIL  $what: $*"
		failed=$((failed + 1))
	fi
}

ldconfig
check "systemd is PID 1" test "$(cat /proc/1/comm)" = systemd

echo "$failed failed"
[ $failed = 0 ]
