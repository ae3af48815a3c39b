/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of libsparsekv-client on a real daemon: the outputs of attention under each policy, the daemon's accounts of
 * pages, and sequences that are forked, handed over, or refused pages.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

static void setup(void)
{
	client_begin(NULL);
}

static void setup_small(void)
{
	client_begin((const char *[]){"--pool-bytes=8M", "--cuda-pool-bytes=8M", NULL});
}

static void setup_small_segments(void)
{
	client_begin((const char *[]){"--segment-bytes=256K", NULL});
}

static void teardown(void)
{
	json_t *j;

	skv_disconnect(client);
	j = raw_query(op, SKV_QUERY_STATUS);
	ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(j, "totals"), "sessions")), 0);
	json_decref(j);
	raw_close(op);
	fix_stop(&daemon_);
}

static void open_refmodel(struct refmodel *w, const char *name, const char *spec, uint32_t max_tokens)
{
	refmodel_model(&w->model, name, rnd_below(4), max_tokens);
	OK(skv_open(client, &w->model, spec, &w->session));
}

static void new_seq(struct refmodel *w, struct refmodel_seq *q, const char *name)
{
	struct skv_seq *seq;

	OK(skv_seq_new(w->session, name, 0, &seq));
	refmodel_seq_init(w, q, seq, w->model.max_tokens);
}

/* Pages of `tokens` tokens in all layers. */
static uint64_t pages(const struct refmodel *w, uint32_t tokens)
{
	return (uint64_t)skv_pages_of(tokens) * w->model.n_layers;
}

/* ---- outputs --------------------------------------------------------------------------------- */

#define N_SEQS 5

/* Length, ids, next id and pages of a sequence are those of the reference. */
static void check_state(struct refmodel *w, struct refmodel_seq *q)
{
	uint64_t resident, total, expect = 0;
	const int32_t *ids;
	uint32_t len;

	for (uint32_t i = 0; i < w->model.n_layers; i++)
		for (uint32_t u = 0; u < skv_pages_of(q->len); u++)
			expect += !q->hole[i * skv_pages_of(q->cap) + u];
	skv_seq_pages(q->seq, &resident, &total);
	ck_assert_uint_eq(resident, expect);
	ck_assert_uint_eq(total, pages(w, q->len));
	ids = skv_seq_tokens(q->seq, &len);
	ck_assert_uint_eq(len, q->len);
	for (uint32_t i = 0; i < len; i++)
		ck_assert_int_eq(ids[i], refmodel_token(q->content[i]));
	ck_assert_int_eq(ids[len], len ? refmodel_token(q->content[len - 1] + 1) : -1);
}

/* Random batches of prompts and decode rows, some steps aborted half-way, under a random policy. */
START_TEST(outputs)
{
	struct refmodel w = {0};
	struct refmodel_seq seqs[N_SEQS];
	char spec[160];

	rnd_begin((uint64_t)_i);
	refmodel_model(&w.model, "outputs", (uint32_t)_i % 4, 500);
	w.policy = refmodel_policy(&w.model, spec);
	OK(skv_open(client, &w.model, spec, &w.session));
	RUNS_SPEC(skv_policy_spec(w.session), spec);
	for (int i = 0; i < N_SEQS; i++)
		new_seq(&w, &seqs[i], NULL);
	for (int step = 0; step < (slowed() ? 10 : 30); step++) {
		struct refmodel_item items[N_SEQS];
		uint64_t content[N_SEQS][150];
		uint32_t n = 0;
		int at = rnd_below(8) == 0 ? (int)rnd_below(w.model.n_layers + 1) : -1;

		for (uint32_t i = 0; i < N_SEQS; i++) {
			bool prompt = seqs[i].len == 0 || rnd_below(12) == 0;
			uint32_t tokens = 1 + rnd_below(prompt ? 150 : rnd_below(2) ? 1 : SKV_STEP_ROWS);

			if (rnd_below(5) == 0 || seqs[i].len + tokens > w.model.max_tokens)
				continue;
			items[n] = (struct refmodel_item){&seqs[i], tokens, prompt, NULL, 0};
			refmodel_speculate(&items[n], i, content[n]);
			n++;
		}
		if (n > 0)
			ck_assert_int_eq(refmodel_step(&w, items, n, at), at >= 0 ? -ECANCELED : 0);
	}
	if (!devmem_is_device()) /* with 16-bit rows, rounding decides most selections of a few pages */
		ck_assert_uint_lt(w.skipped, 10);
	ck_assert_uint_gt(w.checked, 5000);
	for (int i = 0; i < N_SEQS; i++) {
		check_state(&w, &seqs[i]);
		refmodel_seq_deinit(&seqs[i]);
	}
	skv_close(w.session);
}
END_TEST

/* A prompt in chunks of 1, of 17 and as a whole leads to the same decoding. */
START_TEST(chunks)
{
	struct refmodel w = {0};
	uint64_t content[200];
	uint32_t width;
	float *out[3];

	open_refmodel(&w, "chunks", "full", 200);
	width = w.model.n_layers * w.model.n_heads * w.model.head_dim;
	for (uint32_t i = 0; i < 200; i++)
		content[i] = refmodel_content(1, i);
	for (int c = 0; c < 3; c++) {
		uint32_t size = c == 0 ? 1 : c == 1 ? 17 : 190;
		struct skv_seq *q;

		out[c] = calloc((size_t)10 * width, sizeof(float));
		OK(skv_seq_new(w.session, NULL, 0, &q));
		for (uint32_t at = 0; at < 190; at += size)
			OK(refmodel_run(&w, q, content + at, size < 190 - at ? size : 190 - at, true, NULL, NULL));
		for (uint32_t i = 0; i < 10; i++)
			OK(refmodel_run(&w, q, content + 190 + i, 1, false, out[c] + (size_t)i * width, NULL));
		for (uint32_t i = 0; i < 10 * width; i++)
			ck_assert_float_eq_tol(out[c][i], out[0][i], 1e-6f);
		ck_assert_uint_eq(skv_seq_len(q), 200);
		OK(skv_seq_drop(q));
	}
	for (int c = 0; c < 3; c++)
		free(out[c]);
}
END_TEST

/* A prompt that was appended without attention decodes like any other, unless its policy needs its queries. */
START_TEST(appended)
{
	struct refmodel w = {0};
	struct skv_seq *q[2];
	uint64_t content[200];
	float *out[2];
	size_t width;

	open_refmodel(&w, "appended", policy_row(SET_APPENDS, _i)->spec, 200);
	width = (size_t)w.model.n_layers * w.model.n_heads * w.model.head_dim;
	for (uint32_t i = 0; i < 200; i++)
		content[i] = refmodel_content(1, i);
	for (int c = 0; c < 2; c++) {
		out[c] = calloc(20 * width, sizeof(float));
		OK(skv_seq_new(w.session, NULL, 0, &q[c]));
	}
	OK(refmodel_run(&w, q[0], content, 100, true, NULL, NULL));
	if (skv_policy_depends_on_prefill(w.session)) {
		FAILS(refmodel_append(&w, q[1], content, 100, true), EINVAL, "accumulates attention scores of prompts");
		skv_step_abort(w.session);
		OK(refmodel_run(&w, q[1], content, 100, true, NULL, NULL));
	} else {
		OK(refmodel_append(&w, q[1], content, 37, true));
		OK(refmodel_append(&w, q[1], content + 37, 63, true));
	}
	FAILS(refmodel_append(&w, q[1], content + 100, 1, false), EINVAL, "1 sequences decode");
	skv_step_abort(w.session);
	for (uint32_t i = 0; i < 20; i++)
		for (int c = 0; c < 2; c++)
			OK(refmodel_run(&w, q[c], content + 100 + i, 1, false, out[c] + i * width, NULL));
	ck_assert_mem_eq(out[0], out[1], 20 * width * sizeof(float));
	free(out[0]);
	free(out[1]);
}
END_TEST

/* ---- sequences ------------------------------------------------------------------------------- */

/* Parent and children share pages, diverge, and are dropped in any order. */
START_TEST(forks)
{
	struct refmodel w = {.policy = {.kind = _i ? REFMODEL_STREAMING : REFMODEL_FULL, .sinks = 4, .budget = {.count = 64}}};
	struct refmodel_seq parent, child, grandchild;
	struct skv_seq *q;
	uint64_t shared;

	open_refmodel(&w, "forks", _i ? POLICY_WINDOW "?budget=64" : "full", 400);
	new_seq(&w, &parent, NULL);
	refmodel_feed(&w, &parent, 1, 137, true);
	OK(skv_seq_fork(parent.seq, "child", SKV_ALL, &q));
	refmodel_seq_copy(&w, &child, &parent, q);
	check_state(&w, &child);
	ck_assert_uint_eq(raw_pool_figure(op, "shared"), pages(&w, 137));

	/* the first writer copies the shared last page; neither sees the other's tokens */
	for (int i = 0; i < 20; i++) {
		refmodel_feed(&w, &child, 2, 1, false);
		refmodel_feed(&w, &parent, 1, 1, false);
	}
	check_state(&w, &parent);
	check_state(&w, &child);
	ck_assert_uint_le(raw_pool_figure(op, "shared"), pages(&w, 128)); /* the daemon was told of each */

	/* a fork of a sequence that has evicted or grown, while some of its own shared pages are given up */
	OK(skv_seq_fork(child.seq, NULL, SKV_ALL, &q));
	refmodel_seq_copy(&w, &grandchild, &child, q);
	check_state(&w, &grandchild);
	for (int i = 0; i < 3; i++)
		refmodel_feed(&w, &grandchild, 3, 1 + rnd_below(20), true);
	OK(skv_seq_drop(parent.seq));
	for (int i = 0; i < 5; i++) {
		refmodel_feed(&w, &child, 2, 1, false);
		refmodel_feed(&w, &grandchild, 3, 1, false);
	}
	OK(skv_seq_drop(child.seq));
	refmodel_feed(&w, &grandchild, 3, 1, false);
	check_state(&w, &grandchild);
	shared = raw_pool_figure(op, "shared");
	ck_assert_uint_le(shared, pages(&w, 157)); /* shared by the last sequence alone */
	OK(skv_seq_detach(grandchild.seq));
	ck_assert_uint_eq(raw_pool_figure(op, "shared"), 0);
	ck_assert_uint_eq(raw_pool_figure(op, "seq"), 0);
	refmodel_seq_deinit(&parent);
	refmodel_seq_deinit(&child);
	refmodel_seq_deinit(&grandchild);
}
END_TEST

/* A named sequence is handed from process to process; each one continues it. */
START_TEST(hand_over)
{
	struct refmodel w = {.policy = {.kind = _i ? REFMODEL_STREAMING : REFMODEL_FULL, .sinks = 4, .budget = {.count = 64}}};
	const char *spec = _i ? POLICY_WINDOW "?budget=64" : "full";
	struct skv_seq *other;
	struct refmodel_seq q;

	open_refmodel(&w, "hand-over", spec, 400);
	new_seq(&w, &q, "baton");
	FAILS(skv_seq_new(w.session, "baton", 0, &other), EEXIST, "baton");
	refmodel_feed(&w, &q, 1, 150, true);
	refmodel_feed(&w, &q, 1, 1, false);
	OK(skv_seq_detach(q.seq));
	for (int round = 0; round < 3; round++) {
		uint64_t content[9];
		pid_t pid = child_fork();

		for (uint32_t i = 0; i < 9; i++)
			content[i] = refmodel_content(1, q.len + i);
		if (pid == 0) {
			struct skv_client *own;

			OK(skv_connect(&own, daemon_.socket));
			OK(skv_open(own, &w.model, spec, &w.session));
			OK(skv_seq_attach(w.session, "baton", &q.seq));
			q.attended = q.causal = 0;
			check_state(&w, &q);
			for (uint32_t i = 0; i < 9; i++)
				ck_assert_int_eq(refmodel_step(&w, &(struct refmodel_item){&q, 1, false, &content[i], 0}, 1, -1), 0);
			if (round == 0)
				skv_disconnect(own);
			else if (round == 1)
				skv_close(w.session);
			_exit(0); /* or die while it holds it */
		}
		child_wait(pid);
		for (uint32_t i = 0; i < 9; i++)
			refmodel_seq_append(&w, &q, &content[i], 1, false);
	}
	for (int i = 0; skv_seq_attach(w.session, "baton", &q.seq) == -EBUSY && i < 100; i++)
		fix_sleep_ms(1);
	q.attended = q.causal = 0;
	check_state(&w, &q);
	refmodel_feed(&w, &q, 1, 1, false);
	FAILS(skv_seq_attach(w.session, "baton", &other), EBUSY, "baton");
	OK(skv_seq_drop(q.seq));
	FAILS(skv_seq_attach(w.session, "baton", &other), ENOENT, "baton");
	refmodel_seq_deinit(&q);
}
END_TEST

/* ---- pages ----------------------------------------------------------------------------------- */

/* Pages with the same number of bytes. */
static void to_device(struct skv_model *m)
{
	if (!devmem_is_device())
		return;
	m->device = SKV_DEVICE_CUDA(0);
	m->kv_dtype = SKV_BF16;
	m->head_dim *= 2;
}

/* Evicted pages return to the daemon, except a small stock. */
START_TEST(evicted_pages_return)
{
	struct refmodel w = {.policy = {.kind = REFMODEL_STREAMING, .sinks = 4, .budget = {.count = 64}, .dense = 1}};
	struct skv_stats stats = {.size = sizeof(stats)};
	struct refmodel_seq q;
	uint64_t resident, total;

	open_refmodel(&w, "evict", POLICY_WINDOW "?budget=64&dense=1", 3000);
	new_seq(&w, &q, NULL);
	refmodel_feed(&w, &q, 1, 2000, true);
	ck_assert_uint_ge(raw_pool_figure(op, "lease"), pages(&w, 2000));
	for (int i = 0; i < 40; i++)
		refmodel_feed(&w, &q, 1, 1, false);
	skv_seq_pages(q.seq, &resident, &total);
	ck_assert_uint_le(resident, skv_pages_of(2040) + 6 * (w.model.n_layers - 1));
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_eq(stats.evicted_pages, total - resident);
	ck_assert_uint_eq(raw_pool_figure(op, "lease"), resident + stats.stock_pages);
	ck_assert_uint_lt(stats.stock_pages, pages(&w, 2000) / 2);
	skv_close(w.session);
	refmodel_seq_deinit(&q);
	w.session = NULL;
}
END_TEST

/* A step that cannot have all of its pages changes nothing, and other sequences go on. */
START_TEST(no_space)
{
	struct refmodel w = {.policy = {.kind = REFMODEL_FULL}};
	struct skv_stats stats = {.size = sizeof(stats)};
	struct refmodel_seq a, b;
	uint64_t content[3000];
	uint32_t n = 0;
	int e = 0;

	w.model = (struct skv_model){.size = sizeof(w.model), .n_layers = 4, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64,
	                             .kv_dtype = SKV_F32, .max_tokens = 3000, .n_ranks = 1, .name = "no-space"};
	to_device(&w.model);
	OK(skv_open(client, &w.model, "full", &w.session));
	new_seq(&w, &a, NULL);
	new_seq(&w, &b, NULL);
	for (uint32_t i = 0; i < 3000; i++)
		content[i] = refmodel_content(1, i);
	/* 512 pages of 16 KiB: the third chunk does not fit */
	refmodel_feed(&w, &b, 2, 20, true);
	for (; e == 0 && n < 10; n += e == 0)
		e = refmodel_step(&w, (struct refmodel_item[]){{&a, 800, true, content + a.len, 0}, {&b, 1, false, content, 0}}, 2, -1);
	ck_assert_int_eq(e, -ENOSPC);
	ck_assert_str_ne(skv_last_error(), "");
	check_state(&w, &a);
	check_state(&w, &b);
	ck_assert_uint_eq(a.len, n * 800);
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_eq(raw_pool_figure(op, "lease"), pages(&w, a.len) + pages(&w, b.len) + stats.stock_pages);

	/* the sequence that fits goes on, and so does the other one after a drop */
	for (int i = 0; i < 10; i++)
		refmodel_feed(&w, &b, 3, 1, false);
	OK(skv_seq_drop(a.seq));
	refmodel_seq_deinit(&a);
	new_seq(&w, &a, NULL);
	refmodel_feed(&w, &a, 1, 1500, true);
	check_state(&w, &a);
	refmodel_seq_deinit(&a);
	refmodel_seq_deinit(&b);
}
END_TEST

/* The next sequence reuses the pages of a dropped one, without asking the daemon for pages. */
START_TEST(dropped_pages_stay_in_stock)
{
	struct refmodel w = {.policy = {.kind = REFMODEL_FULL}};
	uint64_t lease = 0;

	open_refmodel(&w, "drops", "full", 400);
	for (int i = 0; i < 20; i++) {
		struct refmodel_seq q;

		new_seq(&w, &q, i % 2 ? "named" : NULL);
		refmodel_feed(&w, &q, (uint64_t)i, 300, true);
		OK(skv_seq_drop(q.seq));
		refmodel_seq_deinit(&q);
		if (i == 0)
			lease = raw_pool_figure(op, "lease");
		ck_assert_uint_eq(raw_pool_figure(op, "lease"), lease);
	}
}
END_TEST

/* With the last reference the daemon frees a shared prefix at once. */
START_TEST(dropped_prefix_leaves)
{
	struct refmodel w = {.policy = {.kind = REFMODEL_FULL}};

	w.model = (struct skv_model){.size = sizeof(w.model), .n_layers = 4, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64,
	                             .kv_dtype = SKV_F32, .max_tokens = 2000, .n_ranks = 1, .name = "prefix"};
	to_device(&w.model);
	OK(skv_open(client, &w.model, "full", &w.session));
	for (int i = 0; i < 4; i++) {
		struct refmodel_seq q;
		struct skv_seq *child;

		new_seq(&w, &q, NULL);
		refmodel_feed(&w, &q, (uint64_t)i, 1600, true);
		OK(skv_seq_fork(q.seq, i % 2 ? "child" : NULL, SKV_ALL, &child));
		OK(skv_seq_drop(q.seq));
		ck_assert_uint_ge(raw_pool_figure(op, "shared"), pages(&w, 1600));
		OK(skv_seq_drop(child));
		ck_assert_uint_eq(raw_pool_figure(op, "shared"), 0);
		refmodel_seq_deinit(&q);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client");
	TCase *t = add_case(s, "client", 60, setup, teardown, evicted_pages_return,
	                    dropped_pages_stay_in_stock, chunks, NULL);

	tcase_add_loop_test(t, outputs, 0, 6);
	tcase_add_loop_test(t, appended, 0, policy_rows(SET_APPENDS));
	tcase_add_loop_test(t, forks, 0, 2);
	if (!devmem_is_device()) /* a child cannot use a device of its parent */
		tcase_add_loop_test(t, hand_over, 0, 2);
	add_case(s, "small pool", 60, setup_small, teardown, no_space, NULL);
	add_case(s, "small segments", 60, setup_small_segments, teardown, dropped_prefix_leaves, NULL);
	return run_suite(s);
}
