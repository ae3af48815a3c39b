/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels of layers that keep units: queued as those of fake-backend.c, and run by the host's. */
#include "tests/support/fake-backend.h"

static struct op *later(fake_run_fn *run, const struct skv_shape *sh, const struct skv_batch *b,
                        const struct skv_slot_mapping *slots, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(ELSEWHERE, sh, b, NULL, NULL, w);

	o->elsewhere = run;
	if (slots)
		o->slots = *slots;
	return o;
}

static void run_alloc(const struct skv_kernels *host, const struct op *o)
{
	host->place(&o->shape, &o->batch, &o->slots, &o->work);
}

static void alloc_slots(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                  const struct skv_workspace *w)
{
	later(run_alloc, sh, b, slots, w);
}

static void run_place_prompt(const struct skv_kernels *host, const struct op *o)
{
	host->alloc_prompt_slots(&o->shape, &o->batch, &o->slots, &o->work);
}

static void alloc_prompt_slots(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                         const struct skv_workspace *w)
{
	later(run_place_prompt, sh, b, slots, w);
}

static void run_lift(const struct skv_kernels *host, const struct op *o)
{
	host->lift(&o->shape, &o->batch, &o->work);
}

static void lift(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_workspace *w)
{
	later(run_lift, sh, b, NULL, w);
}

static void run_note_resident(const struct skv_kernels *host, const struct op *o)
{
	host->init_slot_meta(&o->shape, &o->batch, &o->slots, &o->work);
}

static void init_slot_meta(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                          const struct skv_workspace *w)
{
	later(run_note_resident, sh, b, slots, w);
}

static void run_accumulate(const struct skv_kernels *host, const struct op *o)
{
	host->tally(&o->shape, &o->batch, &o->ev, &o->work);
}

static void tally(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                  const struct skv_workspace *w)
{
	later(run_accumulate, sh, b, NULL, w)->ev = *ev;
}

static void run_tally_prompt(const struct skv_kernels *host, const struct op *o)
{
	host->accumulate_prompt(&o->shape, &o->batch, o->in[0], o->n, &o->work);
}

static void accumulate_prompt(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t window,
                         const struct skv_workspace *w)
{
	struct op *o = later(run_tally_prompt, sh, b, NULL, w);

	o->in[0] = q;
	o->n = window;
}

static void run_tally_list(const struct skv_kernels *host, const struct op *o)
{
	host->accumulate_list(&o->shape, &o->batch, o->in[0], &o->list, &o->work);
}

static void accumulate_list(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                       const struct skv_index_list *list, const struct skv_workspace *w)
{
	struct op *o = later(run_tally_list, sh, b, NULL, w);

	o->in[0] = q;
	o->list = *list;
}

static void run_list_awake(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->list_active(&o->shape, &o->batch, &list, &o->work);
}

static void list_active(const struct skv_shape *sh, const struct skv_batch *b, struct skv_index_list *list,
                       const struct skv_workspace *w)
{
	list->most = b->max_len;
	later(run_list_awake, sh, b, NULL, w)->list = *list;
}

static void run_allot(const struct skv_kernels *host, const struct op *o)
{
	host->allot(&o->shape, &o->batch, &o->allot, o->in[0], o->n, &o->work);
}

static void allot(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_head_budget_rule *how, const float *ranks,
                  uint32_t stride, const struct skv_workspace *w)
{
	struct op *o = later(run_allot, sh, b, NULL, w);

	o->allot = *how;
	o->in[0] = ranks;
	o->n = stride;
}

static void run_rank(const struct skv_kernels *host, const struct op *o)
{
	host->rank(&o->shape, &o->batch, &o->rank, o->out, o->n, &o->work);
}

static void rank(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_rank *by, float *ret,
                 uint32_t stride, const struct skv_workspace *w)
{
	struct op *o = later(run_rank, sh, b, NULL, w);

	o->rank = *by;
	o->out = ret;
	o->n = stride;
}

static void run_keep(const struct skv_kernels *host, const struct op *o)
{
	host->keep(&o->shape, &o->batch, &o->by, o->in[0], o->n, &o->work);
}

static void keep(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evict_rule *by,
                 const float *ranks, uint32_t stride, const struct skv_workspace *w)
{
	struct op *o = later(run_keep, sh, b, NULL, w);

	o->by = *by;
	o->in[0] = ranks;
	o->n = stride;
}

static void run_stamp(const struct skv_kernels *host, const struct op *o)
{
	struct skv_index_list list = o->list;

	host->stamp(&o->shape, &o->batch, &o->ev, &o->stamp, &list, &o->work);
}

static void stamp(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                  const struct skv_touch_rule *by, struct skv_index_list *list, const struct skv_workspace *w)
{
	struct op *o = later(run_stamp, sh, b, NULL, w);

	o->ev = *ev;
	o->stamp = *by;
	list->most = list->stride; /* how many there will be is not known yet */
	list->filling = true;
	o->list = *list;
}

void fake_keep(struct skv_kernels *k)
{
	k->place = place;
	k->alloc_prompt_slots = alloc_prompt_slots;
	k->lift = lift;
	k->init_slot_meta = init_slot_meta;
	k->tally = tally;
	k->accumulate_list = accumulate_list;
	k->accumulate_prompt = accumulate_prompt;
	k->rank = rank;
	k->keep = keep;
	k->allot = allot;
	k->list_active = list_active;
	k->stamp = stamp;
}
