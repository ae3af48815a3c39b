#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - tests sparsekvd under a real systemd: boots one in private namespaces over a debootstrap root, installs the
# build into it, and runs guest.sh there. Called by `make check-systemd` in the build directory; needs root and
# debootstrap. It leaves nothing on the machine but the root, which is kept for the next run in $SKV_SYSTEMD_ROOT
# (default: tests/e2e/systemd/root in the build directory).
set -eu

here=$(dirname "$(readlink -f "$0")")
[ -e config.status ] || { echo "run.sh: run this through 'make check-systemd'" >&2; exit 1; }
mkdir -p tests/e2e/systemd
work=$PWD/tests/e2e/systemd/work
out=$PWD/tests/e2e/systemd/out
stage=$PWD/tests/e2e/systemd/stage
root=${SKV_SYSTEMD_ROOT:-$PWD/tests/e2e/systemd/root}

# The package names of these two contain the release's version.
package_of() { dpkg-query -S "*/$1" | sed -n '1s/:.*//p'; }
hiredis=$(package_of 'libhiredis.so.*')
ssl=$(package_of 'libssl.so.*')
"$here/../debootstrap.sh" "$root" systemd liburing2 libjansson4 libseccomp2 libopenblas0-openmp "$hiredis" "$ssl"

rm -rf "$work" "$out" "$stage"
mkdir -p "$out" "$stage/skv-test" "$stage/etc/systemd/system"
"${MAKE:-make}" --no-print-directory -s install DESTDIR="$stage" >"$out/install.log" 2>&1 ||
	{ cat "$out/install.log" >&2; exit 1; }
cp "$here/guest.sh" "$here/guest-reboot.sh" "$here/checks.sh" "$here/hello.pl" "$stage/skv-test/"
prefix=$(dirname "$(find "$stage" -name pkgconfig -path '*lib*' | head -n 1)")
"${CC:-cc}" -O2 -Wall -o "$stage/skv-test/engine" "$here/engine.c" -I"$(dirname "$prefix")/include" -L"$prefix" -lsparsekv-client \
	-Wl,-rpath-link,"$prefix"
cp "$here/skv-test.service" "$stage/etc/systemd/system/"

"$here/machine.sh" "$work" "$stage:$root" "$out" 180
rm "$out/results"
echo "rebooted, with the same disk"
exec "$here/machine.sh" "$work" "$stage:$root" "$out" 180
