/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/hooks.c - runs a policy's hooks for the sequences of a batch that decode. */
#include "libclient/layer/hooks.h"

#include "libclient/feature.h"
#include "libclient/layer/prims.h"
#include "libclient/policy.h"
#include "libclient/seq.h"

/* A layer that evicts must say in its after() what stays. */
static void run_after(struct skv_session *s, struct policy_batch *pb, const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct selection *x = &pb->selection[layer];

	x->retained = false;
	if (pb->policy->block->after)
		pb->policy->block->after(ctx, layer);
	if (pb->policy->plan[layer].evict.granularity && !x->retained)
		policy_misuse(s, "layer %u evicts, but its hooks have not said what stays", layer);
}

void policy_hook(struct skv_session *s, struct policy_batch *pb, enum phase phase, uint32_t layer)
{
	const struct skv_policy *block = pb->policy->block;
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx),
	        .n_seqs = pb->n,
	        .prims = &policy_prims,
	        .model = &s->model,
	        .config = pb->policy->config,
	        .library = s,
	};

	if (ctx.n_seqs == 0)
		return;
	s->hook.batch = pb;
	s->hook.phase = phase;
	s->hook.layer = layer;
	if (phase == PHASE_BEFORE && block->before)
		block->before(&ctx, layer);
	else if (phase == PHASE_AFTER)
		run_after(s, pb, &ctx, layer);
	else if (phase == PHASE_END && block->step_end)
		block->step_end(&ctx);
	s->hook.phase = PHASE_NONE;
}

/* Run step_end() for the sequences of a batch that are not cancelled, once for each run of adjacent ones. */
static void end_of_batch(struct skv_session *s, struct policy_batch *pb)
{
	struct policy_batch some = *pb;

	for (uint32_t i = pb->first, end = pb->first + pb->n; i < end; i += some.n) {
		some.first = i;
		some.n = 0;
		while (i + some.n < end && s->step.seqs[i + some.n]->n_new > 0)
			some.n++;
		policy_hook(s, &some, PHASE_END, 0);
		if (some.n == 0)
			some.n = 1; /* skip a cancelled one */
	}
	s->hook.batch = pb;
}

static void hooks_end(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n_batches; i++)
		end_of_batch(s, &s->step.batch[i]);
}

const struct feature hooks_feature = {.end = hooks_end};
