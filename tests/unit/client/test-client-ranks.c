/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model whose heads are split over tensor-parallel ranks, under the policy sketch: each kv head chooses the tokens that it
 * chooses in one process that has all heads, and attends to them likewise. Ranks tell each other nothing, so what a head
 * chooses must follow from its own q, k and v. On the host outputs are the same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/reference-attention.h"

#define LAYERS 2u
#define SEQS 3u
#define MAX_KV_HEADS 8u
#define MAX_TOKENS 1024u
#define BUDGET 40u
#define STEPS 20u
#define SPLITS 3u

static const uint32_t splits[SPLITS] = {1, 2, 4}; /* ranks */

/* One rank of one of the splits: a session with its share of the heads. */
struct rank {
	struct skv_model model;
	struct skv_session *session;
	struct skv_seq *seq[SEQS];
};

/* What a step gives, of all heads. */
struct result {
	float *out; /* [layer][row][head][head_dim] */
	struct skv_selection_info looked[LAYERS][SEQS][MAX_KV_HEADS];
	uint32_t ids[LAYERS][SEQS][MAX_KV_HEADS][BUDGET];
};

/* A step: of sequence i, which has len[i] tokens, the next n[i]. */
struct plan {
	uint32_t len[SEQS], n[SEQS];
	uint32_t flags, rows;
};

static struct skv_model whole;
static struct rank ranks[SPLITS][4];

static void setup(void)
{
	client_begin(NULL);
}

/* A head's rows of a layer, of all tokens of the step; rows of `heads` heads. */
static void fill(const struct plan *p, uint32_t layer, enum what what, uint32_t head, uint32_t heads, float *to)
{
	const uint32_t dim = whole.head_dim;

	for (uint32_t i = 0; i < SEQS; i++)
		for (uint32_t t = p->len[i]; t < p->len[i] + p->n[i]; t++, to += (size_t)heads * dim)
			refmodel_row(refmodel_content(i, t), layer, what, head, dim, to);
}

/* Of rank `at` of its split: what it attended to, and what came out, to where its heads are among all. */
static void collect(struct rank *r, uint32_t at, uint32_t layer, const struct plan *p, const float *out, struct result *to)
{
	const struct skv_model *m = &r->model;
	const size_t mine = (size_t)m->n_heads * m->head_dim, all = (size_t)whole.n_heads * m->head_dim;

	for (uint32_t row = 0; row < p->rows; row++)
		memcpy(to->out + (layer * p->rows + row) * all + at * mine, out + row * mine, mine * sizeof(*out));
	for (uint32_t i = 0, item = 0; i < SEQS && !p->flags; item += p->n[i++] > 0)
		for (uint32_t h = 0; h < m->n_kv_heads && p->n[i]; h++) {
			const uint32_t head = at * m->n_kv_heads + h;
			struct skv_selection_info *looked = &to->looked[layer][i][head];

			looked->size = sizeof(*looked);
			OK(skv_selection(r->session, layer, item, h, looked, to->ids[layer][i][head], BUDGET));
			ck_assert_uint_eq(looked->rows, m->n_kv_heads);
			looked->rows = 0; /* the only thing in which ranks differ */
		}
}

static void run_rank(struct rank *r, uint32_t at, const struct plan *p, struct result *to)
{
	const struct skv_model *m = &r->model;
	struct devmem_rows rows = devmem_rows_new(m, p->rows);
	struct skv_step_item items[SEQS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < SEQS; i++)
		if (p->n[i])
			items[n++] = SKV_STEP_ITEM(.seq = r->seq[i], .n_tokens = p->n[i], .flags = p->flags);
	OK(skv_step_begin(r->session, items, n, devmem_stream()));
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		for (uint32_t h = 0; h < m->n_heads; h++)
			fill(p, layer, ROW_Q, at * m->n_heads + h, m->n_heads, rows.q + (size_t)h * m->head_dim);
		for (uint32_t h = 0; h < m->n_kv_heads; h++) {
			fill(p, layer, ROW_K, at * m->n_kv_heads + h, m->n_kv_heads, rows.k + (size_t)h * m->head_dim);
			fill(p, layer, ROW_V, at * m->n_kv_heads + h, m->n_kv_heads, rows.v + (size_t)h * m->head_dim);
		}
		OK(devmem_attend(r->session, layer, &rows, false));
		collect(r, at, layer, p, rows.out, to);
	}
	OK(skv_step_end(r->session, NULL, NULL));
	devmem_rows_free(&rows);
}

static void compare(const struct plan *p, uint32_t n_ranks, const struct result *one, const struct result *split)
{
	const size_t width = (size_t)whole.n_heads * whole.head_dim, n = LAYERS * p->rows * width;

	for (uint32_t i = 0; i < SEQS * LAYERS * MAX_KV_HEADS; i++)
		ck_assert_msg(!memcmp(&one->looked[0][0][0] + i, &split->looked[0][0][0] + i, sizeof(one->looked[0][0][0])) &&
		                      !memcmp(one->ids[0][0][0] + (size_t)i * BUDGET, split->ids[0][0][0] + (size_t)i * BUDGET,
		                              sizeof(one->ids[0][0][0])),
		              "%u ranks: layer %u, sequence %u, kv head %u chooses others", n_ranks, i / MAX_KV_HEADS / SEQS,
		              i / MAX_KV_HEADS % SEQS, i % MAX_KV_HEADS);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(devmem_is_device() ? fabsf(one->out[i] - split->out[i]) <= 1e-3f : one->out[i] == split->out[i],
		              "%u ranks: layer %zu, row %zu, head %zu: %g, of one rank %g", n_ranks, i / width / p->rows,
		              i / width % p->rows, i % width / whole.head_dim, (double)split->out[i], (double)one->out[i]);
}

/* The step on all ranks of all splits. */
static void step(struct plan *p)
{
	struct result *result = calloc(SPLITS, sizeof(*result));

	p->rows = p->n[0] + p->n[1] + p->n[2];
	for (uint32_t s = 0; s < SPLITS; s++) {
		result[s].out = calloc((size_t)LAYERS * p->rows * whole.n_heads * whole.head_dim, sizeof(float));
		for (uint32_t r = 0; r < splits[s]; r++)
			run_rank(&ranks[s][r], r, p, &result[s]);
		compare(p, splits[s], &result[0], &result[s]);
	}
	for (uint32_t i = 0; i < SEQS; i++) {
		p->len[i] += p->n[i];
		if (!p->flags && p->n[i]) /* less than all, once there is more */
			ck_assert_uint_eq(result[0].looked[0][i][0].n, p->len[i] < BUDGET ? p->len[i] : BUDGET);
	}
	for (uint32_t s = 0; s < SPLITS; s++)
		free(result[s].out);
	free(result);
}

static void open_ranks(const char *spec)
{
	for (uint32_t s = 0; s < SPLITS; s++)
		for (uint32_t r = 0; r < splits[s]; r++) {
			struct rank *one = &ranks[s][r];

			one->model = whole;
			one->model.n_heads /= splits[s];
			one->model.n_kv_heads /= splits[s];
			one->model.rank = r;
			one->model.n_ranks = splits[s];
			OK(skv_open(client, &one->model, spec, &one->session));
			for (uint32_t i = 0; i < SEQS; i++)
				OK(skv_seq_new(one->session, NULL, 0, &one->seq[i]));
		}
}

/* Prompts of nearly nothing and of several state pages, in pieces; then steps of some of the sequences. */
START_TEST(as_one_rank)
{
	struct plan p = {.flags = SKV_STEP_PROMPT};
	char spec[80];

	rnd_begin((uint64_t)_i);
	refmodel_model(&whole, "ranks", rnd_below(4), MAX_TOKENS);
	whole.n_layers = LAYERS;
	whole.n_kv_heads = _i % 2 ? MAX_KV_HEADS : 4;
	whole.n_heads = whole.n_kv_heads * (1 + rnd_below(4));
	whole.head_dim = 32 * (2 + rnd_below(3));
	snprintf(spec, sizeof(spec), "sketch?bits=%u&budget=%u&recent=8", 1 + (unsigned)_i % 4, BUDGET);
	open_ranks(spec);
	for (uint32_t i = 0; i < SEQS; i++)
		for (uint32_t pieces = 1 + rnd_below(3); pieces; pieces--) {
			memset(p.n, 0, sizeof(p.n));
			p.n[i] = 1 + rnd_below(i == 0 ? 10 : i == 1 ? 150 : 290);
			step(&p);
		}
	p.flags = 0;
	for (uint32_t t = 0; t < STEPS; t++) {
		for (uint32_t i = 0; i < SEQS; i++)
			p.n[i] = i == t % SEQS || rnd_below(3) > 0;
		step(&p);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-ranks");
	TCase *t = add_case(s, "ranks", 60, setup, client_end, NULL);

	tcase_add_loop_test(t, as_one_rank, 0, 8);
	return run_suite(s);
}
