# SPDX-License-Identifier: Apache-2.0
# libsparsekv-client, which an engine links. It exports only names of the public headers.
lib_LTLIBRARIES += libclient/libsparsekv-client.la
libclient_libsparsekv_client_la_SOURCES = \
	libclient/adopt.c libclient/adopt.h libclient/attend.c libclient/attend.h libclient/workspace.c libclient/workspace.h libclient/feature.h libclient/features.c libclient/client-lifecycle.c \
	libclient/conn.c libclient/conn.h libclient/dial.c libclient/dial.h libclient/held.c libclient/held.h libclient/reconnect.c libclient/reconnect.h libclient/request.c libclient/request.h libclient/copy-on-write.c libclient/device-slab.c libclient/device-slab.h libclient/device-step.c libclient/device-step.h libclient/device-tables.c \
	libclient/device-tables.h libclient/device.c libclient/device.h libclient/error.c libclient/error.h libclient/fence.c libclient/fence.h libclient/fp8.c libclient/fp8.h libclient/hooks.c libclient/joint.c libclient/joint.h \
	libclient/hooks.h libclient/identity.c libclient/layer.c libclient/layer.h libclient/layout.c libclient/layout.h libclient/maintenance.c \
	libclient/maintenance.h libclient/model.c libclient/model.h libclient/pages.c libclient/pages.h libclient/plugin.c libclient/plugin.h \
	libclient/policy-config.c libclient/policy-config.h libclient/policy-swap.c libclient/policy-swap.h \
	libclient/policy.h libclient/prims.c libclient/prims.h libclient/ranks.c libclient/ranks.h libclient/recall.c libclient/recall.h libclient/replay.c \
	libclient/replay.h libclient/attn.c libclient/attn.h libclient/items.c libclient/items.h libclient/scratch.c libclient/scratch.h libclient/selection-info.c libclient/selection.c \
	libclient/selection.h libclient/seal.c libclient/seal.h libclient/seq-lifecycle.c libclient/seq-lifecycle.h libclient/seq-table.c libclient/seq-table.h \
	libclient/seq.h libclient/session-lifecycle.c libclient/session-lifecycle.h libclient/session.h libclient/sized.c libclient/sized.h libclient/stats.c \
	libclient/stats.h libclient/steady.c libclient/steady.h libclient/step-lifecycle.c libclient/step.h libclient/transaction.c \
	libclient/transaction.h libclient/truncate.c libclient/truncate.h libclient/compress/attend.c libclient/compress/attend.h libclient/compress/codec.c \
	libclient/compress/codec.h libclient/compress/compressor-device.c libclient/compress/compressor-make.c \
	libclient/compress/compressor.h libclient/compress/encode.c libclient/compress/encode.h libclient/compress/exchange.c libclient/compress/exchange.h libclient/compress/lengths.c \
	libclient/compress/lengths.h libclient/compress/ready.c  libclient/compress/schedule.c \
	libclient/compress/schedule.h libclient/evict/schedule.c libclient/evict/schedule.h libclient/evict/slot-mapping.c \
	libclient/evict/slot-mapping.h libclient/lease/pool.c libclient/lease/pool.h libclient/lease/stock.c \
	libclient/lease/stock.h libclient/prefill/attend.c libclient/prefill/attend.h libclient/prefill/schedule.c \
	libclient/prefill/schedule.h
libclient_libsparsekv_client_la_CFLAGS = $(AM_CFLAGS) $(XXHASH_CFLAGS)
# nodelete: the library's own threads wait in its code
libclient_libsparsekv_client_la_LDFLAGS = $(AM_LDFLAGS) -Wl,-z,nodelete -version-info 0:0:0 -no-undefined \
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
