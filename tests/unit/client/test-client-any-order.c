/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences that read prompts, decode one row or several of which some are rejected, are aborted, cancelled, truncated,
 * forked at a length, handed over and dropped, in any order: outputs, ids and pages are the reference's.
 *
 * SKV_REWIND_OPS is the number of operations; HACKING.md says which target sets it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"

#define TOKENS 320u

static struct refmodel w;

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "any-order", rnd_below(4), TOKENS);
}

#define SLOTS 6u

static struct any {
	struct refmodel_seq q; /* .seq NULL: none */
	uint64_t key;
	char name[16]; /* "": anonymous */
} any[SLOTS];

static void any_new(struct any *a, uint32_t i, struct skv_seq *seq)
{
	if (!seq) {
		snprintf(a->name, sizeof(a->name), "%s%u", rnd_below(3) ? "any-" : "", i);
		if (a->name[0] != 'a')
			a->name[0] = '\0';
		OK(skv_seq_new(w.session, a->name[0] ? a->name : NULL, 0, &seq));
		a->key = rnd64();
	}
	refmodel_seq_init(&w, &a->q, seq, TOKENS);
}

static void any_drop(struct any *a)
{
	OK(skv_seq_drop(a->q.seq));
	refmodel_seq_deinit(&a->q);
	a->q.seq = NULL;
}

/* A step of some sequences: prompts, single rows, several rows of which some are rejected; or the step is aborted. */
static void any_step(void)
{
	struct refmodel_item items[SLOTS];
	uint64_t content[SLOTS][40];
	uint32_t n = 0;
	int at = rnd_below(10) == 0 ? (int)rnd_below(w.model.n_layers + 1) : -1;

	for (uint32_t i = 0; i < SLOTS; i++) {
		bool prompt = rnd_below(6) == 0;
		uint32_t rows = 1 + rnd_below(prompt ? 40 : rnd_below(2) ? 1 : SKV_STEP_ROWS);

		if (!any[i].q.seq || rnd_below(2) || any[i].q.len + rows > TOKENS)
			continue;
		items[n] = (struct refmodel_item){&any[i].q, rows, prompt, NULL, 0};
		refmodel_speculate(&items[n], any[i].key, content[n]);
		n++;
	}
	if (n > 0)
		ck_assert_int_eq(refmodel_step(&w, items, n, at), at >= 0 ? -ECANCELED : 0);
}

static void any_fork(struct any *from, struct any *to, uint32_t i, uint32_t n)
{
	struct skv_seq *seq;
	int e;

	snprintf(to->name, sizeof(to->name), "any-%u", i);
	e = skv_seq_fork(from->q.seq, to->name, n, &seq);
	if (e == -ESTALE)
		return;
	OK(e);
	to->key = from->key;
	refmodel_seq_copy(&w, &to->q, &from->q, seq);
	refmodel_seq_cut(&w, &to->q, n);
}

static void any_hand_over(struct any *a)
{
	OK(skv_seq_detach(a->q.seq));
	OK(skv_seq_attach(w.session, a->name, &a->q.seq));
	a->q.attended = a->q.causal = 0;
}

static void any_operation(void)
{
	uint32_t i = rnd_below(SLOTS), j = rnd_below(SLOTS), n;
	struct any *a = &any[i];

	if (!a->q.seq) {
		any_new(a, i, NULL);
		return;
	}
	n = rnd_below(3) ? a->q.len - rnd_below(a->q.len < 20 ? a->q.len + 1 : 20) : rnd_below(a->q.len + 1);
	switch (rnd_below(16)) {
	case 0:
		any_drop(a);
		break;
	case 1:
		if (a->name[0])
			any_hand_over(a);
		break;
	case 2:
		if (!any[j].q.seq)
			any_fork(a, &any[j], j, n);
		break;
	case 3:
	case 4:
		if (skv_seq_truncate(a->q.seq, n, n ? refmodel_token(a->q.content[n - 1] + 1) : -1) == 0)
			refmodel_seq_cut(&w, &a->q, n);
		break;
	default:
		any_step();
	}
}

static void any_check(const struct any *a)
{
	uint64_t resident, total, expect = 0;
	const int32_t *ids;
	uint32_t len;

	ids = skv_seq_tokens(a->q.seq, &len);
	ck_assert_uint_eq(len, a->q.len);
	for (uint32_t t = 0; t < len; t++)
		ck_assert_int_eq(ids[t], refmodel_token(a->q.content[t]));
	for (uint32_t layer = 0; layer < w.model.n_layers; layer++)
		for (uint32_t u = 0; u < skv_pages_of(len); u++)
			expect += !a->q.hole[layer * skv_pages_of(a->q.cap) + u];
	skv_seq_pages(a->q.seq, &resident, &total);
	ck_assert_uint_eq(resident, expect);
}

/* In any order of operations outputs are right, and when all is dropped the daemon has all pages again. */
START_TEST(any_order)
{
	const char *wanted = getenv("SKV_REWIND_OPS");
	uint32_t ops = wanted ? (uint32_t)atoi(wanted) / 4 : slowed() ? 40 : 250;
	char policy[160];

	rnd_begin((uint64_t)_i);
	w.policy = refmodel_policy(&w.model, policy);
	for (int kind = _i; w.policy.kind != (unsigned)kind;)
		w.policy = refmodel_policy(&w.model, policy);
	OK(skv_open(client, &w.model, policy, &w.session));
	for (uint32_t op_ = 0; op_ < ops; op_++) {
		any_operation();
		if (op_ % 20 == 0)
			for (uint32_t i = 0; i < SLOTS; i++)
				if (any[i].q.seq)
					any_check(&any[i]);
	}
	for (uint32_t i = 0; i < SLOTS; i++)
		if (any[i].q.seq)
			any_drop(&any[i]);
	ck_assert_uint_eq(raw_pool_figure(op, "shared"), 0);
	skv_close(w.session);
	ck_assert_uint_eq(raw_leased(op), 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-any-order");

	tcase_add_loop_test(add_case(s, "any order", getenv("SKV_REWIND_OPS") ? 3600 : 120, setup, client_end, NULL), any_order,
	                    0, 4);
	return run_suite(s);
}
