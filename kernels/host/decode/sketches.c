/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/sketches.c - decode attention to all tokens: to the listed ones with their rows of K and V, to all
 * others by sketches of their keys and values of 2 bits (see kernels/select.h).
 *
 * The scores of all tokens by their sketches are computed first, and those of the listed tokens set to -infinity. The
 * sequence is split into chunks as in decode.c. Each chunk has a partial result of its other tokens for each q head.
 * Then decode_tokens() attends to the listed tokens, and the partial results are merged with its output by their
 * log-sum-exps.
 */
#include <math.h>
#include "kernels/host/decode/decode.h"
#include "kernels/host/decode/params.h"
#include "kernels/host/runtime/logits.h"
#include "kernels/host/select/select.h"
#include "kernels/host/select/sketch.h"

struct sketched {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_index_list *list;
	struct sketch_layout layout;
	float *score; /* [seq][q head][stride]: scores in units of log2; -infinity: not attended to by sketches */
	size_t stride;
	uint32_t *first; /* [n + 1]: number of chunks before those of sequence i */
	float *part;     /* [chunk][q head][head_dim + 2]: weighted sum of values, largest score, sum of weights */
	float *lse;      /* [row][q head]: log-sum-exp of the listed tokens */
	float *out;
};

static uint32_t group_of(const struct skv_shape *sh)
{
	return sh->n_heads / sh->n_kv_heads;
}

/* ---- the listed tokens ----------------------------------------------------------------------- */

/* A work item: takes a q head's listed tokens out of its scores; all tokens if the sequence has no sketches. */
static void take_out_item(void *ctx, uint32_t item, int thread)
{
	const struct sketched *x = ctx;
	const uint32_t i = item / x->sh->n_heads, h = item % x->sh->n_heads / group_of(x->sh), len = x->batch->seq[i].len;
	const size_t row = (size_t)i * x->list->rows + (x->list->rows > 1 ? skv_index_list_row(x->list, h) : 0);
	const uint32_t *ids = x->list->ids + row * x->list->stride;
	float *score = x->score + item * x->stride;
	(void)thread;

	for (uint32_t t = 0; len < SKV_PAGE_TOKENS && t < SKV_PAGE_TOKENS; t++)
		score[t] = -INFINITY;
	for (uint32_t j = 0; j < x->list->count[row]; j++)
		score[ids[j]] = -INFINITY;
}

/* ---- all others ------------------------------------------------------------------------------ */

/*
 * Reads a value of 2 bits an element. Bytes after the row, which belong to other rows or to steps, may be read, and up to
 * VL floats after ret[dim] are written.
 */
INLINE void load_value(const uint8_t *row, const uint16_t *steps, uint32_t dim, float *ret)
{
	const uint32_t stride = dim / 4;

	for (uint32_t at = 0; at < 4; at++) /* in this order: a vector may reach into the next part of the row */
		for (uint32_t i = 0; i < stride; i += VL) {
			const vi codes = __builtin_convertvector(v_load_u8(row + i), vi);
			v_storef(ret + at * stride + i, __builtin_convertvector(codes >> (int)(2 * at) & 3, vf));
		}
	for (uint32_t d = 0; d < dim; d += VL) {
		const uint16_t *of_group = steps + d / SKV_VALUE_GROUP * 2;
		v_storef(ret + d, v_fma(v_loadf(ret + d), v_set(from_bf16(of_group[1])), v_set(from_bf16(of_group[0]))));
	}
}

/*
 * Turns a chunk's n scores of a q head (n is a multiple of VL) into weights, and stores the largest score and the sum of
 * the weights. All weights are 0 if all scores are -infinity.
 */
static void weigh(float *score, uint32_t n, float *ret_max, float *ret_sum)
{
	vf most = v_set(-INFINITY);

	for (uint32_t t = 0; t < n; t += VL)
		most = v_max(v_loadf(score + t), most);
	*ret_max = v_fold_runs(V_MAX, most, VL)[0];
	for (uint32_t t = 0; t < n; t += VL)
		v_storef(score + t, *ret_max > -INFINITY ? v_exp2(v_loadf(score + t) - *ret_max) : v_set(0));
	*ret_sum = v_sum_row(score, n);
}

#define HEADS 4 /* q heads to whose sums a value is added at a time */
#define VALUE_FLOATS (SKV_MAX_HEAD_DIM + VL)

/* Adds a page's values to the weighted sums of n q heads, which are acc_stride floats apart. */
INLINE void add_values(const float *value, uint32_t dim, const float *weight, size_t weight_stride, const int n, float *acc,
                       uint32_t acc_stride)
{
	for (uint32_t d = 0; d < dim; d += VL) {
		vf sum[HEADS];
		UNROLL
		for (int g = 0; g < n; g++)
			sum[g] = v_loadf(acc + (size_t)g * acc_stride + d);
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
			const vf v = v_loadf(value + t * VALUE_FLOATS + d);
			UNROLL
			for (int g = 0; g < n; g++)
				sum[g] = v_fma(v_set(weight[(size_t)g * weight_stride + t]), v, sum[g]);
		}
		UNROLL
		for (int g = 0; g < n; g++)
			v_storef(acc + (size_t)g * acc_stride + d, sum[g]);
	}
}

/*
 * Adds the values of a page's tokens to the weighted sums of a kv head's q heads. Tokens without a weight may have no
 * value: they count as zeros.
 */
static void add_page(const struct sketched *x, const uint8_t *part, uint32_t at, const float *weight, float *acc, uint32_t acc_stride)
{
	const struct sketch_layout *l = &x->layout;
	const uint32_t dim = x->sh->head_dim, group = group_of(x->sh);
	float value[SKV_PAGE_TOKENS * VALUE_FLOATS];

	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++, at++) {
		bool weighs = false;

		for (uint32_t g = 0; g < group; g++)
			weighs |= weight[g * x->stride + t] != 0;
		if (weighs)
			load_value(part + l->values + (size_t)at * l->value_row,
			           (const uint16_t *)(part + l->steps + (size_t)at * l->value_steps), dim, value + t * VALUE_FLOATS);
		else
			memset(value + t * VALUE_FLOATS, 0, dim * sizeof *value);
	}
	for (uint32_t g = 0; g < group; g += HEADS, weight += HEADS * x->stride, acc += (size_t)HEADS * acc_stride)
		switch (group - g) {
		case 1: add_values(value, dim, weight, x->stride, 1, acc, acc_stride); break;
		case 2: add_values(value, dim, weight, x->stride, 2, acc, acc_stride); break;
		case 3: add_values(value, dim, weight, x->stride, 3, acc, acc_stride); break;
		default: add_values(value, dim, weight, x->stride, HEADS, acc, acc_stride);
		}
}

/* A work item: the partial results of a chunk of a sequence. */
static void chunk_item(void *ctx, uint32_t item, int thread)
{
	const struct sketched *x = ctx;
	const struct skv_shape *sh = x->sh;
	const uint32_t i = skv_range_of(x->first, x->batch->n, item), from = (item - x->first[i]) * CHUNK, each = sh->head_dim + 2;
	const struct skv_kseq *s = &x->batch->seq[i];
	const uint32_t pages = skv_min(CHUNK / SKV_PAGE_TOKENS, skv_pages_of(s->len) - from / SKV_PAGE_TOKENS);
	float *part = x->part + (size_t)item * sh->n_heads * each, *score = x->score + (size_t)i * sh->n_heads * x->stride + from;
	(void)thread;

	memset(part, 0, (size_t)sh->n_heads * each * sizeof *part);
	for (uint32_t head = 0; head < sh->n_heads; head++)
		weigh(score + head * x->stride, pages * SKV_PAGE_TOKENS, &part[head * each + each - 2], &part[head * each + each - 1]);
	for (uint32_t p = 0; p < pages; p++) {
		const struct sketch_spot spot = sketch_spot_of(sh, &x->layout, s, from / SKV_PAGE_TOKENS + p);

		for (uint32_t h = 0, head = 0; spot.part && h < sh->n_kv_heads; h++, head += group_of(sh))
			add_page(x, spot.part + h * x->layout.head_bytes, spot.at, score + head * x->stride + p * SKV_PAGE_TOKENS,
			         part + (size_t)head * each, each);
	}
}

/* ---- both ------------------------------------------------------------------------------------ */

/* A work item: merges a q head's partial results with its output over the listed tokens. */
static void merge_item(void *ctx, uint32_t item, int thread)
{
	const struct sketched *x = ctx;
	const struct skv_shape *sh = x->sh;
	const uint32_t i = item / sh->n_heads, head = item % sh->n_heads, each = sh->head_dim + 2;
	const size_t at = (size_t)x->batch->seq[i].row * sh->n_heads + head;
	float *out = x->out + at * sh->head_dim, max = x->lse[at] * LOG2E, sum;
	(void)thread;

	if (x->batch->seq[i].n_q == 0) /* an empty sequence, which pads the batch */
		return;
	const float listed = max;
	for (uint32_t c = x->first[i]; c < x->first[i + 1]; c++)
		max = fmaxf(max, x->part[((size_t)c * sh->n_heads + head) * each + each - 2]);
	sum = listed > -INFINITY ? exp2f(listed - max) : 0;
	for (uint32_t d = 0; d < sh->head_dim; d += VL)
		v_storef(out + d, sum > 0 ? v_loadf(out + d) * sum : v_set(0));
	for (uint32_t c = x->first[i]; c < x->first[i + 1]; c++) {
		const float *part = x->part + ((size_t)c * sh->n_heads + head) * each;
		/* the chunk has no token, or only NaN scores: there is no maximum to rescale from */
		const float fix = part[each - 2] == -INFINITY ? 1 : exp2f(part[each - 2] - max);
		sum += part[each - 1] * fix;
		for (uint32_t d = 0; d < sh->head_dim; d += VL)
			v_storef(out + d, v_fma(v_loadf(part + d), v_set(fix), v_loadf(out + d)));
	}
	if (sh->lse)
		sh->lse[at] = sum == 0 ? -INFINITY : (max + log2f(sum)) * LN2;
	if (sum != 0)
		sum += sink_term(sh, head, max);
	for (uint32_t d = 0; d < sh->head_dim && sum != 0; d += VL)
		v_storef(out + d, v_loadf(out + d) / sum);
}

/* Returns one more than the largest row of the batch. */
static uint32_t rows_of(const struct skv_batch *batch)
{
	uint32_t rows = 0;

	for (uint32_t i = 0; i < batch->n; i++)
		rows = skv_max(rows, batch->seq[i].row + 1);
	return rows;
}

static uint32_t chunks_of(uint32_t len)
{
	return (len + CHUNK - 1) / CHUNK;
}

void ISA(decode_sketches)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_index_list *list, const struct skv_workspace *work)
{
	const uint32_t n = batch->n, heads = n * sh->n_heads;
	struct carve c = carve_begin(work);
	struct sketched x = {.sh = sh, .batch = batch, .list = list, .layout = sketch_layout_of(sh), .out = out};
	struct skv_shape listed = *sh;
	struct skv_workspace rest = *work;

	x.stride = (size_t)skv_pages_of(batch->max_len) * SKV_PAGE_TOKENS;
	x.score = carve(&c, heads * x.stride * sizeof *x.score);
	x.first = carve(&c, (n + 1) * sizeof *x.first);
	x.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		x.first[i + 1] = x.first[i] + chunks_of(batch->seq[i].len);
	x.part = carve(&c, (size_t)x.first[n] * sh->n_heads * (sh->head_dim + 2) * sizeof *x.part);
	x.lse = carve(&c, (size_t)rows_of(batch) * sh->n_heads * sizeof *x.lse);
	ISA(sketch_logits)(sh, batch, q, x.score, x.stride, &(struct carve){c.at, c.end}, work->threads);
	skv_run(work->threads, heads, take_out_item, &x);
	skv_run(work->threads, x.first[n], chunk_item, &x);
	/* merge_item() adds the sink's term, once, to the sum over all tokens */
	listed.sinks = NULL;
	listed.lse = x.lse;
	rest.mem = c.at;
	rest.bytes = (size_t)(c.end - c.at);
	ISA(decode_tokens)(&listed, batch, q, out, list, &rest);
	skv_run(work->threads, heads, merge_item, &x);
}

size_t ISA(decode_sketches_bytes)(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len)
{
	const size_t tokens = (size_t)skv_pages_of(max_len) * SKV_PAGE_TOKENS, heads = (size_t)n_seqs * sh->n_heads;
	const size_t logits = ISA(sketch_logits_bytes)(sh, n_seqs), decode = ISA(decode_bytes)(sh, n_seqs, max_len);

	return carve_size(heads * tokens * sizeof(float)) + carve_size((n_seqs + 1) * sizeof(uint32_t)) +
	       carve_size(heads * chunks_of(max_len) * (sh->head_dim + 2) * sizeof(float)) +
	       carve_size((size_t)n_rows * sh->n_heads * sizeof(float)) + (logits > decode ? logits : decode);
}
