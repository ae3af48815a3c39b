# SPDX-License-Identifier: Apache-2.0
# The core: pure state, no sockets, no logging.
noinst_LTLIBRARIES += daemon/core/libskvcore.la
daemon_core_libskvcore_la_SOURCES = \
	daemon/core/core.c daemon/core/core.h daemon/core/core-priv.h daemon/core/accounts.c daemon/core/accounts.h \
	daemon/core/age.c daemon/core/age.h daemon/core/block-index.c daemon/core/block-index.h \
	daemon/core/balance.c daemon/core/balance.h daemon/core/clients.c daemon/core/leases.c daemon/core/leases.h daemon/core/lifecycle.c \
	daemon/core/lookup.c daemon/core/lookup.h daemon/core/names.c daemon/core/names.h daemon/core/park-queue.c daemon/core/park-queue.h daemon/core/parking.c daemon/core/parking.h daemon/core/pages.c daemon/core/pages.h daemon/core/pending.c daemon/core/pins.c daemon/core/pins.h \
	daemon/core/pending.h daemon/core/pools.c daemon/core/pools.h daemon/core/detach.c daemon/core/detach.h daemon/core/fdstore.c daemon/core/fdstore.h daemon/core/resume.c daemon/core/resume.h \
	daemon/core/fork.c daemon/core/fork.h daemon/core/idle.c daemon/core/idle.h daemon/core/joint.c daemon/core/joint.h daemon/core/prefix.c daemon/core/prefix.h daemon/core/prefixes.c daemon/core/prefixes.h \
	daemon/core/reclaim.c daemon/core/reclaim.h daemon/core/reconnect.c daemon/core/reconnect.h daemon/core/refs.c daemon/core/refs.h daemon/core/refuse.c \
	daemon/core/refuse.h daemon/core/segments.c daemon/core/segments.h daemon/core/announce.c daemon/core/announce.h \
	daemon/core/bitset.c daemon/core/bitset.h daemon/core/charge.c daemon/core/measure.c daemon/core/charge.h daemon/core/segment-sets.c daemon/core/segment-sets.h daemon/core/seqfile.c daemon/core/seqfile.h \
	daemon/core/sequences.c daemon/core/sequences.h daemon/core/sessions.c daemon/core/sessions.h daemon/core/state.c \
	daemon/core/state.h daemon/core/units.h daemon/core/undo.c daemon/core/undo.h daemon/core/validate.c daemon/core/validate.h daemon/core/verify.c daemon/core/verify.h daemon/core/verify-sparse.c daemon/core/views.c daemon/core/task.c \
	daemon/core/task.h
