/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/sketch-scores.c - scores of tokens by the sketches of their keys (see kernels/select.h).
 *
 * A query is rotated like the keys, and rounded to 8 bits. The score of a token is then a sum of products of integers,
 * the same on every instruction set, times the scales of the token and of the query. The codes of VL tokens are scored
 * at a time, each token in a lane: 4 bytes of each token's codes make a vector, which is unpacked once for several q
 * heads.
 *
 * The sketches of a sequence are read once, in chunks of tokens, and all scores are stored. Then the scores of a sample
 * of tokens give the softmax denominator of each head. Finally weights are computed and reduced over heads. Tokens with
 * equal scores have equal weights, whatever chunks they are in, so that a selection takes the older one.
 */
#include "kernels/host/runtime/logits.h"
#include "kernels/host/select/sketch.h"

#define CHUNK 256u /* tokens of a chunk, which is a work item */
#define CHUNK_PAGES (CHUNK / SKV_PAGE_TOKENS)
#define HEADS 4 /* number of q heads scored at a time */

/*
 * The rotated query of a sequence's q head, as integers, and the numbers that turn sums of integer products into
 * scores.
 */
struct query {
	float unit;   /* factor that turns a sum into a score, in units of log2 */
	float bias;   /* number subtracted from a sum, because codes are unsigned */
	float lse;    /* log2 of the softmax denominator */
	/* number added to a score: the contribution of the keys' mean c, where something depends on it */
	float base;
	int8_t u[SKV_MAX_HEAD_DIM];
};

struct score_params {
	const struct skv_shape *sh;
	struct sketch_layout layout;
	const struct skv_batch *batch;
	const float *q;
	const struct skv_scores *scores;
	struct query *query; /* [seq][q head]: rotated queries */
	float *score;        /* [seq][q head][stride]: scores of tokens */
	uint32_t stride;
	uint32_t *first; /* [n + 1]: number of work items before those of sequence i; an item is a chunk */
	float signs[SKV_MAX_HEAD_DIM];
};

/* ---- queries --------------------------------------------------------------------------------- */

INLINE float dot(uint32_t dtype, const uint8_t *row, const float *q, uint32_t dim)
{
	vf sum = {0};

	for (uint32_t d = 0; d < dim; d += VL)
		sum = v_fma(v_load(dtype, row + d * skv_dtype_bytes(dtype)), v_loadf(q + d), sum);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

/*
 * Returns scale q·c, where c is the mean of the first page's keys, in units of log2. A plain softmax over sketches does
 * not depend on this number, but a softcap, a sink and a softmax over keys and sketches do.
 */
static float base_of(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, const float *q)
{
	const skv_pte entry = skv_layer_table(sh, s)[0];
	float sum = 0;

	for (uint32_t t = 0; t < SKV_PAGE_TOKENS && skv_pte_resident(entry); t++) {
		const uint8_t *key = skv_key_row(sh, entry, h, t);
		sum += BY_DTYPE(sh->dtype, dot, key, q, sh->head_dim) * skv_row_unit(sh, key);
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
	vf r[SKV_MAX_HEAD_DIM / VL];
	float most = 0;
	int sum = 0;
	(void)thread;

	memcpy(r, q, dim * sizeof *q);
	rotate(dim, x->signs, r);
	for (uint32_t d = 0; d < dim; d++)
		most = fmaxf(most, fabsf(r[d / VL][d % VL]));
	for (uint32_t d = 0; d < dim; d++) {
		const float e = r[d / VL][d % VL];
		to->u[d] = most > 0 && e == e ? (int8_t)rintf(e * (127 / most)) : 0;
		sum += to->u[d];
	}
	to->unit = most / 127 * sh->scale * LOG2E;
	to->bias = 0.5f * (float)((1 << sh->sketch_bits) - 1) * (float)sum;
	to->base = (sh->softcap > 0 || sh->sinks || sh->value_bits) && s->len >= SKV_PAGE_TOKENS ? base_of(sh, s, head / (sh->n_heads / sh->n_kv_heads), q) : 0;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/*
 * Adds to sum[g], in VL lanes, the dot product of query q[g] with the codes of each of VL tokens, whose rows of codes
 * are `each` bytes apart. The first `stride` bytes of a row hold `width` bits of each element's code, with the weight 1
 * << shift. The function loads up to 12 bytes after the last row, which belong to other rows or to scales.
 */
INLINE void add_codes(const uint8_t *row, uint32_t each, uint32_t stride, const int width, const int shift, const int n,
                      const struct query *q, vi *sum)
{
	const vu mask = (vu){0} + ((1u << width) - 1) * 0x01010101u;

	for (uint32_t j = 0; j < stride; j += 16) {
		vi column[4];
		v_load_columns(row + j, each, column);
		for (uint32_t c = 0; c < 4 && j + 4 * c < stride; c++) {
			vi code[8];
			UNROLL
			for (int at = 0; at < 8 / width; at++)
				code[at] = (vi)(((vu)column[c] >> at * width & mask) << shift);
			UNROLL
			for (int g = 0; g < n; g++)
				sum[g] = v_dot_bytes(8 / width, code, q[g].u + j + 4 * c, stride, sum[g]);
		}
	}
}

/*
 * Scores VL tokens, whose codes and scales are at `row` and `scale`, for n queries; the scores for query g are written
 * to to[g * stride] and after.
 */
INLINE void score_rows(const uint8_t *row, const uint8_t *scale, uint32_t dim, const int bits, const int n, const struct query *q,
                       float *to, uint32_t stride)
{
	const uint32_t each = dim * (uint32_t)bits / 8;
	const vf scales = v_load_bf16(scale);
	vi sum[HEADS] = {0};

	add_codes(row, each, bits == 3 ? dim / 4 : each, bits == 3 ? 2 : bits, 0, n, q, sum);
	if (bits == 3)
		add_codes(row + dim / 4, each, dim / 8, 1, 2, n, q, sum);
	UNROLL
	for (int g = 0; g < n; g++)
		v_storef(to + (size_t)g * stride, (__builtin_convertvector(sum[g], vf) - q[g].bias) * (q[g].unit * scales) + q[g].base);
}

/*
 * Prefetches the codes and scales of a page's tokens for a kv head, because the processor's own prefetching does not
 * reach from one kv head's part of a state page to the next.
 */
INLINE void prefetch(const struct sketch_layout *l, const uint8_t *part, uint32_t at)
{
	for (uint32_t b = 0; b < SKV_PAGE_TOKENS * l->row; b += 64)
		__builtin_prefetch(part + at * l->row + b);
	__builtin_prefetch(part + l->scales + at * 2);
}

/* Scores the tokens of those pages that have sketches, for n q heads from `head` on. */
INLINE void score_heads(const struct score_params *x, const struct sketch_spot *spot, uint32_t pages, uint32_t i, uint32_t head,
                        const int bits, const int n, float *to)
{
	const struct skv_shape *sh = x->sh;
	const struct sketch_layout *l = &x->layout;
	const size_t part = head / (sh->n_heads / sh->n_kv_heads) * l->head_bytes;
	const struct query *q = &x->query[(size_t)i * sh->n_heads + head];

	for (uint32_t p = 0; p < pages; p++) {
		if (!spot[p].part)
			continue;
		const uint8_t *codes = spot[p].part + part;
		/* for the next kv head; after the last kv head the prefetch is useless but harmless */
		prefetch(l, codes + l->head_bytes, spot[p].at);
		for (uint32_t t = spot[p].at; t < spot[p].at + SKV_PAGE_TOKENS; t += VL)
			score_rows(codes + (size_t)t * l->row, codes + l->scales + t * 2, sh->head_dim, bits, n, q,
			           to + p * SKV_PAGE_TOKENS + t - spot[p].at, x->stride);
	}
}

INLINE void score_some(const struct score_params *x, const struct sketch_spot *spot, uint32_t pages, uint32_t i, uint32_t head,
                       const int bits, uint32_t n, float *to)
{
	switch (n) {
	case 1: score_heads(x, spot, pages, i, head, bits, 1, to); break;
	case 2: score_heads(x, spot, pages, i, head, bits, 2, to); break;
	case 3: score_heads(x, spot, pages, i, head, bits, 3, to); break;
	default: score_heads(x, spot, pages, i, head, bits, HEADS, to);
	}
}

static void no_scores(float *score, uint32_t from, uint32_t to)
{
	for (uint32_t t = from; t < to; t++)
		score[t] = -INFINITY;
}

static void score_item(void *ctx, uint32_t item, int thread)
{
	const struct score_params *x = ctx;
	const struct skv_shape *sh = x->sh;
	const uint32_t i = skv_range_of(x->first, x->batch->n, item), chunk = item - x->first[i], group = sh->n_heads / sh->n_kv_heads;
	const struct skv_kseq *s = &x->batch->seq[i];
	const uint32_t from = chunk * CHUNK_PAGES, pages = skv_min(CHUNK_PAGES, skv_pages_of(s->len) - from);
	const uint32_t tokens = skv_min(CHUNK, s->len - chunk * CHUNK);
	struct sketch_spot spot[CHUNK_PAGES];
	(void)thread;

	for (uint32_t p = 0; p < pages; p++)
		spot[p] = sketch_spot_of(sh, &x->layout, s, from + p);
	for (uint32_t head = 0; head < sh->n_heads;) {
		const uint32_t n = skv_min(HEADS, group - head % group);
		float *score = x->score + ((size_t)i * sh->n_heads + head) * x->stride + chunk * CHUNK;
		switch (sh->sketch_bits) {
		case 1: score_some(x, spot, pages, i, head, 1, n, score); break;
		case 2: score_some(x, spot, pages, i, head, 2, n, score); break;
		case 3: score_some(x, spot, pages, i, head, 3, n, score); break;
		default: score_some(x, spot, pages, i, head, 4, n, score);
		}
		for (const uint32_t end = head + n; head < end; head++, score += x->stride) {
			if (sh->softcap > 0)
				cap_scores(score, pages * SKV_PAGE_TOKENS, softcap_of(sh));
			/* masking must follow the softcap, which makes -infinity finite */
			for (uint32_t p = 0; p < pages; p++)
				if (!spot[p].part)
					no_scores(score, p * SKV_PAGE_TOKENS, (p + 1) * SKV_PAGE_TOKENS);
			no_scores(score, tokens, pages * SKV_PAGE_TOKENS);
		}
	}
}

static uint32_t chunks_of(uint32_t len)
{
	return (len + CHUNK - 1) / CHUNK;
}

/* Takes the memory of queries and items of a call, and computes all scores. x->score and x->stride are set. */
static void logits(struct score_params *x, struct carve *c, int threads)
{
	const uint32_t n = x->batch->n, heads = n * x->sh->n_heads;

	x->layout = sketch_layout_of(x->sh);
	signs_of(x->sh->head_dim, x->signs);
	x->first = carve(c, (n + 1) * sizeof *x->first);
	x->first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		x->first[i + 1] = x->first[i] + chunks_of(x->batch->seq[i].len);
	x->query = carve(c, heads * sizeof *x->query);
	skv_run(threads, heads, query_item, x);
	skv_run(threads, x->first[n], score_item, x);
}

void ISA(sketch_logits)(const struct skv_shape *sh, const struct skv_batch *batch, const float *q, float *score,
                        size_t stride, struct carve *c, int threads)
{
	logits(&(struct score_params){.sh = sh, .batch = batch, .q = q, .score = score, .stride = (uint32_t)stride}, c, threads);
}

size_t ISA(sketch_logits_bytes)(const struct skv_shape *sh, uint32_t n_seqs)
{
	return carve_size((n_seqs + 1) * sizeof(uint32_t)) + carve_size((size_t)n_seqs * sh->n_heads * sizeof(struct query));
}

/* ---- weights --------------------------------------------------------------------------------- */

/*
 * Copies the scores of a head's sample of tokens to ret, two for each pair, then -infinity up to a whole vector.
 * Returns the number of floats written.
 */
static uint32_t sample_of(const float *score, uint32_t len, float *ret)
{
	const uint32_t pairs = skv_sketch_pairs(len);
	uint32_t n = 0;

	for (uint32_t p = 0; p < pairs; p++) {
		const uint32_t token = skv_sketch_pair(len, p);
		ret[n++] = score[token];
		ret[n++] = token + 1 < len ? score[token + 1] : -INFINITY;
	}
	while (n % VL)
		ret[n++] = -INFINITY;
	return n;
}

/*
 * A work item: computes log2 of a q head's softmax denominator from its sample; 0 (a denominator of 1) if no token of
 * the sample has a sketch.
 */
static void denominator_item(void *ctx, uint32_t item, int thread)
{
	const struct score_params *x = ctx;
	const uint32_t len = x->batch->seq[item / x->sh->n_heads].len;
	float score[2 * SKV_SKETCH_PAIRS + VL];
	const uint32_t n = sample_of(x->score + (size_t)item * x->stride, len, score);
	vf most = v_set(-INFINITY), all = {0};
	(void)thread;

	x->query[item].lse = 0;
	for (uint32_t t = 0; t < n; t += VL)
		most = v_max(v_loadf(score + t), most);
	const float peak = v_fold_runs(V_MAX, most, VL)[0];
	if (!(peak > -INFINITY))
		return;
	for (uint32_t t = 0; t < n; t += VL)
		all += v_exp2(v_loadf(score + t) - peak);
	const float sum = v_fold_runs(V_SUM, all, VL)[0] * skv_sketch_share(len);
	x->query[item].lse = peak + log2f(sum + sink_term(x->sh, item % x->sh->n_heads, peak));
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
		const struct query *q = &x->query[r * each];
		float *score = x->score + r * each * x->stride;
		/* without a buffer for weights, the weights replace the scores of the row's first head */
		float *weight = x->scores->token ? x->scores->token + r * x->scores->token_stride : score;
		for (uint32_t t = from; t < to; t += VL) {
			vf w = {0};
			for (uint32_t g = 0; g < each; g++) {
				const vf one = v_exp2(v_loadf(score + (size_t)g * x->stride + t) - q[g].lse);
				w = x->scores->sum ? w + one : v_max(one, w);
			}
			v_storef(weight + t, w);
		}
		for (uint32_t t = from; len < SKV_PAGE_TOKENS && t < len; t++)
			weight[t] = 1; /* a sequence of less than a page has no sketches yet */
		for (uint32_t t = from; x->scores->page && t < to; t += SKV_PAGE_TOKENS)
			x->scores->page[r * x->scores->page_stride + t / SKV_PAGE_TOKENS] = v_sum_row(weight + t, SKV_PAGE_TOKENS);
	}
}

void ISA(score_sketches)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q,
                         const struct skv_scores *scores, const struct skv_workspace *work)
{
	const uint32_t heads = batch->n * sh->n_heads;
	struct carve c = carve_begin(work);
	struct score_params x = {.sh = sh, .batch = batch, .q = q, .scores = scores};

	x.stride = skv_pages_of(batch->max_len) * SKV_PAGE_TOKENS;
	x.score = carve(&c, (size_t)heads * x.stride * sizeof *x.score);
	logits(&x, &c, work->threads);
	skv_run(work->threads, heads, denominator_item, &x);
	skv_run(work->threads, x.first[batch->n], weigh_item, &x);
}

size_t ISA(score_sketches_bytes)(const struct skv_shape *sh, uint32_t n_seqs, uint32_t max_len)
{
	const size_t heads = (size_t)n_seqs * sh->n_heads, tokens = skv_pages_of(max_len) * SKV_PAGE_TOKENS;

	return carve_size(heads * tokens * sizeof(float)) + ISA(sketch_logits_bytes)(sh, n_seqs);
}
