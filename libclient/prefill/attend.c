/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/prefill/attend.c - attention of prompts: allocates the lists of their tiles, and calls the kernels.
 *
 * A layer with the model's sliding window attends sparsely without lists, whatever policy the other layers run.
 */
#include "libclient/prefill/attend.h"

#include <errno.h>
#include <string.h>

#include "kernels/prefill.h"
#include "libclient/device/scratch.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/layer/layer.h"
#include "libclient/prefill/schedule.h"
#include "libclient/seq.h"

/* ---- lists ----------------------------------------------------------------------------------- */

struct layer_lists {
	struct skv_tile_lists main, extra; /* rows 0: none */
	size_t bytes;
};

/* Lay out memory for the lists of a batch's tiles, with up to `most` ids in a list. */
static struct skv_tile_lists room(struct carver *c, const struct skv_batch *b, uint32_t tile, uint32_t rows,
                                  uint32_t unit, uint64_t most)
{
	struct skv_tile_lists t = {
		.rows = rows, .tiles = skv_max_tiles(b->max_q, tile), .stride = (uint32_t)most, .unit = unit,
	};
	const size_t lists = (size_t)b->n * t.tiles * rows;

	t.ids = carve(c, lists * t.stride * sizeof(*t.ids));
	t.count = carve(c, lists * sizeof(*t.count));
	return t;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * The lists that a layer makes for a policy batch's prompts. Later layers use Kascade's lists, so each policy batch has
 * memory of its own for these. All other lists are used in one layer of one batch at a time, and share memory.
 */
static struct layer_lists lists_of(const struct skv_shape *shape, uint32_t layer, const struct skv_batch *b,
                                   const struct policy_batch *pb, uint8_t *base)
{
	const struct skv_prefill *p = &pb->policy->plan[layer].prefill;
	const uint32_t heads = shape->n_heads, kv = shape->n_kv_heads, tile = pb->policy->prefill->layer[layer].sparse.tile;
	struct carver c = {.base = base};
	struct layer_lists x = {0};

	if (b->n == 0)
		return x;
	if (p->how == SKV_PREFILL_HIP) {
		x.main = room(&c, b, PREFILL_TILE, heads, 8, p->keep[SKV_HIP_STAGES - 1] / 8);
	} else if (p->how == SKV_PREFILL_MINFERENCE) {
		x.main = room(&c, b, PREFILL_TILE, heads, PREFILL_TILE,
		              smaller(2 * (uint64_t)p->slash, b->max_len / PREFILL_TILE + 1));
		x.extra = room(&c, b, PREFILL_TILE, heads, 1, smaller(p->vertical, b->max_len));
	} else if (p->how == SKV_PREFILL_KASCADE && p->source == layer) {
		c.base = base ? base + pb->lists_at : NULL;
		x.main = room(&c, b, tile, kv, 1, skv_budget_of(p->top, b->max_len, p->top_floor));
	}
	x.bytes = c.at;
	return x;
}

/* Returns the bytes of all lists, and sets the offset at which each policy batch's own lists begin. */
static size_t lay_out(struct skv_session *s)
{
	struct step *st = &s->step;
	size_t at = 0;

	for (int own = 0; own < 2; own++)
		for (uint32_t i = 0; i < st->n_batches; i++) {
			struct policy_batch *pb = &st->batch[i];
			size_t most = 0;

			for (uint32_t layer = 0; pb->policy->prefill && layer < s->model.n_layers; layer++)
				if ((pb->policy->plan[layer].prefill.how == SKV_PREFILL_KASCADE) == own) {
					const struct skv_batch b = batch_prompts(s, pb, layer);
					size_t bytes = lists_of(&s->shape, layer, &b, pb, NULL).bytes;

					most = bytes > most ? bytes : most;
				}
			pb->lists_at = at;
			at = own ? at + most : most > at ? most : at;
		}
	return at;
}

/* How prompt rows attend in a layer with the model's sliding window. */
static struct skv_sparse window_of(uint32_t window)
{
	return (struct skv_sparse){.tile = PREFILL_TILE, .window = window};
}

/* How the prompt rows of a policy batch attend in the layer, without the lists of tiles; tile 0: densely. */
static struct skv_sparse sparse_of(const struct skv_session *s, const struct policy_batch *pb, uint32_t layer)
{
	if (skv_model_window(&s->model, layer))
		return window_of(skv_model_window(&s->model, layer));
	return pb->policy->prefill ? pb->policy->prefill->layer[layer].sparse : (struct skv_sparse){0};
}

/* Upper bound of the kernels' workspace for a policy batch's prompts. */
static size_t workspace_bytes(struct skv_session *s, const struct policy_batch *pb)
{
	size_t most = 0;

	for (uint32_t layer = 0; pb->n_prompts > 0 && layer < s->model.n_layers; layer++) {
		const struct skv_sparse x = sparse_of(s, pb, layer);
		const struct skv_shape shape = layer_shape(s, layer);
		const struct skv_batch b = batch_prompts(s, pb, layer);
		size_t bytes = x.tile > 0 ? s->kernels->prefill_sparse_bytes(&shape, &b, &x, s->step.work.threads) : 0;

		most = bytes > most ? bytes : most;
	}
	return most;
}

static int prefill_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	size_t work = 0, lists;
	int e;

	if (st->rows == 0) /* a maintenance transaction */
		return 0;
	lists = lay_out(s);
	for (uint32_t i = st->n_decode; i < st->n; i++)
		prefill_find_sparse(st->seqs[i]);
	for (uint32_t i = 0; i < st->n_batches; i++) {
		size_t bytes = workspace_bytes(s, &st->batch[i]);

		work = bytes > work ? bytes : work;
	}
	e = scratch_grow(s, &st->work.mem, &st->work.bytes, work);
	if (e == 0)
		e = scratch_grow(s, &st->prefill.lists, &st->prefill.bytes, lists);
	if (e == -ENOMEM)
		return error_set(e, "out of memory for %zu bytes of what the rows of %u prompts are to see, and %zu to find it: prompts in "
		            "smaller steps need less", lists, st->n - st->n_decode, work);
	return e;
}

static void prefill_close(struct skv_session *s)
{
	scratch_free(s, s->step.prefill.lists);
}

const struct feature prefill_feature = {
	.make = prefill_make,
	.unmake = prefill_unmake,
	.prepare = prefill_prepare,
	.close = prefill_close,
};

/* ---- a layer --------------------------------------------------------------------------------- */

/*
 * The lists of prompt number `first` of the batch and of the prompts after it, with the layer's head map. NULL: the
 * layer has no lists.
 */
static struct skv_tile_lists *from(struct skv_tile_lists *x, uint32_t first, const struct skv_prefill *p)
{
	const size_t lists = (size_t)first * x->tiles * x->rows;

	if (x->rows == 0)
		return NULL;
	x->ids += lists * x->stride;
	x->count += lists;
	x->mapped = p->mapped;
	memcpy(x->map, p->map, sizeof(x->map));
	return x;
}

/* Sparse attention of the prompts in `b`, a part of the policy batch that begins with its prompt number `first`. */
static void attend_sparse(const struct layer *l, const struct skv_batch *b, uint32_t first)
{
	const struct policy *policy = l->batch->policy;
	const struct skv_prefill *p = &l->plan->prefill;
	const uint32_t number = p->how == SKV_PREFILL_KASCADE ? p->source : l->number;
	const struct skv_kernels *k = l->kernels;
	struct skv_sparse x = policy->prefill->layer[l->number].sparse;
	struct skv_tile_lists *main, *extra;
	struct layer_lists made;

	made = lists_of(&l->rows, number, &l->maker, l->batch, l->step->prefill.lists);
	main = from(&made.main, first, p);
	extra = from(&made.extra, first, p);
	if (x.n_saved_queries > 0)
		k->save_queries(&l->rows, b, l->attn->q, &x, l->work);
	if (p->how == SKV_PREFILL_HIP)
		k->hip_lists(&l->rows, b, l->attn->q, &x, p->keep, main, l->work);
	else if (p->how == SKV_PREFILL_MINFERENCE)
		k->minference_lists(&l->rows, b, l->attn->q, &x, p->vertical, p->slash, main, extra, l->work);
	else if (p->how == SKV_PREFILL_KASCADE && number == l->number)
		k->kascade_lists(&l->rows, b, l->attn->q, &x, p->top, p->top_floor, main, l->work);
	x.lists = main;
	x.extra = extra;
	if (p->dense)
		k->prefill_dense(&l->rows, b, l->attn->q, l->attn->out, l->work);
	else
		k->prefill_sparse(&l->rows, b, l->attn->q, l->attn->out, &x, l->work);
}

void prefill_attend(const struct layer *l)
{
	struct skv_seq *const *seqs = l->step->seqs + l->batch->first_prompt;

	if (l->window) {
		const struct skv_sparse x = window_of(l->window);

		l->kernels->prefill_sparse(&l->rows, &l->prefill, l->attn->q, l->attn->out, &x, l->work);
		return;
	}
	/*
	 * a layer may attend densely in one sequence and sparsely in another of the same policy, since only one has
	 * evicted tokens
	 */
	for (uint32_t first = 0, end; first < l->prefill.n; first = end) {
		const bool sparse = skv_layer_in(&seqs[first]->prompt.sparse, l->number);
		struct skv_batch part;

		end = first + 1;
		while (end < l->prefill.n && skv_layer_in(&seqs[end]->prompt.sparse, l->number) == sparse)
			end++;
		part = batch_part(l->prefill, first, end - first);
		if (sparse)
			attend_sparse(l, &part, first);
		else
			l->kernels->prefill_dense(&l->rows, &part, l->attn->q, l->attn->out, l->work);
	}
}
