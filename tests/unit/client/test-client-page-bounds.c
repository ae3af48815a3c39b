/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State pages in libclient, with a policy that stores page bounds in them: supplied, copied, given back and
 * built in the middle of a generation, with every output right.
 */
#include <errno.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

#define TOKENS 700u
#define STATE_TOKENS (SKV_PAGE_TOKENS * SKV_PAGE_TOKENS) /* tokens whose bounds a state page has */

static struct refmodel w;

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "bounds", rnd_below(4), TOKENS);
}

/* Such a policy with a few pages, and its spec in canonical form. */
static struct refmodel_policy by_bounds(uint32_t dense, char *spec)
{
	sprintf(spec, POLICY_BOUNDS "?variant=shared&budget=5&dense=%u", dense);
	return (struct refmodel_policy){
	        .kind = REFMODEL_QUEST, .budget = {.count = 5}, .floor = 1, .recent = 1, .dense = dense};
}

static void open_quest(uint32_t dense)
{
	char spec[64];

	w.policy = by_bounds(dense, spec);
	OK(skv_open(client, &w.model, spec, &w.session));
}

static void new_seq(struct refmodel_seq *q, const char *name)
{
	struct skv_seq *seq;

	OK(skv_seq_new(w.session, name, 0, &seq));
	refmodel_seq_init(&w, q, seq, TOKENS);
}

static void decode(struct refmodel_seq *q, uint64_t key, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		refmodel_feed(&w, q, key, 1, false);
}

/* The next step has another policy. */
static void swap(struct refmodel_seq *q, struct refmodel_policy to, const char *spec)
{
	w.next = to;
	strcpy(w.next_spec, spec);
	ck_assert_int_eq(raw_policy_swap(op, spec), 0);
	for (int i = 0; i < 100 && w.next_spec[0]; i++)
		decode(q, 1, 1);
	ck_assert_str_eq(w.next_spec, "");
	ck_assert_str_eq(skv_policy_error(w.session), "");
}

/* Pages of bounds of all sequences, as the daemon counts them in their tables. */
static uint64_t state_pages(void)
{
	json_t *j, *rows, *row;
	uint64_t n = 0;
	size_t i;

	j = raw_query(op, SKV_QUERY_SEQS);
	rows = json_object_get(j, "sequences");
	json_array_foreach(rows, i, row)
		n += (uint64_t)json_integer_value(json_object_get(json_object_get(row, "pages"), "bounds"));
	json_decref(j);
	return n;
}

static uint64_t expected(uint32_t len, uint32_t dense)
{
	return (uint64_t)(w.model.n_layers - dense) * ((len + STATE_TOKENS - 1) / STATE_TOKENS);
}

START_TEST(supplied_and_given_back)
{
	struct refmodel_policy with;
	struct refmodel_seq q;
	char spec[64];

	rnd_begin((uint64_t)_i);
	open_quest(1);
	new_seq(&q, NULL);
	ck_assert_uint_eq(state_pages(), 0);
	refmodel_feed(&w, &q, 1, 20 + rnd_below(200), true);
	ck_assert_uint_eq(state_pages(), expected(q.len, 1));
	refmodel_feed(&w, &q, 1, 250 - q.len, true);
	decode(&q, 1, 20);
	ck_assert_uint_eq(state_pages(), expected(q.len, 1));
	swap(&q, (struct refmodel_policy){.kind = REFMODEL_FULL}, "full");
	ck_assert_uint_eq(state_pages(), 0);
	decode(&q, 1, 5);
	with = by_bounds(2, spec);
	swap(&q, with, spec); /* also builds bounds for what came in between */
	ck_assert_uint_eq(state_pages(), expected(q.len, 2));
	decode(&q, 1, 20);
	with = by_bounds(0, spec);
	swap(&q, with, spec);
	ck_assert_uint_eq(state_pages(), expected(q.len, 0));
	decode(&q, 1, 5);
	OK(skv_seq_drop(q.seq));
	refmodel_seq_deinit(&q);
}
END_TEST

/* If the policy before evicted, its holes stay holes, and have no bounds. */
START_TEST(built_around_holes)
{
	struct refmodel_policy with;
	struct refmodel_seq q;
	char spec[64];

	rnd_begin((uint64_t)_i);
	w.policy = (struct refmodel_policy){.kind = REFMODEL_STREAMING, .budget = {.count = 100}, .sinks = 4};
	OK(skv_open(client, &w.model, POLICY_WINDOW "?budget=100&sinks=4&dense=0", &w.session));
	new_seq(&q, NULL);
	refmodel_feed(&w, &q, 1, 400, true);
	decode(&q, 1, 3);
	with = by_bounds(rnd_below(3), spec);
	swap(&q, with, spec);
	decode(&q, 1, 40);
	refmodel_seq_deinit(&q);
}
END_TEST

/* Both sequences write to what was one state page. */
START_TEST(forks_go_their_ways)
{
	struct refmodel_seq q, child;
	struct skv_seq *seq;

	rnd_begin((uint64_t)_i);
	open_quest(rnd_below(2));
	new_seq(&q, NULL);
	refmodel_feed(&w, &q, 1, 100 + rnd_below(100), true);
	decode(&q, 1, 3);
	OK(skv_seq_fork(q.seq, NULL, SKV_ALL, &seq));
	refmodel_seq_copy(&w, &child, &q, seq);
	for (int i = 0; i < 5; i++) {
		decode(&q, 1, 15);
		decode(&child, 2, 15);
	}
	ck_assert_uint_eq(state_pages(), expected(q.len, w.policy.dense) + expected(child.len, w.policy.dense));
	OK(skv_seq_drop(q.seq));
	decode(&child, 2, 5);
	refmodel_seq_deinit(&q);
	refmodel_seq_deinit(&child);
}
END_TEST

/* A policy of the same name goes on with the existing pages, if it has bounds of the same layers. */
START_TEST(handed_over)
{
	static const uint32_t dense[] = {1, 1, 0, 2, 2};
	struct refmodel_seq q;

	open_quest(dense[0]);
	new_seq(&q, "over");
	refmodel_feed(&w, &q, 1, 300, true);
	decode(&q, 1, 3);
	for (int i = 1; i < 5; i++) {
		OK(skv_seq_detach(q.seq));
		ck_assert_uint_eq(state_pages(), expected(q.len, dense[i - 1]));
		skv_close(w.session);
		open_quest(dense[i]);
		OK(skv_seq_attach(w.session, "over", &q.seq));
		q.attended = q.causal = 0;
		ck_assert_uint_eq(state_pages(), dense[i] == dense[i - 1] ? expected(q.len, dense[i]) : 0);
		decode(&q, 1, 20);
		ck_assert_uint_eq(state_pages(), expected(q.len, dense[i]));
	}
	refmodel_seq_deinit(&q);
}
END_TEST

static void give_up(struct refmodel_seq *q, uint32_t n, bool prompt)
{
	uint64_t content[300];

	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(3, i);
	ck_assert_int_eq(refmodel_step(&w, &(struct refmodel_item){q, n, prompt, content, 0}, 1, (int)rnd_below(4)),
	                 -ECANCELED);
}

/* Aborted steps leave no state pages behind, and the first step that is not aborted builds what they were to build. */
START_TEST(given_up)
{
	struct refmodel_seq q, child;
	struct skv_seq *seq;
	char spec[64];

	open_quest(1);
	new_seq(&q, NULL);
	refmodel_feed(&w, &q, 1, 240, true);
	for (int round = 0; round < 3; round++) {
		uint64_t before = state_pages();

		give_up(&q, 300, true);
		ck_assert_uint_eq(state_pages(), before);
		decode(&q, 1, 20);
		w.next = by_bounds(round % 2 ? 1 : 0, spec);
		strcpy(w.next_spec, spec);
		ck_assert_int_eq(raw_policy_swap(op, spec), 0);
		for (int i = 0; i < 100 && w.next_spec[0]; i++)
			give_up(&q, 1, false);
		ck_assert_uint_eq(state_pages(), 0);
	}
	OK(skv_seq_fork(q.seq, NULL, SKV_ALL, &seq)); /* of a sequence that has no state pages now */
	refmodel_seq_copy(&w, &child, &q, seq);
	decode(&child, 2, 10);
	decode(&q, 1, 10);
	ck_assert_uint_eq(state_pages(), 2 * expected(q.len, w.policy.dense));
	refmodel_seq_deinit(&child);
	refmodel_seq_deinit(&q);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-page-bounds");
	TCase *t = add_case(s, "bounds", 120, setup, client_end, NULL);

	tcase_add_loop_test(t, supplied_and_given_back, 0, 2);
	tcase_add_loop_test(t, built_around_holes, 0, 2);
	tcase_add_loop_test(t, forks_go_their_ways, 0, 3);
	tcase_add_loop_test(t, handed_over, 0, 2);
	tcase_add_loop_test(t, given_up, 0, 3);
	return run_suite(s);
}
