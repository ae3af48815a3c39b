# SPDX-License-Identifier: Apache-2.0
# The books of the daemon, without the daemon.
check_PROGRAMS += tests/test-core tests/test-core-seq
TESTS += tests/test-core tests/test-core-seq
CORE_TEST_LIBS = daemon/core/libskvcore.la daemon/mem/libskvmem.la common/libskvcommon.la $(CHECK_LIBS)

tests_test_core_SOURCES = tests/test-core.c tests/core-peer.c tests/core-peer.h
tests_test_core_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_LDADD = $(CORE_TEST_LIBS)

tests_test_core_seq_SOURCES = tests/test-core-seq.c tests/core-peer.c tests/core-peer.h
tests_test_core_seq_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_seq_LDADD = $(CORE_TEST_LIBS)

check_PROGRAMS += tests/test-core-random
TESTS += tests/test-core-random
tests_test_core_random_SOURCES = tests/test-core-random.c tests/core-model.c tests/core-model.h \
	tests/core-peer.c tests/core-peer.h tests/random.h
tests_test_core_random_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_random_LDADD = $(CORE_TEST_LIBS)

check_PROGRAMS += tests/test-core-balance
TESTS += tests/test-core-balance
tests_test_core_balance_SOURCES = tests/test-core-balance.c tests/core-peer.c tests/core-peer.h
tests_test_core_balance_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_core_balance_LDADD = $(CORE_TEST_LIBS)
