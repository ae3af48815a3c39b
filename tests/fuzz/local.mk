# SPDX-License-Identifier: Apache-2.0
# Fuzzers: see tests/fuzz/fuzz.h. As tests they replay their corpora.
FUZZERS = tests/fuzz/fuzz-core tests/fuzz/fuzz-parked tests/fuzz/fuzz-requests tests/fuzz/fuzz-seqmem tests/fuzz/fuzz-spec \
	tests/fuzz/fuzz-state tests/fuzz/fuzz-store-reply tests/fuzz/fuzz-tokenizer tests/fuzz/fuzz-wire
FUZZ_SOURCES = tests/fuzz/fuzz-main.c tests/fuzz/fuzz.h
check_PROGRAMS += $(FUZZERS)
TESTS += $(FUZZERS)
tests_fuzz_fuzz_core_SOURCES = tests/fuzz/fuzz-core.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_parked_SOURCES = tests/fuzz/fuzz-parked.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_requests_SOURCES = tests/fuzz/fuzz-requests.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_seqmem_SOURCES = tests/fuzz/fuzz-seqmem.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_spec_SOURCES = tests/fuzz/fuzz-spec.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_state_SOURCES = tests/fuzz/fuzz-state.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_store_reply_SOURCES = tests/fuzz/fuzz-store-reply.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_store_reply_LDADD = $(STORE_LDADD)
tests_fuzz_fuzz_tokenizer_SOURCES = tests/fuzz/fuzz-tokenizer.c $(FUZZ_SOURCES)
tests_fuzz_fuzz_wire_SOURCES = tests/fuzz/fuzz-wire.c $(FUZZ_SOURCES)
EXTRA_DIST += tests/fuzz/corpus

# Under libFuzzer with sanitizers, for FUZZ_SECONDS each; needs clang. Inputs that were found go to fuzz-NAME.d in the
# build folder. fuzz-requests runs the built daemon's probes.
FUZZ_SECONDS = 60
FUZZ_CC = clang -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DSKV_LIBFUZZER
FUZZED = daemon/mem/host.c daemon/mem/cuda-none.c daemon/disk/pages-cuda-none.c $(filter %.c,$(common_libskvcommon_la_SOURCES) \
	$(SKV_DISK_SOURCES) $(SKV_STORE_SOURCES) $(daemon_disk_libskvparked_la_SOURCES) $(daemon_store_libskvstoreconfig_la_SOURCES) $(daemon_core_libskvcore_la_SOURCES) $(daemon_libskvdaemon_la_SOURCES) $(formats_libskvtokenizer_la_SOURCES)) formats/json.c
fuzz-core fuzz-parked fuzz-requests fuzz-seqmem fuzz-spec fuzz-state fuzz-store-reply fuzz-tokenizer fuzz-wire: all
	$(MKDIR_P) $@.d/found
	$(FUZZ_CC) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(TEST_CPPFLAGS) -o $@.d/fuzz \
		$(addprefix $(srcdir)/,tests/fuzz/$@.c tests/fuzz/fuzz-main.c $(FUZZED)) \
		$(LIBURING_LIBS) $(LIBSYSTEMD_LIBS) $(LIBSECCOMP_LIBS) $(JANSSON_LIBS) $(PCRE2_LIBS) $(HIREDIS_LIBS) $(OPENSSL_LIBS) -lpthread -lm -ldl
	$@.d/fuzz -print_funcs=0 -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$@.d/ $@.d/found \
		$(srcdir)/tests/fuzz/corpus/$(@:fuzz-%=%)
.PHONY: fuzz-core fuzz-parked fuzz-requests fuzz-seqmem fuzz-spec fuzz-state fuzz-store-reply fuzz-tokenizer fuzz-wire
