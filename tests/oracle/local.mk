# SPDX-License-Identifier: Apache-2.0
# What policies must do, for tests/e2e/test-oracle and sparsekvctl; policies/local.mk has the list.
noinst_LTLIBRARIES += tests/oracle/libskvoracle.la
tests_oracle_libskvoracle_la_SOURCES = $(POLICY_ORACLES) tests/oracle/oracle.h tests/oracle/policies.c \
	tests/oracle/spec.c tests/oracle/scores.c tests/oracle/choose.c tests/oracle/evict.c \
	tests/oracle/compress.c tests/oracle/compress.h \
	tests/oracle/verify.c tests/oracle/verify.h tests/oracle/run.c tests/oracle/run.h \
	tests/oracle/check.c tests/oracle/check.h tests/oracle/case.c tests/oracle/case.h
tests_oracle_libskvoracle_la_LIBADD = libclient/libsparsekv-client.la -lm
tests/oracle/policies.lo: policies/names.h
