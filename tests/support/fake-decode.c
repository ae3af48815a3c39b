/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake device's kernels of pages and of decode attention: queued as in fake-backend.c, and run by the host's
 * kernels.
 */
#include <string.h>

#include "tests/support/fake-backend.h"

/* ---- pages ----------------------------------------------------------------------------------- */

static const struct skv_slot_mapping *slots_of(const struct op *o)
{
	return o->has_slots ? &o->slots : NULL;
}

static struct op *with_slots(struct op *o, const struct skv_slot_mapping *slots)
{
	o->has_slots = slots;
	if (slots)
		o->slots = *slots;
	return o;
}

static void run_append(const struct skv_kernels *host, const struct op *o)
{
	host->append(&o->shape, &o->batch, slots_of(o), o->in[0], o->in[1], &o->work);
}

static void append(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots, const void *k,
                   const void *v, const struct skv_workspace *w)
{
	with_slots(fake_kernel(run_append, sh, b, k, NULL, w), slots)->in[1] = v;
}

static void run_copy_pages(const struct skv_kernels *host, const struct op *o)
{
	host->copy_pages(&o->shape, o->pages[0], o->pages[1], o->n, &o->work);
}

static void copy_pages(const struct skv_shape *sh, const uint32_t *dst, const uint32_t *src, uint32_t n,
                       const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run_copy_pages, sh, &(struct skv_batch){.n = 0}, NULL, NULL, w);

	o->n = n; /* the library asks for at most one page of each table */
	memcpy(o->pages[0], dst, n * sizeof(*dst));
	memcpy(o->pages[1], src, n * sizeof(*src));
}

static void run_update_bounds(const struct skv_kernels *host, const struct op *o)
{
	host->update_bounds(&o->shape, &o->batch, slots_of(o), &o->work);
}

static void update_bounds(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                          const struct skv_workspace *w)
{
	with_slots(fake_kernel(run_update_bounds, sh, b, NULL, NULL, w), slots);
}

/* ---- attention ------------------------------------------------------------------------------- */

static void run_dense(const struct skv_kernels *host, const struct op *o)
{
	host->decode_dense(&o->shape, &o->batch, o->in[0], o->out, o->has_scores ? &o->scores : NULL, &o->work);
}

static void decode_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                         const struct skv_scores *scores, const struct skv_workspace *w)
{
	struct op *o = fake_kernel(run_dense, sh, b, q, out, w);

	o->has_scores = scores;
	if (scores)
		o->scores = *scores;
}

static void run_window(const struct skv_kernels *host, const struct op *o)
{
	host->decode_window(&o->shape, &o->batch, o->in[0], o->out, &o->window, &o->work);
}

static void decode_window(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                          const struct skv_window *window, const struct skv_workspace *w)
{
	fake_kernel(run_window, sh, b, q, out, w)->window = *window;
}

static void run_pages(const struct skv_kernels *host, const struct op *o)
{
	host->decode_pages(&o->shape, &o->batch, o->in[0], o->out, &o->list, &o->work);
}

static void decode_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                         const struct skv_index_list *list, const struct skv_workspace *w)
{
	fake_kernel(run_pages, sh, b, q, out, w)->list = *list;
}

static void run_tokens(const struct skv_kernels *host, const struct op *o)
{
	host->decode_tokens(&o->shape, &o->batch, o->in[0], o->out, &o->list, &o->work);
}

static void decode_tokens(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                          const struct skv_index_list *list, const struct skv_workspace *w)
{
	fake_kernel(run_tokens, sh, b, q, out, w)->list = *list;
}

static void run_sketches(const struct skv_kernels *host, const struct op *o)
{
	host->decode_sketches(&o->shape, &o->batch, o->in[0], o->out, &o->list, &o->work);
}

static void decode_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                          const struct skv_index_list *list, const struct skv_workspace *w)
{
	fake_kernel(run_sketches, sh, b, q, out, w)->list = *list;
}

static void run_prefill(const struct skv_kernels *host, const struct op *o)
{
	host->prefill_dense(&o->shape, &o->batch, o->in[0], o->out, &o->work);
}

static void prefill_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                          const struct skv_workspace *w)
{
	fake_kernel(run_prefill, sh, b, q, out, w);
}

void fake_decode(struct skv_kernels *k)
{
	k->append = append;
	k->copy_pages = copy_pages;
	k->update_bounds = update_bounds;
	k->decode_dense = decode_dense;
	k->decode_window = decode_window;
	k->decode_pages = decode_pages;
	k->decode_tokens = decode_tokens;
	k->decode_sketches = decode_sketches;
	k->prefill_dense = prefill_dense;
}
