# SPDX-License-Identifier: Apache-2.0
# The core: pure state, no sockets, no logging.
noinst_LTLIBRARIES += daemon/core/libskvcore.la
daemon_core_libskvcore_la_SOURCES = daemon/core/core.h \
	daemon/core/state/bitset.c daemon/core/state/bitset.h daemon/core/state/block-index.c \
	daemon/core/state/block-index.h daemon/core/state/core-priv.h daemon/core/state/fdstore.c \
	daemon/core/state/fdstore.h daemon/core/state/lookup.c daemon/core/state/lookup.h daemon/core/state/refuse.c \
	daemon/core/state/refuse.h daemon/core/state/state.c daemon/core/state/state.h daemon/core/state/undo.c \
	daemon/core/state/undo.h daemon/core/state/units.h \
	daemon/core/memory/accounts.c daemon/core/memory/accounts.h daemon/core/memory/announce.c \
	daemon/core/memory/announce.h daemon/core/memory/charge.c daemon/core/memory/charge.h \
	daemon/core/memory/measure.c daemon/core/memory/memory.h daemon/core/memory/pages.c \
	daemon/core/memory/pages.h daemon/core/memory/pending.c daemon/core/memory/pending.h \
	daemon/core/memory/pins.c daemon/core/memory/pins.h daemon/core/memory/pools.c daemon/core/memory/pools.h \
	daemon/core/memory/refs.c daemon/core/memory/refs.h daemon/core/memory/segment-sets.c \
	daemon/core/memory/segment-sets.h daemon/core/memory/segments.c daemon/core/memory/segments.h \
	daemon/core/sequences/idle.c daemon/core/sequences/idle.h daemon/core/sequences/names.c \
	daemon/core/sequences/names.h daemon/core/sequences/park-queue.c daemon/core/sequences/park-queue.h \
	daemon/core/sequences/prefixes.c daemon/core/sequences/prefixes.h daemon/core/sequences/sequence-file.c \
	daemon/core/sequences/sequence-file.h daemon/core/sequences/sequences.c daemon/core/sequences/sequences.h \
	daemon/core/sequences/validate.c daemon/core/sequences/validate.h \
	daemon/core/operations/age.c daemon/core/operations/age.h daemon/core/operations/clients.c daemon/core/operations/clients.h \
	daemon/core/operations/detach.c daemon/core/operations/detach.h daemon/core/operations/fork.c daemon/core/operations/fork.h \
	daemon/core/operations/joint.c daemon/core/operations/joint.h daemon/core/operations/leases.c daemon/core/operations/leases.h \
	daemon/core/operations/parking.c daemon/core/operations/parking.h daemon/core/operations/policies.h daemon/core/operations/prefix.c \
	daemon/core/operations/prefix.h daemon/core/operations/reclaim.c daemon/core/operations/reclaim.h daemon/core/operations/reconnect.c \
	daemon/core/operations/reconnect.h daemon/core/operations/requests.c daemon/core/operations/requests.h \
	daemon/core/operations/sessions.c daemon/core/operations/sessions.h daemon/core/operations/task.c daemon/core/operations/task.h \
	daemon/core/operations/turns.h daemon/core/operations/views.c daemon/core/operations/views.h \
	daemon/core/restart/balance.c daemon/core/restart/balance.h daemon/core/restart/life.c \
	daemon/core/restart/life.h daemon/core/restart/resume.c daemon/core/restart/resume.h \
	daemon/core/restart/verify-sparse.c daemon/core/restart/verify.c daemon/core/restart/verify.h
