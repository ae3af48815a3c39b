# SPDX-License-Identifier: Apache-2.0
# One C file per policy; each becomes a module that exports one symbol and links nothing. To add a policy, name it here.
policy_LTLIBRARIES = \
	policies/full.la \
	policies/adakv.la \
	policies/streaming.la \
	policies/delta.la \
	policies/deltakv.la \
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
	policies/template.la \
	policies/tidal.la

# Makefile.am sets these when it links a policy: with flags of its own, each would need a variable.
POLICY_LINK = -avoid-version -shared -export-symbols-regex '^sparsekv_policy$$'

# A template: see sparsekv-policy(7).
dist_doc_DATA = policies/template.c
