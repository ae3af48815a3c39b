/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/layer/fp8.c - can a model's keys be stored in pages of fp8?
 *
 * Rounding to e4m3 changes a number by up to a sixteenth of itself. Keys of some models have elements in the hundreds,
 * whose rounding errors move attention from one token to another: with fp8 pages Qwen2.5-Coder-1.5B recalls 5 registers
 * of 36, with bf16 pages 32. So the first rows of the session's first prompts attend twice, to their keys and to the
 * keys rounded to fp8. The total variation of the two softmaxes is the share of attention that fp8 moves. The check
 * takes its mean over the rows, for the head where the mean is largest. Over 16 rows this share is 0.08 with
 * SmolLM2-135M, and 0.75 with Qwen2.5-0.5B and Qwen2.5-Coder-1.5B.
 *
 * Outliers among keys come from a model's weights and not from a prompt, so only the first prompts of a session are
 * checked.
 */
#include "libclient/layer/fp8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "formats/safetensors.h"
#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/seq.h"
#include "libclient/session.h"

#define PROMPTS 8u   /* number of prompts of a session that are checked */
#define MIN_ROWS 8u  /* fewest rows with which a prompt is checked */
#define MAX_ROWS 16u /* most rows of a prompt that are compared */
#define MOST_MOVED 0.25f

/* Rows of one prompt as fp32. */
struct rows {
	uint32_t n;
	float *q; /* [n][n_heads][head_dim] */
	float *k; /* [n][n_kv_heads][head_dim] */
	float *fp8; /* [n][n_kv_heads][head_dim]: k rounded to fp8 */
};

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* Returns the e4m3 number nearest to x, ties to even: three bits of mantissa; the smallest positive number is 2^-9. */
static float e4m3(float x)
{
	int exponent;

	frexpf(x, &exponent);
	exponent = exponent - 4 > -9 ? exponent - 4 : -9;
	return ldexpf(rintf(ldexpf(x, -exponent)), exponent);
}

/*
 * Round a row of K as fp8 pages store it: with a scale that is a power of two and depends on the row's largest element
 * (SKV_FP8 in types.h).
 */
static void round_row(const float *row, uint32_t dim, float *to)
{
	float most = 0;
	int exponent;

	for (uint32_t d = 0; d < dim; d++)
		most = fmaxf(most, fabsf(row[d]));
	if (frexpf(most / 448, &exponent) == 0.5f)
		exponent--;
	for (uint32_t d = 0; d < dim; d++)
		to[d] = ldexpf(e4m3(ldexpf(row[d], -exponent)), exponent);
}

/* ---- attention ------------------------------------------------------------------------------- */

static void softmax(float *x, uint32_t n)
{
	float most = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fmaxf(most, x[i]);
	for (uint32_t i = 0; i < n; i++)
		sum += x[i] = expf(x[i] - most);
	for (uint32_t i = 0; i < n; i++)
		x[i] /= sum;
}

/* Attention weights of a row over the n keys that lie `stride` elements apart. */
static void weigh(const struct skv_shape *sh, const float *q, const float *k, uint32_t stride, uint32_t n, float weights[MAX_ROWS])
{
	for (uint32_t t = 0; t < n; t++) {
		float dot = 0;

		for (uint32_t d = 0; d < sh->head_dim; d++)
			dot += q[d] * k[(size_t)t * stride + d];
		weights[t] = dot * sh->scale;
		if (sh->softcap > 0)
			weights[t] = sh->softcap * tanhf(weights[t] / sh->softcap);
	}
	softmax(weights, n);
}

/* The share of a head's attention that fp8 moves: the mean over all rows that attend to at least two tokens. */
static float moved_of_head(const struct skv_shape *sh, const struct rows *r, uint32_t head)
{
	const uint32_t stride = sh->n_kv_heads * sh->head_dim, at = head / (sh->n_heads / sh->n_kv_heads) * sh->head_dim;
	float exact[MAX_ROWS], rounded[MAX_ROWS], sum = 0;

	for (uint32_t i = 1; i < r->n; i++) {
		const float *q = r->q + ((size_t)i * sh->n_heads + head) * sh->head_dim;

		weigh(sh, q, r->k + at, stride, i + 1, exact);
		weigh(sh, q, r->fp8 + at, stride, i + 1, rounded);
		for (uint32_t t = 0; t <= i; t++)
			sum += fabsf(exact[t] - rounded[t]) / 2;
	}
	return sum / (float)(r->n - 1);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/*
 * Read rows [first, first + n) of a matrix as contiguous fp32. `raw`: memory for the rows in the engine's dtype and
 * stride, used if they are on a device.
 */
static int read_rows(struct skv_session *s, const void *from, uint32_t stride, uint32_t width, uint32_t first, uint32_t n, void *raw, float *to)
{
	const size_t each = skv_dtype_bytes(s->model.io_dtype), apart = stride ? stride : width;
	const uint8_t *at = (const uint8_t *)from + first * apart * each;
	struct skv_tensor t = {.dtype = s->model.io_dtype, .data = at};
	int e;

	if (s->device) {
		e = device_fetch(s, raw, at, ((n - 1) * apart + width) * each);
		if (e < 0)
			return e;
		t.data = raw;
	}
	for (uint32_t i = 0; i < n; i++)
		skv_tensor_floats(&t, i * apart, width, to + (size_t)i * width);
	return 0;
}

/*
 * Are all numbers finite? Rows with a NaN or infinity are not compared, because fp8 is not the cause of these values.
 */
static bool all_finite(const float *x, size_t n)
{
	float sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += x[i] - x[i];
	return sum == 0;
}

/* ---- a layer --------------------------------------------------------------------------------- */

static int refuse(const struct skv_session *s, uint32_t layer, uint32_t head, const struct rows *r, float moved)
{
	return error_set(-EDOM,
	                 "layer %u, head %u: fp8 moves %.0f %% of the attention in the first %u rows of a prompt, at most %.0f %% are allowed: keys of "
	                 "model %s have outliers; open the session with kv_dtype SKV_BF16 (\"bfloat16\")",
	                 layer, head, 100 * moved, r->n, 100 * MOST_MOVED, s->model.name);
}

static int compare(const struct skv_session *s, uint32_t layer, const struct skv_shape *sh, struct rows *r)
{
	if (!all_finite(r->q, (size_t)r->n * sh->n_heads * sh->head_dim) || !all_finite(r->k, (size_t)r->n * sh->n_kv_heads * sh->head_dim))
		return 0;
	for (uint32_t i = 0; i < r->n * sh->n_kv_heads; i++)
		round_row(r->k + (size_t)i * sh->head_dim, sh->head_dim, r->fp8 + (size_t)i * sh->head_dim);
	for (uint32_t head = 0; head < sh->n_heads; head++) {
		const float moved = moved_of_head(sh, r, head);

		if (moved > MOST_MOVED)
			return refuse(s, layer, head, r, moved);
	}
	return 0;
}

static int check_prompt(struct skv_session *s, uint32_t layer, const struct skv_shape *sh, const struct skv_attn *a, uint32_t first, uint32_t n)
{
	const struct skv_model *m = &s->model;
	const uint32_t q = m->n_heads * m->head_dim, k = m->n_kv_heads * m->head_dim;
	const uint32_t q_apart = a->q_stride ? a->q_stride : q, k_apart = a->k_stride ? a->k_stride : k;
	const size_t raw = (size_t)n * (q_apart > k_apart ? q_apart : k_apart) * skv_dtype_bytes(m->io_dtype);
	struct rows r = {.n = n};
	float *mem = malloc((size_t)n * (q + 2 * k) * sizeof(*mem) + raw);
	int e;

	if (!mem)
		return error_set(-ENOMEM, "no memory to compare rows with fp8");
	r.q = mem;
	r.k = r.q + (size_t)n * q;
	r.fp8 = r.k + (size_t)n * k;
	e = read_rows(s, a->q, a->q_stride, q, first, n, r.fp8 + (size_t)n * k, r.q);
	if (e == 0)
		e = read_rows(s, a->k, a->k_stride, k, first, n, r.fp8 + (size_t)n * k, r.k);
	if (e == 0)
		e = compare(s, layer, sh, &r);
	free(mem);
	return e;
}

int fp8_check(struct skv_session *s, uint32_t layer, const struct skv_shape *sh, const struct skv_attn *a)
{
	const struct step *st = &s->step;
	const bool given = a->q && a->k; /* not in layers that share K and V */
	uint32_t checked = s->fp8_prompts;
	int e = 0;

	for (uint32_t i = st->n_decode; i < st->n && checked < PROMPTS && e == 0; i++) {
		const struct skv_seq *q = st->seqs[i];
		const uint32_t row = st->kseq[st->at_kseq[i]].row, n = q->n_rows < MAX_ROWS ? q->n_rows : MAX_ROWS;

		if (q->len > 0 || n < MIN_ROWS)
			continue;
		e = given ? check_prompt(s, layer, sh, a, row, n) : 0;
		checked++;
	}
	if (e == 0 && layer + 1 == s->model.n_layers)
		s->fp8_prompts = checked;
	return e;
}
