/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/compress.c - see compress.h.
 *
 * If the compressor is the identity, a code is z = x - b in bf16, and z + b is decompressed, whatever b is. A number in
 * bf16 is off by at most 2^-8 of itself, so a compressed number is off by up to 2^-8 |x - b|; |b|, a mean of
 * references, is not above the largest row. The pool rounds decompressed rows, and references before that, by u each;
 * fp32, in which rows are rotated back and forth, contributes some 2^-18. In total
 *
 *   |row' - row| <= E (|row| + most), E = 2^-8 + 2 u + 2^-18
 *
 * for the norm of a head's K, which rotation leaves unchanged (the factor that RoPE scales by is divided out), and for
 * each element of V, which is not rotated. A device also rounds x and b to bf16 for its products: another 2^-8. Rows
 * that were decompressed and compressed again were off before: the error grows with each time.
 *
 * Quantized K and V are off by much more, but their values are specified bit for bit. So rows here take these values,
 * too, and attention and selections are checked with them. When they are decompressed for prompts, the pool rounds them
 * again; so do computations on a GPU, whose products take 16 bits.
 */
#include "tests/oracle/compress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/attention.h"

/* bound of how much decompressed rows can have grown */
#define GROWN 1.05

/* ---- which tokens ------------------------------------------------------------------------------- */

/* Is nothing evicted in the layers that compress? Evicted tokens cannot be references. */
static bool whole(const struct oracle_case_seq *q, const struct oracle_step *s, const struct oracle_policy *p,
                  const char *spec)
{
	struct oracle_step all = *s;

	all.n = UINT16_MAX; /* with so many tokens every layer that compresses has compressed some */
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		bool compresses = p->compress(&all, spec, layer).coded > 0;

		for (uint32_t page = 0; compresses && page < skv_pages_of(s->n); page++)
			if (q->hole[layer][page])
				return false;
	}
	return true;
}

/* Quantizes and dequantizes n numbers, `step` apart. */
static void quantize(float *x, uint32_t step, uint32_t n, uint32_t bits)
{
	float least = x[0], most = x[0], top = (float)((1 << bits) - 1), scale;

	for (uint32_t i = 1; i < n; i++) {
		least = fminf(least, x[i * step]);
		most = fmaxf(most, x[i * step]);
	}
	scale = ref_round(SKV_BF16, (most - least) / top);
	least = ref_round(SKV_BF16, least);
	for (uint32_t i = 0; i < n; i++) {
		float number = scale > 0 ? rintf((x[i * step] - least) / scale) : 0;

		x[i * step] = (float)(least + (double)fminf(fmaxf(number, 0), top) * scale);
	}
}

/* Quantizes tokens [from, to) of a layer. */
static void quantize_kv(const struct skv_model *m, struct oracle_case_seq *q, uint32_t layer, uint32_t from,
                        uint32_t to)
{
	uint32_t bits = q->compress[layer].bits, group = q->compress[layer].group, width = m->n_kv_heads * m->head_dim;

	for (uint32_t t = from; t < to; t += 32)
		for (uint32_t d = 0; d < width; d++)
			quantize(q->k[layer] + (size_t)t * width + d, width, 32, bits);
	for (size_t at = (size_t)from * width; at < (size_t)to * width; at += group)
		quantize(q->v[layer] + at, 1, group, bits);
}

static void round_rows(const struct skv_model *m, struct oracle_case_seq *q, uint32_t layer, uint32_t from, uint32_t to)
{
	size_t width = (size_t)m->n_kv_heads * m->head_dim;

	for (size_t at = from * width; at < to * width; at++) {
		q->k[layer][at] = ref_round(m->kv_dtype, q->k[layer][at]);
		q->v[layer][at] = ref_round(m->kv_dtype, q->v[layer][at]);
	}
}

/* Applies quantization to rows that are now quantized, and rounding to rows that no longer are. */
static void follow_quantized(const struct oracle_step *s, struct oracle_case_seq *q, uint32_t layer,
                             const struct oracle_compress *was)
{
	const struct skv_model *m = s->model;
	const struct oracle_compress *now = &q->compress[layer];

	if (was->bits && now->coded < was->coded)
		round_rows(m, q, layer, 0, was->coded);
	if (!now->bits || now->coded <= was->coded)
		return;
	quantize_kv(m, q, layer, was->coded, now->coded);
	if (s->device_rounds)
		round_rows(m, q, layer, was->coded, now->coded);
}

void compressed_follow(struct oracle_case_seq *q, const struct oracle_step *s, const struct oracle_policy *p, const char *spec,
                   bool compresses)
{
	bool wants = p && p->compress && whole(q, s, p, spec);

	q->rows_unknown |= !p && strstr(spec, "file=");
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++) {
		struct oracle_compress was = q->compress[layer], now = {0};

		if (wants)
			now = compresses ? p->compress(s, spec, layer) : was;
		q->compress[layer] = now;
		follow_quantized(s, q, layer, &was);
		for (uint32_t t = was.coded > now.first ? was.coded : now.first; t < now.coded && !now.bits; t++)
			q->times_compressed[layer][t]++;
	}
}

bool compressed_known(const struct verify *v, const struct oracle_case_seq *q, uint32_t layer)
{
	if (v->identity || q->rows_unknown)
		return !q->rows_unknown;
	for (uint32_t t = 0; t < q->n; t++)
		if (q->times_compressed[layer][t])
			return false;
	return true;
}

/* ---- the possible error ------------------------------------------------------------------------- */

static double norm(const float *x, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += (double)x[i] * x[i];
	return sqrt(sum);
}

/* Is the token quantized? It may be rounded on its way. */
static bool is_quantized(const struct oracle_case_seq *q, uint32_t layer, uint32_t t)
{
	return q->compress[layer].bits && t < q->compress[layer].coded;
}

/* E for a row, as often as it was compressed. */
static double share_off(const struct skv_model *m, const struct oracle_case_seq *q, uint32_t layer, uint32_t t)
{
	static const double unit[] = {[SKV_F32] = 0x1p-24, [SKV_F16] = 0x1p-11, [SKV_BF16] = 0x1p-8};
	double u = unit[m->kv_dtype], codes = (m->device == SKV_DEVICE_HOST ? 1 : 2) * 0x1p-8 + 2 * u + 0x1p-18;

	return q->times_compressed[layer][t] * codes + (is_quantized(q, layer, t) ? u : 0);
}

/*
 * If scores are off by up to δ_t, weights are off by a factor of up to e^δ_t, and their denominator by up to S = Σ α_t
 * e^δ_t: so α' = α (1 ± r_t), r_t = S e^δ_t - 1. Weights add up to 1, before and after, so
 *
 *   o' - o = Σ (α'_t - α_t) (v_t - o) + Σ α'_t (v'_t - v_t)
 */
void compressed_slack(const struct skv_model *m, const struct oracle_case_seq *q, uint32_t layer, uint32_t kv, const float *query,
                  uint32_t n, const double *weight, const double *expected, double *slack)
{
	uint32_t dim = m->head_dim, width = m->n_kv_heads * dim;
	const float *k = q->k[layer] + (size_t)kv * dim, *v = q->v[layer] + (size_t)kv * dim;
	double most_k = 0, most_v[SKV_MAX_HEAD_DIM] = {0}, sum = 0, scale = norm(query, dim) / sqrt(dim);
	double *off; /* norms, then δ_t */
	bool any = false;

	for (uint32_t t = 0; t < n; t++)
		any |= q->times_compressed[layer][t] > 0 || is_quantized(q, layer, t);
	memset(slack, 0, dim * sizeof(*slack));
	if (!any)
		return;
	off = calloc(n, sizeof(*off));
	for (uint32_t t = 0; t < n; t++) {
		off[t] = GROWN * norm(k + (size_t)t * width, dim);
		most_k = fmax(most_k, off[t]);
		for (uint32_t d = 0; d < dim; d++)
			most_v[d] = fmax(most_v[d], GROWN * fabs(v[(size_t)t * width + d]));
	}
	for (uint32_t t = 0; t < n; t++) {
		off[t] = scale * share_off(m, q, layer, t) * (off[t] + most_k);
		sum += weight[t] * exp(off[t]);
	}
	for (uint32_t t = 0; t < n; t++) {
		double r = sum * exp(off[t]) - 1, share = share_off(m, q, layer, t);

		for (uint32_t d = 0; d < dim && weight[t] > 0; d++) {
			double x = v[(size_t)t * width + d];

			slack[d] += weight[t] * (r * fabs(x - expected[d]) + (1 + r) * share * (GROWN * fabs(x) + most_v[d]));
		}
	}
	free(off);
}
