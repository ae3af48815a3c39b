# SPDX-License-Identifier: Apache-2.0
# Tests of engine/.
ENGINE_TESTS = tests/test-engine-files tests/test-engine-math
check_PROGRAMS += $(ENGINE_TESTS)
TESTS += $(ENGINE_TESTS)
ENGINE_TEST_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
ENGINE_TEST_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(OPENMP_CFLAGS)

tests_test_engine_files_SOURCES = tests/test-engine-files.c tests/engine-fixture.c tests/engine-fixture.h tests/random.h
tests_test_engine_files_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS)
tests_test_engine_files_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_files_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

# At every place that there is: a device too.
check_PROGRAMS += tests/test-engine-place
TESTS += tests/test-engine-place
tests_test_engine_place_SOURCES = tests/test-engine-place.c tests/engine-places.c tests/engine-places.h tests/random.h
tests_test_engine_place_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"'
tests_test_engine_place_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_place_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

tests_test_engine_math_SOURCES = tests/test-engine-math.c tests/random.h
tests_test_engine_math_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS)
tests_test_engine_math_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_math_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

check_PROGRAMS += tests/test-calibrate
TESTS += tests/test-calibrate
tests_test_calibrate_SOURCES = tests/test-calibrate.c tests/random.h
tests_test_calibrate_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_calibrate_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

check_PROGRAMS += tests/test-correction
TESTS += tests/test-correction
tests_test_correction_SOURCES = tests/test-correction.c tests/random.h bench/fidelity.c bench/fidelity.h bench/synthetic-layers.c \
	bench/synthetic-layers.h bench/util.c bench/bench.h bench/options.h
tests_test_correction_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS)
tests_test_correction_CFLAGS = $(ENGINE_TEST_CFLAGS) $(OPENBLAS_CFLAGS)
tests_test_correction_LDADD = engine/libskvengine.la kernels/libskvkernels.la $(CHECK_LIBS) -lm

check_PROGRAMS += tests/test-compress
TESTS += tests/test-compress
tests_test_compress_SOURCES = tests/test-compress.c tests/engine-fixture.c tests/engine-fixture.h tests/random.h \
	libclient/codec.c libclient/codec.h
tests_test_compress_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS)
tests_test_compress_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_compress_LDADD = $(ENGINE_LDADD) $(COMMON_TEST_LIBS)

check_LTLIBRARIES += tests/plugins/old-engine.la
tests_plugins_old_engine_la_SOURCES = tests/plugins/old-engine.c
tests_plugins_old_engine_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)

# With a daemon.
check_PROGRAMS += tests/test-engine-forward tests/test-engine-run tests/test-engine-work tests/test-golden tests/test-search
TESTS += tests/test-engine-forward tests/test-engine-run tests/test-engine-work tests/test-golden tests/test-search
ENGINE_RUN_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"' -DSKV_SRCDIR='"$(abs_top_srcdir)"'
ENGINE_RUN_SOURCES = tests/engine-daemon.c tests/engine-daemon.h tests/engine-fixture.c tests/engine-fixture.h \
	tests/run-program.c tests/run-program.h tests/random.h

tests_test_engine_forward_SOURCES = tests/test-engine-forward.c tests/engine-places.c tests/engine-places.h $(ENGINE_RUN_SOURCES)
tests_test_engine_forward_CPPFLAGS = $(ENGINE_RUN_CPPFLAGS)
tests_test_engine_forward_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_forward_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

tests_test_engine_run_SOURCES = tests/test-engine-run.c $(ENGINE_RUN_SOURCES)
tests_test_engine_run_CPPFLAGS = $(ENGINE_RUN_CPPFLAGS)
tests_test_engine_run_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_run_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

tests_test_engine_work_SOURCES = tests/test-engine-work.c $(ENGINE_RUN_SOURCES)
tests_test_engine_work_CPPFLAGS = $(ENGINE_RUN_CPPFLAGS)
tests_test_engine_work_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_work_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

tests_test_golden_SOURCES = tests/test-golden.c tests/engine-fixture.c tests/engine-fixture.h \
	tests/run-program.c tests/run-program.h tests/random.h
tests_test_golden_CPPFLAGS = $(ENGINE_RUN_CPPFLAGS)
tests_test_golden_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_golden_LDADD = $(JANSSON_LIBS) $(CHECK_LIBS)

tests_test_search_SOURCES = tests/test-search.c $(ENGINE_RUN_SOURCES)
tests_test_search_CPPFLAGS = $(ENGINE_RUN_CPPFLAGS)
tests_test_search_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_search_LDADD = $(ENGINE_LDADD) $(CHECK_LIBS)

# All 200 cases, with fp32 and with bf16 pages; and the table of models/reference/README.md: minutes each.
check-golden: all tests/test-golden
	SKV_GOLDEN=all tests/test-golden
check-table: all
	$(SHELL) $(srcdir)/tests/check-table.sh $(abs_top_builddir)
.PHONY: check-golden check-table
EXTRA_DIST += tests/check-table.sh
