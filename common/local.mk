# SPDX-License-Identifier: Apache-2.0
# Code that daemon and client share: messages, sequence memory, policy specs, descriptors.
noinst_LTLIBRARIES += common/libskvcommon.la
common_libskvcommon_la_SOURCES = \
	common/clock.h common/fd.c common/fd.h \
	common/plan.c common/plugin.c common/process.c common/process.h common/profile.c common/queue.c common/queue.h common/refuse.c common/refuse.h common/rehearse.c common/rope.c common/rope.h common/spec.c common/spec.h \
	common/sort.c common/sort.h common/records.h common/seqmem.c common/seqmem.h \
	common/wire.c common/wire.h common/wire-table.c common/wire-table.h
common_libskvcommon_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
common_libskvcommon_la_LIBADD = $(JANSSON_LIBS) -lm
