#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# timed.sh COMMAND... TEST: runs a test, and writes its elapsed seconds and processor seconds to TEST.seconds in the
# build directory. make runs tests in parallel; those of $RUN_ALONE run alone. What tests cache is in the build directory.
for test in "$@"; do :; done
test=$(echo "$test" | sed "s@^\./@@; s@^${srcdir:-.}/@@")
mkdir -p "$(dirname "$test")"
case " $RUN_ALONE " in
*" $test "*) lock=-x ;;
*) lock=-s ;;
esac
export XDG_CACHE_HOME=$PWD/tests/cache
exec 9>>tests/running.lock
flock $lock 9
TIMEFORMAT='%2R %2U %2S'
{ time "$@" 2>&8 8>&- 9>&-; } 8>&2 2>"$test.seconds"
status=$?
read -r clock user kernel <"$test.seconds"
awk -v clock="$clock" -v user="$user" -v kernel="$kernel" 'BEGIN { printf "%.2f %.2f\n", clock, user + kernel }' >"$test.seconds"
exit $status
