# SPDX-License-Identifier: Apache-2.0
include daemon/core/local.mk
include daemon/mem/local.mk
include daemon/disk/local.mk
include daemon/store/local.mk
include daemon/ctl/local.mk

# All of the daemon except main(): linked by sparsekvd and by tests that run a daemon of their own.
noinst_LTLIBRARIES += daemon/libskvdaemon.la
daemon_libskvdaemon_la_SOURCES = \
	daemon/server.h daemon/server-priv.h daemon/server.c daemon/request.c daemon/request.h daemon/policy.c daemon/policy.h \
	daemon/deferred.c daemon/deferred.h daemon/device.c daemon/device.h daemon/export.c daemon/fence.c daemon/fence.h daemon/handover.c daemon/handover.h daemon/hostmem.c daemon/hostmem.h \
	daemon/keeper.c daemon/keeper.h daemon/stored.c daemon/stored.h daemon/lease.c daemon/lease.h daemon/import.c daemon/look.c daemon/park.c daemon/parked-files.c daemon/parking.c daemon/parking.h daemon/parking-priv.h daemon/parking-report.c daemon/parking-request.c daemon/restore.c \
	daemon/disk/files.c daemon/disk/files.h daemon/past.c daemon/past.h daemon/put-off.c daemon/query.c daemon/query.h daemon/reply.c daemon/reply.h daemon/report.c daemon/report.h \
	daemon/tick.c daemon/tick.h daemon/turns.c daemon/turns.h daemon/fetch.c daemon/prefix.c daemon/prefix.h daemon/prefix-keys.c daemon/prefix-keys.h daemon/prefix-priv.h daemon/prefix-report.c \
	daemon/worker/worker.c daemon/worker/worker.h \
	daemon/loop/loop.c daemon/loop/loop.h daemon/loop/meter.c daemon/loop/meter.h \
	daemon/ipc/ipc.c daemon/ipc/conn.c daemon/ipc/conn.h daemon/ipc/ipc-priv.h daemon/ipc/peer.c daemon/ipc/peer.h daemon/ipc/rights.c daemon/ipc/rights.h daemon/ipc/send.c daemon/ipc/user.c \
	daemon/plugin/probe.c daemon/plugin/probe.h \
	daemon/plugin/registry.c daemon/plugin/registry.h daemon/plugin/scan.c daemon/plugin/scan.h \
	daemon/sys/cgroup.c daemon/sys/cgroup.h daemon/sys/child.c daemon/sys/child.h daemon/sys/config.c daemon/sys/config.h daemon/sys/counts.c daemon/sys/counts.h daemon/sys/json.c daemon/sys/json.h daemon/sys/log.c daemon/sys/log.h daemon/sys/clock.h \
	daemon/sys/sd.c daemon/sys/sd.h daemon/sys/socket.c daemon/sys/socket.h
daemon_libskvdaemon_la_CFLAGS = $(AM_CFLAGS) $(LIBURING_CFLAGS) $(LIBSYSTEMD_CFLAGS) $(JANSSON_CFLAGS) $(OPENSSL_CFLAGS)
daemon_libskvdaemon_la_LIBADD = daemon/core/libskvcore.la daemon/disk/libskvdisk.la daemon/store/libskvstore.la daemon/mem/libskvmem.la common/libskvcommon.la \
	$(LIBURING_LIBS) $(LIBSYSTEMD_LIBS) $(JANSSON_LIBS) $(OPENSSL_LIBS) -lm -ldl

sbin_PROGRAMS += daemon/sparsekvd
daemon_sparsekvd_SOURCES = daemon/main.c
daemon_sparsekvd_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
daemon_sparsekvd_LDADD = daemon/libskvdaemon.la

# Loads and checks a policy file. It links only what it needs: the dynamic linker would take longer than the check.
pkglibexec_PROGRAMS += daemon/sparsekv-probe
daemon_sparsekv_probe_SOURCES = daemon/plugin/probe-main.c daemon/plugin/probe.h daemon/plugin/sandbox.c daemon/plugin/sandbox.h \
	daemon/sys/json.c daemon/sys/json.h
daemon_sparsekv_probe_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(LIBSECCOMP_CFLAGS)
daemon_sparsekv_probe_LDADD = common/libskvcommon.la $(JANSSON_LIBS) $(LIBSECCOMP_LIBS) -ldl
