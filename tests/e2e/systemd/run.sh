#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - sparsekvd under a real systemd: boot one in private namespaces over a debootstrap root,
# install the build into it, and run guest.sh there. Called by `make check-systemd` in the build
# directory; needs root and debootstrap. Nothing of it is left on the machine but the root, which is
# kept for the next run in $SKV_SYSTEMD_ROOT (default: tests/e2e/systemd/root in the build directory).
set -eu

here=$(dirname "$(readlink -f "$0")")
[ -e config.status ] || { echo "run.sh: run this through 'make check-systemd'" >&2; exit 1; }
mkdir -p tests/e2e/systemd
work=$PWD/tests/e2e/systemd/work
out=$PWD/tests/e2e/systemd/out
stage=$PWD/tests/e2e/systemd/stage
root=${SKV_SYSTEMD_ROOT:-$PWD/tests/e2e/systemd/root}

"$here/../debootstrap.sh" "$root" systemd liburing2 libjansson4 libseccomp2 libopenblas0-openmp

rm -rf "$work" "$out" "$stage"
mkdir -p "$work" "$out/journal" "$stage/skv-test" "$stage/etc/systemd/system"
"${MAKE:-make}" --no-print-directory -s install DESTDIR="$stage" >"$out/install.log" 2>&1 ||
	{ cat "$out/install.log" >&2; exit 1; }
cp "$here/guest.sh" "$here/hello.pl" "$stage/skv-test/"
cp "$here/skv-test.service" "$stage/etc/systemd/system/"

# A cgroup of its own, which becomes the root of the cgroup namespace.
cgroups=$(mktemp -d)
group=$cgroups/skv-test.$$
# shellcheck disable=SC2317 # reached through the trap
cleanup() {
	find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
	umount "$cgroups" && rmdir "$cgroups"
}
mount -t cgroup2 cgroup2 "$cgroups"
trap cleanup EXIT
mkdir "$group"

rc=0
# shellcheck disable=SC2016
timeout --kill-after=5 180 bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' - "$group" \
	unshare --mount --pid --ipc --uts --cgroup --fork --kill-child \
	bash "$here/boot.sh" "$work" "$stage:$root" "$out" >"$out/console" 2>&1 || rc=$?

cat "$out/results" 2>/dev/null || true
if [ $rc != 0 ]; then
	cat "$out/console"
	journalctl --no-pager -q -D "$out/journal" -u sparsekvd.service -u skv-test.service -n 60 || true
	echo "check-systemd: failed (exit status $rc); the journal: journalctl -D $out/journal" >&2
fi
exit $rc
