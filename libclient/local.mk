# SPDX-License-Identifier: Apache-2.0
# libsparsekv-client: what an engine links. Only names of the public headers leave it.
lib_LTLIBRARIES += libclient/libsparsekv-client.la
libclient_libsparsekv_client_la_SOURCES = \
	libclient/codec.h libclient/device.h libclient/internal.h libclient/packing.h libclient/step.h \
	libclient/attend.c libclient/codec.c libclient/coded.c libclient/conn.c libclient/connect.c libclient/device.c libclient/error.c \
	libclient/keep.c libclient/layout.c libclient/looked.c libclient/packed.c libclient/packing.c libclient/packs.c libclient/prompt.c \
	libclient/pages.c \
	libclient/policy.c libclient/pool.c libclient/prims.c libclient/recall.c libclient/replay.c libclient/seq.c \
	libclient/session.c libclient/slots.c libclient/step.c libclient/stock.c
libclient_libsparsekv_client_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
libclient_libsparsekv_client_la_LDFLAGS = $(AM_LDFLAGS) $(OPENMP_CFLAGS) -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(srcdir)/libclient/sparsekv-client.map
libclient_libsparsekv_client_la_LIBADD = kernels/libskvkernels.la formats/libskvformats.la common/libskvcommon.la -lpthread -ldl -lm
EXTRA_libclient_libsparsekv_client_la_DEPENDENCIES = libclient/sparsekv-client.map
EXTRA_DIST += libclient/sparsekv-client.map

sparsekvincludedir = $(includedir)/sparsekv
sparsekvinclude_HEADERS = \
	libclient/include/sparsekv/client.h \
	libclient/include/sparsekv/policy.h \
	libclient/include/sparsekv/policy-compress.h \
	libclient/include/sparsekv/policy-evict.h \
	libclient/include/sparsekv/policy-prefill.h \
	libclient/include/sparsekv/policy-select.h \
	libclient/include/sparsekv/types.h

pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = libclient/sparsekv-client.pc
