/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/ranks/ranks.c - reduces scores of all heads over tensor-parallel ranks, each of which has some heads.
 *
 * A policy that selects for each kv head or q head needs no scores of other ranks. A policy that selects once for all
 * heads needs the scores of all heads: when a layer's scores are made, ranks reduce them, and then every rank makes the
 * same selection by itself. The reduction is a maximum, which is exact in any order, so the selection does not depend
 * on the number of ranks. Therefore a rank also reduces such scores over its own heads by a maximum. A policy that
 * reduces them by a sum is refused, because a sum depends on the order.
 *
 * A page's score is the sum of its tokens' scores: ranks take the maximum of the tokens' scores before the sum.
 *
 * Compression of all heads together needs the keys and values of all heads: see exchange.c.
 */
#include "libclient/ranks/ranks.h"

#include <errno.h>
#include <string.h>

#include "common/spec.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/session.h"

bool ranks_share_scores(const struct skv_session *s, const struct skv_plan *plan)
{
	return s->model.n_ranks > 1 && plan->scores && plan->sharing == SKV_SHARE_ALL_HEADS && !plan->evict.granularity;
}

/* Why ranks cannot select in this layer as a single rank with all heads would; NULL: they can. */
static const char *unshareable(const struct skv_policy *block, const struct skv_plan *plan, uint32_t layer)
{
	if (plan->evict.max_head_ratio > 0)
		return "divides a budget among all heads";
	if (!plan->scores || plan->evict.granularity)
		return NULL;
	if (block->sharing == SKV_SHARE_ALL_HEADS && plan->sharing != SKV_SHARE_ALL_HEADS)
		return "unites the selections of all heads";
	if (plan->sharing == SKV_SHARE_ALL_HEADS && plan->reduce != SKV_REDUCE_MAX)
		return "adds up the scores of all heads";
	if (plan->sharing == SKV_SHARE_ALL_HEADS && skv_plan_chooses(plan, layer))
		return "selects while it attends";
	return NULL;
}

int ranks_check(const struct skv_session *s, const struct policy *p)
{
	const struct skv_model *m = &s->model;

	for (uint32_t layer = 0; layer < m->n_layers && m->n_ranks > 1; layer++) {
		const char *why = unshareable(p->block, &p->plan[layer], layer);

		if (why)
			return error_set(-ENOTSUP, "policy %s %s in layer %u, of which rank %u of %u has some: expected a policy that "
			                 "selects by kv head, or by the largest score of any head", p->block->name, why, layer, m->rank, m->n_ranks);
		why = ranks_share_scores(s, &p->plan[layer])                       ? "selects by the scores of all heads"
		      : p->plan[layer].compress.kind == SKV_COMPRESS_LATENT ? "compresses all heads together"
		                                                            : NULL;
		if (why && !m->all_reduce_max)
			return error_set(-EINVAL, "policy %s %s in layer %u, of which rank %u of %u has some: expected all_reduce_max in the model",
			                 p->block->name, why, layer, m->rank, m->n_ranks);
	}
	return 0;
}

void ranks_reduce(struct skv_session *s, uint32_t layer, float *data, size_t count)
{
	struct step *st = &s->step;
	int e;

	if (st->recording || st->ranks_error < 0) /* results that replay.c records here are not used */
		return;
	e = s->model.all_reduce_max(s->model.all_reduce_ctx, data, count, st->work.stream);
	if (e == 0)
		return;
	e = e < 0 ? e : -EIO;
	st->ranks_error = error_set(e, "layer %u: all_reduce_max failed: %s", layer, strerror(-e));
}

void ranks_reduce_scores(struct skv_session *s, const struct policy_batch *pb, uint32_t layer, const struct skv_batch *rows)
{
	const struct skv_plan *plan = &pb->policy->plan[layer];
	const struct skv_scores *x = &pb->selection[layer].scores;

	if (!ranks_share_scores(s, plan))
		return;
	if (!x->token) {
		ranks_reduce(s, layer, x->page, (size_t)rows->n * x->page_stride);
		return;
	}
	ranks_reduce(s, layer, x->token, (size_t)rows->n * x->token_stride);
	if (x->page)
		s->kernels->sum_pages(rows, x, &s->step.work);
}
