/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/evict.c - what the kv heads of a sequence retain, from step to step.
 *
 * If rounding decides what is evicted, the next step's lists show the decision, which is then taken as given. So a
 * class is open for at most one step, and everything before is known.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

#define COSINE_SLACK 1e-5

struct oracle_head *oracle_head(const struct oracle_step *s, uint32_t layer, uint32_t kv)
{
	return &s->kept->head[layer * s->model->n_kv_heads + kv];
}

void oracle_kept_add(struct oracle_kept *k, uint32_t n)
{
	uint32_t units = (n + k->granularity - 1) / k->granularity;

	for (uint32_t i = 0; i < k->n_heads; i++) {
		struct oracle_head *h = &k->head[i];

		for (uint32_t u = h->units; u < units; u++)
			h->lives[u] = ORACLE_IN;
		h->n += units - h->units;
		h->stored += h->stored ? units - h->units : 0;
		h->units = units;
	}
}

struct oracle_kept *oracle_kept_new(const struct oracle_step *s, uint32_t granularity, uint32_t first, uint32_t cap)
{
	struct oracle_kept *k = calloc(1, sizeof(*k));

	k->granularity = granularity;
	k->first = first;
	k->n_heads = s->model->n_layers * s->model->n_kv_heads;
	k->head = calloc(k->n_heads, sizeof(*k->head));
	for (uint32_t i = 0; i < k->n_heads; i++) {
		struct oracle_head *h = &k->head[i];

		h->lives = calloc(cap, sizeof(*h->lives));
		h->value = calloc(cap, sizeof(*h->value));
		h->units = (s->n + granularity - 1) / granularity;
		for (uint32_t u = 0; u < h->units; u++) {
			bool hole = s->hole[i / s->model->n_kv_heads][u * granularity / ORACLE_PAGE];

			h->lives[u] = hole ? ORACLE_OUT : ORACLE_IN;
			h->n += h->lives[u] == ORACLE_IN;
		}
	}
	return k;
}

void oracle_kept_free(struct oracle_kept *k)
{
	for (uint32_t i = 0; k && i < k->n_heads; i++) {
		free(k->head[i].lives);
		free(k->head[i].value);
	}
	if (k)
		free(k->head);
	free(k);
}

void oracle_kept_attend(const struct oracle_step *s, uint32_t layer, enum oracle_how how, struct oracle_set *set)
{
	oracle_set_new(s, set, how, s->model->n_kv_heads);
	for (uint32_t kv = 0; kv < set->rows; kv++) {
		const struct oracle_head *h = oracle_head(s, layer, kv);
		uint8_t *class = set->class + (size_t)kv * set->units;

		for (uint32_t u = 0; u < set->units; u++)
			class[u] = h->lives[u];
		set->count[kv] = h->n + (class[set->units - 1] == ORACLE_OUT);
		class[set->units - 1] = ORACLE_IN;
	}
}

void oracle_kept_tokens(const struct oracle_step *s, const char *spec, struct oracle_set *set)
{
	for (uint32_t layer = 0; layer < s->model->n_layers; layer++)
		if (layer < oracle_number(spec, "dense"))
			oracle_dense(s, layer, &set[layer]);
		else
			oracle_kept_attend(s, layer, ORACLE_TOKENS, &set[layer]);
}

void oracle_kept_seen(struct oracle_head *h, const bool *in, uint32_t units)
{
	h->stored += h->stored ? units - h->units : 0;
	h->units = units;
	h->lives[units - 1] = ORACLE_IN;
	h->n = 0;
	for (uint32_t u = 0; u < units; u++) {
		if (h->lives[u] == ORACLE_MAY)
			h->lives[u] = in[u] ? ORACLE_IN : ORACLE_OUT;
		h->n += h->lives[u] == ORACLE_IN;
	}
}

void oracle_attn_scores(const struct oracle_step *s, uint32_t layer, uint32_t kv, uint32_t at,
                        struct oracle_score *score)
{
	uint32_t group = s->model->n_heads / s->model->n_kv_heads;
	const struct oracle_head *h = oracle_head(s, layer, kv);
	bool *there = calloc(at + 1, sizeof(*there));
	struct oracle_step then = *s;

	for (uint32_t t = 0; t <= at; t++)
		there[t] = h->lives[t] == ORACLE_IN;
	then.n = at + 1;
	then.there = there;
	oracle_reduced(&then, layer, kv * group, (kv + 1) * group, ORACLE_SUM, score);
	for (uint32_t t = 0; t <= at; t++)
		if (there[t])
			score[t] = (struct oracle_score){score[t].lo / group, score[t].is / group, score[t].hi / group};
	free(there);
}

/* ---- what is retained --------------------------------------------------------------------------- */

/* The best k of the candidates; with old_first the later ones of equal candidates. */
static void best(struct oracle_head *h, uint32_t n, const struct oracle_score *score, const bool *candidate,
                 uint32_t k, const struct oracle_stay *stay)
{
	struct oracle_score *ordered = calloc(n + 1, sizeof(*ordered));
	bool *asked = calloc(n + 1, sizeof(*asked));
	uint32_t *sure = calloc(n + 1, sizeof(*sure)), *may = calloc(n + 1, sizeof(*may));
	struct oracle_step ties = {.ties_hold = stay->ties_hold};

	for (uint32_t u = 0; u < n; u++) {
		uint32_t at = stay->old_first ? n - 1 - u : u;

		ordered[at] = score[u];
		asked[at] = candidate[u];
	}
	oracle_ranks(&ties, ordered, asked, n, sure, may);
	for (uint32_t u = 0; u < n; u++) {
		uint32_t at = stay->old_first ? n - 1 - u : u;

		if (candidate[u])
			h->lives[u] = may[at] < k ? ORACLE_IN : sure[at] < k ? ORACLE_MAY : ORACLE_OUT;
	}
	free(ordered);
	free(asked);
	free(sure);
	free(may);
}

void oracle_stay(struct oracle_head *h, uint32_t n, const struct oracle_score *score, const struct oracle_stay *stay)
{
	bool *candidate = calloc(n + 1, sizeof(*candidate));
	uint32_t left = stay->keep;

	if (h->n <= stay->keep) {
		free(candidate);
		return;
	}
	for (uint32_t u = 0; u < n; u++)
		candidate[u] = h->lives[u] == ORACLE_IN;
	for (uint32_t u = n; u-- > 0 && left > stay->keep - stay->recent;)
		if (candidate[u]) {
			candidate[u] = false;
			left--;
		}
	for (uint32_t u = 0; u < stay->pinned && u < n; u++)
		if (candidate[u]) {
			candidate[u] = false;
			left--;
		}
	best(h, n, score, candidate, left, stay);
	h->n = stay->keep;
	free(candidate);
}

/* ---- SnapKV and related policies ---------------------------------------------------------------- */

/*
 * score[n]: the mean of the scores of `pool` positions around; evicted positions count as 0. Two means of the same
 * scores in different order are not equal in a kernel, because sums are rounded: so a score counts slightly more the
 * later its position is.
 */
static void pool(const struct oracle_head *h, uint32_t n, const struct oracle_score *score, uint32_t width,
                 struct oracle_score *reduced)
{
	for (uint32_t u = 0; u < n; u++) {
		struct oracle_score sum = {0};

		for (uint32_t v = u < width / 2 ? 0 : u - width / 2; v <= u + width / 2 && v < n; v++)
			if (h->lives[v] == ORACLE_IN) {
				uint32_t at = v + width - u;
				struct oracle_score x = score[v];

				x.is *= 1 + (double)at * at * 0x1p-36;
				sum = oracle_sum(sum, x);
			}
		reduced[u] = (struct oracle_score){sum.lo / width, sum.is / width, sum.hi / width};
	}
}

/* cosine[n]: of a token's key with the keys of all retained tokens, averaged. */
static void mean_cosines(const struct oracle_step *s, uint32_t layer, uint32_t kv, double *cosine)
{
	uint32_t dim = s->model->head_dim;
	const struct oracle_head *h = oracle_head(s, layer, kv);
	double *unit = calloc((size_t)s->n * dim, sizeof(*unit)), mean[SKV_MAX_HEAD_DIM] = {0};

	for (uint32_t t = 0; t < s->n; t++) {
		const float *k = s->k[layer] + ((size_t)t * s->model->n_kv_heads + kv) * dim;
		double size = 0;

		for (uint32_t d = 0; d < dim; d++)
			size += (double)k[d] * k[d];
		for (uint32_t d = 0; d < dim; d++) {
			unit[(size_t)t * dim + d] = size > 0 ? k[d] / sqrt(size) : 0;
			mean[d] += h->lives[t] == ORACLE_IN ? unit[(size_t)t * dim + d] / h->n : 0;
		}
	}
	for (uint32_t t = 0; t < s->n; t++) {
		cosine[t] = 0;
		for (uint32_t d = 0; d < dim; d++)
			cosine[t] += unit[(size_t)t * dim + d] * mean[d];
	}
	free(unit);
}

/* score[n] becomes lambda * its share of the sum - (1 - lambda) * the softmax of the mean cosines. */
static void weigh_redundancy(const struct oracle_step *s, uint32_t layer, uint32_t kv, double lambda,
                             struct oracle_score *score)
{
	const struct oracle_head *h = oracle_head(s, layer, kv);
	double *cosine = calloc(s->n, sizeof(*cosine)), all = 0, off = expm1(2 * COSINE_SLACK);
	struct oracle_score sum = {0};

	mean_cosines(s, layer, kv, cosine);
	for (uint32_t t = 0; t < s->n; t++)
		if (h->lives[t] == ORACLE_IN) {
			sum = oracle_sum(sum, score[t]);
			all += exp(cosine[t]);
		}
	for (uint32_t t = 0; t < s->n; t++) {
		double twice = (1 - lambda) * exp(cosine[t]) / all;

		score[t] = (struct oracle_score){
		        .lo = lambda * score[t].lo / sum.hi - twice * (1 + off),
		        .is = lambda * score[t].is / sum.is - twice,
		        .hi = lambda * score[t].hi / sum.lo - twice * (1 - off),
		};
	}
	free(cosine);
}

struct oracle_snap oracle_snap_of(const char *spec)
{
	uint32_t again = (uint32_t)oracle_number(spec, "interval");

	return (struct oracle_snap){
	        .window = (uint32_t)oracle_number(spec, "window"),
	        .again = again ? again : SKV_MAX_TOKENS,
	        .pool = (uint32_t)oracle_number(spec, "pool"),
	        .lambda = oracle_number(spec, "lambda"),
	};
}

void oracle_snap_prompt(const struct oracle_step *s, const char *spec, uint32_t rows)
{
	uint32_t window = (uint32_t)oracle_number(spec, "window");

	for (uint32_t i = 0; i < s->kept->n_heads; i++) {
		struct oracle_head *h = &s->kept->head[i];

		h->queries = rows >= window ? window : h->queries + rows;
		h->steps = 0;
	}
}

void oracle_snap_scores(const struct oracle_step *s, uint32_t layer, uint32_t kv, const struct oracle_snap *snap,
                        struct oracle_score *score)
{
	struct oracle_head *h = oracle_head(s, layer, kv);
	struct oracle_score *one = calloc(s->n, sizeof(*one)), *sum = calloc(s->n, sizeof(*sum));
	uint32_t queries = h->steps <= snap->window ? h->steps + h->queries : snap->window;

	for (uint32_t at = s->n - queries; at < s->n; at++) {
		oracle_attn_scores(s, layer, kv, at, one);
		for (uint32_t t = 0; t <= at; t++)
			if (h->lives[t] == ORACLE_IN)
				sum[t] = oracle_sum(sum[t], one[t]);
	}
	pool(h, s->n, sum, snap->pool, score);
	if (snap->lambda > 0)
		weigh_redundancy(s, layer, kv, snap->lambda, score);
	free(one);
	free(sum);
}

static void choose(const struct oracle_step *s, uint32_t layer, uint32_t kv, const struct oracle_snap *snap)
{
	struct oracle_stay stay = {.keep = snap->most - 1, .recent = snap->window - 1};
	struct oracle_score *score = calloc(s->n, sizeof(*score));

	oracle_snap_scores(s, layer, kv, snap, score);
	oracle_stay(oracle_head(s, layer, kv), s->n, score, &stay);
	free(score);
}

void oracle_snap(const struct oracle_step *s, uint32_t layer, const struct oracle_snap *snap)
{
	for (uint32_t kv = 0; kv < s->model->n_kv_heads; kv++) {
		struct oracle_head *h = oracle_head(s, layer, kv);

		h->steps++;
		if (h->n < snap->most + (s->kept->prompted ? 0 : snap->again - 1))
			continue;
		choose(s, layer, kv, snap);
		h->steps = h->queries = 0;
	}
}

void oracle_snap_evict(const struct oracle_step *s, const char *spec)
{
	struct oracle_snap snap = oracle_snap_of(spec);

	snap.most = oracle_budget(spec, s->n + 1, 128);
	for (uint32_t layer = (uint32_t)oracle_number(spec, "dense"); layer < s->model->n_layers; layer++)
		oracle_snap(s, layer, &snap);
}
