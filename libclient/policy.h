/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/policy.h - a policy as sequences run it. */
#ifndef SKV_CLIENT_POLICY_H
#define SKV_CLIENT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/wire.h"

struct compressor;
struct plugin;
struct prefill;

/* A plugin with its parameters: the policy of a session, or of some of its sequences. */
struct policy {
	unsigned users;  /* the session, sequences */
	uint64_t serial; /* unique among all policies of this process, never reused */
	struct plugin *plugin;
	const struct skv_policy *block;
	uint64_t generation;
	void *config;
	char given[SKV_SPEC_MAX]; /* spec as the daemon gave it, to which `fingerprint` belongs */
	uint64_t fingerprint;
	char *spec;               /* spec with every parameter's value */
	/* rows of the layer's selection, once a hook has made one: the same in every step, also when replayed */
	uint32_t list_rows[SKV_MAX_LAYERS];
	uint32_t n_state_layers; /* layers with page bounds or sketches of keys, which have state pages */
	/* tokens that a state page covers, with sketches or page bounds: in each layer; in the one with the fewest */
	uint32_t state_tokens[SKV_MAX_LAYERS], least_state_tokens;
	/* of all state kept of a sequence: changes with the plugin's own version, and with the bits of sketches */
	uint32_t state_version;
	uint32_t n_evicting;    /* layers that evict tokens or pages of single heads, and so have slot metadata ... */
	uint32_t n_evicting_pages; /* ... and those of them that evict pages */
	uint32_t n_compress;    /* layers that compress */
	struct compressor *compressor; /* NULL: no layer compresses */
	struct prefill *prefill; /* how prompts attend sparsely; NULL: all layers are dense */
	struct skv_plan plan[]; /* n_layers */
};

/* Does the layer have page bounds or sketches? */
static inline bool plan_has_state(const struct skv_plan *plan)
{
	return plan->scores & (SKV_SCORES_PAGE_BOUNDS | SKV_SCORES_SKETCHES);
}

#endif
