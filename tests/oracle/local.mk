# SPDX-License-Identifier: Apache-2.0
# What policies must do, for tests/e2e/test-oracle and sparsekvctl.
noinst_LTLIBRARIES += tests/oracle/libskvoracle.la
tests_oracle_libskvoracle_la_SOURCES = tests/oracle/oracle.h tests/oracle/policies.c \
	tests/oracle/spec.c tests/oracle/scores.c tests/oracle/choose.c \
	tests/oracle/full.c tests/oracle/streaming.c tests/oracle/delta.c tests/oracle/omnikv.c \
	tests/oracle/kascade.c tests/oracle/tidal.c tests/oracle/lessismore.c tests/oracle/quest.c tests/oracle/sketch.c \
	tests/oracle/evict.c tests/oracle/adakv.c tests/oracle/h2o.c tests/oracle/snapkv.c tests/oracle/raas.c \
	tests/oracle/deltakv.c tests/oracle/kivi.c tests/oracle/palu.c tests/oracle/compress.c tests/oracle/compress.h \
	tests/oracle/verify.c tests/oracle/verify.h tests/oracle/run.c tests/oracle/run.h \
	tests/oracle/check.c tests/oracle/check.h tests/oracle/case.c tests/oracle/case.h
tests_oracle_libskvoracle_la_LIBADD = libclient/libsparsekv-client.la -lm
