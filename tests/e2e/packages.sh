#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh DIR [DEBS] - checks that the Debian packages can be installed, used, upgraded and purged. It makes a
# minimal root of this system's release in DIR (and keeps it), boots a real systemd over it in private namespaces, and
# runs packages-guest.sh there, which lets apt install the packages of the folder DEBS (default: built now by ./setup
# deb). Needs root, debootstrap and the network.
set -eu

[ $# -ge 1 ] || { echo "usage: packages.sh DIR [DEBS]" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
source=$(readlink -f "$here/../..")
mkdir -p "$1"
dir=$(readlink -f "$1")

if [ $# -ge 2 ]; then
	debs=$(readlink -f "$2")
else
	(cd "$source" && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS ./setup deb) # its make is independent of the caller's
	debs=$source/build/deb
fi
"$here/debootstrap.sh" "$dir/root" systemd

rm -rf "$dir/work" "$dir/out" "$dir/stage"
stage=$dir/stage/skv-test
units=$dir/stage/etc/systemd/system
mkdir -p "$stage/debs" "$stage/next" "$stage/model" "$units/skv-test.service.d" "$dir/out"
cp "$here/packages-guest.sh" "$stage/guest.sh"
cp "$here/systemd/checks.sh" "$here/systemd/hello.pl" "$stage/"
cp "$source"/models/reference/{config.json,model.safetensors,tasks-dev.jsonl} "$stage/model/"
cp "$debs"/*.deb "$stage/debs/"
cp "$here/systemd/skv-test.service" "$units/"
printf '[Service]\nTimeoutStartSec=600\n' >"$units/skv-test.service.d/time.conf"
cp /etc/resolv.conf "$dir/stage/etc/"

# The same packages again with a later version, also in their dependencies on each other.
for deb in "$stage"/debs/*.deb; do
	rm -rf "$dir/unpacked"
	dpkg-deb -R "$deb" "$dir/unpacked"
	version=$(sed -n 's/^Version: //p' "$dir/unpacked/DEBIAN/control")
	sed -i "s/^Version: .*/&+next/; s/(= $version)/(= $version+next)/g" "$dir/unpacked/DEBIAN/control"
	dpkg-deb -Znone -b "$dir/unpacked" "$stage/next/" >/dev/null
done
rm -rf "$dir/unpacked"

exec "$here/systemd/machine.sh" "$dir/work" "$dir/stage:$dir/root" "$dir/out" 900
