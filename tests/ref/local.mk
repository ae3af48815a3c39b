# SPDX-License-Identifier: Apache-2.0
# The kernels' arithmetic in double precision and plain loops.
noinst_LTLIBRARIES += tests/ref/libskvref.la
tests_ref_libskvref_la_SOURCES = \
	tests/ref/attention.c tests/ref/attention.h tests/ref/compress.c tests/ref/compress.h \
	tests/ref/evict.c tests/ref/evict.h tests/ref/prefill.c tests/ref/prefill.h
