# SPDX-License-Identifier: Apache-2.0
bin_PROGRAMS += bench/sparsekv-bench
bench_sparsekv_bench_SOURCES = \
	bench/main.c bench/bench.h bench/options.c bench/options.h bench/util.c \
	bench/attention.c bench/batch.c bench/codes.c bench/kernel-fixture.c bench/kernel-fixture.h \
	bench/correction.c bench/fidelity.c bench/fidelity.h bench/synthetic-layers.c bench/synthetic-layers.h \
	bench/stack-fixture.c bench/stack-fixture.h bench/ipc.c \
	bench/step.c bench/step.h bench/step-report.c bench/synthetic-codec.c bench/synthetic-codec.h bench/step-delta.c bench/step-deltakv.c \
	bench/step-kascade.c \
	bench/zero-weights.c bench/zero-weights.h \
	bench/memory.c bench/park.c bench/policies.c bench/ranks.c bench/prefill.c bench/prompt.c bench/prompt.h bench/plot.c \
	bench/prefixes.c bench/prefixes-player.c bench/prefixes-player.h \
	bench/scale.c bench/scale-cache.c bench/scale-cache.h bench/scale-trace.c bench/scale-trace.h bench/scale-trace-file.c \
	bench/traffic.c libclient/compress/compressed-lengths.c
bench_sparsekv_bench_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) $(OPENBLAS_CFLAGS) $(JANSSON_CFLAGS)
bench_sparsekv_bench_LDADD = engine/libskvengine.la kernels/libskvkernels.la libclient/libsparsekv-client.la formats/libskvformats.la \
	daemon/ctl/libskvctl.la

# BENCH_LIST(name, spec) for the rows of each list that the program has, at a budget of 0.1; one is defined at a time.
bench/specs.h: $(srcdir)/bench/policies.txt
	$(AM_V_GEN)$(MKDIR_P) bench && for list in step memory batch; do \
		awk -v list=$$list 'BEGIN { print "#ifdef BENCH_" toupper(list) } \
			!/^#/ && "," $$3 "," ~ "," list "," { \
				name = $$4; sub(/[?:].*/, "", name); sub(/@/, "0.1", $$4); \
				print "BENCH_" toupper(list) "(\"" name "\", \"" $$4 "\")" } \
			END { print "#endif" }' $<; done >$@
BUILT_SOURCES += bench/specs.h
CLEANFILES += bench/specs.h
$(addprefix bench/sparsekv_bench-,$(addsuffix .$(OBJEXT),batch memory policies)): bench/specs.h

EXTRA_DIST += \
	bench/RESULTS.md bench/codes.sh bench/decode.sh bench/equal.sh bench/field-reference.svg \
	bench/field-smollm2-3k.svg bench/field.py bench/field.sh bench/ipc.svg bench/memory.svg bench/park.sh \
	bench/peers.py bench/peers/measure.py bench/policies.py bench/policies.txt bench/prefill.py bench/reads.py \
	bench/selection.py bench/specs.sh bench/speed.py bench/speed.sh bench/step.svg \
	bench/real/harness.py bench/real/model.py bench/real/profile.json bench/real/run.sh \
	bench/real/speed-decode.py bench/real/speed-transformers.py bench/real/summary.py bench/real/tasks.py \
	bench/real/texts.py bench/real/vllm-serve.py bench/real/vllm-trace.py
