/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/head-budgets.c - heads that share a layer's budget: who is awake, and what only these are asked and given.
 */
#include "kernels/host/select/topk-key.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/simd.h"

/* ---- who is awake ---------------------------------------------------------------------------- */

struct listing {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_list *list;
};

static void list_item(void *ctx, uint32_t item, int thread)
{
	const struct listing *c = ctx;
	const struct skv_kseq *s = &c->batch->seq[item / c->sh->n_kv_heads];
	struct notes now = notes_from(c->sh, s, item % c->sh->n_kv_heads, s->set, 0);
	uint32_t *ids = c->list->ids + (size_t)item * c->list->stride, n = 0;
	(void)thread;

	for (uint32_t u = 0; u < s->len; u++) {
		const struct skv_note note = *notes_next(&now);
		ids[n] = u;
		n += note_lives(note) && note_awake(note);
	}
	c->list->count[item] = n;
}

void ISA(list_awake)(const struct skv_shape *sh, const struct skv_batch *batch, struct skv_list *list,
                     const struct skv_work *work)
{
	struct listing c = {.sh = sh, .batch = batch, .list = list};

	list->most = batch->max_len;
	skv_run(notes_threads(sh, batch, work), batch->n * sh->n_kv_heads, list_item, &c);
}

/* ---- votes over a list ----------------------------------------------------------------------- */

struct tally {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	const struct skv_list *list;
	uint8_t *scratch; /* of each thread: room for two numbers of every slot */
	size_t scratch_stride;
};

/* Scores of the listed slots, in powers of two, and -infinity to the end of the last vector; the largest of them. */
static float scores(const struct tally *c, const struct skv_kseq *s, uint32_t h, const float *q, const uint32_t *ids,
                    uint32_t n, float *score)
{
	const struct skv_shape *sh = c->sh;
	const skv_pte *table = skv_layer_table(sh, s);
	const size_t element = skv_dtype_bytes(sh->dtype);
	float most = -INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *key = skv_key_row(sh, table[ids[i] / SKV_PAGE_TOKENS], h, ids[i]);
		vf sum = {0};
		for (uint32_t d = 0; d < sh->head_dim; d += VL)
			sum = v_fma(v_loadf(q + d), v_load(sh->dtype, key + d * element), sum);
		score[i] = v_fold_runs(V_SUM, sum, VL)[0] * (sh->scale * 1.44269504088896340736f);
		most = score[i] > most ? score[i] : most;
	}
	for (uint32_t i = n; i % VL; i++)
		score[i] = -INFINITY;
	return most;
}

/* Add the softmax of score[0, n), over `group`, to vote. */
static void add_softmax(float *score, uint32_t n, float most, float group, float *vote)
{
	vf sum = {0};

	for (uint32_t i = 0; i < n; i += VL) {
		const vf w = v_exp2(v_loadf(score + i) - most);
		v_storef(score + i, w);
		sum += w;
	}
	const float all = v_fold_runs(V_SUM, sum, VL)[0] * group;
	for (uint32_t i = 0; i < n; i += VL)
		v_storef(vote + i, v_loadf(vote + i) + v_loadf(score + i) / all);
}

static void tally_item(void *ctx, uint32_t item, int thread)
{
	const struct tally *c = ctx;
	const struct skv_shape *sh = c->sh;
	const uint32_t h = item % sh->n_kv_heads, group = sh->n_heads / sh->n_kv_heads;
	const struct skv_kseq *s = &c->batch->seq[item / sh->n_kv_heads];
	const uint32_t *ids = c->list->ids + (size_t)item * c->list->stride, n = c->list->count[item];
	float *score = (float *)(c->scratch + thread * c->scratch_stride), *vote = score + c->scratch_stride / 8;

	if (s->tally == SKV_TALLY_NONE || n == 0)
		return;
	memset(vote, 0, (n + VL - 1) / VL * VL * sizeof *vote);
	for (uint32_t g = 0; g < group; g++) {
		const float *q = c->q + ((size_t)s->row * sh->n_heads + h * group + g) * sh->head_dim;
		const float most = scores(c, s, h, q, ids, n, score);
		add_softmax(score, n, most, (float)group, vote);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct skv_note *note = skv_note_at(sh, s, h, s->set, ids[i]);
		note->value = (s->tally == SKV_TALLY_ADD ? note->value : 0) + vote[i];
	}
}

void ISA(tally_list)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q,
                     const struct skv_list *list, const struct skv_work *work)
{
	struct carve at = carve_begin(work);
	struct tally c = {.sh = sh, .batch = batch, .q = q, .list = list};

	c.scratch_stride = 2 * carve_size(batch->max_len * sizeof(float));
	c.scratch = carve(&at, (size_t)work->threads * c.scratch_stride);
	skv_run(work->threads, batch->n * sh->n_kv_heads, tally_item, &c);
}

/* ---- allotment ------------------------------------------------------------------------------- */

struct allot {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_allot *how;
	const float *rank;
	uint32_t stride;
	uint8_t *scratch; /* of each thread */
	size_t scratch_stride;
};

/* What is awake of a head whatever the other heads have. */
struct sure {
	uint32_t since; /* from this pos on */
	uint64_t least; /* of this order and above */
};

/* The order among all heads' units: of equal ranks the lower pos, then the lower head. */
static uint64_t order_of_all(float rank, uint32_t pos, uint32_t h)
{
	return order_of(rank, pos << 8 | h, false);
}

static bool is_sure(const struct sure *x, float rank, uint32_t pos, uint32_t h)
{
	return pos >= x->since || order_of_all(rank, pos, h) >= x->least;
}

/* Over the units of a head that may be chosen. */
struct walk {
	struct notes now;
	const float *rank;
	uint32_t u, n;
};

static struct walk walk_of(const struct allot *a, uint32_t i, uint32_t h)
{
	const struct skv_kseq *s = &a->batch->seq[i];

	return (struct walk){
	        .now = notes_from(a->sh, s, h, s->set, 0),
	        .rank = a->rank + ((size_t)i * a->sh->n_kv_heads + h) * a->stride,
	        .n = s->len,
	};
}

/* The next unit that may be chosen, and its rank; NULL: there is no more. */
static struct skv_note *walk_next(struct walk *w, float *ret_rank)
{
	while (w->u < w->n) {
		struct skv_note *note = notes_next(&w->now);

		*ret_rank = w->rank[w->u++];
		if (note_lives(*note) && note_awake(*note))
			return note;
	}
	return NULL;
}

/* The pos of the last of the `want` latest. */
static uint32_t first_latest(struct walk w, uint32_t want, uint32_t *part)
{
	const struct skv_note *note;
	uint32_t n = 0;
	float rank;

	while ((note = walk_next(&w, &rank)))
		part[n++] = note->pos;
	return want == 0 ? UINT32_MAX : want >= n ? 0 : ISA(kth)(part, n, &want);
}

static struct sure sure_of(struct walk w, const struct skv_allot *how, uint32_t h, uint32_t awake, struct choice *c)
{
	const uint32_t sure = skv_sure_of(how, awake), recent = skv_min(how->recent ? how->recent - 1 : 0, sure);
	struct sure x = {.since = first_latest(w, recent, c->part)};
	const struct skv_note *note;
	uint32_t n = 0;
	float rank;

	while ((note = walk_next(&w, &rank)))
		if (note->pos < x.since)
			c->order[n++] = order_of_all(rank, note->pos, h);
	x.least = least_chosen(c, n, sure - recent);
	return x;
}

/* The least order of those that are chosen beside the sure ones. */
static uint64_t least_of_all(const struct allot *a, uint32_t i, const struct sure *sure, struct choice *c)
{
	const uint32_t heads = a->sh->n_kv_heads;
	uint32_t want = heads * a->batch->seq[i].awake, n = 0;

	for (uint32_t h = 0; h < heads; h++) {
		struct walk w = walk_of(a, i, h);
		const struct skv_note *note;
		float rank;

		while ((note = walk_next(&w, &rank)))
			if (is_sure(&sure[h], rank, note->pos, h))
				want--;
			else
				c->order[n++] = order_of_all(rank, note->pos, h);
	}
	return least_chosen(c, n, want);
}

static void allot_item(void *ctx, uint32_t i, int thread)
{
	const struct allot *a = ctx;
	const uint32_t heads = a->sh->n_kv_heads, awake = a->batch->seq[i].awake;
	uint8_t *scratch = a->scratch + thread * a->scratch_stride;
	struct carve at = {scratch, scratch + a->scratch_stride};
	struct sure sure[SKV_MAX_HEADS];
	struct choice c;

	if (awake == UINT32_MAX)
		return;
	choice_carve(&at, heads * a->batch->max_len, &c);
	for (uint32_t h = 0; h < heads; h++)
		sure[h] = sure_of(walk_of(a, i, h), a->how, h, awake, &c);
	const uint64_t least = least_of_all(a, i, sure, &c);
	for (uint32_t h = 0; h < heads; h++) {
		struct walk w = walk_of(a, i, h);
		struct skv_note *note;
		float rank;

		while ((note = walk_next(&w, &rank)))
			if (!is_sure(&sure[h], rank, note->pos, h) && order_of_all(rank, note->pos, h) < least)
				note->value = -note->value;
	}
}

void ISA(allot)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_allot *how,
                const float *rank, uint32_t stride, const struct skv_work *work)
{
	struct carve c = carve_begin(work);
	struct allot a = {.sh = sh, .batch = batch, .how = how, .rank = rank, .stride = stride};

	a.scratch_stride = choice_carve(NULL, sh->n_kv_heads * batch->max_len, NULL);
	a.scratch = carve(&c, (size_t)work->threads * a.scratch_stride);
	skv_run(notes_threads(sh, batch, work), batch->n, allot_item, &a);
}

size_t ISA(allot_bytes)(const struct skv_shape *sh, uint32_t max_len, int threads)
{
	const size_t allot = choice_carve(NULL, sh->n_kv_heads * max_len, NULL);
	const size_t tally = 2 * carve_size(max_len * sizeof(float));

	return (size_t)threads * (allot > tally ? allot : tally);
}
