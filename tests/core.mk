# SPDX-License-Identifier: Apache-2.0
# The core of the daemon, without the daemon.
CORE_TESTS = tests/test-core tests/test-core-balance tests/test-core-fork tests/test-core-lies \
	tests/test-core-pending tests/test-core-random tests/test-core-segments tests/test-core-seq
check_PROGRAMS += $(CORE_TESTS)
TESTS += $(CORE_TESTS)
CORE_TEST_LIBS = daemon/core/libskvcore.la daemon/mem/libskvmem.la common/libskvcommon.la $(CHECK_LIBS)

tests_test_core_SOURCES = tests/test-core.c tests/core-peer.c tests/core-peer.h
tests_test_core_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_LDADD = $(CORE_TEST_LIBS)

tests_test_core_balance_SOURCES = tests/test-core-balance.c tests/core-peer.c tests/core-peer.h
tests_test_core_balance_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_balance_LDADD = $(CORE_TEST_LIBS)

tests_test_core_fork_SOURCES = tests/test-core-fork.c tests/core-peer.c tests/core-peer.h
tests_test_core_fork_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_fork_LDADD = $(CORE_TEST_LIBS)

tests_test_core_lies_SOURCES = tests/test-core-lies.c tests/core-peer.c tests/core-peer.h tests/random.h
tests_test_core_lies_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_lies_LDADD = $(CORE_TEST_LIBS)

tests_test_core_pending_SOURCES = tests/test-core-pending.c tests/core-peer.c tests/core-peer.h tests/random.h
tests_test_core_pending_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_pending_LDADD = $(CORE_TEST_LIBS)

tests_test_core_random_SOURCES = tests/test-core-random.c tests/core-peer.c tests/core-peer.h \
	tests/core-model.c tests/core-model.h tests/random.h
tests_test_core_random_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_random_LDADD = $(CORE_TEST_LIBS)

tests_test_core_segments_SOURCES = tests/test-core-segments.c tests/core-peer.c tests/core-peer.h
tests_test_core_segments_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_segments_LDADD = $(CORE_TEST_LIBS)

tests_test_core_seq_SOURCES = tests/test-core-seq.c tests/core-peer.c tests/core-peer.h
tests_test_core_seq_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_seq_LDADD = $(CORE_TEST_LIBS)
