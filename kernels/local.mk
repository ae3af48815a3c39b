# SPDX-License-Identifier: Apache-2.0
# The host kernels: the same sources once per ISA, each with its own flags and names, and a dispatcher. Only the objects
# of an ISA's library may contain its instructions.
noinst_LTLIBRARIES += kernels/libskvkernels.la
KERNEL_INTERFACE = \
	kernels/batch.h \
	kernels/compress-check.h \
	kernels/compress.h \
	kernels/device.h \
	kernels/evict.h \
	kernels/kernels.h \
	kernels/prefill.h \
	kernels/select.h \
	kernels/threads.h
KERNEL_SOURCES = \
	$(KERNEL_INTERFACE) \
	kernels/host/compress/bits.h \
	kernels/host/compress/compress.c \
	kernels/host/compress/compress.h \
	kernels/host/compress/decompress.c \
	kernels/host/compress/nearest-refs.c \
	kernels/host/compress/nearest-refs.h \
	kernels/host/compress/quant.h \
	kernels/host/compress/quantize.c \
	kernels/host/compress/records.h \
	kernels/host/decode/decode.c \
	kernels/host/decode/sketches.c \
	kernels/host/decode/decode.h \
	kernels/host/decode/gather.h \
	kernels/host/decode/merge.c \
	kernels/host/decode/params.h \
	kernels/host/decode/scores.c \
	kernels/host/decode/tile.h \
	kernels/host/evict/accumulate.c \
	kernels/host/evict/evict.c \
	kernels/host/evict/evict.h \
	kernels/host/evict/head-budgets.c \
	kernels/host/evict/rank.c \
	kernels/host/evict/slot-meta.h \
	kernels/host/evict/slots.c \
	kernels/host/evict/touch-pages.c \
	kernels/host/prefill/attend.h \
	kernels/host/prefill/hip.c \
	kernels/host/prefill/kascade.c \
	kernels/host/prefill/minference.c \
	kernels/host/prefill/prefill.c \
	kernels/host/prefill/prefill.h \
	kernels/host/prefill/saved-queries.c \
	kernels/host/prefill/sparse.c \
	kernels/host/prefill/tiles.h \
	kernels/host/prefill/weights.h \
	kernels/host/runtime/append.c \
	kernels/host/runtime/append.h \
	kernels/host/runtime/block.h \
	kernels/host/runtime/fp8.h \
	kernels/host/runtime/gemm.h \
	kernels/host/runtime/host.h \
	kernels/host/runtime/logits.h \
	kernels/host/runtime/rows.c \
	kernels/host/runtime/rows.h \
	kernels/host/runtime/simd.h \
	kernels/host/runtime/table.c \
	kernels/host/select/page-bounds.c \
	kernels/host/select/recall.c \
	kernels/host/select/select.c \
	kernels/host/select/select.h \
	kernels/host/select/sketch-scores.c \
	kernels/host/select/sum-pages.c \
	kernels/host/select/sketch.c \
	kernels/host/select/sketch.h \
	kernels/host/select/topk-key.h \
	kernels/host/select/topk.c \
	kernels/host/select/union.c

kernels_libskvkernels_la_SOURCES = $(KERNEL_INTERFACE) kernels/device.c \
	kernels/host/runtime/host.h kernels/host/runtime/dispatch.c kernels/host/runtime/parallel.c
kernels_libskvkernels_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_CUDA_MODULE='"$(pkglibdir)/libsparsekv-cuda.so"'
kernels_libskvkernels_la_LIBADD =

if ISA_GENERIC
noinst_LTLIBRARIES += kernels/libskvkernels-generic.la
kernels_libskvkernels_generic_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_generic_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=generic
kernels_libskvkernels_generic_la_CFLAGS = $(AM_CFLAGS)
kernels_libskvkernels_la_LIBADD += kernels/libskvkernels-generic.la
endif

SKV_AVX2_FLAGS = -mavx2 -mfma -mf16c
if ISA_AVX2
noinst_LTLIBRARIES += kernels/libskvkernels-avx2.la
kernels_libskvkernels_avx2_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_avx2_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=avx2 -DSKV_AVX2
kernels_libskvkernels_avx2_la_CFLAGS = $(AM_CFLAGS) $(SKV_AVX2_FLAGS)
kernels_libskvkernels_la_LIBADD += kernels/libskvkernels-avx2.la
endif

if ISA_AVX512
noinst_LTLIBRARIES += kernels/libskvkernels-avx512.la
kernels_libskvkernels_avx512_la_SOURCES = $(KERNEL_SOURCES)
kernels_libskvkernels_avx512_la_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_ISA=avx512 -DSKV_AVX512
kernels_libskvkernels_avx512_la_CFLAGS = $(AM_CFLAGS) $(SKV_AVX2_FLAGS) -mavx512f -mavx512bw -mavx512dq -mavx512vl
kernels_libskvkernels_la_LIBADD += kernels/libskvkernels-avx512.la
endif
kernels_libskvkernels_la_LIBADD += -lm -ldl -lpthread

# clang 14 takes longer than ten minutes to optimize this one for both sanitizers.
if SANITIZER
kernels/host/select/libskvkernels_generic_la-sketch-scores.lo kernels/host/select/libskvkernels_avx2_la-sketch-scores.lo \
kernels/host/select/libskvkernels_avx512_la-sketch-scores.lo: CFLAGS += -O0
endif

# The CUDA backend: a module that is loaded if a device is wanted, so nothing links it (cuda.mk).
CUDA_KERNEL_CODE = kernels/cuda/evict/head-budgets.cu kernels/cuda/runtime/append.cu kernels/cuda/select/page-bounds.cu \
	kernels/cuda/decode/decode.cu kernels/cuda/compress/decode-latent.cu kernels/cuda/runtime/device.cu \
	kernels/cuda/compress/encode.cu kernels/cuda/evict/evict.cu kernels/cuda/prefill/saved-queries.cu kernels/cuda/prefill/minference.cu kernels/cuda/compress/quantize.cu \
	kernels/cuda/decode/merge.cu kernels/cuda/compress/compress.cu kernels/cuda/evict/slots.cu kernels/cuda/prefill/prefill.cu \
	kernels/cuda/prefill/prefill-sm90.cu kernels/cuda/evict/rank.cu kernels/cuda/runtime/read.cu kernels/cuda/compress/decompress.cu \
	kernels/cuda/select/recall.cu kernels/cuda/compress/nearest-refs.cu kernels/cuda/select/select.cu kernels/cuda/runtime/share.cu \
	kernels/cuda/prefill/hip.cu kernels/cuda/evict/touch-pages.cu kernels/cuda/runtime/step.cu kernels/cuda/runtime/table.cu \
	kernels/cuda/prefill/kascade.cu kernels/cuda/select/union.cu kernels/cuda/evict/accumulate.cu kernels/cuda/select/sketch.cu \
	kernels/cuda/select/sketch-scores.cu kernels/cuda/select/sketch-topk.cu kernels/cuda/select/sum-pages.cu kernels/cuda/select/topk-scores.cu
CUDA_KERNEL_INCLUDES = kernels/cuda/runtime/barrier.cuh kernels/cuda/compress/records.cuh \
	kernels/cuda/runtime/convert.cuh kernels/cuda/runtime/fp8.cuh kernels/cuda/runtime/cuda.h kernels/cuda/decode/decode.cuh kernels/cuda/compress/decode-latent.cuh \
	kernels/cuda/compress/decode-latent-load.cuh kernels/cuda/compress/decode-latent-tile.cuh kernels/cuda/decode/decode-kernel.cuh kernels/cuda/decode/instance.h kernels/cuda/decode/instances.h kernels/cuda/compress/decode-quant.cuh kernels/cuda/decode/decode-leaves.cuh kernels/cuda/decode/leaf.cuh kernels/cuda/decode/decode-teams.cuh kernels/cuda/decode/parts.cuh \
	kernels/cuda/decode/tile.cuh kernels/cuda/compress/quant.cuh kernels/cuda/compress/decompress.cuh kernels/cuda/decode/scores.cuh \
	kernels/cuda/runtime/gemm.cuh kernels/cuda/evict/slot-meta.cuh kernels/cuda/select/topk-key.cuh kernels/cuda/compress/compress.cuh \
	kernels/cuda/prefill/prefill.h kernels/cuda/prefill/tiles.cuh kernels/cuda/prefill/output.cuh kernels/cuda/runtime/tensor-map.cuh kernels/cuda/runtime/wgmma.cuh \
	kernels/cuda/prefill/prefill-sm90.cuh kernels/cuda/runtime/rows.cuh kernels/cuda/select/topk.cuh kernels/cuda/runtime/async-copy.cuh \
	kernels/cuda/decode/score-ring.cuh kernels/cuda/runtime/softmax.cuh kernels/cuda/prefill/weights.cuh kernels/cuda/runtime/module.h \
	kernels/cuda/runtime/read.h kernels/cuda/select/sketch.cuh kernels/cuda/select/sketch-scan.cuh kernels/cuda/select/sketch-stream.cuh kernels/cuda/select/sketch-sample.cuh \
	kernels/cuda/select/cluster-select.cuh kernels/cuda/runtime/overlap.cuh kernels/cuda/runtime/launch.cuh \
	kernels/cuda/select/sketch.h
EXTRA_DIST += $(CUDA_KERNEL_CODE) $(CUDA_KERNEL_INCLUDES) kernels/cuda/decode/instance.cu kernels/cuda/module.map

# Decode kernels: an object for each row of instances.h, 128-TOPK_KEYS.o for INSTANCE(128, TOPK_KEYS, ...). A build with
# common instances only has none for a RARE_INSTANCE.
COMMON_INSTANCES := $(shell sed -nE 's/^INSTANCE.([0-9]+), ([A-Z_]+),.*/\1-\2/p' $(srcdir)/kernels/cuda/decode/instances.h)
ALL_INSTANCES := $(shell sed -nE 's/^(RARE_)?INSTANCE.([0-9]+), ([A-Z_]+),.*/\2-\3/p' $(srcdir)/kernels/cuda/decode/instances.h)
# $(call instance_flags,OBJECT): flags for its row.
instance_flags = $(call instance_words,$(subst -, ,$(basename $(notdir $(1)))))
instance_words = -DHEAD_DIM=$(word 1,$(1)) -DMODE=$(word 2,$(1)) -DMODE_IS_$(word 2,$(1))

if CUDA
cudamodule_DATA += kernels/cuda/libsparsekv-cuda.so
CUDA_INSTANCE_OBJECTS = $(@cuda_instances@:%=kernels/cuda/decode/instances/%.o)
CUDA_KERNEL_OBJECTS = $(CUDA_INSTANCE_OBJECTS) $(CUDA_KERNEL_CODE:.cu=.o)
CUDA_OBJECTS += $(CUDA_KERNEL_CODE:.cu=.o)
SKV_HOPPER_OBJECTS += kernels/cuda/prefill/prefill-sm90.o

$(CUDA_INSTANCE_OBJECTS): kernels/cuda/decode/instance.cu
	$(SKV_NVCC_COMPILE) $(call instance_flags,$@) -c $< -o $@
-include $(CUDA_INSTANCE_OBJECTS:.o=.d)
CLEANFILES += $(CUDA_INSTANCE_OBJECTS) $(CUDA_INSTANCE_OBJECTS:.o=.d)

kernels/cuda/libsparsekv-cuda.so: $(CUDA_KERNEL_OBJECTS) kernels/cuda/module.map
	$(SKV_CUDA_LINK)
endif
