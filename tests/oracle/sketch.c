/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/sketch.c - sketch: each kv head attends to the last `recent` tokens and to the heaviest others, K
 * together, by the softmax weights that its q heads give to the keys' sketches, the largest of the group. With variant
 * q each q head selects K such tokens by its own weights, and the kv head attends to the union of its q heads'
 * selections.
 *
 *   k' = R (k - c)         c is the mean of the first 16 keys, if they are in memory; R is the Hadamard matrix of
 *                          blocks of as many elements as the largest power of two in head_dim, after a sign for each
 *                          element
 *   code                   u in [0, 2^bits), for u + 1/2 - 2^(bits - 1): the nearest to k' / step; step is 1, 0.586,
 *                          0.335 of the root mean square of k' for 2, 3, 4 bits; with one bit the sign
 *   score                  R q in 127ths of its largest element, rounded to integers, times the codes, times
 *                          <k', code> / <code, code> in bf16, plus c·q
 *
 * Numbers that are nearly half way between two integers may be rounded to either.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "tests/ref/attention.h"

#define NEAR 1e-4  /* of a step: rounding in single precision may decide */
#define SLACK 2e-5 /* of a score, additionally */
#define APART 1e-9 /* of a score: change for each doubling of its scale */

static double sign_of(uint32_t d)
{
	uint32_t x = (d + 1) * 0x9e3779b9u;

	x = (x ^ x >> 15) * 0x85ebca6bu;
	return (x ^ x >> 13) >> 16 & 1 ? -1 : 1;
}

static void rotate(uint32_t dim, const double *x, double *ret)
{
	uint32_t block = dim & -dim;

	for (uint32_t i = 0; i < dim; i++) {
		ret[i] = 0;
		for (uint32_t j = 0; j < block; j++) {
			uint32_t d = i / block * block + j;

			ret[i] += (__builtin_parity(i & j) ? -1 : 1) * sign_of(d) * x[d] / sqrt(block);
		}
	}
}

/* An integer, and the range of what it may be as well. */
struct whole {
	double lo, is, hi;
};

static struct whole rounded(double x, double least, double most)
{
	struct whole w = {floor(x + 0.5 - NEAR), floor(x + 0.5), floor(x + 0.5 + NEAR)};

	w.lo = fmin(fmax(w.lo, least), most);
	w.is = fmin(fmax(w.is, least), most);
	w.hi = fmin(fmax(w.hi, least), most);
	return w;
}

struct sketch {
	struct whole code[SKV_MAX_HEAD_DIM]; /* minus (1/2 - 2^(bits - 1)) */
	double offset, scale_lo, scale, scale_hi;
};

static const float *row(const float *x, uint32_t heads, uint32_t t, uint32_t head, uint32_t dim)
{
	return x + ((size_t)t * heads + head) * dim;
}

static void mean_of(const struct oracle_step *s, uint32_t layer, uint32_t kv, double *ret)
{
	uint32_t dim = s->model->head_dim;

	for (uint32_t d = 0; d < dim; d++) {
		ret[d] = 0;
		for (uint32_t t = 0; t < ORACLE_PAGE && s->n >= ORACLE_PAGE && oracle_there(s, layer, ORACLE_TOKENS, 0); t++)
			ret[d] += row(s->k[layer], s->model->n_kv_heads, t, kv, dim)[d] / ORACLE_PAGE;
	}
}

static struct sketch sketch_of(const struct oracle_step *s, uint32_t layer, uint32_t kv, uint32_t t, const double *mean, uint32_t bits)
{
	static const double steps[] = {0, 0, 1, 0.586, 0.335};
	uint32_t dim = s->model->head_dim;
	double x[SKV_MAX_HEAD_DIM], k[SKV_MAX_HEAD_DIM], half = 1 << (bits - 1), squares = 0, dot = 0, norm = 0, wide = 0;
	struct sketch r = {.offset = 0.5 - half};

	for (uint32_t d = 0; d < dim; d++)
		x[d] = row(s->k[layer], s->model->n_kv_heads, t, kv, dim)[d] - mean[d];
	rotate(dim, x, k);
	for (uint32_t d = 0; d < dim; d++)
		squares += k[d] * k[d];
	for (uint32_t d = 0; d < dim; d++) {
		double size = sqrt(squares / dim), step = bits == 1 ? size : steps[bits] * size;

		r.code[d] = bits == 1 ? (struct whole){k[d] > NEAR * size, k[d] >= 0, k[d] > -NEAR * size} : rounded(k[d] / step - 0.5 + half, 0, 2 * half - 1);
		dot += k[d] * (r.code[d].is + r.offset);
		norm += (r.code[d].is + r.offset) * (r.code[d].is + r.offset);
	}
	for (uint32_t d = 0; d < dim; d++) /* another code changes dot and norm, and thereby the scale */
		wide += (r.code[d].hi - r.code[d].lo) * (fabs(r.code[d].is + r.offset) + 1) / norm;
	r.scale_lo = ref_round(SKV_BF16, (float)(dot / norm * (1 - wide - SLACK)));
	r.scale = ref_round(SKV_BF16, (float)(dot / norm));
	r.scale_hi = ref_round(SKV_BF16, (float)(dot / norm * (1 + wide + SLACK)));
	return r;
}

/*
 * Scaled scores of one q head. A key whose code may be another may also have another scale. 84 times a scale of
 * 2.671875 and 76 times 2.953125 are the same number, but in single precision, where unit times scale is rounded first,
 * either may be the larger: scores of different scales differ by at least APART here, so that they are no tie.
 */
static void score(const struct oracle_step *s, uint32_t layer, uint32_t head, const struct sketch *sketch, struct oracle_score *ret)
{
	uint32_t dim = s->model->head_dim;
	double x[SKV_MAX_HEAD_DIM] = {0}, q[SKV_MAX_HEAD_DIM], most = 0, scale = s->model->scale > 0 ? s->model->scale : 1 / sqrt(dim);

	for (uint32_t d = 0; d < dim; d++)
		x[d] = row(s->q[layer], s->model->n_heads, s->n - 1, head, dim)[d];
	rotate(dim, x, q);
	for (uint32_t d = 0; d < dim; d++)
		most = fmax(most, fabs(q[d]));
	for (uint32_t t = 0; t < s->n; t++) {
		double apart = 1 + APART * log2(fmax(sketch[t].scale, 1e-30));
		double is = 0, less = 0, more = 0, unit = most / 127 * scale * sketch[t].scale * apart, wide;

		for (uint32_t d = 0; d < dim; d++) {
			struct whole a = rounded(q[d] * 127 / most, -127, 127), b = sketch[t].code[d];
			double v = a.is * (b.is + sketch[t].offset), off = 0;

			off += (a.hi - a.lo) * fabs(b.is + sketch[t].offset);
			off += (b.hi - b.lo) * fabs(a.is);
			is += v;
			less += off;
			more += off;
		}
		wide = fmax(sketch[t].scale - sketch[t].scale_lo, sketch[t].scale_hi - sketch[t].scale) / fmax(sketch[t].scale, 1e-30);
		wide = fabs(is) * (wide + SLACK) + SLACK * 127;
		ret[t] = (struct oracle_score){(is - less - wide) * unit, is * unit, (is + more + wide) * unit};
	}
}

static struct sketch *sketches_of(const struct oracle_step *s, uint32_t layer, uint32_t kv, uint32_t bits)
{
	struct sketch *sketch = calloc(s->n, sizeof(*sketch));
	double mean[SKV_MAX_HEAD_DIM];

	mean_of(s, layer, kv, mean);
	for (uint32_t t = 0; t < s->n; t++)
		sketch[t] = sketch_of(s, layer, kv, t, mean, bits);
	return sketch;
}

void oracle_sketch_logits(const struct oracle_step *s, uint32_t layer, uint32_t head, uint32_t bits, struct oracle_score *ret)
{
	uint32_t dim = s->model->head_dim, kv = head / (s->model->n_heads / s->model->n_kv_heads);
	double mean[SKV_MAX_HEAD_DIM], base = 0, scale = s->model->scale > 0 ? s->model->scale : 1 / sqrt(dim);
	struct sketch *sketch = sketches_of(s, layer, kv, bits);

	mean_of(s, layer, kv, mean);
	for (uint32_t d = 0; d < dim; d++)
		base += scale * mean[d] * row(s->q[layer], s->model->n_heads, s->n - 1, head, dim)[d];
	score(s, layer, head, sketch, ret);
	for (uint32_t t = 0; t < s->n; t++)
		ret[t] = (struct oracle_score){ret[t].lo + base, ret[t].is + base, ret[t].hi + base};
	free(sketch);
}

/* Is token t in the sample from which denominators are estimated: 256 evenly spaced pairs? */
static bool in_sample(uint32_t n, uint32_t t)
{
	uint64_t all = (n + 1) / 2, pairs = all < 256 ? all : 256, pair = t / 2;

	/* the smallest p with p all / pairs >= pair yields it, if any p does */
	return (pair * pairs + all - 1) / all * all / pairs == pair && (pair * pairs + all - 1) / all < pairs;
}

/* Softmax over all tokens in memory, with a denominator estimated from the sample. */
static void weigh(const struct oracle_step *s, uint32_t layer, struct oracle_score *x)
{
	const double slack = 1e-5;
	double max = -INFINITY, lo = 0, is = 0, hi = 0, share = s->n <= 512 ? 1 : s->n / 512.0;

	for (uint32_t t = 0; t < s->n; t++)
		if (oracle_there(s, layer, ORACLE_TOKENS, t))
			max = fmax(max, x[t].is);
	for (uint32_t t = 0; t < s->n; t++) {
		x[t] = (struct oracle_score){exp(x[t].lo - max), exp(x[t].is - max), exp(x[t].hi - max)};
		if (!in_sample(s->n, t) || !oracle_there(s, layer, ORACLE_TOKENS, t))
			continue;
		lo += x[t].lo;
		is += x[t].is;
		hi += x[t].hi;
	}
	if (is == 0) /* nothing of the sample is in memory */
		lo = is = hi = exp(-max) / share;
	for (uint32_t t = 0; t < s->n; t++) {
		x[t] = (struct oracle_score){x[t].lo / (hi * share) * (1 - slack), x[t].is / (is * share), x[t].hi / (lo * share) * (1 + slack)};
		if (s->device_rounds)
			x[t] = oracle_stepped(s, x[t]);
	}
}

void oracle_sketched(const struct oracle_step *s, uint32_t layer, uint32_t bits, uint32_t from, uint32_t to, enum oracle_reduce pool,
                     struct oracle_score *ret)
{
	uint32_t group = s->model->n_heads / s->model->n_kv_heads;
	struct oracle_score *one = calloc(s->n, sizeof(*one));
	struct sketch *sketch = NULL;

	for (uint32_t head = from; head < to; head++) {
		if (head == from || head % group == 0) {
			free(sketch);
			sketch = sketches_of(s, layer, head / group, bits);
		}
		score(s, layer, head, sketch, one);
		weigh(s, layer, one);
		for (uint32_t t = 0; t < s->n; t++)
			ret[t] = head == from ? one[t] : pool == ORACLE_MAX ? oracle_more(ret[t], one[t]) : oracle_add(ret[t], one[t]);
	}
	free(one);
	free(sketch);
}

/* A token is in a union if it is in one of its sets; if it may be in one, rounding decides the union's size. */
static void unite(const struct oracle_set *each, uint32_t from, uint32_t to, struct oracle_set *set, uint32_t row)
{
	uint8_t *class = set->class + (size_t)row * set->units;

	for (uint32_t t = 0; t < set->units; t++) {
		for (uint32_t head = from; head < to; head++)
			if (each->class[(size_t)head * each->units + t] > class[t])
				class[t] = each->class[(size_t)head * each->units + t];
		if (class[t] == ORACLE_MAY)
			set->count[row] = UINT32_MAX;
		else if (class[t] == ORACLE_IN && set->count[row] != UINT32_MAX)
			set->count[row]++;
	}
}

static void choose(const struct oracle_step *s, const char *spec, uint32_t layer, struct oracle_set *set)
{
	uint32_t kv_heads = s->model->n_kv_heads, group = s->model->n_heads / kv_heads, bits = (uint32_t)oracle_number(spec, "bits");
	uint32_t k = oracle_budget(spec, s->n, (uint32_t)oracle_number(spec, "floor")), recent = (uint32_t)oracle_number(spec, "recent");
	struct oracle_set each;

	recent = recent < s->n ? recent : s->n;
	if (!oracle_is(spec, "variant", "q")) {
		oracle_select(s, layer, set, ORACLE_TOKENS, kv_heads, ORACLE_MAX, bits, k, recent, 0);
		return;
	}
	oracle_select(s, layer, &each, ORACLE_TOKENS, s->model->n_heads, ORACLE_MAX, bits, k, recent, 0);
	oracle_set_new(s, set, ORACLE_TOKENS, kv_heads);
	for (uint32_t kv = 0; kv < kv_heads; kv++)
		unite(&each, kv * group, (kv + 1) * group, set, kv);
	oracle_sets_free(&each, 1);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++)
		if (layer < oracle_number(spec, "dense"))
			oracle_dense(s, layer, &set[layer]);
		else
			choose(s, spec, layer, &set[layer]);
}

const struct oracle_policy oracle_sketch = {.name = "sketch", .attend = attend};
