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
tests_test_engine_files_LDADD = engine/libskvengine.la $(CHECK_LIBS)

tests_test_engine_math_SOURCES = tests/test-engine-math.c tests/random.h
tests_test_engine_math_CPPFLAGS = $(ENGINE_TEST_CPPFLAGS)
tests_test_engine_math_CFLAGS = $(ENGINE_TEST_CFLAGS)
tests_test_engine_math_LDADD = engine/libskvengine.la $(CHECK_LIBS)
