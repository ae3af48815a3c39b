# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# guest-reboot.sh - the second boot, with the disk of the first: what was parked is there, byte for byte. Part of
# guest.sh.
ldconfig
useradd -m tester
mkdir -p /var/lib/sparsekv
mount --bind /out/disk /var/lib/sparsekv
systemd-sysusers
systemd-tmpfiles --create
systemctl daemon-reload
check "after a reboot the sockets are there" systemctl enable --now sparsekvd.socket sparsekvd-operators.socket
check "systemctl start" systemctl start sparsekvd.service
check "100 sequences are parked" is sh -c "sparsekvctl seq list | grep -c 'disk *parked-'" = 100

# on_and_afresh N: compares the last outputs, which depend on all K and V, of a parked sequence that continues with
# those of one that was never parked
cat >/tmp/on_and_afresh <<'EOF'
#!/bin/sh
on=$("$0.engine" parked-$1 $(($1 + 24)) | cut -d' ' -f1)
afresh=$("$0.engine" fresh-$1 $(($1 + 24)) | cut -d' ' -f1)
[ -n "$on" ] && [ "$on" = "$afresh" ]
EOF
chmod 755 /tmp/on_and_afresh
cp "$here/engine" /tmp/on_and_afresh.engine
check "each goes on with the outputs of one that was never parked" \
	setpriv --reuid tester --regid tester --init-groups -- sh -c "seq 100 | xargs -P 10 -n 1 /tmp/on_and_afresh"
check "none is parked any more" is sh -c "sparsekvctl seq list | grep -c 'disk *parked-' || true" = 0
check "systemctl stop" systemctl stop sparsekvd.service

echo "$failed failed"
[ $failed = 0 ]
exit
