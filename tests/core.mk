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
