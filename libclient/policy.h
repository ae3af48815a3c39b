/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/policy.h - a policy with its parameters, as the sequences of this process run it. */
#ifndef SKV_CLIENT_POLICY_H
#define SKV_CLIENT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/wire.h"

struct compressor;
struct plugin;
struct prefill;

/* A plugin with values for its parameters: the policy of a session, or of some of its sequences. */
struct policy {
	unsigned users;  /* number of users: the session and sequences that run the policy */
	uint64_t serial; /* number that is unique among all policies of this process and never reused */
	struct plugin *plugin;
	const struct skv_policy *block;
	uint64_t generation;
	void *config;
	char given[SKV_SPEC_MAX]; /* spec as the daemon gave it; `fingerprint` is of this text */
	uint64_t fingerprint;
	char *spec;               /* the spec with the values of all parameters */
	/* [layer]: rows of its selection, 0 until a hook has made one; the same in every step, also if replayed */
	uint32_t list_rows[SKV_MAX_LAYERS];
	uint32_t n_state_layers; /* number of layers with state pages, for page bounds or sketches of keys */
	/* [layer]: tokens that one state page of sketches or page bounds covers; the minimum over the layers */
	uint32_t state_tokens[SKV_MAX_LAYERS], least_state_tokens;
	/* version of all state kept of a sequence: depends on the plugin's state_version, the bits of sketches and values */
	uint32_t state_version;
	uint32_t n_evicting;    /* layers with slot metadata: they evict tokens or pages of single heads */
	uint32_t n_evicting_pages; /* layers that evict pages of single heads */
	uint32_t n_compress;    /* number of layers that compress */
	struct compressor *compressor; /* NULL: no layer compresses */
	struct prefill *prefill; /* how prompts attend sparsely; NULL: all layers attend densely to prompts */
	struct skv_plan plan[]; /* [n_layers] */
};

/* Does a layer with this plan have page bounds or sketches of keys? */
static inline bool plan_has_state(const struct skv_plan *plan)
{
	return plan->scores & (SKV_SCORES_PAGE_BOUNDS | SKV_SCORES_SKETCHES);
}

#endif
