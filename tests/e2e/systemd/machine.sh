#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# machine.sh WORK LOWER OUT SECONDS - boots a systemd in private namespaces over the root LOWER (directories, as
# overlayfs takes them), waits until its skv-test.service has ended, at most SECONDS, and prints what that service wrote
# to OUT/results. After a failure it also prints the console and the journal. Needs root; leaves nothing on the machine.
set -eu

here=$(dirname "$(readlink -f "$0")")
work=$1 lower=$2 out=$3 seconds=$4
mkdir -p "$work" "$out/journal"

# A cgroup of its own, which becomes the root of the cgroup namespace.
cgroups=$(mktemp -d)
group=$cgroups/skv-test.$$
# shellcheck disable=SC2317 # called by the trap
cleanup() {
	find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
	umount "$cgroups" && rmdir "$cgroups"
}
mount -t cgroup2 cgroup2 "$cgroups"
trap cleanup EXIT
mkdir "$group"

rc=0
# shellcheck disable=SC2016
timeout --kill-after=5 "$seconds" bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' - "$group" \
	unshare --mount --pid --ipc --uts --cgroup --fork --kill-child \
	bash "$here/boot.sh" "$work" "$lower" "$out" >"$out/console" 2>&1 || rc=$?

cat "$out/results" 2>/dev/null || true
if [ $rc != 0 ]; then
	cat "$out/console"
	journalctl --no-pager -q -D "$out/journal" -u sparsekvd.service -u skv-test.service -n 60 || true
	echo "machine.sh: failed (exit status $rc); the journal: journalctl -D $out/journal" >&2
fi
exit $rc
