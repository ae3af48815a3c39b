# SPDX-License-Identifier: Apache-2.0
# Fuzzers: see tests/fuzz/fuzz.h. As tests they replay their corpora.
FUZZERS = tests/fuzz/fuzz-wire tests/fuzz/fuzz-spec
check_PROGRAMS += $(FUZZERS)
TESTS += $(FUZZERS)
tests_fuzz_fuzz_wire_SOURCES = tests/fuzz/fuzz-wire.c tests/fuzz/fuzz-main.c tests/fuzz/fuzz.h
tests_fuzz_fuzz_spec_SOURCES = tests/fuzz/fuzz-spec.c tests/fuzz/fuzz-main.c tests/fuzz/fuzz.h
EXTRA_DIST += tests/fuzz/corpus

# Under libFuzzer, for FUZZ_SECONDS; clang needed. New inputs go to fuzz-NAME.d in the build folder.
FUZZ_SECONDS = 60
FUZZ_CC = clang -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DSKV_LIBFUZZER
fuzz-wire fuzz-spec:
	$(MKDIR_P) $@.d
	$(FUZZ_CC) $(AM_CPPFLAGS) -o $@.d/fuzz $(srcdir)/tests/fuzz/$@.c $(srcdir)/tests/fuzz/fuzz-main.c \
		$(addprefix $(srcdir)/,$(filter common/%.c,$(common_libskvcommon_la_SOURCES))) $(JANSSON_LIBS) -lm
	$(MKDIR_P) $@.d/found
	$@.d/fuzz -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$@.d/ $@.d/found \
		$(srcdir)/tests/fuzz/corpus/$(@:fuzz-%=%)
.PHONY: fuzz-wire fuzz-spec
