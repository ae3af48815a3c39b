# SPDX-License-Identifier: Apache-2.0
# The host kernels: the same sources once per ISA, each with its own flags and names, and a dispatcher.
# Only the objects of an ISA's library may contain its instructions.
noinst_LTLIBRARIES += kernels/libskvkernels.la kernels/libskvkernels-generic.la
KERNEL_SOURCES = \
	kernels/codes.h kernels/kernels.h kernels/sparse.h kernels/host/attend.h kernels/host/block.h kernels/host/choice.h kernels/host/decode.h \
	kernels/host/few.h kernels/host/gemm.h kernels/host/host.h kernels/host/low.h kernels/host/notes.h \
	kernels/host/records.h kernels/host/simd.h kernels/host/tile.h kernels/host/tiles.h kernels/host/weigh.h \
	kernels/host/allot.c kernels/host/append.c kernels/host/best.c kernels/host/bounds.c kernels/host/decode.c kernels/host/evidence.c \
	kernels/host/keep.c kernels/host/lines.c kernels/host/low.c kernels/host/pack.c kernels/host/prefill.c kernels/host/rank.c \
	kernels/host/rebuild.c kernels/host/recall.c kernels/host/select.c kernels/host/slots.c kernels/host/sparse.c \
	kernels/host/stages.c kernels/host/table.c kernels/host/topk.c kernels/host/vote.c

kernels_libskvkernels_generic_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_generic_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=generic
kernels_libskvkernels_generic_la_CFLAGS = $(AM_CFLAGS)

kernels_libskvkernels_la_SOURCES = kernels/codes-check.h kernels/codes.h kernels/kernels.h kernels/sparse.h kernels/device.h kernels/device.c \
	kernels/host/host.h kernels/host/dispatch.c kernels/host/run.c
kernels_libskvkernels_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_CUDA_MODULE='"$(pkglibdir)/libsparsekv-cuda.so"'
kernels_libskvkernels_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
kernels_libskvkernels_la_LDFLAGS = $(AM_LDFLAGS) $(OPENMP_CFLAGS)
kernels_libskvkernels_la_LIBADD = kernels/libskvkernels-generic.la -lm -ldl -lpthread

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

# The CUDA backend: a module that is loaded where a device is wanted, so nothing links it (cuda.mk).
CUDA_KERNEL_CODE = kernels/cuda/allot.cu kernels/cuda/append.cu kernels/cuda/bounds.cu \
	kernels/cuda/decode.cu kernels/cuda/decode-codes.cu kernels/cuda/decode-low.cu kernels/cuda/device.cu \
	kernels/cuda/encode.cu kernels/cuda/keep.cu kernels/cuda/kept.cu kernels/cuda/lines.cu kernels/cuda/low.cu \
	kernels/cuda/merge.cu kernels/cuda/pack.cu kernels/cuda/place.cu kernels/cuda/prefill.cu \
	kernels/cuda/prefill-wide.cu kernels/cuda/rank.cu kernels/cuda/read.cu kernels/cuda/rebuild.cu \
	kernels/cuda/recall.cu kernels/cuda/search.cu kernels/cuda/select.cu kernels/cuda/share.cu \
	kernels/cuda/stages.cu kernels/cuda/stamp.cu kernels/cuda/step.cu kernels/cuda/table.cu \
	kernels/cuda/tiles.cu kernels/cuda/union.cu kernels/cuda/votes.cu
CUDA_KERNEL_SEEN = kernels/cuda/barrier.cuh kernels/cuda/chosen.cuh kernels/cuda/codes.cuh \
	kernels/cuda/convert.cuh kernels/cuda/cuda.h kernels/cuda/decode.cuh kernels/cuda/decode-codes.cuh \
	kernels/cuda/decode-codes-ahead.cuh kernels/cuda/decode-codes-tile.cuh kernels/cuda/decode-kernel.cuh \
	kernels/cuda/decode-tile.cuh kernels/cuda/low.cuh kernels/cuda/rebuild.cuh kernels/cuda/evidence.cuh \
	kernels/cuda/gemm.cuh kernels/cuda/notes.cuh kernels/cuda/nth.cuh kernels/cuda/pack.cuh \
	kernels/cuda/prefill.h kernels/cuda/prompt.cuh kernels/cuda/prompt-out.cuh kernels/cuda/wgmma.cuh \
	kernels/cuda/wide.cuh kernels/cuda/rows.cuh kernels/cuda/select.cuh kernels/cuda/shared.cuh \
	kernels/cuda/slots.cuh kernels/cuda/softmax.cuh kernels/cuda/strided.cuh kernels/cuda/module.h \
	kernels/cuda/read.h kernels/codes-check.h kernels/codes.h kernels/device.h kernels/kernels.h kernels/sparse.h \
	libclient/include/sparsekv/policy.h libclient/include/sparsekv/types.h
EXTRA_DIST += $(CUDA_KERNEL_CODE) $(CUDA_KERNEL_SEEN) kernels/cuda/module.map

if CUDA
cudamodule_DATA += kernels/cuda/libsparsekv-cuda.so
CUDA_KERNEL_OBJECTS = $(CUDA_KERNEL_CODE:.cu=.o)
CUDA_OBJECTS += $(CUDA_KERNEL_OBJECTS)
SKV_HOPPER_OBJECTS += kernels/cuda/prefill-wide.o
$(CUDA_KERNEL_OBJECTS): $(CUDA_KERNEL_SEEN)

kernels/cuda/libsparsekv-cuda.so: $(CUDA_KERNEL_OBJECTS) kernels/cuda/module.map
	$(SKV_CUDA_LINK)
endif
