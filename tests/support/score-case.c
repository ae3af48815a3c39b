/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/score-case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/ref/attention.h"

struct skv_scores score_to(struct kernel_case *c, int variant)
{
	const uint32_t pages = (skv_pages_of(c->max_len) + 1 + 3) / 4 * 4;
	const uint32_t rows = variant > 3 ? c->sh.n_heads : variant & 1 ? c->sh.n_kv_heads : 1;
	const size_t entries = (size_t)c->n * rows * pages;

	return (struct skv_scores){
		.rows = rows,
		.sum = variant & 2 || variant == 5,
		.token_stride = pages * SKV_PAGE_TOKENS,
		.page_stride = pages,
		.token = variant == 3 ? NULL : case_to(c, NULL, entries * SKV_PAGE_TOKENS * sizeof(float)),
		.page = variant == 1 ? NULL : case_to(c, NULL, entries * sizeof(float)),
		.lse = variant == 2 ? NULL : case_to(c, NULL, c->n * c->sh.n_heads * sizeof(float)),
	};
}

static void ref_row(const struct kernel_case *c, const float *q, const struct skv_scores *shape, uint32_t i, uint32_t row,
                    struct score_ref *x)
{
	const struct skv_shape *sh = &c->sh;
	const uint32_t dim = sh->head_dim, group = sh->n_heads / sh->n_kv_heads, len = c->seq[i].len;
	const uint32_t heads = sh->n_heads / shape->rows;
	double *token = x->token + (size_t)(i * shape->rows + row) * shape->token_stride;
	double *page = x->page + (size_t)(i * shape->rows + row) * shape->page_stride;
	double *weight = malloc(len * sizeof *weight);
	bool *visible = malloc(len);

	for (uint32_t t = 0; t < len; t++)
		visible[t] = case_resident(c, i, t);
	for (uint32_t t = 0; t < shape->token_stride; t++)
		token[t] = t < skv_pages_of(len) * SKV_PAGE_TOKENS ? 0 : NAN;
	for (uint32_t p = 0; p < shape->page_stride; p++)
		page[p] = p < skv_pages_of(len) ? 0 : NAN;
	for (uint32_t head = row * heads; head < (row + 1) * heads; head++) {
		const size_t at = ((size_t)c->seq[i].row * sh->n_heads + head) * dim, kv = head / group * dim;

		x->lse[i * sh->n_heads + head] = ref_attention(q + at, c->k[i] + kv, c->v[i] + kv, len, sh->n_kv_heads * dim,
		                                               dim, case_softmax(c, head), visible, x->out + at, weight);
		for (uint32_t t = 0; t < len; t++)
			token[t] = shape->sum ? token[t] + weight[t] : fmax(token[t], weight[t]);
	}
	for (uint32_t t = 0; t < len; t++)
		page[t / SKV_PAGE_TOKENS] += token[t];
	free(weight);
	free(visible);
}

struct score_ref score_ref_of(const struct kernel_case *c, const struct skv_scores *shape)
{
	const size_t rows = (size_t)c->n * shape->rows;
	float *q = case_q(c, c->on);
	struct score_ref x = {.out = malloc((size_t)c->rows * c->sh.n_heads * c->sh.head_dim * sizeof(double)),
	                      .token = malloc(rows * shape->token_stride * sizeof(double)),
	                      .page = malloc(rows * shape->page_stride * sizeof(double)),
	                      .lse = malloc(c->n * c->sh.n_heads * sizeof(double))};

	for (size_t r = 0; r < rows; r++)
		ref_row(c, q, shape, (uint32_t)r / shape->rows, (uint32_t)r % shape->rows, &x);
	free(q);
	return x;
}

void score_ref_free(struct score_ref *x)
{
	free(x->out);
	free(x->token);
	free(x->page);
	free(x->lse);
}

/* `there`: floats in the backend's memory, NULL if they were not requested. */
static void check(const struct kernel_case *c, const char *what, const float *there, const double *ref, size_t n,
                  double tolerance, double slack)
{
	char name[64];
	float *x;

	if (!there)
		return;
	x = malloc(n * sizeof *x);
	case_from(c, x, there, n * sizeof *x);
	snprintf(name, sizeof name, "%s, %s", what, c->on->name);
	case_compare(name, x, ref, n, tolerance, slack);
	free(x);
}

void score_check(const struct kernel_case *c, const struct skv_scores *s, const struct score_ref *ref)
{
	const double most = s->sum ? c->sh.n_heads : 1, least = c->on->device ? 1e-4 : 0, slack = case_weight_slack(c,
			c->on);
	const size_t rows = (size_t)c->n * s->rows;

	check(c, "token weights", s->token, ref->token, rows * s->token_stride, 2e-6 * most + least, slack);
	check(c, "page weights", s->page, ref->page, rows * s->page_stride, 1e-5 * most + least, slack);
	check(c, "log-sum-exp", s->lse, ref->lse, c->n * c->sh.n_heads, c->on->device ? 2e-3 : 1e-5, 0);
}
