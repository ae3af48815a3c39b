# SPDX-License-Identifier: Apache-2.0
# A small Llama engine, the first user of the client library, and its programs.
noinst_LTLIBRARIES += engine/libskvengine.la
engine_libskvengine_la_SOURCES = \
	engine/error-similarity.c engine/error-similarity.h \
	engine/chart.c engine/chart.h \
	engine/chat.c engine/chat.h \
	engine/jinja.c engine/jinja.h engine/jinja-priv.h engine/jinja-calls.c engine/jinja-expression.c engine/jinja-run.c \
	engine/jinja-tokens.c \
	engine/choose-layers.c engine/choose-layers.h \
	engine/cli.c engine/cli.h \
	engine/compress.c engine/compress.h \
	engine/compressor.c engine/compressor.h \
	engine/config.c engine/config.h \
	engine/sparse-error.c engine/sparse-error.h \
	engine/recall-task.c engine/recall-task.h \
	engine/divergence.c engine/divergence.h \
	engine/draft.c engine/draft.h engine/file.c engine/file.h \
	engine/error.c engine/error.h \
	engine/evaluate.c engine/evaluate.h \
	engine/forward.c engine/forward.h \
	engine/host.c \
	engine/import.c engine/import.h \
	engine/loss.c engine/loss.h \
	engine/measure.c engine/measure.h \
	engine/model.c engine/model.h \
	engine/observe.c engine/observe.h \
	engine/ops.c engine/ops.h \
	engine/options.c engine/options.h \
	engine/backend.c engine/backend.h \
	engine/private-daemon.c engine/private-daemon.h \
	engine/profile.c engine/profile.h \
	engine/progress.c engine/progress.h \
	engine/ranks.c engine/ranks.h engine/ranks-nccl.c engine/ranks-nccl.h \
	engine/ranks-shared.c engine/ranks-shared.h \
	engine/read-text.c engine/read-text.h \
	engine/replay.c engine/replay.h \
	engine/report.c engine/report.h \
	engine/residuals.c engine/residuals.h \
	engine/score.c engine/score.h \
	engine/search.c engine/search.h \
	engine/env.c engine/env.h \
	engine/tasks.c engine/tasks.h \
	engine/text.h engine/texts.c engine/texts.h \
	engine/tokens.c engine/tokens.h
engine_libskvengine_la_CPPFLAGS = $(AM_CPPFLAGS) $(OPENBLAS_CFLAGS) $(JANSSON_CFLAGS) \
	-DENG_CUDA_MODULE='"$(pkglibdir)/libsparsekv-engine-cuda.so"'
engine_libskvengine_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
engine_libskvengine_la_LIBADD = formats/libskvformats.la formats/libskvtokenizer.la \
	$(OPENBLAS_LIBS) $(JANSSON_LIBS) -lm -ldl

bin_PROGRAMS += engine/sparsekv-generate engine/sparsekv-eval engine/sparsekv-calibrate
ENGINE_LDADD = engine/libskvengine.la common/libskvcommon.la libclient/libsparsekv-client.la
engine_sparsekv_generate_SOURCES = engine/generate.c
engine_sparsekv_generate_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
engine_sparsekv_generate_LDADD = $(ENGINE_LDADD)
engine_sparsekv_eval_SOURCES = engine/eval.c
engine_sparsekv_eval_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
engine_sparsekv_eval_LDADD = $(ENGINE_LDADD)
engine_sparsekv_calibrate_SOURCES = engine/calibrate.c
engine_sparsekv_calibrate_CPPFLAGS = $(AM_CPPFLAGS) -DENG_PROSE='"$(pkgdatadir)/prose.txt"'
engine_sparsekv_calibrate_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
engine_sparsekv_calibrate_LDADD = $(ENGINE_LDADD)

# The default text of sparsekv-calibrate; in the build tree beside it.
dist_pkgdata_DATA = models/prose.txt
nodist_noinst_DATA += engine/prose.txt
CLEANFILES += engine/prose.txt
engine/prose.txt: models/prose.txt
	$(AM_V_GEN)cp $< $@

# The device backend: a module like the kernels, which also needs cuBLAS.
CUDA_ENGINE_CODE = engine/cuda/backend.cu engine/cuda/rows.cu
EXTRA_DIST += $(CUDA_ENGINE_CODE) engine/cuda/rows.h engine/cuda/module.map

if CUBLAS
cudamodule_DATA += engine/cuda/libsparsekv-engine-cuda.so
CUDA_ENGINE_OBJECTS = $(CUDA_ENGINE_CODE:.cu=.o)
CUDA_OBJECTS += $(CUDA_ENGINE_OBJECTS)

engine/cuda/libsparsekv-engine-cuda.so: $(CUDA_ENGINE_OBJECTS) engine/cuda/module.map
	$(SKV_CUDA_LINK) -lcublas
endif
