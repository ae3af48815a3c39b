/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/prompt.c - rows of prompts that do not see all (struct skv_prefill): what is kept of them from step to step, their
 * lists of tokens, and which layers of which sequences attend so.
 *
 * A prompt that such rows are of is being read from its first step on until one says that nothing of it is still to come, or
 * until the sequence decodes. For as long each layer has pages for what later rows need of earlier ones, and each commit
 * says where the prompt began, and by a fingerprint how it attends: so another engine goes on as this one would have. Whoever
 * finds another fingerprint than his policy's, or a page missing, begins anew, and what was kept is given back.
 *
 * Positions are what rows are told apart by. So a layer that has let tokens go, where slots are no positions, attends
 * densely, and so do one that packs and one whose chosen tokens come from such a layer.
 */
#include "internal.h"

#include "kernels/prefill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TILE 64u /* tokens of a tile, but for Kascade's */

struct reading {
	uint64_t how;         /* fingerprint, not 0 */
	uint32_t gamma, tail; /* 0: no layer corrects */
	struct {
		struct skv_sparse sparse; /* without lists; tile 0: the layer is dense */
		uint32_t pages;           /* of a set */
	} layer[];                        /* n_layers */
};

/* ---- how a policy reads ----------------------------------------------------------------------- */

static struct skv_sparse sparse_of(const struct skv_plan *plan, uint32_t layer, const struct skv_model *m)
{
	const struct skv_prefill *p = &plan->prefill;
	struct skv_sparse x = {
	        .tile = TILE,
	        .sinks = p->sinks,
	        .window = p->window,
	        .by_tile = true,
	        .delta = p->correct == SKV_CORRECT_DELTA,
	        .gamma = p->correct ? p->gamma : 0,
	};

	switch (p->how) {
	case SKV_PREFILL_STREAMING:
		x.by_tile = false;
		break;
	case SKV_PREFILL_HIP:
		x.kept_rows = 1;
		break;
	case SKV_PREFILL_MINFERENCE:
		x.segment = p->segment;
		x.kept_rows = SKV_LINE_ROWS;
		break;
	case SKV_PREFILL_KASCADE:
		x.tile = skv_kascade_tile(m->n_heads / m->n_kv_heads);
		x.kept_rows = p->source == layer;
		if (p->dense) { /* there is nothing to correct */
			x.delta = false;
			x.gamma = 0;
		}
		break;
	default:
		return (struct skv_sparse){0};
	}
	return x;
}

static uint64_t mix(uint64_t sum, const void *what, size_t bytes)
{
	const uint8_t *at = what;

	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ at[i]) * 0x100000001b3u;
	return sum;
}

/* All that says what is in the pages that are kept, and how it goes on. */
static uint64_t fingerprint(const struct skv_session *s, const struct policy *p)
{
	uint64_t sum = mix(0xcbf29ce484222325u, &s->model.io_dtype, sizeof(s->model.io_dtype));

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		sum = mix(sum, &p->plan[layer].prefill, sizeof(p->plan[layer].prefill));
	return sum ? sum : 1;
}

int reading_make(const struct skv_session *s, struct policy *p)
{
	const uint32_t n = s->model.n_layers;
	bool all = true;
	struct reading *r;

	for (uint32_t layer = 0; layer < n; layer++)
		all &= p->plan[layer].prefill.how == SKV_PREFILL_DENSE;
	if (all)
		return 0;
	r = calloc(1, sizeof(*r) + n * sizeof(*r->layer));
	if (!r)
		return fail(-ENOMEM, "out of memory");
	r->how = fingerprint(s, p);
	for (uint32_t layer = 0; layer < n; layer++) {
		const struct skv_prefill *x = &p->plan[layer].prefill;

		r->layer[layer].sparse = sparse_of(&p->plan[layer], layer, &s->model);
		r->layer[layer].pages = skv_kept_pages(&s->shape, &r->layer[layer].sparse);
		if (x->correct) {
			r->gamma = x->gamma;
			r->tail = x->tail;
		}
	}
	p->reading = r;
	return 0;
}

void reading_free(struct reading *r)
{
	free(r);
}

uint32_t reading_pages(const struct policy *p, uint32_t layer)
{
	return p->reading ? 2 * p->reading->layer[layer].pages : 0;
}

/* ---- of a sequence ---------------------------------------------------------------------------- */

bool reading_fits(const struct skv_seq *q, const struct policy *p)
{
	if (!(q->about & SKV_ABOUT_READING) || !p->reading || q->prompt.how != p->reading->how)
		return false;
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const skv_pte *table = seq_table(q, skv_table(q->layout.n_layers, SKV_GROUP_KEPT, layer));

		for (uint32_t i = 0; i < reading_pages(p, layer); i++)
			if (!skv_pte_resident(table[i]))
				return false;
	}
	return true;
}

uint32_t reading_about(struct skv_seq *q, bool prompt)
{
	const struct reading *r = seq_policy(q)->reading;

	q->next_prompt = (struct skv_prompt){.begin = q->len};
	if (!prompt || !r || q->quiet)
		return 0;
	if (q->about & SKV_ABOUT_READING)
		q->next_prompt.begin = q->prompt.begin;
	q->next_prompt.how = r->how;
	return q->n_later > 0 ? SKV_ABOUT_READING : 0;
}

void reading_schedule(const struct skv_seq *q, struct skv_kseq *ks)
{
	const struct reading *r = seq_policy(q)->reading;
	uint64_t end = (uint64_t)q->len + q->n_new + q->n_later, dense;

	ks->prompt = q->next_prompt.begin;
	ks->dense = UINT32_MAX;
	ks->later = q->n_later > 0;
	if (!r || r->gamma == 0)
		return;
	dense = end % r->gamma + r->tail;
	ks->dense = end > dense ? (uint32_t)(end - dense) : 0;
}

/* Are the layer's tokens all there and in order, as rows? Pages that have been evicted are no matter. */
static bool in_order(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_layer_slots *x = &q->slots[layer];

	if (q->packs && seq_policy(q)->plan[layer].pack.kind)
		return false;
	return !seq_by_layer(q) || (x->live == q->len && x->extent == q->len);
}

static bool is_sparse(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_prefill *p = &seq_policy(q)->plan[layer].prefill;

	return p->how != SKV_PREFILL_DENSE && in_order(q, layer) &&
	       (p->how != SKV_PREFILL_KASCADE || in_order(q, p->source));
}

/* ---- lists ------------------------------------------------------------------------------------ */

struct lists {
	struct skv_tiles units, more; /* rows 0: none */
	size_t bytes;
};

static size_t round_up(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/* Lists of so many units for a batch's tiles, behind x->bytes of `base`; NULL: only measuring. */
static struct skv_tiles room(struct lists *x, uint8_t *base, const struct skv_batch *b, uint32_t tile, uint32_t rows,
                             uint32_t unit, uint64_t most)
{
	struct skv_tiles t = {.rows = rows, .tiles = skv_tiles_most(b->max_q, tile), .stride = (uint32_t)most, .unit = unit};
	const size_t lists = (size_t)b->n * t.tiles * rows, ids = round_up(lists * t.stride * sizeof(*t.ids));

	if (base) {
		t.ids = (uint32_t *)(base + x->bytes);
		t.count = (uint32_t *)(base + x->bytes + ids);
	}
	x->bytes += ids + round_up(lists * sizeof(*t.count));
	return t;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * The lists that a layer makes for a group's prompts. Those of Kascade's stay for the layers after it, and each group
 * has room of its own for them; all others are of use in one layer of a group at a time, and share it.
 */
static struct lists lists_of(struct skv_session *s, const struct group *g, uint32_t layer)
{
	const struct skv_prefill *p = &g->policy->plan[layer].prefill;
	const struct skv_batch b = group_prompts(s, g, layer);
	const uint32_t heads = s->model.n_heads, kv = s->model.n_kv_heads;
	uint8_t *base = s->step.tiles;
	struct lists x = {0};

	if (b.n == 0)
		return x;
	if (p->how == SKV_PREFILL_HIP) {
		x.units = room(&x, base, &b, TILE, heads, 8, p->keep[SKV_HIP_STAGES - 1] / 8);
	} else if (p->how == SKV_PREFILL_MINFERENCE) {
		x.units = room(&x, base, &b, TILE, heads, TILE, smaller(2 * (uint64_t)p->slash, b.max_len / TILE + 1));
		x.more = room(&x, base, &b, TILE, heads, 1, smaller(p->vertical, b.max_len));
	} else if (p->how == SKV_PREFILL_KASCADE && p->source == layer) {
		base = base ? base + g->tiles_at : NULL;
		x.units = room(&x, base, &b, skv_kascade_tile(heads / kv), kv, 1, skv_budget_of(p->top, b.max_len, p->top_floor));
	}
	return x;
}

/* Bytes of all lists; where each group's own begin. */
static size_t lay_out(struct skv_session *s)
{
	struct step *st = &s->step;
	size_t at = 0;

	for (int own = 0; own < 2; own++)
		for (uint32_t i = 0; i < st->n_groups; i++) {
			struct group *g = &st->group[i];
			size_t most = 0;

			for (uint32_t layer = 0; g->policy->reading && layer < s->model.n_layers; layer++)
				if ((g->policy->plan[layer].prefill.how == SKV_PREFILL_KASCADE) == own) {
					size_t bytes = lists_of(s, g, layer).bytes;

					most = bytes > most ? bytes : most;
				}
			g->tiles_at = at;
			at = own ? at + most : most > at ? most : at;
		}
	return at;
}

/* Scratch of the kernels for a group's prompts, at most. */
static size_t work_bytes(struct skv_session *s, const struct group *g)
{
	size_t most = 0;

	for (uint32_t layer = 0; g->policy->reading && g->n_prompts > 0 && layer < s->model.n_layers; layer++) {
		const struct skv_sparse *x = &g->policy->reading->layer[layer].sparse;
		const struct skv_shape shape = layer_shape(s, layer);
		const struct skv_batch b = group_prompts(s, g, layer);
		size_t bytes = x->tile > 0 ? s->kernels->sparse_bytes(&shape, &b, x, s->step.work.threads) : 0;

		most = bytes > most ? bytes : most;
	}
	return most;
}

int reading_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	size_t work = 0, lists = lay_out(s);
	int e;

	for (uint32_t i = 0; i < st->n_groups; i++) {
		size_t bytes = work_bytes(s, &st->group[i]);

		work = bytes > work ? bytes : work;
	}
	e = step_grow(s, &st->work.mem, &st->work.bytes, work);
	if (e == 0)
		e = step_grow(s, &st->tiles, &st->tiles_bytes, lists);
	if (e == -ENOMEM)
		return fail(e, "out of memory for %zu bytes of what the rows of %u prompts are to see, and %zu to find it: prompts in "
		            "smaller steps need less", lists, st->n - st->n_decode, work);
	return e;
}

/* ---- a layer ---------------------------------------------------------------------------------- */

/* From sequence `first` of the group's prompts on, as the layer's heads go by them. NULL: there are none. */
static const struct skv_tiles *from(struct skv_tiles *x, uint32_t first, const struct skv_prefill *p)
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

/* n of a group's prompts, from number `first` on. */
static void attend_sparse(struct skv_session *s, const struct group *g, uint32_t layer, uint32_t first, uint32_t n,
                          const struct skv_attn *a)
{
	const struct skv_prefill *p = &g->policy->plan[layer].prefill;
	const uint32_t maker = p->how == SKV_PREFILL_KASCADE ? p->source : layer;
	const struct skv_batch b = batch_part(group_prompts(s, g, layer), first, n);
	const struct skv_shape shape = layer_shape(s, layer);
	struct skv_sparse x = g->policy->reading->layer[layer].sparse;
	struct lists lists = lists_of(s, g, maker);
	const struct skv_tiles *units = from(&lists.units, first, p), *more = from(&lists.more, first, p);
	const struct skv_kernels *k = s->kernels;
	const struct skv_work *w = &s->step.work;

	if (x.kept_rows > 0)
		k->keep_queries(&shape, &b, a->q, &x, w);
	if (p->how == SKV_PREFILL_HIP)
		k->tile_stages(&shape, &b, a->q, &x, p->keep, units, w);
	else if (p->how == SKV_PREFILL_MINFERENCE)
		k->tile_lines(&shape, &b, a->q, &x, p->vertical, p->slash, units, more, w);
	else if (p->how == SKV_PREFILL_KASCADE && maker == layer)
		k->tile_best(&shape, &b, a->q, &x, p->top, p->top_floor, units, w);
	x.units = units;
	x.more = more;
	if (p->dense)
		k->prefill_dense(&shape, &b, a->q, a->out, w);
	else
		k->prefill_sparse(&shape, &b, a->q, a->out, &x, w);
}

void reading_attend(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_attn *a)
{
	struct skv_seq *const *seqs = s->step.seqs + g->first_prompt;
	const struct skv_shape shape = layer_shape(s, layer);

	/* in one step sequences of a policy may differ in whether their layer is in order */
	for (uint32_t first = 0, end; first < g->n_prompts; first = end) {
		const bool sparse = is_sparse(seqs[first], layer);
		struct skv_batch dense;

		for (end = first + 1; end < g->n_prompts && is_sparse(seqs[end], layer) == sparse; end++)
			;
		if (sparse) {
			attend_sparse(s, g, layer, first, end - first, a);
			continue;
		}
		dense = batch_part(group_prompts(s, g, layer), first, end - first);
		s->kernels->prefill_dense(&shape, &dense, a->q, a->out, &s->step.work);
	}
}

void reading_blind(struct skv_session *s)
{
	for (uint32_t i = s->step.n_decode; i < s->step.n; i++)
		s->step.seqs[i]->next_about &= ~SKV_ABOUT_READING;
}
