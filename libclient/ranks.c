/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/ranks.c - tensor-parallel ranks: scores of all heads, of which each rank has some; commits that count when all have
 * made them.
 *
 * A policy that selects by kv head or q head needs nothing of other ranks. One that selects once for all heads must see the scores
 * of all: as soon as a layer's are made, they are reduced between ranks, so that each rank then selects the same by itself. The reduction
 * is a maximum, which is exact in any order: what is selected does not depend on how many ranks there are. So such scores are
 * reduced by a maximum over heads in the first place. Sums over heads would depend on their order, and are refused.
 *
 * Scores of pages are sums over their tokens: of these the maximum is taken first.
 *
 * Joint commits (common/seqmem.h, 10). After a commit each rank calls the same all-reduce once more: when it is through, all ranks
 * have committed. Only then is carried out what a commit evicts, and does anything begin that overwrites what the one before
 * needs. So of ranks that die at any instruction some may have a commit more than others, by one, and the daemon takes that one
 * back. What is reduced is the rank's number and its negative: an all-reduce that was given up, and one that never ran, leave
 * another result than one that is through.
 *
 * With it goes which policy each rank runs, and which one it is ready to swap to. A rank knows of what was said as many steps ago
 * as a host may be ahead of its device: at that distance all ranks swap in the same step.
 */
#include "libclient/ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/spec.h"
#include "libclient/device.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/request.h"
#include "libclient/scratch.h"
#include "libclient/seq.h"

/* ---- selection ------------------------------------------------------------------------------- */

bool ranks_share_scores(const struct skv_session *s, const struct skv_plan *plan)
{
	return s->model.n_ranks > 1 && plan->scores && plan->sharing == SKV_SHARE_ALL_HEADS && !plan->evict.granularity;
}

/* Why ranks cannot select in this layer as one that has all heads would, or NULL. */
static const char *unshareable(const struct skv_policy *block, const struct skv_plan *plan, uint32_t layer)
{
	if (plan->evict.max_head_ratio > 0)
		return "divides a budget among all heads";
	if (plan->compress.kind == SKV_COMPRESS_LATENT)
		return "compresses all heads together";
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
		if (ranks_share_scores(s, &p->plan[layer]) && !m->all_reduce_max)
			return error_set(-EINVAL, "policy %s selects by the scores of all heads in layer %u, of which rank %u of %u has some: "
			                 "expected all_reduce_max in the model", p->block->name, layer, m->rank, m->n_ranks);
	}
	return 0;
}

static void all_reduce(struct skv_session *s, uint32_t layer, float *data, size_t count)
{
	struct step *st = &s->step;
	int e;

	if (st->recording || st->ranks_error < 0) /* what is recorded here is not used: see replay.c */
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
		all_reduce(s, layer, x->page, (size_t)rows->n * x->page_stride);
		return;
	}
	all_reduce(s, layer, x->token, (size_t)rows->n * x->token_stride);
	if (x->page)
		s->kernels->sum_pages(rows, x, &s->step.work);
}

int ranks_failed(const struct skv_session *s)
{
	return s->step.ranks_error;
}

/* ---- joint commits --------------------------------------------------------------------------- */

struct ranks {
	bool met; /* all ranks have begun, under the same policy */
	const char *lost; /* NULL, or why nothing can go on */
	float *mem; /* [RANKS_WORDS] in the model's memory */
	size_t bytes;
	float *told; /* [2][RANKS_WORDS], pinned: of a confirmation that is waited for; NULL in host memory ... */
	void *stream; /* ... where it is queued */
	uint64_t asked, answered; /* confirmations, in their order */
	uint32_t ready[DEVICE_STEPS]; /* by their number: the generation that all ranks were ready for, or 0 */
};

/* Which of a rank's numbers: its own, its policy, and the one that it is ready to swap to; each, and its negative. */
enum { NUMBER, POLICY = 2, READY = 4 };

bool ranks_joint(const struct skv_session *s)
{
	return s->ranks != NULL;
}

uint32_t ranks_generation(uint64_t generation)
{
	return (uint32_t)(generation & 0x7fffff) + 1; /* fp32 has all of these */
}

int ranks_open(struct skv_session *s)
{
	struct ranks *r;
	void *mem = NULL, *told = NULL, *was;
	int e;

	if (s->model.n_ranks < 2 || !s->model.all_reduce_max)
		return 0;
	r = s->ranks = calloc(1, sizeof(*r));
	if (!r)
		return error_set(-ENOMEM, "out of memory");
	e = device_enter(s, &was);
	if (e < 0)
		return e;
	e = scratch_grow(s, &mem, &r->bytes, RANKS_WORDS * sizeof(float));
	r->mem = mem;
	if (e == 0 && s->device) {
		e = s->device->backend->alloc_host(2 * RANKS_WORDS * sizeof(float), &told);
		r->told = told;
		e = e < 0 ? e : s->device->backend->stream_new(&r->stream);
		e = e < 0 ? device_failed(s->device, e, "memory for what ranks tell each other") : 0;
	}
	device_leave(s, was);
	return e;
}

void ranks_close(struct skv_session *s)
{
	struct ranks *r = s->ranks;
	void *was;

	if (!r)
		return;
	if (!s->device) {
		free(r->mem);
	} else if (device_enter(s, &was) == 0) {
		s->device->backend->free(r->mem);
		s->device->backend->free_host(r->told);
		if (r->stream)
			s->device->backend->stream_free(r->stream);
		device_leave(s, was);
	}
	free(r);
	s->ranks = NULL;
}

static void tell(const struct skv_session *s, float *to)
{
	const struct skv_msg_policy *swap = s->swap ? s->swap->body : NULL;
	const float own[] = {
		[NUMBER] = (float)s->model.rank,
		[POLICY] = (float)ranks_generation(s->policy->generation),
		[READY] = (float)ranks_generation(swap ? swap->generation : s->policy->generation),
	};

	for (uint32_t i = 0; i < RANKS_WORDS; i += 2) {
		to[i] = own[i];
		to[i + 1] = -own[i];
	}
}

/* Do all ranks say the same? */
static bool same(const float *answer, uint32_t what)
{
	return answer[what] == -answer[what + 1];
}

/* Did all ranks answer? */
static bool complete(const struct skv_session *s, const float *answer)
{
	return answer[NUMBER] == (float)(s->model.n_ranks - 1) && answer[NUMBER + 1] == 0;
}

int ranks_state(const struct skv_session *s)
{
	if (!s->ranks || !s->ranks->lost)
		return 0;
	return error_set(-ECONNABORTED, "%s: close the session, open it and attach sequences anew, on all ranks", s->ranks->lost);
}

static int lose(struct skv_session *s, const char *why)
{
	if (!s->ranks->lost)
		s->ranks->lost = why;
	return ranks_state(s);
}

static const char silent[] = "other ranks did not confirm a commit", apart[] = "ranks run different policies";

/* What all ranks say now, to answer[]; waits. Nothing of a device is under way. */
static int ask_all(struct skv_session *s, float answer[RANKS_WORDS])
{
	const size_t bytes = RANKS_WORDS * sizeof(*answer);
	const struct skv_backend *b = s->device ? s->device->backend : NULL;
	const struct skv_model *m = &s->model;
	struct ranks *r = s->ranks;
	int e = 0;

	tell(s, b ? r->told : r->mem);
	if (b)
		e = b->copy(r->mem, r->told, bytes, r->stream);
	if (e == 0)
		e = m->all_reduce_max(m->all_reduce_ctx, r->mem, RANKS_WORDS, r->stream);
	if (e == 0 && b)
		e = b->copy(r->told + RANKS_WORDS, r->mem, bytes, r->stream);
	if (e == 0 && b)
		e = b->wait(r->stream);
	if (e)
		return lose(s, silent);
	memcpy(answer, b ? r->told + RANKS_WORDS : r->mem, bytes);
	return complete(s, answer) ? 0 : lose(s, silent);
}

int ranks_begin(struct skv_session *s)
{
	float answer[RANKS_WORDS];
	int e = ranks_state(s);

	if (e < 0 || !s->ranks || s->ranks->met)
		return e;
	e = ask_all(s, answer);
	if (e == 0 && !same(answer, POLICY))
		e = lose(s, apart);
	s->ranks->met = true;
	return e;
}

/* The next confirmation's answer. */
static void take(struct skv_session *s, const float *answer)
{
	struct ranks *r = s->ranks;

	if (!complete(s, answer))
		lose(s, silent);
	else if (!same(answer, POLICY))
		lose(s, apart);
	r->ready[r->answered++ % DEVICE_STEPS] = same(answer, READY) ? (uint32_t)answer[READY] : 0;
}

bool ranks_confirm(struct skv_session *s)
{
	float answer[RANKS_WORDS];

	if (!s->ranks)
		return true;
	s->ranks->asked++;
	if (!s->ranks->lost && ask_all(s, answer) == 0)
		take(s, answer);
	return !s->ranks->lost;
}

void ranks_queue_confirm(struct skv_session *s, struct device_step *x)
{
	const size_t bytes = RANKS_WORDS * sizeof(*x->told);
	const struct skv_backend *b = s->device->backend;
	const struct skv_model *m = &s->model;
	void *stream = s->step.work.stream;
	struct ranks *r = s->ranks;
	int e;

	if (!r)
		return;
	r->asked++;
	memset(x->told, 0, 2 * bytes);
	tell(s, x->told);
	e = b->copy(r->mem, x->told, bytes, stream);
	if (e == 0)
		e = m->all_reduce_max(m->all_reduce_ctx, r->mem, RANKS_WORDS, stream);
	if (e == 0)
		e = b->copy(x->told + RANKS_WORDS, r->mem, bytes, stream);
	if (e)
		lose(s, silent);
}

bool ranks_confirmed(struct skv_session *s, const struct device_step *x)
{
	if (s->ranks)
		take(s, x->told + RANKS_WORDS);
	return !s->ranks || !s->ranks->lost;
}

void ranks_know(struct skv_seq *q, uint32_t epoch)
{
	atomic_store_explicit(&q->mem->joint, q->session->ranks ? epoch + 1 : 0, memory_order_release);
}

uint32_t ranks_agreed_swap(const struct skv_session *s)
{
	const struct ranks *r = s->ranks;

	/* what was asked so long ago has been answered, and every rank has taken the answer */
	return r->asked < DEVICE_STEPS ? 0 : r->ready[r->asked % DEVICE_STEPS];
}
