# SPDX-License-Identifier: Apache-2.0
# The prefix store: its client for Redis and Valkey, and the disk worker's jobs that write and read values there.
noinst_LTLIBRARIES += daemon/store/libskvstore.la daemon/store/libskvstoreconfig.la
daemon_store_libskvstoreconfig_la_SOURCES = daemon/store/config.c daemon/store/config.h \
	daemon/store/nixl-library.c daemon/store/nixl-library.h daemon/store/error-text.c daemon/store/error-text.h
daemon_store_libskvstoreconfig_la_CFLAGS = $(AM_CFLAGS) $(LIBCRYPTO_CFLAGS)
SKV_STORE_SOURCES = \
	daemon/store/block-part.c daemon/store/block-part.h daemon/store/client.c daemon/store/client.h \
	daemon/store/cluster.c daemon/store/cluster.h daemon/store/conn.c daemon/store/conn.h \
	daemon/store/export.c daemon/store/export.h daemon/store/get.c daemon/store/import.c daemon/store/import.h \
	daemon/store/multi-key.c daemon/store/multi-key.h daemon/store/nixl.c daemon/store/nixl.h daemon/store/put.c \
	daemon/store/record.c daemon/store/record.h daemon/store/resolve.c daemon/store/resolve.h \
	daemon/store/resp-replies.c daemon/store/resp-replies.h daemon/store/sealed-value.c daemon/store/sealed-value.h \
	daemon/store/tls.c daemon/store/tls.h daemon/store/transfer-ring.c daemon/store/transfer-ring.h \
	daemon/store/socket.c daemon/store/socket.h daemon/store/values.c daemon/store/values.h \
	daemon/store/values-priv.h
daemon_store_libskvstore_la_SOURCES = $(SKV_STORE_SOURCES)
daemon_store_libskvstore_la_CFLAGS = $(AM_CFLAGS) $(HIREDIS_CFLAGS) $(OPENSSL_CFLAGS)
daemon_store_libskvstore_la_LIBADD = common/libskvcommon.la $(HIREDIS_LIBS) $(OPENSSL_LIBS) -ldl
