# SPDX-License-Identifier: Apache-2.0
# libsparsekv-client, which an engine links. It exports only names of the public headers.
lib_LTLIBRARIES += libclient/libsparsekv-client.la
libclient_libsparsekv_client_la_SOURCES = \
	libclient/error.c libclient/error.h libclient/feature.h libclient/features.c libclient/policy.h \
	libclient/seq.h libclient/session.h libclient/struct-size.c libclient/struct-size.h libclient/step.h \
	libclient/conn/conn.c libclient/conn/conn.h libclient/conn/connect.c libclient/conn/connect.h \
	libclient/conn/fence.c libclient/conn/fence.h libclient/conn/owned.c libclient/conn/owned.h \
	libclient/conn/pool.c libclient/conn/pool.h libclient/conn/reconnect.c libclient/conn/reconnect.h \
	libclient/conn/request.c libclient/conn/request.h \
	libclient/device/closed.c libclient/device/device.c libclient/device/device.h libclient/device/scratch.c libclient/device/scratch.h \
	libclient/device/slab.c libclient/device/slab.h libclient/device/steps.c libclient/device/steps.h \
	libclient/device/tables.c libclient/device/tables.h \
	libclient/pages/copy-on-write.c libclient/pages/pages.c libclient/pages/pages.h libclient/pages/seq-table.c \
	libclient/pages/seq-table.h libclient/pages/stock.c libclient/pages/stock.h \
	libclient/ranks/exchange.c libclient/ranks/exchange.h libclient/ranks/joint.c libclient/ranks/joint.h \
	libclient/ranks/ranks.c libclient/ranks/ranks.h \
	libclient/layer/attn.c libclient/layer/attn.h libclient/layer/fp8.c libclient/layer/fp8.h \
	libclient/layer/hooks.c libclient/layer/hooks.h libclient/layer/layer.c libclient/layer/layer.h \
	libclient/layer/recall.c libclient/layer/recall.h libclient/layer/selection.c libclient/layer/selection.h \
	libclient/compress/attend.c libclient/compress/attend.h libclient/compress/codec.c \
	libclient/compress/codec.h libclient/compress/compressor.c libclient/compress/compressor.h \
	libclient/compress/encode.c libclient/compress/encode.h libclient/compress/compressed-lengths.c \
	libclient/compress/compressed-lengths.h libclient/compress/schedule.c libclient/compress/schedule.h \
	libclient/evict/schedule.c libclient/evict/schedule.h libclient/evict/slot-mapping.c \
	libclient/evict/slot-mapping.h \
	libclient/prefill/attend.c libclient/prefill/attend.h libclient/prefill/schedule.c \
	libclient/prefill/schedule.h \
	libclient/step/attend.c libclient/step/items.c libclient/step/items.h libclient/step/layout.c \
	libclient/step/layout.h libclient/step/lifecycle.c libclient/step/maintenance.c \
	libclient/step/maintenance.h libclient/step/replay.c libclient/step/replay.h libclient/step/padding.c \
	libclient/step/padding.h \
	libclient/step/selection-info.c libclient/step/stats.c libclient/step/stats.h libclient/step/transaction.c \
	libclient/step/transaction.h libclient/step/workspace.c libclient/step/workspace.h \
	libclient/session/adopt.c libclient/session/adopt.h libclient/session/client-lifecycle.c \
	libclient/session/identity.c libclient/session/lifecycle.c libclient/session/lifecycle.h \
	libclient/session/model.c libclient/session/model.h libclient/session/policy-config.c \
	libclient/session/policy-config.h libclient/session/policy-swap.c libclient/session/seal.c \
	libclient/session/seal.h libclient/session/seq-lifecycle.c libclient/session/seq-lifecycle.h \
	libclient/session/truncate.c libclient/session/truncate.h
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
