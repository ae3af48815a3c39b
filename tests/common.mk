# SPDX-License-Identifier: Apache-2.0
# Tests of common/ and policies/, and the plugins that they and the tests of the daemon load:
# tests/plugins/.libs/NAME.so. -rpath makes libtool build a shared object though nothing is installed.
check_LTLIBRARIES += tests/plugins/bad-abi.la tests/plugins/bad-crash.la tests/plugins/bad-hang.la \
	tests/plugins/bad-hooks.la tests/plugins/bad-params.la tests/plugins/bad-symbol.la \
	tests/plugins/refuse-adopt.la tests/plugins/greedy.la tests/plugins/wrong-delta.la
TEST_PLUGIN_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere

tests_plugins_bad_abi_la_SOURCES = tests/plugins/bad-abi.c tests/plugins/plugin.h
tests_plugins_bad_abi_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_bad_crash_la_SOURCES = tests/plugins/bad-crash.c tests/plugins/plugin.h
tests_plugins_bad_crash_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_bad_hang_la_SOURCES = tests/plugins/bad-hang.c tests/plugins/plugin.h
tests_plugins_bad_hang_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_bad_hooks_la_SOURCES = tests/plugins/bad-hooks.c tests/plugins/plugin.h
tests_plugins_bad_hooks_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_bad_params_la_SOURCES = tests/plugins/bad-params.c tests/plugins/plugin.h
tests_plugins_bad_params_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_bad_symbol_la_SOURCES = tests/plugins/bad-symbol.c tests/plugins/plugin.h
tests_plugins_bad_symbol_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_refuse_adopt_la_SOURCES = tests/plugins/refuse-adopt.c tests/plugins/plugin.h
tests_plugins_refuse_adopt_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_greedy_la_SOURCES = tests/plugins/greedy.c
tests_plugins_greedy_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_wrong_delta_la_SOURCES = tests/plugins/wrong-delta.c
tests_plugins_wrong_delta_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)

COMMON_TEST_LIBS = common/libskvcommon.la $(CHECK_LIBS)

check_PROGRAMS += tests/test-policies
TESTS += tests/test-policies
tests_test_policies_SOURCES = tests/test-policies.c tests/policy-file.h tests/random.h
tests_test_policies_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"'
tests_test_policies_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_policies_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-prefill-plan
TESTS += tests/test-prefill-plan
tests_test_prefill_plan_SOURCES = tests/test-prefill-plan.c tests/policy-file.h tests/random.h
tests_test_prefill_plan_CPPFLAGS = $(tests_test_policies_CPPFLAGS)
tests_test_prefill_plan_CFLAGS = $(tests_test_policies_CFLAGS)
tests_test_prefill_plan_LDADD = $(tests_test_policies_LDADD)

check_PROGRAMS += tests/test-policy-files
TESTS += tests/test-policy-files
tests_test_policy_files_SOURCES = tests/test-policy-files.c tests/policy-file.h tests/random.h
tests_test_policy_files_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"'
tests_test_policy_files_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_policy_files_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-common
TESTS += tests/test-common
tests_test_common_SOURCES = tests/test-common.c
tests_test_common_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_common_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-plugin
TESTS += tests/test-plugin
tests_test_plugin_SOURCES = tests/test-plugin.c
tests_test_plugin_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_plugin_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-rope
TESTS += tests/test-rope
tests_test_rope_SOURCES = tests/test-rope.c
tests_test_rope_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_rope_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-wire
TESTS += tests/test-wire
tests_test_wire_SOURCES = tests/test-wire.c tests/random.h
tests_test_wire_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_wire_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-seqmem
TESTS += tests/test-seqmem
tests_test_seqmem_SOURCES = tests/test-seqmem.c tests/random.h
tests_test_seqmem_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_seqmem_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-spec
TESTS += tests/test-spec
tests_test_spec_SOURCES = tests/test-spec.c tests/random.h
tests_test_spec_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_spec_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-profile
TESTS += tests/test-profile
tests_test_profile_SOURCES = tests/test-profile.c
tests_test_profile_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_profile_LDADD = $(COMMON_TEST_LIBS)

dist_check_SCRIPTS += tests/check-man.sh
TESTS += tests/check-man.sh

# Fuzzers: see tests/fuzz.h.
check_PROGRAMS += tests/fuzz-wire tests/fuzz-spec
TESTS += tests/fuzz-wire tests/fuzz-spec
tests_fuzz_wire_SOURCES = tests/fuzz-wire.c tests/fuzz-main.c tests/fuzz.h tests/random.h
tests_fuzz_wire_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_CORPUS='"wire"'
tests_fuzz_wire_LDADD = common/libskvcommon.la
tests_fuzz_spec_SOURCES = tests/fuzz-spec.c tests/fuzz-main.c tests/fuzz.h tests/random.h
tests_fuzz_spec_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_CORPUS='"spec"'
tests_fuzz_spec_LDADD = common/libskvcommon.la
EXTRA_DIST += tests/corpus

# Under libFuzzer, for FUZZ_SECONDS; clang needed. New inputs go to fuzz-NAME.d in the build folder.
FUZZ_SECONDS = 60
FUZZ_CC = clang -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DSKV_LIBFUZZER
fuzz-wire fuzz-spec:
	$(MKDIR_P) $@.d
	$(FUZZ_CC) $(AM_CPPFLAGS) -o $@.d/fuzz $(srcdir)/tests/$@.c $(srcdir)/tests/fuzz-main.c \
		$(srcdir)/common/wire.c $(srcdir)/common/wire-table.c $(srcdir)/common/spec.c $(srcdir)/common/refuse.c $(srcdir)/common/profile.c $(JANSSON_LIBS) -lm
	$(MKDIR_P) $@.d/found
	$@.d/fuzz -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$@.d/ $@.d/found \
		$(srcdir)/tests/corpus/$(@:fuzz-%=%)
.PHONY: fuzz-wire fuzz-spec

check_PROGRAMS += tests/test-codec
TESTS += tests/test-codec
tests_test_codec_SOURCES = tests/test-codec.c tests/codec-file.c tests/codec-file.h tests/random.h libclient/codec.c libclient/codec.h
tests_test_codec_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_codec_LDADD = formats/libskvformats.la $(COMMON_TEST_LIBS)
