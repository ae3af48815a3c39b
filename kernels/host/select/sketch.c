/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/sketch.c - sketches of keys, and scores of tokens by them; kernels/select.h says what they are.
 *
 * A query is rotated as the keys were, and rounded to 8 bits: then a score is a sum of products of whole numbers, the same
 * on every ISA, times the token's scale and the query's. Scores are made three times over a sequence: of each q head and
 * chunk of tokens with the chunk's largest one and sum, then the heads' denominators, then weights, reduced over heads.
 */
#include <math.h>
#include "kernels/host/runtime/logits.h"
#include "kernels/host/select/select.h"

#define CHUNK 256u /* tokens of an item */

/* ---- rotation -------------------------------------------------------------------------------- */

/* x becomes R x. */
static void rotate(uint32_t dim, float *x)
{
	const uint32_t block = dim & -dim;
	const float norm = 1 / sqrtf((float)block);

	for (uint32_t d = 0; d < dim; d++)
		x[d] *= skv_sketch_flips(d) ? -norm : norm;
	for (uint32_t half = 1; half < block; half *= 2)
		for (uint32_t i = 0; i < dim; i += 2 * half)
			for (uint32_t j = i; j < i + half; j++) {
				const float a = x[j], b = x[j + half];
				x[j] = a + b;
				x[j + half] = a - b;
			}
}

INLINE void widen(uint32_t dtype, const uint8_t *row, uint32_t dim, float *x)
{
	for (uint32_t d = 0; d < dim; d += VL)
		v_storef(x + d, v_load(dtype, row + d * skv_dtype_bytes(dtype)));
}

static void load_key(const struct skv_shape *sh, const uint8_t *row, float *x)
{
	BY_DTYPE(sh->dtype, widen, row, sh->head_dim, x);
}

/* ---- update ---------------------------------------------------------------------------------- */

struct update_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	float *mean;     /* [seq][kv head][head_dim] */
	uint32_t *first; /* items before sequence i; an item is a page */
};

/* A sequence's first token that gets a sketch: with the first page full, all of its tokens do. */
static uint32_t sketched_from(const struct skv_kseq *s)
{
	const uint32_t from = s->len - s->n_bounds;

	return s->len < SKV_PAGE_TOKENS ? s->len : from < SKV_PAGE_TOKENS ? 0 : from;
}

/* The mean of a head's first page of keys; zeros if that was evicted. */
static void mean_item(void *ctx, uint32_t item, int thread)
{
	const struct update_params *u = ctx;
	const struct skv_shape *sh = u->sh;
	const skv_pte entry = skv_layer_table(sh, &u->batch->seq[item / sh->n_kv_heads])[0];
	float *mean = u->mean + (size_t)item * sh->head_dim, key[SKV_MAX_HEAD_DIM];
	(void)thread;

	memset(mean, 0, sh->head_dim * sizeof *mean);
	if (u->batch->seq[item / sh->n_kv_heads].len < SKV_PAGE_TOKENS || !skv_pte_resident(entry))
		return;
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
		load_key(sh, skv_key_row(sh, entry, item % sh->n_kv_heads, t), key);
		for (uint32_t d = 0; d < sh->head_dim; d++)
			mean[d] += key[d] / SKV_PAGE_TOKENS;
	}
}

/* `width` bits of each code from bit `shift` on. */
static void pack(uint8_t *to, const uint8_t *code, uint32_t dim, uint32_t width, uint32_t shift)
{
	const uint32_t stride = dim * width / 8, mask = (1u << width) - 1;

	memset(to, 0, stride);
	for (uint32_t at = 0; at * width < 8; at++)
		for (uint32_t i = 0; i < stride; i++)
			to[i] |= (uint8_t)((code[at * stride + i] >> shift & mask) << at * width);
}

static uint16_t to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Of a rotated key; the scale is not a number where an element is none. */
static void encode(const struct skv_shape *sh, const float *x, uint8_t *row, uint16_t *scale)
{
	static const float steps[] = {0, 0, 1, 0.586f, 0.335f};
	const uint32_t dim = sh->head_dim, bits = sh->sketch_bits;
	const int half = 1 << (bits - 1);
	float squares = 0, dot = 0, norm = 0, step;
	uint8_t code[SKV_MAX_HEAD_DIM];

	for (uint32_t d = 0; d < dim; d++)
		squares += x[d] * x[d];
	step = steps[bits] * sqrtf(squares / (float)dim);
	for (uint32_t d = 0; d < dim; d++) {
		const float nearest = bits == 1 ? copysignf(0.5f, x[d]) - 0.5f : rintf(x[d] / step - 0.5f);
		const int u = nearest > (float)-half ? nearest < (float)half ? (int)nearest + half : 2 * half - 1 : 0;
		const float value = (float)u + 0.5f - (float)half;
		code[d] = (uint8_t)u;
		dot += x[d] * value;
		norm += value * value;
	}
	pack(row, code, dim, bits == 3 ? 2 : bits, 0);
	if (bits == 3)
		pack(row + dim / 4, code, dim, 1, 2);
	*scale = to_bf16(dot / norm);
}

/* Where a kv head's sketch of token t is in its state page. */
static uint8_t *sketch_row(const struct skv_shape *sh, skv_pte state, uint32_t h, uint32_t t)
{
	return sh->pool + skv_pte_id(state) * sh->page_bytes + h * (sh->page_bytes / sh->n_kv_heads) +
	       t % skv_sketch_tokens(sh) * skv_sketch_row(sh);
}
static uint16_t *sketch_scale(const struct skv_shape *sh, skv_pte state, uint32_t h, uint32_t t)
{
	const uint32_t tokens = skv_sketch_tokens(sh);

	return (uint16_t *)(sketch_row(sh, state, h, 0) + (size_t)tokens * skv_sketch_row(sh)) + t % tokens;
}

static void update_item(void *ctx, uint32_t item, int thread)
{
	const struct update_params *u = ctx;
	const struct skv_shape *sh = u->sh;
	const uint32_t i = skv_range_of(u->first, u->batch->n, item), dim = sh->head_dim;
	const struct skv_kseq *s = &u->batch->seq[i];
	const uint32_t begin = sketched_from(s), page = begin / SKV_PAGE_TOKENS + item - u->first[i];
	const uint32_t from = skv_max(begin, page * SKV_PAGE_TOKENS), to = skv_min(s->len, (page + 1) * SKV_PAGE_TOKENS);
	const skv_pte entry = skv_layer_table(sh, s)[page], state = skv_state_table(sh, s)[from / skv_sketch_tokens(sh)];
	float key[SKV_MAX_HEAD_DIM];
	(void)thread;

	if (!skv_pte_resident(entry) || !skv_pte_resident(state))
		return;
	for (uint32_t h = 0; h < sh->n_kv_heads; h++)
		for (uint32_t t = from; t < to; t++) {
			const float *mean = u->mean + ((size_t)i * sh->n_kv_heads + h) * dim;
			load_key(sh, skv_key_row(sh, entry, h, t), key);
			for (uint32_t d = 0; d < dim; d++)
				key[d] -= mean[d];
			rotate(dim, key);
			encode(sh, key, sketch_row(sh, state, h, t), sketch_scale(sh, state, h, t));
		}
}

void ISA(update_sketches)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct update_params u = {.sh = sh, .batch = batch};

	u.first = carve(&c, (n + 1) * sizeof *u.first);
	u.mean = carve(&c, (size_t)n * sh->n_kv_heads * sh->head_dim * sizeof *u.mean);
	u.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		u.first[i + 1] = u.first[i] + skv_pages_of(batch->seq[i].len) -
		                 skv_min(sketched_from(&batch->seq[i]) / SKV_PAGE_TOKENS, skv_pages_of(batch->seq[i].len));
	skv_run(1, n * sh->n_kv_heads, mean_item, &u);
	skv_run(u.first[n] > 4 ? work->threads : 1, u.first[n], update_item, &u);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* A q head of a sequence: its query in whole numbers, and what makes scores of their sums. */
struct query {
	float unit;   /* of a score, in units of log2 */
	float bias;   /* taken from a sum: codes are counted from below */
	float base;   /* added to a score: what the keys' mean has, where that is not the same to a softmax */
	float lse;    /* log2 of the denominator */
	int8_t u[SKV_MAX_HEAD_DIM];
};

struct peak {
	float max, sum; /* of 2^(score - max) */
};

struct score_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	const struct skv_scores *scores;
	struct query *query; /* [seq][q head] */
	struct peak *peak;   /* [item][q head] */
	float *score;        /* [seq][q head][stride] */
	uint32_t stride;
	uint32_t *first; /* items before sequence i; an item is a chunk */
};

/* scale q·c: a softcap and a sink are not blind to it, as a softmax alone is. */
static float base_of(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, const float *q)
{
	const skv_pte entry = skv_layer_table(sh, s)[0];
	float key[SKV_MAX_HEAD_DIM], sum = 0;

	for (uint32_t t = 0; t < SKV_PAGE_TOKENS && skv_pte_resident(entry); t++) {
		load_key(sh, skv_key_row(sh, entry, h, t), key);
		for (uint32_t d = 0; d < sh->head_dim; d++)
			sum += q[d] * key[d];
	}
	return sum / SKV_PAGE_TOKENS * sh->scale * LOG2E;
}

static void query_item(void *ctx, uint32_t item, int thread)
{
	const struct score_params *x = ctx;
	const struct skv_shape *sh = x->sh;
	const uint32_t dim = sh->head_dim, head = item % sh->n_heads;
	const struct skv_kseq *s = &x->batch->seq[item / sh->n_heads];
	const float *q = x->q + ((size_t)s->row * sh->n_heads + head) * dim;
	struct query *to = &x->query[item];
	float r[SKV_MAX_HEAD_DIM], most = 0;
	int sum = 0;
	(void)thread;

	memcpy(r, q, dim * sizeof *r);
	rotate(dim, r);
	for (uint32_t d = 0; d < dim; d++)
		most = fmaxf(most, fabsf(r[d]));
	for (uint32_t d = 0; d < dim; d++) {
		to->u[d] = most > 0 && r[d] == r[d] ? (int8_t)rintf(r[d] * (127 / most)) : 0;
		sum += to->u[d];
	}
	to->unit = most / 127 * sh->scale * LOG2E;
	to->bias = 0.5f * (float)((1 << sh->sketch_bits) - 1) * (float)sum;
	to->base = (sh->softcap > 0 || sh->sinks) && s->len >= SKV_PAGE_TOKENS ? base_of(sh, s, head / (sh->n_heads / sh->n_kv_heads), q) : 0;
}

/* Codes of `width` bits become bytes, times 1 << shift, added to those that are there if that is not 0. */
INLINE void unpack(uint8_t *to, const uint8_t *row, uint32_t dim, const uint32_t width, const uint32_t shift)
{
	const uint32_t stride = dim * width / 8, mask = (1u << width) - 1;

	for (uint32_t at = 0; at < 8 / width; at++)
		for (uint32_t i = 0; i < stride; i++) {
			const uint8_t u = (uint8_t)((row[i] >> at * width & mask) << shift);
			to[at * stride + i] = shift ? (uint8_t)(to[at * stride + i] + u) : u;
		}
}

static void unpack_row(const struct skv_shape *sh, const uint8_t *row, uint8_t *code)
{
	const uint32_t dim = sh->head_dim;

	switch (sh->sketch_bits) {
	case 1: unpack(code, row, dim, 1, 0); break;
	case 4: unpack(code, row, dim, 4, 0); break;
	default: unpack(code, row, dim, 2, 0);
	}
	if (sh->sketch_bits == 3)
		unpack(code, row + dim / 4, dim, 1, 2);
}

/* Scores of a page's tokens for the q heads of kv head h, from `head` on. */
static void score_page(const struct score_params *x, uint32_t i, uint32_t h, uint32_t page, skv_pte state)
{
	const struct skv_shape *sh = x->sh;
	const uint32_t group = sh->n_heads / sh->n_kv_heads, token = page * SKV_PAGE_TOKENS;
	const struct query *q = &x->query[(size_t)i * sh->n_heads + h * group];
	const uint8_t *row = sketch_row(sh, state, h, token);
	const uint16_t *scale = sketch_scale(sh, state, h, token);
	float *to = x->score + ((size_t)i * sh->n_heads + h * group) * x->stride + token;
	uint8_t code[SKV_MAX_HEAD_DIM];

	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++, row += skv_sketch_row(sh)) {
		const uint32_t bits = (uint32_t)scale[t] << 16;
		float each;
		memcpy(&each, &bits, sizeof each);
		unpack_row(sh, row, code);
		for (uint32_t g = 0; g < group; g++)
			to[(size_t)g * x->stride + t] =
				((float)v_dot_u8(code, q[g].u, sh->head_dim) - q[g].bias) * (q[g].unit * each) + q[g].base;
	}
}

/* The largest of n scores and the sum beside it. n is whole pages. */
static struct peak peak_of(const float *score, uint32_t n)
{
	vf most = v_set(-INFINITY), sum = {0};
	struct peak p;

	for (uint32_t t = 0; t < n; t += VL)
		most = v_max(v_loadf(score + t), most);
	p.max = v_fold_runs(V_MAX, most, VL)[0];
	for (uint32_t t = 0; t < n && p.max > -INFINITY; t += VL)
		sum += v_exp2(v_loadf(score + t) - p.max);
	p.sum = v_fold_runs(V_SUM, sum, VL)[0];
	return p;
}

static void no_scores(const struct score_params *x, uint32_t i, uint32_t from, uint32_t to)
{
	for (uint32_t head = 0; head < x->sh->n_heads; head++)
		for (uint32_t t = from; t < to; t++)
			x->score[((size_t)i * x->sh->n_heads + head) * x->stride + t] = -INFINITY;
}

/* The sketches of a page's tokens are there, in this state page. */
static bool sketched(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t page, skv_pte *ret_state)
{
	*ret_state = skv_state_table(sh, s)[page * SKV_PAGE_TOKENS / skv_sketch_tokens(sh)];
	return skv_pte_resident(skv_layer_table(sh, s)[page]) && skv_pte_resident(*ret_state);
}

static void score_item(void *ctx, uint32_t item, int thread)
{
	const struct score_params *x = ctx;
	const struct skv_shape *sh = x->sh;
	const uint32_t i = skv_range_of(x->first, x->batch->n, item);
	const struct skv_kseq *s = &x->batch->seq[i];
	const uint32_t from = (item - x->first[i]) * CHUNK / SKV_PAGE_TOKENS, end = skv_pages_of(s->len);
	const uint32_t to = skv_min(from + CHUNK / SKV_PAGE_TOKENS, end), n = (to - from) * SKV_PAGE_TOKENS;
	float *score = x->score + (size_t)i * sh->n_heads * x->stride + from * SKV_PAGE_TOKENS;
	skv_pte state;
	(void)thread;

	for (uint32_t page = from; page < to; page++)
		for (uint32_t h = 0; h < sh->n_kv_heads && sketched(sh, s, page, &state); h++)
			score_page(x, i, h, page, state);
	for (uint32_t head = 0; head < sh->n_heads && sh->softcap > 0; head++)
		cap_scores(score + (size_t)head * x->stride, n, softcap_of(sh));
	for (uint32_t page = from; page < to; page++) /* a cap makes numbers of these */
		if (!sketched(sh, s, page, &state))
			no_scores(x, i, page * SKV_PAGE_TOKENS, (page + 1) * SKV_PAGE_TOKENS);
	if (to == end)
		no_scores(x, i, s->len, end * SKV_PAGE_TOKENS);
	for (uint32_t head = 0; head < sh->n_heads; head++)
		x->peak[(size_t)item * sh->n_heads + head] = peak_of(score + (size_t)head * x->stride, n);
}

/* A q head's denominator, of its chunks'. */
static void denominator(const struct score_params *x, uint32_t i, uint32_t head)
{
	struct query *q = &x->query[(size_t)i * x->sh->n_heads + head];
	float max = -INFINITY, sum = 0;

	for (uint32_t item = x->first[i]; item < x->first[i + 1]; item++)
		max = fmaxf(max, x->peak[(size_t)item * x->sh->n_heads + head].max);
	for (uint32_t item = x->first[i]; item < x->first[i + 1] && max > -INFINITY; item++) {
		const struct peak p = x->peak[(size_t)item * x->sh->n_heads + head];
		sum += p.max > -INFINITY ? p.sum * exp2f(p.max - max) : 0;
	}
	q->lse = max > -INFINITY ? max + log2f(sum + sink_term(x->sh, head, max)) : 0;
}

/* Sums of the weights of n pages. */
static void sum_pages(const float *weight, uint32_t n, float *page)
{
	for (uint32_t p = 0; p < n; p++) {
		vf sum = {0};
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t += VL)
			sum += v_loadf(weight + p * SKV_PAGE_TOKENS + t);
		page[p] = v_fold_runs(V_SUM, sum, VL)[0];
	}
}

static void weigh_item(void *ctx, uint32_t item, int thread)
{
	const struct score_params *x = ctx;
	const uint32_t i = skv_range_of(x->first, x->batch->n, item), len = x->batch->seq[i].len, heads = x->sh->n_heads;
	const uint32_t from = (item - x->first[i]) * CHUNK, to = skv_min(from + CHUNK, skv_pages_of(len) * SKV_PAGE_TOKENS);
	const uint32_t rows = x->scores->rows, each = heads / rows;
	(void)thread;

	for (uint32_t row = 0; row < rows; row++) {
		const size_t r = (size_t)i * rows + row;
		/* without a place of their own weights replace the scores of the row's first head */
		float *weight = x->scores->token ? x->scores->token + r * x->scores->token_stride : x->score + r * each * x->stride;
		for (uint32_t t = from; t < to; t += VL) {
			vf w = {0};
			for (uint32_t g = 0; g < each; g++) {
				const size_t head = (size_t)i * heads + row * each + g;
				const vf one = v_exp2(v_loadf(x->score + head * x->stride + t) - x->query[head].lse);
				w = x->scores->sum ? w + one : v_max(one, w);
			}
			v_storef(weight + t, w);
		}
		for (uint32_t t = from; len < SKV_PAGE_TOKENS && t < len; t++)
			weight[t] = 1; /* there are no sketches so far */
		if (x->scores->page)
			sum_pages(weight + from, (to - from) / SKV_PAGE_TOKENS, x->scores->page + r * x->scores->page_stride + from / SKV_PAGE_TOKENS);
	}
}

void ISA(score_sketches)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q,
                         const struct skv_scores *scores, const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct score_params x = {.sh = sh, .batch = batch, .q = q, .scores = scores};

	x.stride = skv_pages_of(batch->max_len) * SKV_PAGE_TOKENS;
	x.first = carve(&c, (n + 1) * sizeof *x.first);
	x.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		x.first[i + 1] = x.first[i] + (batch->seq[i].len + CHUNK - 1) / CHUNK;
	x.query = carve(&c, (size_t)n * sh->n_heads * sizeof *x.query);
	x.peak = carve(&c, (size_t)x.first[n] * sh->n_heads * sizeof *x.peak);
	x.score = carve(&c, (size_t)n * sh->n_heads * x.stride * sizeof *x.score);
	skv_run(work->threads, n * sh->n_heads, query_item, &x);
	skv_run(work->threads, x.first[n], score_item, &x);
	for (uint32_t head = 0; head < n * sh->n_heads; head++)
		denominator(&x, head / sh->n_heads, head % sh->n_heads);
	skv_run(work->threads, x.first[n], weigh_item, &x);
}

size_t ISA(sketch_bytes)(const struct skv_shape *sh, uint32_t n_seqs, uint32_t max_len)
{
	const size_t heads = (size_t)n_seqs * sh->n_heads, tokens = skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	const size_t scores = carve_size(heads * sizeof(struct query)) + carve_size(heads * (tokens / CHUNK + 1) * sizeof(struct peak)) +
	                      carve_size(heads * tokens * sizeof(float));
	const size_t means = carve_size((size_t)n_seqs * sh->n_kv_heads * sh->head_dim * sizeof(float));

	return carve_size((n_seqs + 1) * sizeof(uint32_t)) + (scores > means ? scores : means);
}
