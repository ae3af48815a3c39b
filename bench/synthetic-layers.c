/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/synthetic-layers.h"
#include "bench/bench.h"
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Number of elements in the parts of a token's vector, and in the whole vector. */
enum { TOPIC = 64, PLACE = 64, CONTENT = 128, WIDTH = TOPIC + PLACE + CONTENT };
#define POSITION_STAYS 0.97 /* cosine between the positions of adjacent tokens */
#define ONE_IN 8         /* one in so many of the first tokens is a landmark */
#define FIRST 8          /* landmarks are in the first 1/FIRST of the prompt */
#define LANDMARK 4.0     /* factor of a landmark's content, relative to that of other tokens */

#define ASKS 1.1   /* approximate standard deviation of the scores between a topic and tokens that are no landmarks */
#define NEAR 4.0   /* score of a token's position for itself */
#define STRAYS 0.02 /* factor of a token's own content in its query */
#define ADDS 0.2   /* factor of a layer's output when it is added to the tokens' vectors */

struct weights {
	float *q, *k, *v; /* [WIDTH][heads or kv_heads][dim] */
	float *o;         /* [heads][dim][WIDTH] */
};

struct synthetic_layers {
	struct synthetic_shape s;
	struct weights *layer;
	float *x; /* [tokens][WIDTH]: the tokens' vectors, the input of the first layer */
	struct skv_shape sh;
	skv_pte *table;
	struct skv_workspace work; /* scratch memory of the current call */
};

static double normal(uint64_t *rng)
{
	double u = ((double)(bench_random(rng) >> 11) + 1) * 0x1p-53, v = (double)(bench_random(rng) >> 11) * 0x1p-53;

	return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* ---- construction ---------------------------------------------------------------------------- */

/*
 * Adds to the weights a random projection of a vector's elements [part, part + width) to elements [first, first + n) of
 * each head. Projected elements have the standard deviation `deviation`.
 */
static void project(float *w, uint32_t heads, uint32_t dim, uint32_t first, uint32_t n, uint32_t part, uint32_t width,
                    double deviation, uint64_t *rng)
{
	for (uint32_t i = part; i < part + width; i++)
		for (uint32_t h = 0; h < heads; h++)
			for (uint32_t d = first; d < first + n; d++)
				w[((size_t)i * heads + h) * dim + d] += (float)(deviation * normal(rng) / sqrt(width));
}

/*
 * Adds the projections of the position. These projections are the same for queries and keys, so that the score is
 * largest for equal positions.
 */
static void add_position(struct weights *w, const struct synthetic_shape *s, uint64_t *rng)
{
	const uint32_t group = s->heads / s->kv_heads, half = s->dim / 2;
	const double deviation = sqrt(NEAR * sqrt(s->dim) / half);

	project(w->k, s->kv_heads, s->dim, half, half, TOPIC, PLACE, deviation, rng);
	for (uint32_t i = TOPIC; i < TOPIC + PLACE; i++)
		for (uint32_t h = 0; h < s->heads; h++)
			memcpy(w->q + ((size_t)i * s->heads + h) * s->dim + half,
			       w->k + ((size_t)i * s->kv_heads + h / group) * s->dim + half, half * sizeof *w->q);
}

static bool make_layer(struct weights *w, const struct synthetic_shape *s, uint64_t *rng)
{
	const uint32_t half = s->dim / 2, given = s->heads * s->dim, content = TOPIC + PLACE;

	w->q = calloc((size_t)WIDTH * given, sizeof *w->q);
	w->k = calloc((size_t)WIDTH * s->kv_heads * s->dim, sizeof *w->k);
	w->v = calloc((size_t)WIDTH * s->kv_heads * s->dim, sizeof *w->v);
	w->o = calloc((size_t)given * WIDTH, sizeof *w->o);
	if (!w->q || !w->k || !w->v || !w->o)
		return false;
	project(w->q, s->heads, s->dim, 0, half, 0, TOPIC, ASKS * sqrt(2), rng);
	project(w->q, s->heads, s->dim, 0, half, content, CONTENT, STRAYS, rng);
	project(w->k, s->kv_heads, s->dim, 0, half, content, CONTENT, 1, rng);
	add_position(w, s, rng);
	project(w->v, s->kv_heads, s->dim, 0, s->dim, content, CONTENT, 1, rng);
	for (size_t i = 0; i < (size_t)given * WIDTH; i++)
		w->o[i] = (float)(ADDS * normal(rng) / sqrt(given));
	return true;
}

static void make_rows(struct synthetic_layers *k, uint64_t *rng)
{
	const double topic = k->s.topic > 0 ? pow(k->s.topic, 1.0 / 64) : 0;
	float drifts[TOPIC + PLACE];

	for (uint32_t p = 0; p < k->s.tokens; p++) {
		const bool landmark = p < k->s.tokens / FIRST && bench_random(rng) % ONE_IN == 0;
		float *x = k->x + (size_t)p * WIDTH;

		for (uint32_t i = 0; i < TOPIC + PLACE; i++) {
			const double stays = p == 0 ? 0 : i < TOPIC ? topic : POSITION_STAYS;

			drifts[i] = (float)((p == 0 ? 0 : stays * drifts[i]) + sqrt(1 - stays * stays) * normal(rng));
			x[i] = landmark && i >= TOPIC ? 0 : drifts[i];
		}
		for (uint32_t i = TOPIC + PLACE; i < WIDTH; i++)
			x[i] = (float)((landmark ? LANDMARK : 1) * normal(rng));
	}
}

/*
 * Makes a pool for one layer of one sequence. A prompt that is read in one call saves no queries, so the pool needs no
 * pages for saved queries.
 */
static bool make_pool(struct synthetic_layers *k)
{
	const struct synthetic_shape *s = &k->s;
	const uint32_t pages = skv_pages_of(s->tokens);

	k->sh = (struct skv_shape){.n_heads = s->heads, .n_kv_heads = s->kv_heads, .head_dim = s->dim, .dtype = SKV_F32,
	                           .io_dtype = SKV_F32, .saved = 1, .scale = 1 / sqrtf((float)s->dim)};
	k->sh.page_bytes = (size_t)2 * s->kv_heads * SKV_PAGE_TOKENS * s->dim * sizeof(float);
	k->sh.pool = aligned_alloc(64, pages * k->sh.page_bytes);
	k->table = calloc(2 * pages, sizeof *k->table);
	for (uint32_t i = 0; k->table && i < pages; i++)
		k->table[i] = skv_pte_make(SKV_PTE_PRIVATE, i);
	return k->sh.pool && k->table;
}

struct synthetic_layers *synthetic_layers_new(const struct synthetic_shape *s)
{
	struct synthetic_layers *k = calloc(1, sizeof *k);
	uint64_t rng = s->seed;
	bool whole;

	if (!k)
		return NULL;
	k->s = *s;
	k->layer = calloc(s->layers, sizeof *k->layer);
	k->x = malloc((size_t)s->tokens * WIDTH * sizeof *k->x);
	whole = k->layer && k->x && make_pool(k);
	for (uint32_t l = 0; whole && l < s->layers; l++)
		whole = make_layer(&k->layer[l], s, &rng);
	if (!whole) {
		synthetic_layers_free(k);
		return NULL;
	}
	make_rows(k, &rng);
	return k;
}

void synthetic_layers_free(struct synthetic_layers *k)
{
	if (!k)
		return;
	for (uint32_t l = 0; k->layer && l < k->s.layers; l++) {
		free(k->layer[l].q);
		free(k->layer[l].k);
		free(k->layer[l].v);
		free(k->layer[l].o);
	}
	free(k->layer);
	free(k->x);
	free(k->sh.pool);
	free(k->table);
	free(k);
}

/* ---- a layer --------------------------------------------------------------------------------- */

uint32_t synthetic_tail(const struct synthetic_shape *s, const struct synthetic_method *way)
{
	const uint32_t gamma = way->plan.gamma, cut = gamma ? s->tokens % gamma + way->plan.tail : 0;

	if (!way->plan.correct || !way->tail)
		return s->tokens;
	return cut < s->tokens ? s->tokens - cut : 0;
}

static struct skv_sparse sparse_of(const struct synthetic_shape *s, const struct skv_prefill *p)
{
	struct skv_sparse sp = {.tile = 64, .sinks = p->sinks, .window = p->window};

	if (p->how == SKV_PREFILL_KASCADE)
		sp.tile = skv_kascade_tile(s->heads / s->kv_heads);
	sp.by_tile = p->how != SKV_PREFILL_STREAMING;
	sp.n_saved_queries = sp.by_tile;
	sp.gamma = p->correct ? p->gamma : 0;
	sp.delta = p->correct == SKV_CORRECT_DELTA;
	return sp;
}

/* Allocates the lists of a method's tiles. Returns false if there is no memory. */
static bool make_tiles(const struct synthetic_shape *s, const struct skv_prefill *p, const struct skv_sparse *sp,
                       struct skv_tile_lists *t)
{
	const bool hip = p->how == SKV_PREFILL_HIP;

	*t = (struct skv_tile_lists){.rows = hip ? s->heads : s->kv_heads, .unit = hip ? 8 : 1};
	t->tiles = skv_max_tiles(s->tokens, sp->tile);
	t->stride = hip ? p->keep[SKV_HIP_STAGES - 1] / 8 : skv_budget_of(p->top, s->tokens, p->top_floor);
	t->ids = calloc((size_t)t->tiles * t->rows * t->stride, sizeof *t->ids);
	t->count = calloc((size_t)t->tiles * t->rows, sizeof *t->count);
	return t->ids && t->count;
}

/*
 * Reads the whole prompt in one call of each kernel: first the kernel that makes lists, if the method has one, then
 * attention.
 */
static void attend(struct synthetic_layers *k, const struct skv_batch *batch, const struct synthetic_layer *in,
                   const struct skv_prefill *p, struct skv_sparse *sp, const struct skv_tile_lists *tiles, float *out)
{
	const struct skv_kernels *kern = k->s.kern;

	if (p->how == SKV_PREFILL_HIP)
		kern->hip_lists(&k->sh, batch, in->q, sp, p->keep, tiles, &k->work);
	if (p->how == SKV_PREFILL_KASCADE)
		kern->kascade_lists(&k->sh, batch, in->q, sp, p->top, p->top_floor, tiles, &k->work);
	if (sp->by_tile)
		sp->lists = tiles;
	kern->prefill_sparse(&k->sh, batch, in->q, out, sp, &k->work);
}

bool synthetic_attend(struct synthetic_layers *k, const struct synthetic_layer *in,
                      const struct synthetic_method *way, float *out)
{
	const struct skv_prefill *p = &way->plan;
	const uint32_t n = k->s.tokens, tail = synthetic_tail(&k->s, way);
	const struct skv_kseq seq = {.table = k->table, .layer_stride = skv_pages_of(n), .len = n, .n_q = n,
	                             .dense_from = tail < n ? tail : UINT32_MAX};
	const struct skv_batch batch = {.seq = &seq, .n = 1, .max_len = n, .max_q = n};
	struct skv_sparse sp = sparse_of(&k->s, p);
	struct skv_tile_lists tiles = {0};
	size_t dense = k->s.kern->workspace_bytes(&k->sh, 1, n, n, k->s.threads);
	size_t sparse = k->s.kern->prefill_sparse_bytes(&k->sh, &batch, &sp, k->s.threads);
	bool whole = !sp.by_tile || make_tiles(&k->s, p, &sp, &tiles);

	k->work = (struct skv_workspace){.bytes = dense > sparse ? dense : sparse, .threads = k->s.threads};
	k->work.mem = aligned_alloc(64, (k->work.bytes + 63) & ~(size_t)63);
	whole = whole && k->work.mem;
	if (whole) {
		k->s.kern->append(&k->sh, &batch, NULL, in->k, in->v, &k->work);
		if (p->how == SKV_PREFILL_DENSE)
			k->s.kern->prefill_dense(&k->sh, &batch, in->q, out, &k->work);
		else
			attend(k, &batch, in, p, &sp, &tiles, out);
	}
	free(k->work.mem);
	free(tiles.ids);
	free(tiles.count);
	return whole;
}
/* ---- all layers ------------------------------------------------------------------------------ */

static float *times(const float *x, const float *w, uint32_t rows, uint32_t from, uint32_t to)
{
	float *y = malloc((size_t)rows * to * sizeof *y);

	if (y)
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)to, (int)from, 1, x, (int)from, w,
		            (int)to, 0, y, (int)to);
	return y;
}

static bool run_layer(struct synthetic_layers *k, uint32_t l, const struct synthetic_method *way, float *x,
                      struct synthetic_layer *to)
{
	const struct synthetic_shape *s = &k->s;
	const uint32_t given = s->heads * s->dim, kept = s->kv_heads * s->dim;
	const struct weights *w = &k->layer[l];

	to->q = times(x, w->q, s->tokens, WIDTH, given);
	to->k = times(x, w->k, s->tokens, WIDTH, kept);
	to->v = times(x, w->v, s->tokens, WIDTH, kept);
	to->out = malloc((size_t)s->tokens * given * sizeof *to->out);
	if (!to->q || !to->k || !to->v || !to->out || !synthetic_attend(k, to, way, to->out))
		return false;
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)s->tokens, WIDTH, (int)given, 1, to->out, (int)given,
	            w->o, WIDTH, 1, x, WIDTH);
	return true;
}

struct synthetic_layer *synthetic_run(struct synthetic_layers *k, const struct synthetic_method *way)
{
	const size_t bytes = (size_t)k->s.tokens * WIDTH * sizeof *k->x;
	struct synthetic_layer *layers = calloc(k->s.layers, sizeof *layers);
	float *x = malloc(bytes);
	bool whole = layers && x;

	if (whole)
		memcpy(x, k->x, bytes);
	for (uint32_t l = 0; whole && l < k->s.layers; l++)
		whole = run_layer(k, l, way, x, &layers[l]);
	free(x);
	if (!whole) {
		synthetic_outputs_free(k, layers);
		return NULL;
	}
	return layers;
}

void synthetic_outputs_free(const struct synthetic_layers *k, struct synthetic_layer *layers)
{
	for (uint32_t l = 0; layers && l < k->s.layers; l++) {
		free(layers[l].q);
		free(layers[l].k);
		free(layers[l].v);
		free(layers[l].out);
	}
	free(layers);
}
