#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# debootstrap.sh DIR [PACKAGE…] - a minimal root of this system's own release in DIR, with the
# packages named. Kept between runs: a root that was made with the same packages is left as it is.
#
# SKV_SUITE names another release, SKV_MIRROR another mirror than debootstrap's own.
set -eu

dir=$1
shift
packages=$(IFS=,; echo "$*")
# shellcheck source=/dev/null
suite=${SKV_SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
made="$suite $packages"

[ "$(id -u)" = 0 ] || { echo "${0##*/}: debootstrap needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "${0##*/}: install the package debootstrap" >&2; exit 1; }
[ "$(cat "$dir/.made" 2>/dev/null)" = "$made" ] && exit 0

echo "debootstrap: making $dir ($suite)"
rm -rf "$dir"
mkdir -p "$dir"
options=(--variant=minbase)
[ -z "$packages" ] || options+=("--include=$packages")
# Ubuntu keeps half of the packages that the project uses in universe
case $suite in bookworm | trixie) ;; *) options+=("--components=main,universe") ;; esac
log=$dir.log
if ! debootstrap "${options[@]}" "$suite" "$dir" ${SKV_MIRROR:+"$SKV_MIRROR"} >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "${0##*/}: debootstrap failed; its whole output is in $log" >&2
	exit 1
fi
rm -rf "$dir"/var/cache/apt/archives/*.deb
echo "$made" >"$dir/.made"
