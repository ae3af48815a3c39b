/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model whose heads are split over tensor-parallel ranks: each head attends to what it attends to in one process with
 * all heads, whether its policy selects by head or, by scores that ranks reduce, once for all heads. On the host
 * outputs are the same bits.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/rank-group.h"
#include "tests/support/reference-attention.h"
#include "tests/support/reference-codec.h"

#define LAYERS 6u
#define SEQS 3u
#define MAX_HEADS 32u
#define MAX_TOKENS 1024u
#define LISTED 96u
#define STEPS 12u
#define SPLITS 3u

/* One split: ranks with their sessions. */
struct split {
	struct rank_group group;
	struct rank {
		struct skv_model model;
		struct skv_session *session;
		struct skv_seq *seq[SEQS];
	} rank[RANK_GROUP_MAX];
};

/* The results of a step, of all heads. */
struct result {
	float *out; /* [layer][row][head][head_dim] */
	struct list {
		struct skv_selection_info info;
		uint32_t ids[LISTED];
	} list[LAYERS][SEQS][MAX_HEADS];
};

/* A step: sequence i has len[i] tokens, and gets n[i] more. */
struct plan {
	uint32_t len[SEQS], n[SEQS];
	uint32_t flags, rows;
};

/* A step of a split. */
struct run {
	struct split *split;
	const struct plan *plan;
	struct result *result;
};

static struct skv_model whole;
static struct split splits[SPLITS];

static void setup(void)
{
	client_begin((const char *[]){"--pool-bytes=512M", NULL});
}

/* A head's rows in a layer, for all tokens of the step, in rows of `heads` heads. */
static void fill(const struct plan *p, uint32_t layer, enum what what, uint32_t head, uint32_t heads, float *to)
{
	const uint32_t dim = whole.head_dim;

	for (uint32_t i = 0; i < SEQS; i++)
		for (uint32_t t = p->len[i]; t < p->len[i] + p->n[i]; t++, to += (size_t)heads * dim)
			refmodel_row(refmodel_content(i, t), layer, what, head, dim, to);
}

/* What head h of the rank attended to. */
static void collect_list(struct rank *r, uint32_t layer, uint32_t item, uint32_t h, struct list *to)
{
	const uint32_t group = r->model.n_heads / r->model.n_kv_heads;
	struct skv_selection_info *info = &to->info;

	info->size = sizeof(*info);
	OK(skv_selection(r->session, layer, item, 0, info, to->ids, LISTED));
	if (info->rows > 1)
		OK(skv_selection(r->session, layer, item, info->rows == r->model.n_heads ? h : h / group, info, to->ids, LISTED));
	info->rows = 0; /* the only field in which ranks differ */
}

/* Collect what rank `at` of its split attended to, and its outputs, at its heads' places among all. */
static void collect(struct rank *r, uint32_t at, uint32_t layer, const struct plan *p, const float *out, struct result *to)
{
	const struct skv_model *m = &r->model;
	const size_t mine = (size_t)m->n_heads * m->head_dim, all = (size_t)whole.n_heads * m->head_dim;

	for (uint32_t row = 0; row < p->rows; row++)
		memcpy(to->out + (layer * p->rows + row) * all + at * mine, out + row * mine, mine * sizeof(*out));
	for (uint32_t i = 0, item = 0; i < SEQS && !p->flags; item += p->n[i++] > 0)
		for (uint32_t h = 0; h < m->n_heads && p->n[i]; h++)
			collect_list(r, layer, item, h, &to->list[layer][i][at * m->n_heads + h]);
}

static void run_rank(void *ctx, uint32_t at)
{
	const struct run *x = ctx;
	struct rank *r = &x->split->rank[at];
	const struct skv_model *m = &r->model;
	const struct plan *p = x->plan;
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
		collect(r, at, layer, p, rows.out, x->result);
	}
	OK(skv_step_end(r->session, NULL, NULL));
	devmem_rows_free(&rows);
}

static void compare(const struct plan *p, uint32_t n_ranks, const struct result *one, const struct result *split)
{
	const size_t width = (size_t)whole.n_heads * whole.head_dim, n = LAYERS * p->rows * width;

	/* a device rounds differently if it divides its work differently, and may then select other tokens */
	for (uint32_t i = 0; i < LAYERS * SEQS * MAX_HEADS && !devmem_is_device(); i++)
		ck_assert_msg(!memcmp(&one->list[0][0][0] + i, &split->list[0][0][0] + i, sizeof(struct list)),
		              "%u ranks: layer %u, sequence %u, head %u attends to others", n_ranks, i / MAX_HEADS / SEQS,
		              i / MAX_HEADS % SEQS, i % MAX_HEADS);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(devmem_is_device() ? fabsf(one->out[i] - split->out[i]) <= 1e-2f : one->out[i] == split->out[i],
		              "%u ranks: layer %zu, row %zu, head %zu: %g, of one rank %g", n_ranks, i / width / p->rows,
		              i / width % p->rows, i % width / whole.head_dim, (double)split->out[i], (double)one->out[i]);
}

/* The step on all ranks of all splits. */
static void step(struct plan *p)
{
	struct result *result = calloc(SPLITS, sizeof(*result));

	p->rows = p->n[0] + p->n[1] + p->n[2];
	for (uint32_t s = 0; s < SPLITS; s++) {
		struct run run = {&splits[s], p, &result[s]};

		result[s].out = calloc((size_t)LAYERS * p->rows * whole.n_heads * whole.head_dim, sizeof(float));
		rank_group_run(&splits[s].group, run_rank, &run);
		compare(p, splits[s].group.n, &result[0], &result[s]);
	}
	for (uint32_t i = 0; i < SEQS; i++)
		p->len[i] += p->n[i];
	for (uint32_t s = 0; s < SPLITS; s++)
		free(result[s].out);
	free(result);
}

/* One split of one rank, and further ones of as many as divide the kv heads. */
static void open_ranks(const char *spec)
{
	for (uint32_t s = 0, n = 1; s < SPLITS; s++, n++) {
		while (whole.n_kv_heads % n)
			n++;
		rank_group_begin(&splits[s].group, n);
		for (uint32_t r = 0; r < n; r++) {
			struct rank *one = &splits[s].rank[r];

			one->model = whole;
			rank_group_join(&splits[s].group, r, &one->model);
			OK(skv_open(client, &one->model, spec, &one->session));
			for (uint32_t i = 0; i < SEQS; i++)
				OK(skv_seq_new(one->session, NULL, 0, &one->seq[i]));
		}
	}
}

struct sealing {
	struct split *split;
	bool begins; /* it is dropped, and another one begins with what was sealed */
};

/* Seals the last sequence. What is compressed for it covers all ranks' heads. */
static void run_compressing(void *ctx, uint32_t at)
{
	const struct sealing *x = ctx;
	struct rank *r = &x->split->rank[at];
	struct skv_seq **q = &r->seq[SEQS - 1];
	int32_t prompt[MAX_TOKENS];
	uint32_t sealed, len;

	memcpy(prompt, skv_seq_tokens(*q, &len), skv_seq_len(*q) * sizeof(*prompt));
	OK(skv_seq_seal(*q, SKV_ALL, &sealed));
	ck_assert_uint_eq(sealed, len / SKV_BLOCK_TOKENS * SKV_BLOCK_TOKENS);
	if (!x->begins)
		return;
	OK(skv_seq_drop(*q));
	OK(skv_seq_new_from(r->session, NULL, 0, prompt, len, q));
	ck_assert_uint_eq(skv_seq_len(*q), (len - 1) / SKV_BLOCK_TOKENS * SKV_BLOCK_TOKENS);
}

/* Seal what was read so far; the sequence goes on, or another one does. */
static void seal_and_go_on(struct plan *p)
{
	const bool begins = rnd_below(2);
	const uint32_t len = p->len[SEQS - 1];

	for (uint32_t s = 0; s < SPLITS; s++)
		rank_group_run(&splits[s].group, run_compressing, &(struct sealing){&splits[s], begins});
	if (begins)
		p->len[SEQS - 1] = (len - 1) / SKV_BLOCK_TOKENS * SKV_BLOCK_TOKENS;
	memset(p->n, 0, sizeof(p->n));
	p->n[SEQS - 1] = 1 + len - p->len[SEQS - 1];
	step(p);
}

/* Scores are reduced where needed; each commit is confirmed, and ranks meet once before the first. */
static void check_calls(bool shared, uint64_t steps)
{
	for (uint32_t s = 0; s < SPLITS; s++)
		for (uint32_t r = 0; r < splits[s].group.n; r++) {
			ck_assert_uint_eq(splits[s].group.member[r].scores > 0, shared && splits[s].group.n > 1);
			if (splits[s].group.n > 1)
				ck_assert_uint_ge(splits[s].group.member[r].confirmed, steps + 1);
		}
}

/* Prompts of a few tokens and of several state pages, in chunks; then steps of some of the sequences. */
START_TEST(as_one_rank)
{
	const struct policy_row *row = policy_row(SET_RANKS, _i);
	const bool compresses = policy_action(row->spec) == SKV_ACT_COMPRESS;
	const uint32_t kv_heads[] = {4, 6, 8};
	char spec[POLICY_SPEC];
	struct plan p = {.flags = SKV_STEP_PROMPT};

	rnd_begin((uint64_t)_i);
	refmodel_model(&whole, "ranks", rnd_below(compresses ? 3 : 4), MAX_TOKENS); /* compression takes no fp8 */
	refmodel_packable(&whole);
	whole.n_layers = LAYERS;
	whole.n_kv_heads = kv_heads[rnd_below(3)];
	whole.n_heads = whole.n_kv_heads * (1 + rnd_below(4));
	whole.head_dim = 32 * (2 + rnd_below(3));
	policy_codecs(&whole, 1 + rnd_below(1000), daemon_.dir); /* of all heads */
	open_ranks(policy_row_spec(row, daemon_.dir, spec));
	for (uint32_t i = 0; i < SEQS; i++)
		for (uint32_t pieces = 1 + rnd_below(3); pieces; pieces--) {
			memset(p.n, 0, sizeof(p.n));
			p.n[i] = 1 + rnd_below(i == 0 ? 10 : i == 1 ? 150 : 290);
			step(&p);
		}
	if (compresses && p.len[SEQS - 1] > SKV_BLOCK_TOKENS)
		seal_and_go_on(&p);
	p.flags = 0;
	for (uint32_t t = 0; t < STEPS; t++) {
		for (uint32_t i = 0; i < SEQS; i++)
			p.n[i] = i == t % SEQS || rnd_below(3) > 0;
		step(&p);
	}
	check_calls(row->all_heads, STEPS);
}
END_TEST

/* ---- refused --------------------------------------------------------------------------------- */

static void model_of_two(struct skv_model *m)
{
	refmodel_model(m, "ranks", SKV_F16, MAX_TOKENS);
	m->n_layers = LAYERS;
	m->n_kv_heads = 4;
	m->n_heads = 8;
	m->rank = 1;
	m->n_ranks = 2;
}

/* What ranks cannot agree on is refused at open, for a sequence, or at a swap. */
START_TEST(refused)
{
	struct rank_group g;
	struct skv_session *s;
	struct skv_model m;
	struct skv_seq *q;

	rank_group_begin(&g, 2);
	model_of_two(&m);
	FAILS(skv_open(client, &m, POLICY_PAGES "?budget=5", &s), EINVAL, "all_reduce_max");
	FAILS(skv_open(client, &m, POLICY_TOKENS "?budget=40", &s), EINVAL, "rank 1 of 2");
	OK(skv_open(client, &m, POLICY_BOUNDS "?budget=5", &s));
	OK(skv_seq_new(s, NULL, 0, &q));
	FAILS(skv_seq_policy(q, POLICY_PAGES "?budget=5"), EINVAL, "all_reduce_max");
	ck_assert(!strncmp(skv_seq_policy_spec(q), POLICY_BOUNDS "?", strlen(POLICY_BOUNDS "?")));
	ck_assert_int_eq(raw_policy_swap(op, POLICY_PAGES "?budget=5"), 0);
	OK(skv_step_begin(s, &SKV_STEP_ITEM(.seq = q, .n_tokens = 1, .flags = SKV_STEP_PROMPT), 1, devmem_stream()));
	ck_assert_msg(strstr(skv_policy_error(s), "all_reduce_max"), "'%s'", skv_policy_error(s));
	ck_assert(!strncmp(skv_policy_spec(s), POLICY_BOUNDS "?", strlen(POLICY_BOUNDS "?")));
	skv_close(s);
	rank_group_join(&g, 1, &m);
	for (int i = 0; i < policy_rows(SET_NO_RANKS); i++)
		FAILS(skv_open(client, &m, policy_row(SET_NO_RANKS, i)->spec, &s), ENOTSUP,
		      "by the largest score of any head");
	rank_group_end(&g);
}
END_TEST

/* ---- together -------------------------------------------------------------------------------- */

#define TOGETHER 2u
#define SWAP_STEPS 14u

static struct pair {
	struct rank_group group;
	struct rank rank[TOGETHER];
	char spec[TOGETHER][SWAP_STEPS][32]; /* name of the policy that a rank ran in a step */
} pair;

static void open_pair(const char *spec, const char *name)
{
	rank_group_begin(&pair.group, TOGETHER);
	for (uint32_t r = 0; r < TOGETHER; r++) {
		struct rank *one = &pair.rank[r];

		model_of_two(&one->model);
		one->model.n_heads *= 2;
		one->model.n_kv_heads *= 2;
		rank_group_join(&pair.group, r, &one->model);
		OK(skv_open(client, &one->model, spec, &one->session));
		OK(skv_seq_new(one->session, name, 0, &one->seq[0]));
	}
}

static void begin_step(struct rank *r, uint32_t n, uint32_t flags)
{
	OK(skv_step_begin(r->session, &SKV_STEP_ITEM(.seq = r->seq[0], .n_tokens = n, .flags = flags), 1, devmem_stream()));
}

static void attend_all(struct rank *r, uint32_t n)
{
	struct devmem_rows rows = devmem_rows_new(&r->model, n);

	for (uint32_t layer = 0; layer < LAYERS; layer++)
		OK(devmem_attend(r->session, layer, &rows, false));
	devmem_rows_free(&rows);
}

static void run_step(struct rank *r, uint32_t n, uint32_t flags)
{
	begin_step(r, n, flags);
	attend_all(r, n);
}

/* Other ranks do not answer: the layer fails with the error of the engine's function, and the step did not happen. */
static void run_failing(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	struct devmem_rows rows = devmem_rows_new(&r->model, 1);
	const struct skv_step_item it = SKV_STEP_ITEM(.seq = r->seq[0], .n_tokens = 1);
	int *fail = &pair.group.member[at].fail_scores;
	(void)ctx;

	run_step(r, 100, SKV_STEP_PROMPT);
	OK(skv_step_end(r->session, NULL, NULL));
	for (int i = 0; i < 2; i++) {
		*fail = i ? 1 : -ENOTCONN; /* a value that is no errno becomes -EIO */
		OK(skv_step_begin(r->session, &it, 1, devmem_stream()));
		OK(devmem_attend(r->session, 0, &rows, false));
		FAILS(devmem_attend(r->session, 1, &rows, false), i ? EIO : ENOTCONN, "layer 1: all_reduce_max failed");
		FAILS(skv_step_end(r->session, NULL, NULL), EINVAL, "was not attended");
		skv_step_abort(r->session);
		ck_assert_uint_eq(skv_seq_len(r->seq[0]), 100);
	}
	*fail = 0;
	run_step(r, 1, 0);
	OK(skv_step_end(r->session, NULL, NULL));
	ck_assert_uint_eq(skv_seq_len(r->seq[0]), 101);
	devmem_rows_free(&rows);
}

START_TEST(failed)
{
	open_pair(POLICY_PAGES "?layers=1,3&budget=5", NULL);
	rank_group_run(&pair.group, run_failing, NULL);
	rank_group_end(&pair.group);
}
END_TEST

/* A commit that is not confirmed: all but detaching fails, and ranks come back at the commit that all have. */
static void run_unconfirmed(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	const struct skv_step_item it = SKV_STEP_ITEM(.seq = r->seq[0], .n_tokens = 1);
	struct skv_seq *other;
	(void)ctx;

	run_step(r, 100, SKV_STEP_PROMPT);
	OK(skv_step_end(r->session, NULL, NULL));
	for (int i = 0; i < 40; i++) {
		run_step(r, 1, 0);
		OK(skv_step_end(r->session, NULL, NULL));
	}
	run_step(r, 1, 0);
	if (at == 1) { /* this one ends before its commit */
		skv_step_abort(r->session);
		return;
	}
	pair.group.member[at].fail_confirm = -ENOTCONN;
	if (devmem_is_device()) { /* known when the step has run */
		(void)skv_step_end(r->session, NULL, NULL);
		(void)skv_seq_tokens(r->seq[0], NULL);
	} else {
		FAILS(skv_step_end(r->session, NULL, NULL), ECONNABORTED, "other ranks did not confirm");
	}
	FAILS(skv_step_begin(r->session, &it, 1, devmem_stream()), ECONNABORTED, "attach sequences anew");
	FAILS(skv_seq_truncate(r->seq[0], 10, -1), ECONNABORTED, "attach sequences anew");
	FAILS(skv_seq_fork(r->seq[0], NULL, SKV_ALL, &other), ECONNABORTED, "attach sequences anew");
}

static void run_again(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	(void)ctx;

	run_step(r, 1, 0);
	OK(skv_step_end(r->session, NULL, NULL));
	ck_assert_uint_eq(skv_seq_len(r->seq[0]), 141);
	OK(skv_seq_detach(r->seq[0]));
}

START_TEST(unconfirmed)
{
	static const char *const specs[] = {POLICY_SCORES "?budget=60", POLICY_WINDOW "?budget=60&sinks=4",
	                                    POLICY_PAGES "?layers=1,3&budget=5"};

	open_pair(specs[_i], "both");
	rank_group_run(&pair.group, run_unconfirmed, NULL);
	pair.group.member[0].fail_confirm = 0;
	for (uint32_t at = 0; at < TOGETHER; at++) {
		struct rank *r = &pair.rank[at];

		OK(skv_seq_detach(r->seq[0]));
		skv_close(r->session);
		OK(skv_open(client, &r->model, specs[_i], &r->session));
	}
	for (uint32_t at = 0; at < TOGETHER; at++) {
		OK(skv_seq_attach(pair.rank[at].session, "both", &pair.rank[at].seq[0]));
		ck_assert_uint_eq(skv_seq_len(pair.rank[at].seq[0]), 140);
	}
	rank_group_run(&pair.group, run_again, NULL);
	rank_group_end(&pair.group);
}
END_TEST

static pthread_barrier_t asked;

/* The operator swaps before a step of one rank; twice: again when that rank has asked, before the other one asks. */
static void run_swapped(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	const bool twice = *(const bool *)ctx;

	for (uint32_t i = 0; i < SWAP_STEPS; i++) {
		const uint32_t n = i ? 1 : 100;

		if (i == 2 && twice && at == 1)
			pthread_barrier_wait(&asked);
		if (i == 2 && at == !twice)
			ck_assert_int_eq(raw_policy_swap(op, POLICY_PAGES "?layers=1,3&budget=5"), 0);
		begin_step(r, n, i ? 0 : SKV_STEP_PROMPT);
		if (i == 2 && twice && at == 0) {
			ck_assert_int_eq(raw_policy_swap(op, POLICY_WINDOW "?budget=60&sinks=4"), 0);
			pthread_barrier_wait(&asked);
		}
		attend_all(r, n);
		snprintf(pair.spec[at][i], sizeof(pair.spec[at][i]), "%.20s", skv_policy_spec(r->session));
		OK(skv_step_end(r->session, NULL, NULL));
	}
}

/* All ranks swap in the same step. */
static void swap_together(bool twice, const char *last)
{
	pthread_barrier_init(&asked, NULL, TOGETHER);
	open_pair(POLICY_BOUNDS "?budget=5", NULL);
	rank_group_run(&pair.group, run_swapped, &twice);
	for (uint32_t i = 0; i < SWAP_STEPS; i++)
		ck_assert_msg(!strcmp(pair.spec[0][i], pair.spec[1][i]), "step %u: %s and %s", i, pair.spec[0][i], pair.spec[1][i]);
	ck_assert(!strncmp(pair.spec[0][2], POLICY_BOUNDS, strlen(POLICY_BOUNDS)));
	ck_assert_msg(!strncmp(pair.spec[0][SWAP_STEPS - 1], last, strlen(last)), "%s", pair.spec[0][SWAP_STEPS - 1]);
	rank_group_end(&pair.group);
	pthread_barrier_destroy(&asked);
}

START_TEST(swapped)
{
	swap_together(false, POLICY_PAGES);
}
END_TEST

/* Ranks that got different answers to what their policy is swap to the newer one. */
START_TEST(swapped_twice)
{
	swap_together(true, POLICY_WINDOW);
}
END_TEST

/* ---- sealed prefixes ------------------------------------------------------------------------- */

#define PROMPT 600u

static int32_t prompt[PROMPT];
static uint32_t begun[TOGETHER];

/* Tokens [from, PROMPT) as a prompt. */
static void read_prompt(struct rank *r, struct skv_seq *q, uint32_t from)
{
	struct devmem_rows rows = devmem_rows_new(&r->model, PROMPT - from);

	OK(skv_step_begin(r->session, &SKV_STEP_ITEM(.seq = q, .n_tokens = PROMPT - from, .flags = SKV_STEP_PROMPT, .tokens = prompt + from), 1,
	                  devmem_stream()));
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		OK(devmem_attend(r->session, layer, &rows, false));
	OK(skv_step_end(r->session, NULL, NULL));
	devmem_rows_free(&rows);
}

static void run_sealing(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	const uint32_t *tokens = ctx;

	read_prompt(r, r->seq[0], 0);
	if (tokens[at])
		OK(skv_seq_seal(r->seq[0], tokens[at], NULL));
}

static void run_begin(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	struct skv_seq *q;
	(void)ctx;

	OK(skv_seq_new_from(r->session, "begun", 0, prompt, PROMPT, &q));
	begun[at] = skv_seq_len(q);
	read_prompt(r, q, begun[at]);
	ck_assert_uint_eq(skv_seq_len(q), PROMPT);
	OK(skv_seq_drop(q));
}

static void run_begin_one_fails(void *ctx, uint32_t at)
{
	struct rank *r = &pair.rank[at];
	struct skv_seq *taken = NULL, *q;
	(void)ctx;

	if (at == 1)
		OK(skv_seq_new(r->session, "begun", 0, &taken));
	FAILS(skv_seq_new_from(r->session, "begun", 0, prompt, PROMPT, &q), at ? EEXIST : ECANCELED, at ? "begun" : "another rank");
	OK(taken ? skv_seq_drop(taken) : 0);
}

/* Ranks begin with the tokens that all of them have found. */
START_TEST(prefixes)
{
	static const uint32_t sealed[][TOGETHER + 1] = {{512, 512, 512}, {512, 256, 256}, {256, 600, 256}, {0, 512, 0}};

	for (uint32_t i = 0; i < PROMPT; i++)
		prompt[i] = (int32_t)rnd_below(50000);
	open_pair(POLICY_PAGES "?layers=1,3&budget=5", NULL);
	rank_group_run(&pair.group, run_sealing, (void *)sealed[_i]);
	rank_group_run(&pair.group, run_begin_one_fails, NULL);
	for (int i = 0; i < 2; i++) {
		rank_group_run(&pair.group, run_begin, NULL);
		ck_assert_uint_eq(begun[0], sealed[_i][TOGETHER]);
		ck_assert_uint_eq(begun[1], sealed[_i][TOGETHER]);
	}
	rank_group_end(&pair.group);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-ranks");
	TCase *t = add_case(s, "ranks", 60, setup, client_end, refused, failed, swapped, swapped_twice, NULL);

	tcase_add_loop_test(t, unconfirmed, 0, 3);
	tcase_add_loop_test(t, prefixes, 0, 4);
	add_share(t, as_one_rank, policy_rows(SET_RANKS), 3);
	return run_suite(s);
}
