#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# timed.sh COMMAND... TEST: run a test, and leave in TEST.seconds, in the build directory, how many it took. make runs tests side by side;
# those of $RUN_ALONE run alone.
for test in "$@"; do :; done
test=$(echo "$test" | sed "s@^\./@@; s@^${srcdir:-.}/@@")
mkdir -p "$(dirname "$test")"
case " $RUN_ALONE " in
*" $test "*) lock=-x ;;
*) lock=-s ;;
esac
exec 9>>tests/running.lock
flock $lock 9
start=$(date +%s%N)
"$@" 9>&-
status=$?
awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { printf "%.2f\n", ns / 1e9 }' >"$test.seconds"
exit $status
