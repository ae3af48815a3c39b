/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy that compresses, with a mistake: after some steps its filter layers select nothing, although other layers
 * use their selection.
 */
#include <sparsekv/policy.h>

#define CALLS 40

static void select_at_first(const struct skv_policy_ctx *ctx, const struct skv_select_config *c,
                            const struct skv_layer_set *selecting, uint32_t layer)
{
	static unsigned calls;

	if (calls++ < CALLS)
		skv_select_after(ctx, c, selecting, layer);
}

#define skv_select_after select_at_first
#include "policies/deltakv.c"
