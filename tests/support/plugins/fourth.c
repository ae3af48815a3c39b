/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores a count of decode steps with each sequence and evicts at every fourth, which shows whether the state was kept.
 * Never evicts from a sequence that another policy ran before.
 */
#include "tests/support/plugins/plugin.h"

struct state {
	uint32_t steps, taken_over;
};

static void step_end(const struct skv_policy_ctx *ctx)
{
	struct skv_window w = {.budget = {.count = 16}};

	for (uint32_t i = 0; i < ctx->n_seqs; i++) {
		struct state *s = ctx->prims->seq_state(ctx, i);

		if (++s->steps % 4 == 0 && !s->taken_over)
			for (uint32_t layer = 0; layer < ctx->model->n_layers; layer++)
				ctx->prims->evict_outside(ctx, layer, &w);
	}
}

static int adopt(const struct skv_policy_ctx *ctx, char *err, size_t err_len)
{
	(void)err;
	(void)err_len;
	for (uint32_t i = 0; i < ctx->n_seqs; i++)
		((struct state *)ctx->prims->seq_state(ctx, i))->taken_over = 1;
	return 0;
}

static const struct skv_policy policy = {
        GOOD_POLICY("fourth"),
        SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_POSITION, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
        .seq_state_bytes = sizeof(struct state),
        .state_version = 1,
        .step_end = step_end,
        .adopt = adopt,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
