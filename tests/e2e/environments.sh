#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# environments.sh DIR [NAME...] - checks that ./setup check passes in unusual environments. It makes a minimal root of
# this system's release in DIR (and keeps it), with a clean clone of HEAD that is built there once, without CUDA. Then
# `make check` runs
#   chroot        in a plain chroot whose root is no mount point
#   capabilities  as root without any capability
#   user          as a user without a home and without a terminal's variables
#   umask         with a umask of 077
#   turkish       under LANG=tr_TR.UTF-8, where the lower case of I is not i
# Needs root, debootstrap and the network. Nothing stays mounted.
set -eu

[ $# -ge 1 ] || { echo "usage: environments.sh DIR [NAME...]" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$1"
dir=$(readlink -f "$1")
shift
[ $# -gt 0 ] || set -- chroot capabilities user umask turkish

if [ -z "${SKV_IN_NAMESPACE:-}" ]; then
	"$here/debootstrap.sh" "$dir/root" ca-certificates git locales util-linux
	SKV_IN_NAMESPACE=1 exec unshare --mount --pid --ipc --uts --fork --kill-child bash "$0" "$dir" "$@"
fi
mount --make-rprivate /
root=$dir/root
for path in dev sys; do
	mount --rbind /$path "$root/$path"
done
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
cp /etc/resolv.conf "$root/etc/resolv.conf"
[ ! -d /usr/local/share/ca-certificates ] || cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"

inside() {
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 CHECK_PATIENCE="${CHECK_PATIENCE:-1}" chroot "$root" "$@"
}
rm -rf "$root/srv/sparsekvd"
git -c safe.directory='*' clone -q --no-hardlinks "$here/../.." "$root/srv/sparsekvd"
inside sh -c 'localedef -i tr_TR -f UTF-8 tr_TR.UTF-8 && (id tester >/dev/null 2>&1 || useradd --no-create-home --home-dir /nonexistent tester)'
inside env -C /srv/sparsekvd CONFIGURE_OPTIONS=--without-cuda ./setup build
inside make -s -C /srv/sparsekvd/build -j"$(nproc)" check TESTS=

check=(make -s -C /srv/sparsekvd/build -j"$(($(nproc) + 2))" check VERBOSE=1)
run() {
	case $1 in
	chroot) inside "${check[@]}" ;;
	capabilities) inside setpriv --bounding-set=-all --inh-caps=-all "${check[@]}" ;;
	user)
		inside chown -R tester: /srv/sparsekvd
		inside setpriv --reuid=tester --regid=tester --clear-groups env -i PATH=/usr/bin:/bin "${check[@]}"
		;;
	umask) inside sh -c "umask 077; ${check[*]}" ;;
	turkish) inside env -u LC_ALL LANG=tr_TR.UTF-8 "${check[@]}" ;;
	*) echo "environments.sh: no environment is named $1"; return 1 ;;
	esac
}

bad=0
for name; do
	start=$SECONDS
	inside find /srv/sparsekvd/build -name '*.trs' -delete
	if run "$name" >"$dir/$name.log" 2>&1; then
		echo "pass $name ($((SECONDS - start)) s)"
	else
		bad=1
		echo "FAIL $name ($((SECONDS - start)) s): $dir/$name.log"
		grep -E '^(FAIL|ERROR):|:[FE]:' "$dir/$name.log" || tail -n 5 "$dir/$name.log"
	fi
	[ "$name" != user ] || inside chown -R root: /srv/sparsekvd
done
exit $bad
