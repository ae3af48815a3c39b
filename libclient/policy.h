/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/policy.h - a policy as sequences run it. */
#ifndef SKV_CLIENT_POLICY_H
#define SKV_CLIENT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/policy.h>

#include "kernels/select.h"

#include "common/wire.h"

struct compressor;
struct plugin;
struct prefill;

/* A plugin with its parameters: a session's, and those that sequences were given for themselves. */
struct policy {
	unsigned users;  /* the session, sequences */
	uint64_t serial; /* of this process: no two ever have the same */
	struct plugin *plugin;
	const struct skv_policy *block;
	uint64_t generation;
	void *config;
	char given[SKV_SPEC_MAX]; /* spec as the daemon gave it, its fingerprint ... */
	uint64_t fingerprint;
	char *spec;               /* ... and with every value */
	/* of the layer's selection, if it was any hook's to say: the same in every step, also when replayed */
	uint32_t list_rows[SKV_MAX_LAYERS];
	uint32_t n_state_layers; /* layers that keep bounds of their pages, or sketches of their keys, so have state pages */
	uint32_t state_tokens;  /* of a state page, in the layer with the fewest */
	uint32_t state_version; /* of all that it keeps of a sequence: changes with the plugin's own, and with the bits of sketches */
	uint32_t n_evicting;    /* layers that evict tokens or pages of single heads, so have slot metadata ... */
	uint32_t n_evicting_pages; /* ... of them pages */
	uint32_t n_compress;    /* layers that compress */
	struct compressor *compressor; /* NULL: none does */
	struct prefill *prefill; /* how prompts attend sparsely; NULL: they are dense */
	struct skv_plan plan[]; /* n_layers */
};

/* Tokens of a state page of the layer: whose pages' bounds it has, or whose keys' sketches. */
static inline uint32_t policy_state_tokens(const struct skv_shape *sh, const struct skv_plan *plan)
{
	struct skv_shape shape = *sh;

	shape.sketch_bits = plan->sketch_bits;
	return plan->sketch_bits ? skv_sketch_tokens(&shape) : SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
}

/* Page bounds or sketches. */
static inline bool plan_has_state(const struct skv_plan *plan)
{
	return plan->scores & (SKV_SCORES_PAGE_BOUNDS | SKV_SCORES_SKETCHES);
}

#endif
