# SPDX-License-Identifier: Apache-2.0
# The operator's tool. Its side of the protocol is a library of its own, which tests use too.
noinst_LTLIBRARIES += daemon/ctl/libskvctl.la
daemon_ctl_libskvctl_la_SOURCES = daemon/ctl/conn.c daemon/ctl/conn.h
daemon_ctl_libskvctl_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
daemon_ctl_libskvctl_la_LIBADD = common/libskvcommon.la $(JANSSON_LIBS)

bin_PROGRAMS += daemon/ctl/sparsekvctl
daemon_ctl_sparsekvctl_SOURCES = daemon/ctl/main.c daemon/ctl/ctl.h daemon/ctl/answer.c daemon/ctl/show.c \
	daemon/ctl/act.c daemon/ctl/top.c daemon/ctl/metrics.c daemon/ctl/park.c daemon/ctl/text-table.c daemon/ctl/text-table.h daemon/ctl/policy-verify.c
daemon_ctl_sparsekvctl_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
daemon_ctl_sparsekvctl_LDADD = daemon/ctl/libskvctl.la tests/oracle/libskvoracle.la tests/ref/libskvref.la libclient/libsparsekv-client.la -lm
