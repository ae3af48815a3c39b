/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libclient's policy runtime: swaps in the middle of a generation, refusals, state, misuse. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

static struct refmodel w;
static struct refmodel_seq q;

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "policies", SKV_F32, 600);
}

static void load(const char *plugin)
{
	char name[64];

	snprintf(name, sizeof(name), "tests/support/plugins/.libs/%s.so", plugin);
	ck_assert_int_eq(raw_policy_load(op, fix_built(name)), 0);
}

static void open_with(const char *spec)
{
	OK(skv_open(client, &w.model, spec, &w.session));
}

static void new_seq(const char *name)
{
	struct skv_seq *seq;

	OK(skv_seq_new(w.session, name, 0, &seq));
	refmodel_seq_init(&w, &q, seq, w.model.max_tokens);
}

/* One decode step, whose outputs are not checked. */
static int decode(void)
{
	uint64_t content = refmodel_content(1, skv_seq_len(q.seq));

	return refmodel_run(&w, q.seq, &content, 1, false, NULL, NULL);
}

static uint64_t holes(void)
{
	uint64_t resident, total;

	skv_seq_pages(q.seq, &resident, &total);
	return total - resident;
}

/* A field of the daemon's row of this session, which must be the only one. */
static void expect_session(const char *field, const char *text)
{
	json_t *j = raw_query(op, SKV_QUERY_SESSIONS), *rows = json_object_get(j, "sessions");
	const char *is = json_string_value(json_object_get(json_array_get(rows, 0), field));

	ck_assert_uint_eq(json_array_size(rows), 1);
	ck_assert_msg(is && strstr(is, text), "%s is '%s', expected '%s'", field, is ? is : "nothing", text);
	json_decref(j);
}

/* Decode until the session runs the spec or has refused it: the daemon may be slow to announce the swap. */
static void follow(const char *spec)
{
	for (int i = 0; i < 200 && !refmodel_runs(skv_policy_spec(w.session), spec) &&
	     !*skv_policy_error(w.session); i++)
		ck_assert_int_eq(decode(), 0);
}

/* ---- swaps ----------------------------------------------------------------------------------- */

/* Random policies, one after the other, in the middle of a generation: no step fails, every output is right. */
START_TEST(swaps)
{
	struct skv_stats stats = {.size = sizeof(stats)};
	uint32_t changes = 0;
	struct refmodel_seq other;
	struct skv_seq *seq;
	char last[sizeof(w.next_spec)];

	rnd_begin((uint64_t)_i);
	open_with("full");
	new_seq("swapped");
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	refmodel_seq_init(&w, &other, seq, w.model.max_tokens);
	refmodel_feed(&w, &q, 1, 300, true);
	refmodel_feed(&w, &other, 2, 100 + rnd_below(100), true);
	for (int i = 0; i < 60; i++) {
		uint64_t a = refmodel_content(1, q.len), b = refmodel_content(2, other.len);

		if (i % 6 == 0) {
			w.next = refmodel_policy(&w.model, w.next_spec);
			ck_assert_int_eq(raw_policy_swap(op, w.next_spec), 0);
			changes += !refmodel_runs(skv_policy_spec(w.session), w.next_spec);
			strcpy(last, w.next_spec);
		}
		ck_assert_int_eq(refmodel_step(&w, (struct refmodel_item[]){{&q, 1, false, &a, 0}, {&other, 1, false, &b, 0}}, 2, -1), 0);
		ck_assert_str_eq(skv_policy_error(w.session), "");
	}
	ck_assert_str_eq(w.next_spec, "");
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_eq(stats.policy_swaps, changes);
	expect_session("policy", last);
	refmodel_seq_deinit(&other);
}
END_TEST

/* n more tokens, whose outputs must be attention over all tokens that the window left, and all later ones. */
static void go_on(uint32_t n, bool prompt)
{
	const struct skv_model *m = &w.model;
	float *out = calloc((size_t)m->n_layers * n * m->n_heads * m->head_dim, sizeof(*out)), *at = out;
	uint64_t content[20];
	bool there[400];

	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(1, q.len + i);
	OK(refmodel_run(&w, q.seq, content, n, prompt, out, NULL));
	refmodel_seq_append(&w, &q, content, n, true); /* nothing is evicted any more */
	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		for (uint32_t t = 0; t < q.len; t++)
			there[t] = !q.hole[(size_t)layer * skv_pages_of(q.cap) + t / SKV_PAGE_TOKENS];
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t h = 0; h < m->n_heads; h++, at += m->head_dim)
				refmodel_compare(&w, &q, layer, q.len - n + i + 1, h, there, at);
	}
	free(out);
}

/*
 * Pages with gaps, the last one partly filled, for a policy that evicts pages: a prompt or a step goes on behind them.
 */
START_TEST(pages_after_holes)
{
	w.policy = (struct refmodel_policy){.kind = REFMODEL_STREAMING, .budget = {.count = 100}, .sinks = 20};
	open_with(POLICY_WINDOW "?budget=100&sinks=20&dense=0");
	new_seq("holed");
	refmodel_feed(&w, &q, 1, 140 + (uint32_t)_i, true); /* fewer pages are missing than follow the gaps */
	refmodel_feed(&w, &q, 1, 1, false);
	ck_assert_uint_gt(holes(), 0);
	OK(skv_seq_policy(q.seq, POLICY_EVICTED_PAGES "?budget=60&dense=0"));
	if (_i % 2)
		go_on(1, false);
	go_on(20, true);
	go_on(1, false);
	OK(skv_seq_drop(q.seq));
	refmodel_seq_deinit(&q);
	skv_close(w.session);
}
END_TEST

/* Recall measured in every step, under one random policy after another; the daemon reports the last figures. */
START_TEST(recall)
{
	const char *const swapped = POLICY_WINDOW "?budget=20&sinks=4&dense=1";
	struct skv_stats stats = {.size = sizeof(stats)};
	json_t *j, *layers;
	double sum = 0;
	size_t i;
	json_t *one;

	rnd_begin((uint64_t)_i);
	open_with("full");
	new_seq(NULL);
	skv_set_recall(w.session, 1);
	w.measures = true;
	refmodel_feed(&w, &q, 1, 200 + rnd_below(100), true);
	for (i = 0; i < 40; i++) {
		if (i % 8 == 0) {
			w.next = refmodel_policy(&w.model, w.next_spec);
			ck_assert_int_eq(raw_policy_swap(op, w.next_spec), 0);
		}
		refmodel_feed(&w, &q, 1, 1, false);
	}
	ck_assert_int_eq(raw_policy_swap(op, swapped), 0);
	w.measures = false; /* the reference does not know when measuring starts */
	for (i = 0; i < 200 && strncmp(skv_policy_spec(w.session), swapped, strlen(swapped)) != 0; i++)
		ck_assert_int_eq(decode(), 0);
	ck_assert_int_eq(decode(), 0);
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_gt(stats.recall_layers, 0);
	j = raw_query(op, SKV_QUERY_SESSIONS);
	layers = json_object_get(json_array_get(json_object_get(j, "sessions"), 0), "recall");
	ck_assert_uint_eq(json_array_size(layers), w.model.n_layers - 1);
	json_array_foreach(layers, i, one) {
		ck_assert_int_eq(json_integer_value(json_object_get(one, "layer")), (int)i + 1);
		sum += json_real_value(json_object_get(one, "recall"));
	}
	ck_assert(sum > 0 && sum < w.model.n_layers - 1);
	json_decref(j);

	/* measuring ends */
	skv_set_recall(w.session, 0);
	OK(skv_session_stats(w.session, &stats));
	sum = stats.recall_sum;
	ck_assert_int_eq(decode(), 0);
	OK(skv_session_stats(w.session, &stats));
	ck_assert(stats.recall_sum == sum);
}
END_TEST

/* A swap that the policy or its parameters refuse leaves the old policy running, and all sides learn why. */
START_TEST(refused_swaps)
{
	const char *old = POLICY_PAGES "?budget=4&recent=1&layers=2&dense=1&pin=0&profile=none";

	load("refuse-adopt");
	w.policy = (struct refmodel_policy){
	        .kind = REFMODEL_DELTA, .budget = {.count = 4}, .floor = 1, .recent = 1, .recent_floor = 1, .layers = 4, .dense = 1};
	open_with(old);
	new_seq(NULL);
	refmodel_feed(&w, &q, 1, 200, true);
	refmodel_feed(&w, &q, 1, 1, false);
	/* the daemon rehearses with the session's model, so this one never comes here */
	ck_assert_int_eq(raw_policy_swap(op, POLICY_PAGES "?layers=200"), EINVAL);
	refmodel_feed(&w, &q, 1, 1, false);
	ck_assert_str_eq(skv_policy_error(w.session), "");
	/* only the library can find out whether a policy adopts the existing sequences */
	ck_assert_int_eq(raw_policy_swap(op, "refuse-adopt"), 0);
	for (int i = 0; i < 100 && !*skv_policy_error(w.session); i++)
		refmodel_feed(&w, &q, 1, 1, false);
	ck_assert_ptr_nonnull(strstr(skv_policy_error(w.session), "takes none"));
	RUNS_SPEC(skv_policy_spec(w.session), old);
	refmodel_feed(&w, &q, 1, 1, false);
	expect_session("error", skv_policy_error(w.session));
	expect_session("policy", old);
	/* a good one is accepted */
	w.next = (struct refmodel_policy){.kind = REFMODEL_FULL};
	strcpy(w.next_spec, "full");
	ck_assert_int_eq(raw_policy_swap(op, "full"), 0);
	for (int j = 0; j < 100 && w.next_spec[0]; j++)
		refmodel_feed(&w, &q, 1, 1, false);
	RUNS_SPEC(skv_policy_spec(w.session), "full");
	ck_assert_str_eq(skv_policy_error(w.session), "");
	refmodel_feed(&w, &q, 1, 1, false);
	expect_session("error", "");

	/* new sequences are adopted from no policy; sequences of another policy are */
	OK(skv_seq_drop(q.seq));
	refmodel_seq_deinit(&q);
	ck_assert_int_eq(raw_policy_swap(op, "refuse-adopt"), 0);
	new_seq("taken-by-none");
	follow("refuse-adopt");
}
END_TEST

/* Specs and policies that skv_open refuses. */
START_TEST(refused_opens)
{
	struct skv_session *s;

	FAILS(skv_open(client, &w.model, "no-such?x=1", &s), ENOENT, "no-such");
	FAILS(skv_open(client, &w.model, POLICY_PAGES "?budget=", &s), EINVAL, "budget");
	FAILS(skv_open(client, &w.model, POLICY_PAGES "?bugdet=4", &s), EINVAL, "bugdet");
	FAILS(skv_open(client, &w.model, POLICY_WINDOW "?sinks=4&sinks=5", &s), EINVAL, "twice");
	FAILS(skv_open(client, &w.model, POLICY_PAGES "?layers=99", &s), EINVAL, "layer 99");
	FAILS(skv_open(client, &w.model, POLICY_WINDOW "?budget=3&sinks=4", &s), EINVAL, "sinks");
	FAILS(skv_open(client, &w.model, "Full", &s), EINVAL, "Full");
	FAILS(skv_open(client, &w.model, NULL, &s), EINVAL, "NULL");
	/* nothing of the refused ones stays behind */
	open_with("full");
	expect_session("policy", "full");
}
END_TEST

/* ---- state ----------------------------------------------------------------------------------- */

/* A policy's state lives with the sequence, goes where it goes, and is made anew after another policy. */
START_TEST(state)
{
	struct skv_seq *child;
	uint64_t before;

	load("fourth");
	open_with("fourth");
	new_seq("stateful");
	refmodel_feed(&w, &q, 1, 100, true);
	ck_assert_int_eq(decode(), 0);
	ck_assert_int_eq(decode(), 0);
	OK(skv_seq_detach(q.seq));
	OK(skv_seq_attach(w.session, "stateful", &q.seq));
	ck_assert_int_eq(decode(), 0);
	ck_assert_uint_eq(holes(), 0);
	OK(skv_seq_fork(q.seq, NULL, SKV_ALL, &child));
	ck_assert_int_eq(decode(), 0);
	ck_assert_uint_gt(holes(), 0); /* at the fourth token */
	OK(skv_seq_drop(q.seq));
	q.seq = child;
	ck_assert_uint_eq(holes(), 0);
	ck_assert_int_eq(decode(), 0);
	ck_assert_uint_gt(holes(), 0); /* at the child's fourth: it inherited the count */

	/* to another policy and back */
	ck_assert_int_eq(raw_policy_swap(op, "full"), 0);
	follow("full");
	ck_assert_int_eq(raw_policy_swap(op, "fourth"), 0);
	follow("fourth");
	RUNS_SPEC(skv_policy_spec(w.session), "fourth");
	before = holes();
	for (int i = 0; i < 40; i++)
		ck_assert_int_eq(decode(), 0);
	ck_assert_uint_eq(holes(), before); /* adopted: it never evicts again */
}
END_TEST

/* A step of one token, up to skv_step_end. */
static void step_to_its_end(float *rows)
{
	OK(skv_step_begin(w.session, &SKV_STEP_ITEM(.seq = q.seq, .n_tokens = 1), 1, devmem_stream()));
	for (uint32_t l = 0; l < w.model.n_layers; l++)
		OK(skv_attend(w.session, l, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows)));
}

/* An engine that dies inside of a step leaves a state that belongs to no commit: the next session makes it anew. */
START_TEST(torn_state)
{
	uint64_t content = refmodel_content(1, 100);
	float *rows;

	load("fourth");
	open_with("fourth");
	new_seq("torn");
	refmodel_feed(&w, &q, 1, 100, true);
	/* the hook does not run: the step is aborted */
	rows = devmem_get((size_t)w.model.n_heads * w.model.head_dim * sizeof(float));
	for (int i = 0; i < 3; i++) {
		step_to_its_end(rows);
		skv_step_abort(w.session);
	}
	devmem_put(rows);
	ck_assert_int_eq(refmodel_run(&w, q.seq, &content, 1, false, NULL, NULL), 0);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(decode(), 0);
	ck_assert_uint_eq(holes(), 0);
	ck_assert_int_eq(decode(), 0);
	ck_assert_uint_gt(holes(), 0); /* four tokens are committed, whatever was aborted */
}
END_TEST

/* A premature end, while the stream is being recorded, leaves the step open: its hook has not run. */
START_TEST(end_while_recording)
{
	const struct skv_backend *b = devmem_is_device() ? devmem_device() : NULL;
	float *rows;
	void *graph;

	load("fourth");
	open_with("fourth");
	new_seq("early");
	refmodel_feed(&w, &q, 1, 100, true);
	rows = devmem_get((size_t)w.model.n_heads * w.model.head_dim * sizeof(float));
	for (int i = 0; i < 4; i++) {
		ck_assert_uint_eq(holes(), 0);
		step_to_its_end(rows);
		if (b) {
			OK(b->begin_capture(devmem_stream()));
			FAILS(skv_step_end(w.session, NULL, NULL), EBUSY, "recorded");
			OK(b->end_capture(devmem_stream(), &graph));
			OK(b->graph_free(graph));
		}
		OK(skv_step_end(w.session, NULL, NULL));
	}
	ck_assert_uint_gt(holes(), 0); /* the fourth call of the hook */
	devmem_put(rows);
}
END_TEST

/* ---- misuse ---------------------------------------------------------------------------------- */

START_TEST(misuse)
{
	uint64_t content;

	load("late-misuse");
	open_with("late-misuse");
	new_seq(NULL);
	refmodel_feed(&w, &q, 1, 50, true);
	ck_assert_int_eq(decode(), 0);
	ck_assert_int_eq(decode(), 0);
	for (int i = 0; i < 3; i++) {
		FAILS(decode(), ENOTRECOVERABLE, "late-misuse");
		ck_assert_uint_eq(skv_seq_len(q.seq), 52);
	}
	/* the operator can help */
	ck_assert_int_eq(raw_policy_swap(op, "full"), 0);
	for (int i = 0; i < 200 && !refmodel_runs(skv_policy_spec(w.session), "full"); i++)
		decode();
	ck_assert_uint_eq(skv_seq_len(q.seq), 53);
	/* nothing of the aborted steps is visible */
	while (q.len < 53) {
		content = refmodel_content(1, q.len);
		refmodel_seq_append(&w, &q, &content, 1, true);
	}
	skv_seq_attended(q.seq, &q.attended, &q.causal);
	refmodel_feed(&w, &q, 1, 1, false);
}
END_TEST

/* A hook misuses a primitive in a step, and another policy adopts another sequence: the step still fails. */
START_TEST(misuse_before_an_adoption)
{
	uint64_t content = refmodel_content(2, 0);
	struct skv_seq *other;
	float *rows;

	load("early-misuse");
	load("fourth");
	open_with("early-misuse");
	new_seq(NULL);
	OK(skv_seq_new(w.session, NULL, 0, &other));
	refmodel_feed(&w, &q, 1, 50, true);
	OK(refmodel_run(&w, other, &content, 1, true, NULL, NULL));
	rows = devmem_get((size_t)w.model.n_heads * w.model.head_dim * sizeof(float));
	step_to_its_end(rows);
	OK(skv_seq_policy(other, "fourth"));
	FAILS(skv_step_end(w.session, NULL, NULL), ENOTRECOVERABLE, "policy early-misuse misused a primitive");
	ck_assert_uint_eq(skv_seq_len(q.seq), 50);
	ck_assert(!strncmp(skv_seq_policy_spec(other), "fourth", 6));
	devmem_put(rows);
}
END_TEST

/* Layers that are their own source: if the budget covers all tokens they are dense, else they attend to that many. */
START_TEST(keys_first)
{
	uint64_t attended, causal, before;

	load("keys-first");
	open_with("keys-first?budget=1000");
	new_seq(NULL);
	w.policy = (struct refmodel_policy){.kind = REFMODEL_FULL};
	refmodel_feed(&w, &q, 1, 200, true);
	for (int i = 0; i < 20; i++)
		refmodel_feed(&w, &q, 1, 1, false);
	skv_seq_attended(q.seq, &before, &causal);
	ck_assert_uint_eq(before, causal);
	ck_assert_int_eq(raw_policy_swap(op, "keys-first?budget=50"), 0);
	follow("keys-first?budget=50");
	skv_seq_attended(q.seq, &before, &causal);
	for (int i = 0; i < 20; i++)
		ck_assert_int_eq(decode(), 0);
	skv_seq_attended(q.seq, &attended, &causal);
	ck_assert_uint_eq(attended - before, 20 * 50 * w.model.n_layers);
}
END_TEST

/* One of the layer's lists in the open step. */
static struct skv_selection_info looked_at(uint32_t layer, uint32_t row, uint32_t ids[64])
{
	struct skv_selection_info looked = {.size = sizeof(looked)};

	OK(skv_selection(w.session, layer, 0, row, &looked, ids, 64));
	ck_assert_uint_eq(looked.attend, SKV_ATTEND_TOKENS);
	ck_assert_uint_le(looked.n, 64);
	return looked;
}

/* Lists of kv heads, also mapped to other heads, and of q heads. */
START_TEST(lists_of_heads)
{
	uint64_t before, attended, causal;
	uint32_t one[64];
	float *rows;

	load("heads");
	strcpy(w.model.name, "heads");
	w.model.n_layers = 7;
	w.model.n_kv_heads = 2;
	w.model.n_heads = 6;
	open_with("heads?budget=1000");
	new_seq(NULL);
	w.policy = (struct refmodel_policy){.kind = REFMODEL_FULL};
	refmodel_feed(&w, &q, 1, 200, true);
	for (int i = 0; i < 5; i++)
		refmodel_feed(&w, &q, 1, 1, false);
	ck_assert_int_eq(raw_policy_swap(op, "heads?budget=50"), 0);
	follow("heads?budget=50");
	skv_seq_attended(q.seq, &before, &causal);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(decode(), 0);
	skv_seq_attended(q.seq, &attended, &causal);
	/* three layers are dense */
	ck_assert_uint_eq(attended - before, 5 * (50 * 4 + 3 * (skv_seq_len(q.seq) - 2)));

	rows = devmem_get((size_t)w.model.n_heads * w.model.head_dim * sizeof(float));
	step_to_its_end(rows);
	for (uint32_t h = 0; h < 2; h++) {
		ck_assert_uint_eq(looked_at(1, h, one).rows, 2);
		ck_assert_uint_eq(looked_at(1, h, one).n, 50);
	}
	for (uint32_t x = 0; x < 6; x++) {
		ck_assert_uint_eq(looked_at(3, x, one).rows, 6);
		ck_assert_uint_eq(looked_at(3, x, one).n, 50);
	}
	for (uint32_t layer = 5; layer < 7; layer++) {
		ck_assert_uint_eq(looked_at(layer, 0, one).rows, 1);
		ck_assert_uint_eq(looked_at(layer, 0, one).n, 50);
	}
	OK(skv_step_end(w.session, NULL, NULL));
	devmem_put(rows);
}
END_TEST

static int keeps_all(const char *spec)
{
	struct skv_seq *seq;
	int keeps;

	OK(skv_seq_new(w.session, NULL, 0, &seq));
	OK(skv_seq_policy(seq, spec));
	keeps = skv_seq_keeps_all(seq);
	OK(skv_seq_drop(seq));
	return keeps;
}

/* Decided by what policies declare or plan, not by their names: the library does not know "fourth" and "keys-first". */
START_TEST(keeping_all)
{
	static const char *const keep[] = {"full", POLICY_BOUNDS, POLICY_UNION "?budget=40&dense=0",
	                                   "full?prefill=dense", "keys-first?budget=40"};
	static const char *const others[] = {POLICY_WINDOW, POLICY_SCORES, POLICY_OBSERVATION, "full?prefill=streaming",
	                                     "fourth"};

	load("keys-first");
	load("fourth");
	open_with("full");
	for (int i = 0; i < 5; i++) {
		ck_assert_msg(keeps_all(keep[i]), "%s", keep[i]);
		ck_assert_msg(!keeps_all(others[i]), "%s", others[i]);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-policy");
	TCase *t = add_case(s, "policy", 60, setup, client_end, refused_swaps, refused_opens, state, torn_state,
	                    end_while_recording, misuse, misuse_before_an_adoption, keys_first, lists_of_heads, keeping_all, NULL);

	tcase_add_loop_test(t, swaps, 0, 4);
	tcase_add_loop_test(t, pages_after_holes, 0, 16);
	tcase_add_loop_test(t, recall, 0, 2);
	return run_suite(s);
}
