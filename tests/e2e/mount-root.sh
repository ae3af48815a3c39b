# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# mount_root WORK LOWER: mounts a root to run programs in on WORK/root and changes there. It is an overlay: LOWER
# (directories, as overlayfs takes them) is not changed, and written files go to WORK/upper. Call it in a mount and PID
# namespace of its own, so that all mounts end with the namespace.
mount_root() {
	local node path
	mount --make-rprivate /
	mkdir -p "$1/upper" "$1/work" "$1/root"
	mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
	cd "$1/root" || return

	mount -t proc proc proc
	# the kernel's settings belong to the machine, not to this root
	for path in proc/sys proc/sysrq-trigger; do
		[ -e $path ] || continue
		mount --bind $path $path
		mount -o remount,bind,ro $path
	done
	mount -t sysfs -o ro sysfs sys
	mount -t tmpfs -o mode=755 tmpfs run
	mount -t tmpfs tmpfs tmp
	mount -t tmpfs -o mode=755 tmpfs dev
	for node in null zero full random urandom tty; do
		touch dev/$node
		mount --bind /dev/$node dev/$node
	done
	mkdir dev/pts dev/shm
	mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
	mount -t tmpfs tmpfs dev/shm
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
}

# Makes the current directory the root, and unmounts the old one.
enter_root() {
	mkdir old
	pivot_root . old
	umount -l old
	rmdir old
	hash -r
}
