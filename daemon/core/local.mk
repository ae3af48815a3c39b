# SPDX-License-Identifier: Apache-2.0
# The core: pure state, no sockets, no logging.
noinst_LTLIBRARIES += daemon/core/libskvcore.la
daemon_core_libskvcore_la_SOURCES = \
	daemon/core/core.h daemon/core/core-priv.h daemon/core/state.h daemon/core/seqfile.h \
	daemon/core/core.c daemon/core/state.c daemon/core/accounts.c daemon/core/clients.c daemon/core/lookup.c daemon/core/pages.c daemon/core/pools.c \
	daemon/core/segments.c daemon/core/pending.c daemon/core/leases.c daemon/core/refs.c daemon/core/validate.c \
	daemon/core/seqfile.c daemon/core/sequences.c daemon/core/sessions.c daemon/core/views.c \
	daemon/core/balance.c
