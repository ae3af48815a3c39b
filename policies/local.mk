# SPDX-License-Identifier: Apache-2.0
# One C file a policy; each becomes a module that exports one symbol and links nothing.
policy_LTLIBRARIES = policies/full.la policies/streaming.la policies/delta.la policies/quest.la policies/template.la

policies_full_la_SOURCES = policies/full.c
policies_full_la_LDFLAGS = $(POLICY_LDFLAGS)
policies_streaming_la_SOURCES = policies/streaming.c
policies_streaming_la_LDFLAGS = $(POLICY_LDFLAGS)
policies_delta_la_SOURCES = policies/delta.c
policies_delta_la_LDFLAGS = $(POLICY_LDFLAGS)
policies_quest_la_SOURCES = policies/quest.c
policies_quest_la_LDFLAGS = $(POLICY_LDFLAGS)
policies_template_la_SOURCES = policies/template.c
policies_template_la_LDFLAGS = $(POLICY_LDFLAGS)

POLICY_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -export-symbols-regex '^sparsekv_policy$$'

# To start from: sparsekv-policy(7).
dist_doc_DATA = policies/template.c
