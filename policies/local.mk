# SPDX-License-Identifier: Apache-2.0
# One C file per policy; each becomes a module that exports one symbol and links nothing. To add a policy, name it in
# both lists: the second one has what each must attend to (tests/oracle/). Programs know the lists by policies/names.h.
policy_LTLIBRARIES = \
	policies/adakv.la \
	policies/delta.la \
	policies/deltakv.la \
	policies/full.la \
	policies/graded.la \
	policies/h2o.la \
	policies/kascade.la \
	policies/kivi.la \
	policies/lessismore.la \
	policies/omnikv.la \
	policies/palu.la \
	policies/pyramidkv.la \
	policies/quest.la \
	policies/raas.la \
	policies/rkv.la \
	policies/sketch.la \
	policies/snapkv.la \
	policies/streaming.la \
	policies/template.la \
	policies/tidal.la
POLICY_ORACLES = \
	tests/oracle/adakv.c \
	tests/oracle/delta.c \
	tests/oracle/deltakv.c \
	tests/oracle/full.c \
	tests/oracle/graded.c \
	tests/oracle/h2o.c \
	tests/oracle/kascade.c \
	tests/oracle/kivi.c \
	tests/oracle/lessismore.c \
	tests/oracle/omnikv.c \
	tests/oracle/palu.c \
	tests/oracle/pyramidkv.c \
	tests/oracle/quest.c \
	tests/oracle/raas.c \
	tests/oracle/rkv.c \
	tests/oracle/sketch.c \
	tests/oracle/snapkv.c \
	tests/oracle/streaming.c \
	tests/oracle/tidal.c

# SKV_POLICY(name) and SKV_ORACLE(name) for each, where the one or the other is defined.
policies/names.h: $(srcdir)/policies/local.mk
	$(AM_V_GEN)$(MKDIR_P) policies && exec >$@ && \
		printf '#ifdef SKV_POLICY\n' && \
		printf 'SKV_POLICY(%s)\n' $(notdir $(basename $(policy_LTLIBRARIES))) && \
		printf '#endif\n#ifdef SKV_ORACLE\n' && \
		printf 'SKV_ORACLE(%s)\n' $(notdir $(basename $(POLICY_ORACLES))) && \
		printf '#endif\n'
BUILT_SOURCES += policies/names.h
CLEANFILES += policies/names.h

# Makefile.am sets these when it links a policy: with flags of its own, each would need a variable.
POLICY_LINK = -avoid-version -shared -export-symbols-regex '^sparsekv_policy$$'

# A template: see sparsekv-policy(7).
dist_doc_DATA = policies/template.c
