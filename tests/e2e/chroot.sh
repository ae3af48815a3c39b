#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# chroot.sh DIR [TARBALL] - checks that the README's two commands work on a minimal system. It makes a minimal root of
# this system's release in DIR (and keeps it), puts a clean clone of HEAD (or the unpacked TARBALL) into it, and runs
# ./setup check and ./setup demo-real as root, which install the packages, and ./setup demo as a normal user.
# Needs root, debootstrap and the network. Written files stay in DIR/upper until the next run.
set -eu

[ $# -ge 1 ] || { echo "usage: chroot.sh DIR [TARBALL]" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$1"
dir=$(readlink -f "$1")
source=${2:+$(readlink -f "$2")}

if [ -z "${SKV_IN_NAMESPACE:-}" ]; then
	"$here/debootstrap.sh" "$dir/base"
	rm -rf "$dir/upper" "$dir/work"
	SKV_IN_NAMESPACE=1 exec unshare --mount --pid --ipc --uts --fork --kill-child bash "$0" "$dir" ${source:+"$source"}
fi

# shellcheck source=tests/e2e/mount-root.sh
. "$here/mount-root.sh"
mount_root "$dir" "$dir/base"
cp /etc/resolv.conf etc/resolv.conf
# certificates that this network needs in addition to ca-certificates
[ ! -d /usr/local/share/ca-certificates ] || cp -r /usr/local/share/ca-certificates usr/local/share/
mkdir root/sparsekvd
if [ -n "$source" ]; then
	tar -xf "$source" -C root/sparsekvd --strip-components=1
else
	git -c safe.directory='*' clone -q --no-hardlinks "$here/../.." root/clone
	rm -rf root/sparsekvd && mv root/clone root/sparsekvd
fi
enter_root

for variable in $(env | grep -oE '^(PIP|SSL|REQUESTS)_[A-Z_]+'); do
	unset "$variable"
done
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
cd /root/sparsekvd
time ./setup check
time ./setup demo-real
useradd -m tester
mv /root/sparsekvd /home/tester/
rm -rf /home/tester/sparsekvd/build # a build cannot be moved; the user makes one
chown -R tester: /home/tester/sparsekvd
time su - tester -c 'cd sparsekvd && ./setup demo'
