/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/prims.c - the primitives that policies compose (struct skv_prims), on host memory.
 *
 * A hook's request is checked against the plan before anything is done; a wrong one is noted once and
 * makes skv_step_end fail. Evictions are only collected here, in the sequence's journal that no reader
 * looks at yet; skv_step_end carries them out with the commit.
 */
#include "internal.h"

#include <math.h>
#include <omp.h>

#include "common/spec.h"

/* Units of evicted pages must not be chosen: the scores are ours to overwrite. */
static void mask_holes(const struct skv_seq *q, uint32_t layer, float *score, uint32_t n, bool tokens)
{
	const skv_pte *t = seq_table(q, layer);
	uint32_t per_page = tokens ? SKV_PAGE_TOKENS : 1;

	if (q->holes[layer] == 0)
		return;
	for (uint32_t unit = 0; unit < n; unit++)
		if (!skv_pte_resident(t[unit / per_page]))
			score[unit] = -INFINITY;
}

/* One list: pinned units, the best of the middle, recent units; ascending because the three are in order. */
static void select_row(struct skv_session *s, const struct skv_select *sel, bool tokens, uint32_t i,
                       uint32_t row, uint32_t *scratch)
{
	struct selection *x = &s->step.selection[sel->layer];
	struct skv_evidence *ev = &x->evidence;
	const struct skv_seq *q = s->step.seqs[i];
	const skv_pte *t = seq_table(q, sel->layer);
	size_t list = (size_t)i * ev->rows + row;
	float *score = tokens ? ev->token + list * ev->token_stride : ev->page + list * ev->page_stride;
	uint32_t *ids = x->list.ids + list * x->list.stride;
	uint32_t len = s->step.kseq[i].len, n = tokens ? len : skv_pages_of(len);
	uint32_t per_page = tokens ? SKV_PAGE_TOKENS : 1;
	uint32_t k = skv_budget_of(sel->budget, n, sel->floor);
	uint32_t recent = sel->recent ? sel->recent : k / 8;
	uint32_t pin, count = 0, best;

	if (recent < sel->recent_floor)
		recent = sel->recent_floor;
	if (recent > k)
		recent = k;
	pin = sel->pin < n - recent ? sel->pin : n - recent;

	for (uint32_t unit = 0; unit < pin; unit++)
		if (skv_pte_resident(t[unit / per_page]))
			ids[count++] = unit;
	mask_holes(q, sel->layer, score, n - recent, tokens);
	best = s->kernels->topk(score + pin, n - recent - pin, k - recent, ids + count, scratch);
	for (uint32_t j = 0; j < best; j++)
		ids[count + j] += pin;
	count += best;
	for (uint32_t unit = n - recent; unit < n; unit++)
		if (skv_pte_resident(t[unit / per_page]))
			ids[count++] = unit;
	x->list.count[list] = count;
}

static void select_units(const struct skv_policy_ctx *ctx, const struct skv_select *sel, bool tokens)
{
	struct skv_session *s = ctx->host;
	const char *name = tokens ? "select_tokens" : "select_pages";
	const char *wrong = skv_select_check(sel, tokens ? SKV_EV_TOKENS : SKV_EV_PAGES, s->policy->plan,
	                                     s->model.n_layers);
	struct selection *x;
	uint32_t tasks;

	if (s->phase != PHASE_BEFORE && s->phase != PHASE_AFTER) {
		policy_misuse(s, "%s outside of before() and after()", name);
		return;
	}
	if (wrong) {
		policy_misuse(s, "%s: %s", name, wrong);
		return;
	}
	x = &s->step.selection[sel->layer];
	if (!x->has_evidence) {
		policy_misuse(s, "%s: layer %u has not attended in this step", name, sel->layer);
		return;
	}
	tasks = s->step.n_decode * x->evidence.rows;
	/* one task is not worth waking the other threads */
	if (tasks == 1 || s->step.work.threads == 1) {
		for (uint32_t i = 0; i < tasks; i++)
			select_row(s, sel, tokens, i / x->evidence.rows, i % x->evidence.rows,
			           s->step.topk_scratch);
	} else {
#pragma omp parallel for schedule(static) num_threads(s->step.work.threads)
		for (uint32_t i = 0; i < tasks; i++)
			select_row(s, sel, tokens, i / x->evidence.rows, i % x->evidence.rows,
			           s->step.topk_scratch + (size_t)omp_get_thread_num() * s->step.topk_stride);
	}
	x->made = tokens ? SKV_ATTEND_TOKENS : SKV_ATTEND_PAGES;
}

static void select_pages(const struct skv_policy_ctx *ctx, const struct skv_select *sel)
{
	select_units(ctx, sel, false);
}

static void select_tokens(const struct skv_policy_ctx *ctx, const struct skv_select *sel)
{
	select_units(ctx, sel, true);
}

/* Pages [first, end) of the layer that are still there go into the journal. False: it is full. */
static bool collect(struct skv_seq *q, uint32_t layer, uint32_t first, uint32_t end)
{
	const skv_pte *t = seq_table(q, layer);
	struct skv_evict *journal = skv_seqmem_journal(q->mem, &q->layout);
	uint64_t room = (uint64_t)q->layout.n_layers * q->layout.max_pages;
	struct span *gone = &q->gone[layer];

	if (gone->from != first)
		*gone = (struct span){.from = first, .to = first};
	for (uint32_t page = gone->to; page < end; page++) {
		if (!skv_pte_resident(t[page]))
			continue;
		if (q->n_evict == 0) /* the stamp before the entries: seqmem.h, 3 */
			atomic_store(&q->mem->journal_epoch, q->epoch + 1);
		if (q->n_evict == room)
			return false;
		journal[q->n_evict++] = (struct skv_evict){.layer = layer, .page = page};
	}
	if (gone->to < end)
		gone->to = end;
	return true;
}

static void evict_outside(const struct skv_policy_ctx *ctx, uint32_t layer, const struct skv_window *w)
{
	struct skv_session *s = ctx->host;
	const char *wrong = skv_window_check(w);

	if (s->phase != PHASE_END)
		wrong = "outside of step_end()";
	else if (layer >= s->model.n_layers)
		wrong = "a layer that the model does not have";
	for (uint32_t i = 0; i < s->step.n_decode && !wrong; i++) {
		struct skv_seq *q = s->step.seqs[i];
		/* as the next step will see it; its last page is the one that is appended to, and stays */
		uint32_t end = window_start(w, s->step.kseq[i].len + 1) / SKV_PAGE_TOKENS;

		if (!collect(q, layer, skv_pages_of(w->sinks), end))
			wrong = "the same pages are evicted again and again";
	}
	if (wrong)
		policy_misuse(s, "evict_outside: %s", wrong);
}

static void *seq_state(const struct skv_policy_ctx *ctx, uint32_t i)
{
	struct skv_session *s = ctx->host;

	if (s->phase == PHASE_ADOPT) {
		if (i > 0)
			policy_misuse(s, "seq_state: sequence %u of %u", i, ctx->n_seqs);
		return s->adopting_state;
	}
	if (s->phase != PHASE_END)
		policy_misuse(s, "seq_state outside of adopt() and step_end()");
	else if (i >= ctx->n_seqs)
		policy_misuse(s, "seq_state: sequence %u of %u", i, ctx->n_seqs);
	else
		return (uint8_t *)s->step.seqs[i]->mem + s->step.seqs[i]->layout.state;
	/* the hook will write to what it gets; the step is aborted and the state made anew */
	return (uint8_t *)s->step.seqs[0]->mem + s->step.seqs[0]->layout.state;
}

const struct skv_prims policy_prims = {
        .size = sizeof(struct skv_prims),
        .select_pages = select_pages,
        .select_tokens = select_tokens,
        .evict_outside = evict_outside,
        .seq_state = seq_state,
};
