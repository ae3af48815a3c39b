/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/graded.c - graded. Each kv head selects the last `recent` tokens and the heaviest others, K tokens
 * together; sketch.c says how tokens are weighed. A head attends to all tokens in one softmax. A selected token takes
 * part with its K and V. Any other token takes part with the score of its sketch and with a value row of 2 bits:
 *
 *   least            the smallest of 32 elements, in bf16
 *   step             a third of the difference between the largest and the smallest, in bf16
 *   element          least + u step, for the integer u from 0 to 3 that gives the nearest number
 *
 * Numbers that are nearly half way between two integers may be rounded to either.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "tests/ref/attention.h"

#define GROUP 32u
#define NEAR 1e-4 /* of a step: rounding in single precision may decide */

static const float *row(const float *x, uint32_t heads, uint32_t t, uint32_t head, uint32_t dim)
{
	return x + ((size_t)t * heads + head) * dim;
}

/* A value of 2 bits an element, and how far another rounding may be from it. */
static void coarse(const float *v, uint32_t dim, double *ret, double *ret_off)
{
	for (uint32_t g = 0; g < dim; g += GROUP) {
		float least = v[g], most = v[g], step;

		for (uint32_t d = g; d < g + GROUP; d++) {
			least = fminf(least, v[d]);
			most = fmaxf(most, v[d]);
		}
		step = ref_round(SKV_BF16, (most - least) / 3);
		least = ref_round(SKV_BF16, least);
		for (uint32_t d = g; d < g + GROUP; d++) {
			double u = step > 0 ? (v[d] - (double)least) / step : 0;

			ret[d] = least + fmin(fmax(nearbyint(u), 0), 3) * step;
			ret_off[d] = nearbyint(u - NEAR) == nearbyint(u + NEAR) ? 0 : step;
		}
	}
}

/* Scores of all tokens in memory: of the listed ones by their keys, of the others by sketches. The others are -infinity. */
static struct oracle_score *scores_of(const struct oracle_step *s, uint32_t layer, uint32_t head, const bool *listed)
{
	struct oracle_score *by_key = calloc(s->n, sizeof(*by_key)), *by_sketch = calloc(s->n, sizeof(*by_sketch));
	double scale = s->model->scale > 0 ? s->model->scale : 1 / sqrt(s->model->head_dim);

	oracle_logits(s, layer, head, by_key);
	if (s->n >= ORACLE_PAGE)
		oracle_sketch_logits(s, layer, head, 2, by_sketch);
	for (uint32_t t = 0; t < s->n; t++) {
		const double is = by_key[t].is * scale;

		if (listed[t])
			by_sketch[t] = (struct oracle_score){is, is, is};
		else if (s->n < ORACLE_PAGE || !oracle_there(s, layer, ORACLE_TOKENS, t))
			by_sketch[t] = (struct oracle_score){-INFINITY, -INFINITY, -INFINITY};
	}
	free(by_key);
	return by_sketch;
}

void oracle_sketched_output(const struct oracle_step *s, uint32_t layer, uint32_t head, const bool *listed, double *ret, double *slack)
{
	const uint32_t dim = s->model->head_dim, kv_heads = s->model->n_kv_heads, kv = head / (s->model->n_heads / kv_heads);
	struct oracle_score *score = scores_of(s, layer, head, listed);
	double max = -INFINITY, sum = 0, value[SKV_MAX_HEAD_DIM], off[SKV_MAX_HEAD_DIM] = {0};

	for (uint32_t d = 0; d < dim; d++)
		ret[d] = slack[d] = 0;
	for (uint32_t t = 0; t < s->n; t++)
		max = fmax(max, score[t].is);
	for (uint32_t t = 0; t < s->n && max > -INFINITY; t++)
		sum += exp(score[t].is - max);
	for (int pass = 0; pass < 2; pass++) /* the error of a weight counts by how far its value is from the output */
		for (uint32_t t = 0; t < s->n; t++) {
			const double weight = sum > 0 ? exp(score[t].is - max) / sum : 0;
			const float *v = row(s->v[layer], kv_heads, t, kv, dim);

			if (weight == 0)
				continue;
			if (!listed[t])
				coarse(v, dim, value, off);
			for (uint32_t d = 0; d < dim && pass == 0; d++)
				ret[d] += weight * (listed[t] ? v[d] : value[d]);
			for (uint32_t d = 0; d < dim && pass == 1 && !listed[t]; d++)
				slack[d] += weight * (off[d] + (exp(fmax(score[t].hi - score[t].is, score[t].is - score[t].lo)) - 1) * fabs(value[d] - ret[d]));
		}
	free(score);
}

static void attend(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	uint32_t k = oracle_budget(spec, s->n, (uint32_t)oracle_number(spec, "floor")), recent = (uint32_t)oracle_number(spec, "recent");

	for (uint32_t layer = 0; layer < s->model->n_layers; layer++)
		if (layer < oracle_number(spec, "dense"))
			oracle_dense(s, layer, &set[layer]);
		else
			oracle_select(s, layer, &set[layer], ORACLE_TOKENS, s->model->n_kv_heads, ORACLE_MAX, 2, k, recent < s->n ? recent : s->n, 0);
}

const struct oracle_policy oracle_graded = {.name = "graded", .attend = attend};
