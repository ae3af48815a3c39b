/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of sparse prefill: however a prompt is cut into steps, forked, or taken over half read, the bits are those of
 * the whole prompt; and nothing that was saved of its rows stays behind.
 *
 * The kernels' own tests check the output of a row (test-prefill-sparse). Here every result is compared with another
 * one of the library.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

#define TOKENS 700u
#define STEPS 3u /* decode steps behind a prompt */

/*
 * Policies that prefill in all ways, with small budgets, so that rows miss tokens. `keeps`: saves pages for later rows.
 */
static const struct {
	const char *name, *decode, *prefill;
	bool keeps, scores;
} ways[] = {
	{"full", "", "prefill=streaming&prefill_sinks=4&prefill_window=50", false, false},
	{"full", "", "prefill=streaming+delta&prefill_sinks=4&prefill_window=50&prefill_gamma=16&prefill_tail=16", true, false},
	{"full", "", "prefill=streaming+recompute&prefill_sinks=20&prefill_window=33&prefill_gamma=64", false, false},
	{POLICY_PAGES, "budget=4&layers=1,3&dense=1",
	 "prefill=streaming+delta&prefill_sinks=1&prefill_window=7&prefill_gamma=4&prefill_tail=40", true, false},
	{POLICY_SCORES, "budget=60&dense=1",
	 "prefill=streaming+delta&prefill_sinks=4&prefill_window=64&prefill_gamma=32&prefill_tail=32", true, true},
	{POLICY_OBSERVATION, "budget=70&window=16", "prefill=streaming+recompute&prefill_sinks=4&prefill_window=50",
	 false, true},
	{POLICY_EVICTED_PAGES, "budget=6&dense=1",
	 "prefill=streaming+delta&prefill_sinks=4&prefill_window=40&prefill_gamma=8&prefill_tail=8", true, false},
	{POLICY_WINDOW, "budget=64&dense=1",
	 "prefill=streaming+delta&prefill_sinks=4&prefill_window=40&prefill_gamma=16&prefill_tail=16", true, false},
	{"few", "", "prefill=hip&prefill_sinks=64&prefill_window=64", true, false},
	{"few", "", "prefill=hip+delta&prefill_sinks=64&prefill_window=64&prefill_gamma=8&prefill_tail=8", true, false},
	{POLICY_BOUNDS, "budget=4&dense=1",
	 "prefill=minference&prefill_segment=128&prefill_vertical=30&prefill_slash=30", true, false},
	{"full", "", "prefill=minference+delta&prefill_segment=128&prefill_vertical=30&prefill_slash=30&prefill_gamma=4&prefill_tail=4", true, false},
	{POLICY_ANCHORS, "budget=40", "prefill=kascade&prefill_top=20", true, false},
	{POLICY_TOKENS, "budget=40",
	 "prefill=kascade+delta&prefill_top=20&prefill_gamma=16&prefill_tail=16&prefill_anchors=1,2", true, false},
	{POLICY_ANCHORS, "budget=40&layers=0,3",
	 "prefill=kascade+recompute&prefill_top=9&prefill_gamma=32&prefill_tail=32", true, false},
};
#define WAYS ((int)(sizeof(ways) / sizeof(ways[0])))

static struct refmodel w;
static uint64_t contents[2][TOKENS], *content = contents[0]; /* the second one: of a fork that goes another way */
static char spec[256], dense[256];
static size_t width; /* of a row of a layer */

static void setup(void)
{
	client_begin(NULL);
	ck_assert_int_eq(raw_policy_load(op, fix_built("tests/support/plugins/.libs/few.so")), 0);
	refmodel_model(&w.model, "prompt", rnd_below(4), TOKENS);
	width = (size_t)w.model.n_heads * w.model.head_dim;
}

/* Each test of a loop has random numbers of its own. */
static void open_way(int way, int i)
{
	for (int j = 0; j < 1000 * i; j++)
		rnd64();
	for (uint32_t t = 0; t < TOKENS; t++)
		content[t] = refmodel_content(rnd64() % 3, t);
	snprintf(spec, sizeof(spec), "%s?%s%s%s", ways[way].name, ways[way].decode, *ways[way].decode ? "&" : "",
	         ways[way].prefill);
	snprintf(dense, sizeof(dense), "%s?%s", ways[way].name, *ways[way].decode ? ways[way].decode : "prefill=dense");
	OK(skv_open(client, &w.model, spec, &w.session));
}

static struct skv_seq *new_seq(const char *name)
{
	struct skv_seq *q;

	OK(skv_seq_new(w.session, name, 0, &q));
	return q;
}

/* Outputs of rows: [n_layers][TOKENS][width]. */
static float *rows_new(void)
{
	return calloc(w.model.n_layers * TOKENS * width, sizeof(float));
}

/* Tokens [at, at + n) of a prompt, or decoded ones; `later` tokens of the prompt follow. */
static void step(struct skv_seq *q, uint32_t at, uint32_t n, uint32_t later, bool prompt, float *rows)
{
	float *out = calloc(w.model.n_layers * n * width, sizeof(*out));

	if (prompt)
		OK(refmodel_read(&w, q, content + at, n, later, out, NULL));
	else
		OK(refmodel_run(&w, q, content + at, n, false, out, NULL));
	for (uint32_t l = 0; l < w.model.n_layers && rows; l++)
		memcpy(rows + (l * TOKENS + at) * width, out + l * n * width, n * width * sizeof(float));
	free(out);
}

/* Tokens [at, end) of a prompt of `last` tokens, in steps of `chunk`; 0: of random sizes. */
static void read_to(struct skv_seq *q, uint32_t at, uint32_t end, uint32_t last, uint32_t chunk, float *rows)
{
	while (at < end) {
		uint32_t most = chunk ? chunk : 1 + rnd_below(rnd_below(2) ? 20 : 200), n = most < end - at ? most : end - at;

		step(q, at, n, last - at - n, true, rows);
		at += n;
	}
}

static void decode(struct skv_seq *q, uint32_t at, float *rows)
{
	for (uint32_t i = 0; i < STEPS; i++)
		step(q, at + i, 1, 0, false, rows);
}

/* Rows [at, end) are the same bits. */
static void same(const float *a, const float *b, uint32_t at, uint32_t end, const char *what)
{
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		for (uint32_t t = at; t < end; t++) {
			const size_t row = (l * TOKENS + t) * width;

			ck_assert_msg(!memcmp(a + row, b + row, width * sizeof(float)), "%s, %s: row %u of layer %u: %g and %g", spec,
			              what, t, l, (double)a[row], (double)b[row]);
		}
}

/* Number of rows that differ in any layer. */
static uint32_t unlike(const float *a, const float *b, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t l = 0; l < w.model.n_layers; l++)
		for (uint32_t t = 0; t < end; t++)
			n += memcmp(a + (l * TOKENS + t) * width, b + (l * TOKENS + t) * width, width * sizeof(float)) != 0;
	return n;
}

/* Pages of all sequences, by the daemon's count. */
static uint64_t pages_of_kind(const char *kind)
{
	json_t *j = raw_query(op, SKV_QUERY_SEQS), *row;
	uint64_t n = 0;
	size_t i;

	json_array_foreach(json_object_get(j, "sequences"), i, row)
		n += (uint64_t)json_integer_value(json_object_get(json_object_get(row, "pages"), kind));
	json_decref(j);
	return n;
}

/* After waiting for a device. */
static uint64_t pages_of_prompts(struct skv_seq *q)
{
	uint64_t resident, total;

	skv_seq_pages(q, &resident, &total);
	return pages_of_kind("prefill");
}

/* ---- chunks ------------------------------------------------------------------------------------ */

/*
 * Read as a whole, in steps of 17, in steps of one token and in steps of random sizes, with `out` apart from q or in
 * its place. What is decoded behind it is what the policy decodes behind a dense prompt.
 */
START_TEST(chunks)
{
	const uint32_t n = 220 + rnd_below(60);
	float *whole = rows_new(), *rows = rows_new();
	struct skv_seq *q;

	open_way(_i, _i);
	q = new_seq(NULL);
	step(q, 0, n, 0, true, whole);
	decode(q, n, whole);
	OK(skv_seq_drop(q));
	for (int i = 0; i < 4; i++) {
		const uint32_t chunk = i == 0 ? 17 : i == 1 ? 1 : 0;

		w.in_place = i >= 2;
		q = new_seq(NULL);
		read_to(q, 0, n / 2, n, chunk, rows);
		ck_assert_int_eq(pages_of_prompts(q) > 0, ways[_i].keeps);
		read_to(q, n / 2, n, n, chunk, rows);
		ck_assert_uint_eq(pages_of_prompts(q), 0);
		decode(q, n, rows);
		same(rows, whole, 0, ways[_i].scores ? n : n + STEPS,
		     i == 0 ? "steps of 17" : i == 1 ? "steps of 1" : "random steps");
		OK(skv_seq_drop(q));
	}
	w.in_place = false;
	skv_close(w.session);

	OK(skv_open(client, &w.model, dense, &w.session));
	q = new_seq(NULL);
	step(q, 0, n, 0, true, rows);
	decode(q, n, rows);
	same(rows, whole, n, n + STEPS, "decoded");
	ck_assert_uint_gt(unlike(rows, whole, n), 0);
	free(whole);
	free(rows);
}
END_TEST

/* Attention scores come from a prompt's queries, even where outputs replace them in memory. */
START_TEST(in_place)
{
	const uint32_t n = 220 + rnd_below(60);
	float *rows[2] = {rows_new(), rows_new()};

	open_way(_i, _i);
	for (int i = 0; i < 2; i++) {
		struct skv_seq *q = new_seq(NULL);

		w.in_place = i;
		step(q, 0, n, 0, true, rows[i]);
		decode(q, n, rows[i]);
		OK(skv_seq_drop(q));
	}
	w.in_place = false;
	same(rows[0], rows[1], 0, n + STEPS, "outputs where queries were");
	free(rows[0]);
	free(rows[1]);
}
END_TEST

/* A step without queries ends the prompt: later rows begin anew, as behind a prompt that is over. */
START_TEST(without_queries)
{
	const uint32_t n = 200, at = 100 + rnd_below(60), to = at + 1 + rnd_below(40);
	float *rows[2] = {rows_new(), rows_new()};

	open_way(_i, _i);
	for (int i = 0; i < 2 && !ways[_i].scores; i++) {
		struct skv_seq *q = new_seq(NULL);

		read_to(q, 0, at, i ? at : n, 0, NULL);
		OK(refmodel_append(&w, q, content + at, to - at, true));
		ck_assert_uint_eq(pages_of_prompts(q), 0);
		read_to(q, to, n, n, 0, rows[i]);
		OK(skv_seq_drop(q));
	}
	same(rows[0], rows[1], to, n, "behind rows without queries");
	free(rows[0]);
	free(rows[1]);
}
END_TEST

/* ---- forks, hand-over -------------------------------------------------------------------------- */

/* The second content: the same up to `at`. */
static void part_ways(uint32_t at)
{
	for (uint32_t t = 0; t < TOKENS; t++)
		contents[1][t] = t < at ? contents[0][t] : refmodel_content(rnd64() % 3, t);
}

/*
 * Parent and child continue a half-read prompt, each with tokens of its own, as if it were read as a whole; then
 * another prompt follows.
 */
START_TEST(forks)
{
	float *whole[2] = {rows_new(), rows_new()}, *rows[2] = {rows_new(), rows_new()};
	struct skv_seq *q[2], *next;
	uint32_t n, at, end;

	open_way(_i % WAYS, _i);
	n = 150 + rnd_below(100);
	at = 1 + rnd_below(n - 2);
	end = n + 1 + rnd_below(200);
	part_ways(at);
	for (int i = 0; i < 2; i++) {
		content = contents[i];
		q[i] = new_seq(NULL);
		step(q[i], 0, n, 0, true, whole[i]);
		step(q[i], n, end - n, 0, true, whole[i]); /* a prompt of its own */
		OK(skv_seq_drop(q[i]));
	}

	q[0] = new_seq(NULL);
	content = contents[0];
	read_to(q[0], 0, at, n, 0, rows[0]);
	OK(skv_seq_fork(q[0], NULL, SKV_ALL, &q[1]));
	memcpy(rows[1], rows[0], w.model.n_layers * TOKENS * width * sizeof(float));
	/* in turns, of one step or several: neither sees what the other one saves */
	for (uint32_t t = at, to; t < n; t = to) {
		to = t + 1 + rnd_below(30);
		to = to < n ? to : n;
		for (int i = 1; i >= 0; i--) {
			content = contents[i];
			read_to(q[i], t, to, n, _i < WAYS ? 0 : to - t, rows[i]);
		}
	}
	same(rows[0], whole[0], 0, n, "a parent in the middle");
	same(rows[1], whole[1], 0, n, "its fork");
	OK(skv_seq_drop(q[0]));
	ck_assert_uint_eq(pages_of_prompts(q[1]), 0);

	content = contents[1];
	OK(skv_seq_fork(q[1], NULL, SKV_ALL, &next));
	OK(skv_seq_drop(q[1]));
	read_to(next, n, end, end, 0, rows[1]);
	same(rows[1], whole[1], n, end, "behind a prefix that is shared");
	OK(skv_seq_drop(next));
	content = contents[0];
	for (int i = 0; i < 2; i++) {
		free(whole[i]);
		free(rows[i]);
	}
}
END_TEST

/* Detached half read, and taken over by another engine; under another policy the prompt begins anew. */
START_TEST(handed_over)
{
	const uint32_t n = 150 + rnd_below(100), at = 1 + rnd_below(n - 2);
	float *whole = rows_new(), *rows = rows_new(), *anew = rows_new();
	struct skv_client *other;
	struct skv_seq *q;

	open_way(_i, _i);
	q = new_seq(NULL);
	step(q, 0, n, 0, true, whole);
	OK(skv_seq_drop(q));
	q = new_seq(NULL);
	read_to(q, 0, at, at, 0, NULL);
	read_to(q, at, n, n, 0, anew);
	OK(skv_seq_drop(q));

	for (int i = 0; i < 2; i++) {
		char changed[320];

		q = new_seq("half");
		read_to(q, 0, at, n, 0, rows);
		OK(skv_seq_detach(q));
		skv_close(w.session);
		skv_disconnect(client);
		OK(skv_connect(&other, daemon_.socket));
		client = other;
		/* parameters that the method does not use make no difference */
		snprintf(changed, sizeof(changed), "%s&%s%s=77", spec, strstr(spec, "prefill_") ? "prefill_" : "",
		         strstr(spec, "prefill=kascade") ? "slash" : "top");
		OK(skv_open(client, &w.model, i ? changed : spec, &w.session));
		OK(skv_seq_attach(w.session, "half", &q));
		ck_assert_uint_eq(skv_seq_len(q), at);
		read_to(q, at, n, n, 0, rows);
		same(rows, whole, 0, n, "taken over");
		ck_assert_uint_eq(pages_of_prompts(q), 0);
		OK(skv_seq_drop(q));
	}

	/* what was saved is of no use to another method */
	q = new_seq("half");
	read_to(q, 0, at, n, 0, NULL);
	OK(skv_seq_policy(q, "full?prefill=streaming+delta&prefill_sinks=7&prefill_window=9&prefill_gamma=16"));
	ck_assert_uint_eq(pages_of_prompts(q), 0);
	OK(skv_seq_policy(q, NULL));
	read_to(q, at, n, n, 0, rows);
	same(rows, anew, at, n, "begun anew");
	free(whole);
	free(rows);
	free(anew);
}
END_TEST

/* A sequence that decodes in the middle of a prompt no longer needs what was saved. */
START_TEST(decodes_before_the_end)
{
	const uint32_t n = 200, at = 1 + rnd_below(n - 2);
	float *rows[2] = {rows_new(), rows_new()};

	open_way(_i, _i);
	for (int i = 0; i < 2; i++) {
		struct skv_seq *q = new_seq(NULL);

		read_to(q, 0, at, i ? at : n, 17, NULL);
		step(q, at, 1, 0, false, rows[i]);
		ck_assert_uint_eq(pages_of_prompts(q), 0);
		read_to(q, at + 1, n, n, 0, rows[i]);
		OK(skv_seq_drop(q));
	}
	same(rows[0], rows[1], at, n, "behind a token that was decoded");
	free(rows[0]);
	free(rows[1]);
}
END_TEST

/* ---- batches ----------------------------------------------------------------------------------- */

#define SEQS 5u

/* A step of all sequences: prompts under policies of their own; the last one decodes. */
static void mixed(struct skv_seq *const *seqs, const uint32_t *at, const uint32_t *n, const uint32_t *later,
                  float *const *rows)
{
	struct skv_step_item items[SEQS];
	uint64_t all[SEQS * TOKENS];
	uint32_t total = 0;
	float *out;

	for (uint32_t i = 0; i < SEQS; i++) {
		items[i] = SKV_STEP_ITEM(.seq = seqs[i], .n_tokens = n[i], .n_prompt_remaining = later[i],
		                                  .flags = i + 1 < SEQS ? SKV_STEP_PROMPT : 0);
		memcpy(all + total, content + at[i], n[i] * sizeof(*all));
		total += n[i];
	}
	out = calloc(w.model.n_layers * total * width, sizeof(*out));
	OK(refmodel_items(&w, items, SEQS, all, total, NULL, out));
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		for (uint32_t i = 0, row = 0; i < SEQS; row += n[i++])
			memcpy(rows[i] + (l * TOKENS + at[i]) * width, out + (l * total + row) * width,
			       n[i] * width * sizeof(float));
	free(out);
}

/* Prompts of several policies and a sequence that decodes, in the same steps: each gets what it gets alone. */
START_TEST(batches)
{
	struct skv_seq *q[SEQS], *alone;
	uint32_t at[SEQS] = {0}, n[SEQS], later[SEQS], last[SEQS];
	float *rows[SEQS], *whole = rows_new();

	open_way(_i, _i);
	for (uint32_t i = 0; i < SEQS; i++) {
		const int way = i == 0 ? 1 : (int)rnd_below(WAYS);
		char own[256];

		snprintf(own, sizeof(own), "%s?%s%s%s", ways[way].name, ways[way].decode, *ways[way].decode ? "&" : "",
		         ways[way].prefill);
		q[i] = new_seq(NULL);
		OK(skv_seq_policy(q[i], i == 2 ? NULL : i + 1 < SEQS ? own : "full"));
		rows[i] = rows_new();
		last[i] = 100 + rnd_below(150);
	}
	step(q[SEQS - 1], 0, at[SEQS - 1] = 40, 0, true, rows[SEQS - 1]);
	for (bool more = true; more;) {
		more = false;
		for (uint32_t i = 0; i < SEQS; i++) {
			n[i] = i + 1 < SEQS ? 1 + rnd_below(60) : 1;
			if (i + 1 < SEQS && n[i] > last[i] - at[i])
				n[i] = last[i] - at[i];
			later[i] = i + 1 < SEQS ? last[i] - at[i] - n[i] : 0;
			more |= later[i] > 0;
		}
		if (n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0)
			break; /* one of them is at its end */
		mixed(q, at, n, later, rows);
		for (uint32_t i = 0; i < SEQS; i++)
			at[i] += n[i];
	}
	for (uint32_t i = 0; i + 1 < SEQS; i++) {
		alone = new_seq(NULL);
		OK(skv_seq_policy(alone, skv_seq_policy_spec(q[i])));
		step(alone, 0, at[i], last[i] - at[i], true, whole);
		same(rows[i], whole, 0, at[i], "in a batch");
		OK(skv_seq_drop(alone));
		free(rows[i]);
	}
	free(rows[SEQS - 1]);
	free(whole);
}
END_TEST

/* ---- pages ------------------------------------------------------------------------------------- */

/* A prompt that does not fit as a whole fails in its first step and leaves nothing behind; one that fits is read. */
START_TEST(no_space)
{
	struct skv_stats stats = {.size = sizeof(stats)};
	struct skv_seq *q, *other;
	uint32_t fits;

	w.model = (struct skv_model){.size = sizeof(w.model), .n_layers = 4, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64,
	                             .kv_dtype = SKV_F32, .max_tokens = 6000, .n_ranks = 1, .name = "no-space"};
	if (devmem_is_device()) {
		w.model.device = SKV_DEVICE_CUDA(0);
		w.model.kv_dtype = SKV_BF16;
		w.model.head_dim *= 2;
	}
	width = (size_t)w.model.n_heads * w.model.head_dim;
	open_way(1, 0);
	q = new_seq(NULL);
	other = new_seq(NULL);
	fits = 1500; /* tokens: 94 pages a layer, and saved pages, of 512 in all */
	FAILS(refmodel_read(&w, q, content, 16, 3000, NULL, NULL), ENOSPC, "");
	ck_assert_uint_eq(skv_seq_len(q), 0);
	ck_assert_uint_eq(pages_of_prompts(q), 0);
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_eq(raw_pool_figure(op, "lease"), stats.stock_pages);
	FAILS(refmodel_read(&w, q, content, 16, 6000 - 15, NULL, NULL), E2BIG, "6000");

	/* pages set aside for one prompt are not available to another */
	OK(refmodel_read(&w, q, content, 16, fits - 16, NULL, NULL));
	FAILS(refmodel_read(&w, other, content, 16, 800, NULL, NULL), ENOSPC, "");
	ck_assert_uint_eq(skv_seq_len(other), 0);
	for (uint32_t at = 16; at < fits; at += 106)
		OK(refmodel_read(&w, q, content, fits - at < 106 ? fits - at : 106, fits - at < 106 ? 0 : fits - at - 106, NULL, NULL));
	ck_assert_uint_eq(skv_seq_len(q), fits);
	ck_assert_uint_eq(pages_of_prompts(q), 0);
	FAILS(refmodel_read(&w, other, content, 16, 800, NULL, NULL), ENOSPC, "");
	OK(skv_seq_drop(q));
	OK(refmodel_read(&w, other, content, 16, 800, NULL, NULL));
	OK(skv_seq_drop(other));
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_eq(raw_pool_figure(op, "lease"), stats.stock_pages);
	ck_assert_uint_eq(raw_pool_figure(op, "seq") + raw_pool_figure(op, "shared"), 0);
}
END_TEST

static void setup_small(void)
{
	static const char *const options[] = {"--pool-bytes=8M", "--cuda-pool-bytes=8M", NULL};

	client_begin(options);
}

int main(void)
{
	Suite *s = begin_suite("test-client-prefill");
	TCase *t = add_case(s, "prompt", 240, setup, client_end, NULL);

	tcase_add_loop_test(t, chunks, 0, WAYS);
	tcase_add_loop_test(t, without_queries, 0, WAYS);
	tcase_add_loop_test(t, in_place, 0, WAYS);
	tcase_add_loop_test(t, forks, 0, 3 * WAYS);
	tcase_add_loop_test(t, handed_over, 0, WAYS);
	tcase_add_loop_test(t, decodes_before_the_end, 0, WAYS);
	tcase_add_loop_test(t, batches, 0, WAYS);
	add_case(s, "small", 240, setup_small, client_end, no_space, NULL);
	return run_suite(s);
}
