# SPDX-License-Identifier: Apache-2.0
check_PROGRAMS += tests/test-kernels tests/test-prefill tests/test-topk
TESTS += tests/test-kernels tests/test-prefill tests/test-topk

KERNEL_TEST_SOURCES = tests/kernel-case.c tests/kernel-case.h tests/ref-attention.c tests/ref-attention.h tests/random.h
KERNEL_TEST_LIBS = kernels/libskvkernels.la $(CHECK_LIBS) -lm

tests_test_kernels_SOURCES = tests/test-kernels.c $(KERNEL_TEST_SOURCES)
tests_test_kernels_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_kernels_LDADD = $(KERNEL_TEST_LIBS)

tests_test_prefill_SOURCES = tests/test-prefill.c $(KERNEL_TEST_SOURCES)
tests_test_prefill_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_prefill_LDADD = $(KERNEL_TEST_LIBS)

tests_test_topk_SOURCES = tests/test-topk.c $(KERNEL_TEST_SOURCES)
tests_test_topk_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_topk_LDADD = $(KERNEL_TEST_LIBS)
