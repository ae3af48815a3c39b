/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/head-budgets.c - head budgets (Ada-KV): chooses the active entries of heads that share a layer's
 * budget, and accumulates the scores of active entries only.
 */
#include "kernels/host/evict/evict.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/logits.h"
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/topk-key.h"

/* ---- active slots ---------------------------------------------------------------------------- */

struct list_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_index_list *list;
};

static void list_item(void *ctx, uint32_t item, int thread)
{
	const struct list_params *c = ctx;
	const struct skv_kseq *s = &c->batch->seq[item / c->sh->n_kv_heads];
	struct meta_iter now = meta_from(c->sh, s, item % c->sh->n_kv_heads, s->set, 0);
	uint32_t *ids = c->list->ids + (size_t)item * c->list->stride, n = 0;
	(void)thread;

	for (uint32_t u = 0; u < s->len; u++) {
		const struct skv_slot_meta meta = *meta_next(&now);
		ids[n] = u;
		n += meta_retained(meta) && meta_active(meta);
	}
	c->list->count[item] = n;
}

void ISA(list_active)(const struct skv_shape *sh, const struct skv_batch *batch, struct skv_index_list *list,
                     const struct skv_workspace *work)
{
	struct list_params c = {.sh = sh, .batch = batch, .list = list};

	list->max_count = batch->max_len;
	skv_run(meta_threads(sh, batch, work), batch->n * sh->n_kv_heads, list_item, &c);
}

/* ---- scores of a list ------------------------------------------------------------------------ */

struct accumulate_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	const struct skv_index_list *list;
	struct per_thread space; /* two floats for each slot: its score and the sum of its weights */
};

/*
 * Computes the scores of the n listed slots, in units of log2, and pads them with -infinity to a whole vector. Returns
 * the largest score.
 */
static float score_slots(const struct accumulate_params *c, const struct skv_kseq *s, uint32_t h, const float *q, const uint32_t *ids,
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
		score[i] = v_fold_runs(V_SUM, sum, VL)[0] * (sh->scale * LOG2E) * skv_row_unit(sh, key);
		most = score[i] > most ? score[i] : most;
	}
	if (sh->softcap > 0) {
		for (uint32_t i = n; i % VL; i++)
			score[i] = 0;
		cap_scores(score, n, softcap_of(sh));
		most = v_softcap(v_set(most), softcap_of(sh))[0];
	}
	for (uint32_t i = n; i % VL; i++)
		score[i] = -INFINITY;
	return most;
}

/* Adds to `sum` the softmax weights of score[0, n), divided by `group`. The softmax has one more term, `sink`. */
static void add_softmax(float *score, uint32_t n, float most, float sink, float group, float *sum)
{
	vf total = {0};

	for (uint32_t i = 0; i < n; i += VL) {
		const vf w = v_exp2(v_loadf(score + i) - most);
		v_storef(score + i, w);
		total += w;
	}
	const float denominator = (v_fold_runs(V_SUM, total, VL)[0] + sink) * group;
	for (uint32_t i = 0; i < n; i += VL)
		v_storef(sum + i, v_loadf(sum + i) + v_loadf(score + i) / denominator);
}

static void accumulate_item(void *ctx, uint32_t item, int thread)
{
	const struct accumulate_params *c = ctx;
	const struct skv_shape *sh = c->sh;
	const uint32_t h = item % sh->n_kv_heads, group = sh->n_heads / sh->n_kv_heads;
	const struct skv_kseq *s = &c->batch->seq[item / sh->n_kv_heads];
	const uint32_t *ids = c->list->ids + (size_t)item * c->list->stride, n = c->list->count[item];
	float *score = (float *)thread_begin(&c->space, thread).at, *sum = score + c->space.stride / 8;

	if (s->accumulate == SKV_ACCUMULATE_NONE || n == 0)
		return;
	memset(sum, 0, (n + VL - 1) / VL * VL * sizeof *sum);
	for (uint32_t g = 0; g < group; g++) {
		const float *q = c->q + ((size_t)s->row * sh->n_heads + h * group + g) * sh->head_dim;
		const float most = score_slots(c, s, h, q, ids, n, score);
		add_softmax(score, n, most, sink_term(sh, h * group + g, most), (float)group, sum);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct skv_slot_meta *meta = skv_slot_meta_at(sh, s, h, s->set, ids[i]);
		meta->score = (s->accumulate == SKV_ACCUMULATE_ADD ? meta->score : 0) + sum[i];
	}
}

void ISA(accumulate_list)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q,
                     const struct skv_index_list *list, const struct skv_workspace *work)
{
	struct carve at = carve_begin(work);
	struct accumulate_params c = {.sh = sh, .batch = batch, .q = q, .list = list};

	c.space = per_thread(&at, work->threads, 2 * carve_size(batch->max_len * sizeof(float)));
	skv_run(work->threads, batch->n * sh->n_kv_heads, accumulate_item, &c);
}

/* ---- head budgets ---------------------------------------------------------------------------- */

struct budget_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_head_budget_rule *rule;
	const float *rank;
	uint32_t stride;
	struct per_thread space;
};

/* The safeguard of a head: its entries that stay active whatever the other heads' ranks are. */
struct safeguard {
	uint32_t since; /* entries with this pos or a higher one */
	uint64_t least; /* entries with this key or a higher one */
};

/*
 * Returns the key by which an entry is compared with the entries of all heads. Of equal ranks, the entry with the lower
 * pos has the higher key, then the entry of the lower head.
 */
static uint64_t key_of_all(float rank, uint32_t pos, uint32_t h)
{
	return topk_key(rank, pos << 8 | h, false);
}

static bool is_safe(const struct safeguard *x, float rank, uint32_t pos, uint32_t h)
{
	return pos >= x->since || key_of_all(rank, pos, h) >= x->least;
}

/* An iterator over the entries of a head that may stay active: those that are retained and active. */
struct candidates {
	struct meta_iter now;
	const float *rank;
	uint32_t u, n;
};

static struct candidates candidates_of(const struct budget_params *a, uint32_t i, uint32_t h)
{
	const struct skv_kseq *s = &a->batch->seq[i];

	return (struct candidates){
	        .now = meta_from(a->sh, s, h, s->set, 0),
	        .rank = a->rank + ((size_t)i * a->sh->n_kv_heads + h) * a->stride,
	        .n = s->len,
	};
}

/* Returns the metadata of the iterator's next entry, and its rank in *ret_rank; NULL: there is no further entry. */
static struct skv_slot_meta *next_candidate(struct candidates *w, float *ret_rank)
{
	while (w->u < w->n) {
		struct skv_slot_meta *meta = meta_next(&w->now);

		*ret_rank = w->rank[w->u++];
		if (meta_retained(*meta) && meta_active(*meta))
			return meta;
	}
	return NULL;
}

/* Returns the lowest pos among the `want` latest candidates of a head. */
static uint32_t first_latest(struct candidates w, uint32_t want, uint32_t *part)
{
	const struct skv_slot_meta *meta;
	uint32_t n = 0;
	float rank;

	while ((meta = next_candidate(&w, &rank)))
		part[n++] = meta->pos;
	return want == 0 ? UINT32_MAX : want >= n ? 0 : ISA(kth)(part, n, &want);
}

static struct safeguard safeguard_of(struct candidates w, const struct skv_head_budget_rule *rule, uint32_t h, uint32_t active,
                                     struct topk_keys *t)
{
	const uint32_t sure = skv_safeguard_of(rule, active), recent = skv_min(rule->recent ? rule->recent - 1 : 0,
			sure);
	struct safeguard x = {.since = first_latest(w, recent, t->part)};
	const struct skv_slot_meta *meta;
	uint32_t n = 0;
	float rank;

	while ((meta = next_candidate(&w, &rank)))
		if (meta->pos < x.since)
			t->key[n++] = key_of_all(rank, meta->pos, h);
	x.least = topk_threshold(t, n, sure - recent);
	return x;
}

/* Returns the lowest key of the entries of all heads that stay active in addition to those that safeguards keep. */
static uint64_t threshold_of_all(const struct budget_params *a, uint32_t i, const struct safeguard *safe,
                                 struct topk_keys *t)
{
	const uint32_t heads = a->sh->n_kv_heads;
	uint32_t want = heads * a->batch->seq[i].n_active, n = 0;

	for (uint32_t h = 0; h < heads; h++) {
		struct candidates w = candidates_of(a, i, h);
		const struct skv_slot_meta *meta;
		float rank;

		while ((meta = next_candidate(&w, &rank)))
			if (is_safe(&safe[h], rank, meta->pos, h))
				want--;
			else
				t->key[n++] = key_of_all(rank, meta->pos, h);
	}
	return topk_threshold(t, n, want);
}

static void budget_item(void *ctx, uint32_t i, int thread)
{
	const struct budget_params *a = ctx;
	const uint32_t heads = a->sh->n_kv_heads, active = a->batch->seq[i].n_active;
	struct carve space = thread_begin(&a->space, thread);
	struct safeguard safe[SKV_MAX_HEADS];
	struct topk_keys t;

	if (active == UINT32_MAX)
		return;
	topk_keys_carve(&space, heads * a->batch->max_len, &t);
	for (uint32_t h = 0; h < heads; h++)
		safe[h] = safeguard_of(candidates_of(a, i, h), a->rule, h, active, &t);
	const uint64_t least = threshold_of_all(a, i, safe, &t);
	for (uint32_t h = 0; h < heads; h++) {
		struct candidates w = candidates_of(a, i, h);
		struct skv_slot_meta *meta;
		float rank;

		while ((meta = next_candidate(&w, &rank)))
			if (!is_safe(&safe[h], rank, meta->pos, h) && key_of_all(rank, meta->pos, h) < least)
				meta->score = -meta->score;
	}
}

void ISA(allocate_head_budgets)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_head_budget_rule *rule,
                const float *rank, uint32_t stride, const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct budget_params a = {.sh = sh, .batch = batch, .rule = rule, .rank = rank, .stride = stride};

	a.space = per_thread(&c, work->threads, topk_keys_carve(NULL, sh->n_kv_heads * batch->max_len, NULL));
	skv_run(meta_threads(sh, batch, work), batch->n, budget_item, &a);
}

size_t ISA(head_budgets_bytes)(const struct skv_shape *sh, uint32_t max_len, int threads)
{
	const size_t budgets = topk_keys_carve(NULL, sh->n_kv_heads * max_len, NULL);
	const size_t scores = 2 * carve_size(max_len * sizeof(float));

	return (size_t)threads * (budgets > scores ? budgets : scores);
}
