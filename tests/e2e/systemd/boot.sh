#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# boot.sh WORK LOWER OUT - mounts the root LOWER, with changes in a tmpfs on WORK, and becomes its systemd. Runs as PID
# 1 of new mount, PID, IPC, UTS and cgroup namespaces, which machine.sh makes. OUT appears as /out inside.
set -eu
# shellcheck source=tests/e2e/mount-root.sh
. "$(dirname "$0")/../mount-root.sh"

mount -t tmpfs -o mode=755 tmpfs "$1"
mount_root "$1" "$2"
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p out var/log/journal
mount --bind "$3" out
mount --bind "$3/journal" var/log/journal
enter_root
exec env -i container=skv-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin \
	/lib/systemd/systemd --unit=skv-test.service
