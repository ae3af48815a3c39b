# SPDX-License-Identifier: Apache-2.0
# The prefix store: its client for Redis and Valkey, and the disk worker's jobs that write and read values there.
noinst_LTLIBRARIES += daemon/store/libskvstore.la daemon/store/libskvstoreconfig.la
daemon_store_libskvstoreconfig_la_SOURCES = daemon/store/config.c daemon/store/config.h \
	daemon/store/nixl-library.c daemon/store/nixl-library.h daemon/store/text.c daemon/store/text.h
daemon_store_libskvstoreconfig_la_CFLAGS = $(AM_CFLAGS) $(LIBCRYPTO_CFLAGS)
SKV_STORE_SOURCES = \
	daemon/store/call.c daemon/store/call.h daemon/store/client.c daemon/store/client.h daemon/store/cluster.c daemon/store/cluster.h \
	daemon/store/conn.c daemon/store/conn.h \
	daemon/store/export.c daemon/store/export.h daemon/store/get.c daemon/store/import.c daemon/store/import.h \
	daemon/store/nixl.c daemon/store/nixl.h daemon/store/part.c daemon/store/part.h daemon/store/put.c daemon/store/record.c daemon/store/record.h daemon/store/replies.c daemon/store/replies.h \
	daemon/store/resolve.c daemon/store/resolve.h daemon/store/sealed.c daemon/store/sealed.h daemon/store/tls.c daemon/store/tls.h \
	daemon/store/transport.c daemon/store/transport.h daemon/store/values.c daemon/store/values.h \
	daemon/store/values-priv.h daemon/store/window.c daemon/store/window.h
daemon_store_libskvstore_la_SOURCES = $(SKV_STORE_SOURCES)
daemon_store_libskvstore_la_CFLAGS = $(AM_CFLAGS) $(HIREDIS_CFLAGS) $(OPENSSL_CFLAGS)
daemon_store_libskvstore_la_LIBADD = common/libskvcommon.la $(HIREDIS_LIBS) $(OPENSSL_LIBS) -ldl
