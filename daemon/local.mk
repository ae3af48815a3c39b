# SPDX-License-Identifier: Apache-2.0
include daemon/core/local.mk
include daemon/mem/local.mk
include daemon/disk/local.mk
include daemon/store/local.mk
include daemon/ctl/local.mk

# All of the daemon except main(): linked by sparsekvd and by tests that run a daemon of their own.
noinst_LTLIBRARIES += daemon/libskvdaemon.la
daemon_libskvdaemon_la_SOURCES = \
	daemon/request.c daemon/request.h daemon/server.c daemon/tick.c daemon/tick.h \
	daemon/sys/cgroup.c daemon/sys/cgroup.h daemon/sys/child.c daemon/sys/child.h daemon/sys/config.c \
	daemon/sys/config.h daemon/sys/counts.c daemon/sys/counts.h daemon/sys/json.c daemon/sys/json.h \
	daemon/sys/log.c daemon/sys/log.h daemon/sys/sd.c daemon/sys/sd.h daemon/sys/socket.c daemon/sys/socket.h \
	daemon/loop/loop.c daemon/loop/loop.h daemon/loop/meter.c daemon/loop/meter.h \
	daemon/ipc/conn.c daemon/ipc/conn.h daemon/ipc/ipc-priv.h daemon/ipc/ipc.c daemon/ipc/peer.c \
	daemon/ipc/peer.h daemon/ipc/rights.c daemon/ipc/rights.h daemon/ipc/send.c daemon/ipc/user.c \
	daemon/plugin/probe.c daemon/plugin/probe.h daemon/plugin/registry.c daemon/plugin/registry.h \
	daemon/plugin/scan.c daemon/plugin/scan.h \
	daemon/worker/worker.c daemon/worker/worker.h \
	daemon/jobs/ask.c daemon/jobs/ask.h daemon/jobs/jobs.c daemon/jobs/jobs.h daemon/jobs/memory.c \
	daemon/jobs/memory.h \
	daemon/server/device.c daemon/server/device.h daemon/server/hostmem.c daemon/server/hostmem.h \
	daemon/server/server-priv.h daemon/server/server.h \
	daemon/requests/deferred.c daemon/requests/deferred.h daemon/requests/fence.c daemon/requests/fence.h \
	daemon/requests/lease.c daemon/requests/lease.h daemon/requests/policy.c daemon/requests/policy.h \
	daemon/requests/query.c daemon/requests/query.h daemon/requests/reply.c daemon/requests/reply.h \
	daemon/requests/report.c daemon/requests/report.h daemon/requests/tasks.c daemon/requests/tasks.h \
	daemon/parked/export.c daemon/parked/import.c daemon/parked/park.c daemon/parked/parked-files.c \
	daemon/parked/parked-prefixes.c daemon/parked/parking-priv.h daemon/parked/parking-report.c \
	daemon/parked/parking-request.c daemon/parked/parking.c daemon/parked/parking.h daemon/parked/postpone.c \
	daemon/parked/rescan.c daemon/parked/restore.c \
	daemon/prefix/prefix-keys.c daemon/prefix/prefix-keys.h daemon/prefix/prefix-priv.h \
	daemon/prefix/prefix-report.c daemon/prefix/prefix.c daemon/prefix/prefix.h daemon/prefix/store-transfer.c \
	daemon/restart/guardian.c daemon/restart/guardian.h daemon/restart/keeper-store.c \
	daemon/restart/keeper-store.h daemon/restart/keeper.c daemon/restart/keeper.h daemon/restart/previous.c \
	daemon/restart/previous.h
daemon_libskvdaemon_la_CFLAGS = $(AM_CFLAGS) $(LIBURING_CFLAGS) $(LIBSYSTEMD_CFLAGS) $(JANSSON_CFLAGS) $(LIBCRYPTO_CFLAGS)
daemon_libskvdaemon_la_LIBADD = daemon/core/libskvcore.la daemon/disk/libskvparked.la daemon/store/libskvstoreconfig.la daemon/mem/libskvmem.la common/libskvcommon.la \
	$(LIBURING_LIBS) $(LIBSYSTEMD_LIBS) $(JANSSON_LIBS) $(LIBCRYPTO_LIBS) -lm -ldl

sbin_PROGRAMS += daemon/sparsekvd
daemon_sparsekvd_SOURCES = daemon/main.c
daemon_sparsekvd_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
daemon_sparsekvd_LDADD = daemon/libskvdaemon.la

# The daemon's worker processes: files of parked sequences, the prefix store, memory of CUDA devices.
pkglibexec_PROGRAMS += daemon/sparsekv-worker
daemon_sparsekv_worker_SOURCES = daemon/worker-main.c
WORKER_LIBS = daemon/disk/libskvdisk.la daemon/store/libskvstore.la daemon/disk/libskvparked.la daemon/store/libskvstoreconfig.la daemon/mem/libskvmem.la
daemon_sparsekv_worker_LDADD = $(WORKER_LIBS) common/libskvcommon.la

# Loads and checks a policy file. It links only what it needs: the dynamic linker would take longer than the check.
pkglibexec_PROGRAMS += daemon/sparsekv-probe
daemon_sparsekv_probe_SOURCES = daemon/plugin/probe-main.c daemon/plugin/probe.h daemon/plugin/sandbox.c daemon/plugin/sandbox.h \
	daemon/sys/json.c daemon/sys/json.h
daemon_sparsekv_probe_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(LIBSECCOMP_CFLAGS)
daemon_sparsekv_probe_LDADD = common/libskvcommon.la $(JANSSON_LIBS) $(LIBSECCOMP_LIBS) -ldl
