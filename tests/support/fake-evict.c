/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels of layers that evict: queued as in fake-backend.c, and run by the host's kernels. */
#include "tests/support/fake-backend.h"

static struct op *later(fake_run_fn *run, const struct skv_shape *sh, const struct skv_batch *b,
                        const struct skv_slot_mapping *slots, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run, sh, b, NULL, NULL, w);

	if (slots)
		o->slots = *slots;
	return o;
}

static void run_alloc(const struct skv_kernels *host, const struct op *o)
{
	host->alloc_slots(&o->shape, &o->batch, &o->slots, &o->work);
}

static void alloc_slots(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                  const struct skv_workspace *w)
{
	later(run_alloc, sh, b, slots, w);
}

static void run_alloc_prompt(const struct skv_kernels *host, const struct op *o)
{
	host->alloc_prompt_slots(&o->shape, &o->batch, &o->slots, &o->work);
}

static void alloc_prompt_slots(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                         const struct skv_workspace *w)
{
	later(run_alloc_prompt, sh, b, slots, w);
}

static void run_move_partial(const struct skv_kernels *host, const struct op *o)
{
	host->move_partial_page(&o->shape, &o->batch, &o->work);
}

static void move_partial_page(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_workspace *w)
{
	later(run_move_partial, sh, b, NULL, w);
}

static void run_init_meta(const struct skv_kernels *host, const struct op *o)
{
	host->init_slot_meta(&o->shape, &o->batch, &o->slots, &o->work);
}

static void init_slot_meta(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                          const struct skv_workspace *w)
{
	later(run_init_meta, sh, b, slots, w);
}

static void run_accumulate(const struct skv_kernels *host, const struct op *o)
{
	host->accumulate_scores(&o->shape, &o->batch, &o->scores, &o->work);
}

static void accumulate_scores(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *scores,
                  const struct skv_workspace *w)
{
	later(run_accumulate, sh, b, NULL, w)->scores = *scores;
}

static void run_accumulate_prompt(const struct skv_kernels *host, const struct op *o)
{
	host->accumulate_prompt(&o->shape, &o->batch, o->in[0], o->n, &o->work);
}

static void accumulate_prompt(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t window,
                         const struct skv_workspace *w)
{
	struct op *o = later(run_accumulate_prompt, sh, b, NULL, w);

	o->in[0] = q;
	o->n = window;
}

static void run_accumulate_list(const struct skv_kernels *host, const struct op *o)
{
	host->accumulate_list(&o->shape, &o->batch, o->in[0], &o->list, &o->work);
}

static void accumulate_list(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                       const struct skv_index_list *list, const struct skv_workspace *w)
{
	struct op *o = later(run_accumulate_list, sh, b, NULL, w);

	o->in[0] = q;
	o->list = *list;
}

static void run_list_active(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->list_active(&o->shape, &o->batch, &list, &o->work);
}

static void list_active(const struct skv_shape *sh, const struct skv_batch *b, struct skv_index_list *list,
                       const struct skv_workspace *w)
{
	list->max_count = b->max_len;
	later(run_list_active, sh, b, NULL, w)->list = *list;
}

static void run_head_budgets(const struct skv_kernels *host, const struct op *o)
{
	host->allocate_head_budgets(&o->shape, &o->batch, &o->head_budgets, o->in[0], o->n, &o->work);
}

static void allocate_head_budgets(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_head_budget_rule *how, const float *ranks,
                  uint32_t stride, const struct skv_workspace *w)
{
	struct op *o = later(run_head_budgets, sh, b, NULL, w);

	o->head_budgets = *how;
	o->in[0] = ranks;
	o->n = stride;
}

static void run_rank(const struct skv_kernels *host, const struct op *o)
{
	host->rank_tokens(&o->shape, &o->batch, &o->rank, o->out, o->n, &o->work);
}

static void rank_tokens(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_rank *by, float *ret,
                 uint32_t stride, const struct skv_workspace *w)
{
	struct op *o = later(run_rank, sh, b, NULL, w);

	o->rank = *by;
	o->out = ret;
	o->n = stride;
}

static void run_evict(const struct skv_kernels *host, const struct op *o)
{
	host->evict(&o->shape, &o->batch, &o->by, o->in[0], o->n, &o->work);
}

static void evict(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evict_rule *by,
                 const float *ranks, uint32_t stride, const struct skv_workspace *w)
{
	struct op *o = later(run_evict, sh, b, NULL, w);

	o->by = *by;
	o->in[0] = ranks;
	o->n = stride;
}

static void run_touch(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->touch_pages(&o->shape, &o->batch, &o->scores, &o->touch, &list, &o->work);
}

static void touch_pages(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *scores,
                  const struct skv_touch_rule *by, struct skv_index_list *list, const struct skv_workspace *w)
{
	struct op *o = later(run_touch, sh, b, NULL, w);

	o->scores = *scores;
	o->touch = *by;
	list->max_count = list->stride; /* the actual count is not known yet */
	list->last_partial = true;
	o->list = *list;
}

void fake_evict(struct skv_kernels *k)
{
	k->alloc_slots = alloc_slots;
	k->alloc_prompt_slots = alloc_prompt_slots;
	k->move_partial_page = move_partial_page;
	k->init_slot_meta = init_slot_meta;
	k->accumulate_scores = accumulate_scores;
	k->accumulate_list = accumulate_list;
	k->accumulate_prompt = accumulate_prompt;
	k->rank_tokens = rank_tokens;
	k->evict = evict;
	k->allocate_head_budgets = allocate_head_budgets;
	k->list_active = list_active;
	k->touch_pages = touch_pages;
}
