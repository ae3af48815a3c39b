# SPDX-License-Identifier: Apache-2.0
# The host kernels: the same sources once per ISA, each with its own flags and names, and a dispatcher.
# Only the objects of an ISA's library may contain its instructions.
noinst_LTLIBRARIES += kernels/libskvkernels.la kernels/libskvkernels-generic.la
KERNEL_SOURCES = \
	kernels/kernels.h kernels/host/host.h kernels/host/simd.h kernels/host/tile.h kernels/host/decode.h \
	kernels/host/append.c kernels/host/decode.c kernels/host/evidence.c kernels/host/prefill.c \
	kernels/host/select.c kernels/host/table.c kernels/host/topk.c

kernels_libskvkernels_generic_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_generic_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=generic
kernels_libskvkernels_generic_la_CFLAGS = $(AM_CFLAGS)

kernels_libskvkernels_la_SOURCES = kernels/kernels.h kernels/host/host.h kernels/host/dispatch.c kernels/host/run.c
kernels_libskvkernels_la_CPPFLAGS = $(AM_CPPFLAGS)
kernels_libskvkernels_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
kernels_libskvkernels_la_LDFLAGS = $(AM_LDFLAGS) $(OPENMP_CFLAGS)
kernels_libskvkernels_la_LIBADD = kernels/libskvkernels-generic.la -lm

if X86_64
noinst_LTLIBRARIES += kernels/libskvkernels-avx2.la kernels/libskvkernels-avx512.la
SKV_AVX2_FLAGS = -mavx2 -mfma -mf16c
SKV_AVX512_FLAGS = $(SKV_AVX2_FLAGS) -mavx512f -mavx512bw -mavx512dq -mavx512vl

kernels_libskvkernels_avx2_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_avx2_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=avx2 -DSKV_AVX2
kernels_libskvkernels_avx2_la_CFLAGS = $(AM_CFLAGS) $(SKV_AVX2_FLAGS)

kernels_libskvkernels_avx512_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_avx512_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=avx512 -DSKV_AVX512
kernels_libskvkernels_avx512_la_CFLAGS = $(AM_CFLAGS) $(SKV_AVX512_FLAGS)

kernels_libskvkernels_la_CPPFLAGS += -DSKV_X86_64
kernels_libskvkernels_la_LIBADD += kernels/libskvkernels-avx2.la kernels/libskvkernels-avx512.la
endif
