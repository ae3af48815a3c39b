#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# debootstrap.sh DIR [PACKAGE…] - makes a minimal root of this system's own release in DIR, with the named packages.
# Kept between runs: a root that was made with the same packages is not changed.
#
# SKV_SUITE names another release, SKV_MIRROR another mirror than debootstrap's default, SKV_KEYRING the keys to check
# it with. An Ubuntu root on Debian, for example, needs all three:
#   SKV_SUITE=noble SKV_MIRROR=http://archive.ubuntu.com/ubuntu SKV_KEYRING=…/ubuntu-archive-keyring.gpg
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
[ -z "${SKV_KEYRING:-}" ] || options+=("--keyring=$SKV_KEYRING")
from=(${SKV_MIRROR:+"$SKV_MIRROR"})
case $suite in
bookworm | trixie) ;;
*)
	options+=("--components=main,universe") # Ubuntu has half of what the project uses in universe
	# a debootstrap older than the release has no script of its name, but all Ubuntu releases share one
	[ -z "${SKV_MIRROR:-}" ] || from+=(gutsy)
	;;
esac
log=$dir.log
if ! debootstrap "${options[@]}" "$suite" "$dir" "${from[@]}" >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "${0##*/}: debootstrap failed; its whole output is in $log" >&2
	exit 1
fi
rm -rf "$dir"/var/cache/apt/archives/*.deb
echo "$made" >"$dir/.made"
