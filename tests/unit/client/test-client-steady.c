/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steady steps (libclient/step/layout.c): what skv_step_begin leaves for the kernels, and the pages that it takes, are
 * those of a full layout. After an abort a step is laid out in full, so each step is begun twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/seq.h"
#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

#define SEQS 5u
#define PADDED 6u /* with padding, on a device */
#define TOKENS 600u

static struct skv_model model;
static struct skv_session *session;
static struct skv_seq *seqs[SEQS];
static uint32_t n_steady;

static void setup(void)
{
	client_begin(NULL);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* What skv_step_begin left. */
struct left {
	struct skv_kseq kseq[PADDED * REFMODEL_MAX_LAYERS];
	struct skv_batch all, decoding, prompts;
	uint32_t n_kseq, n_classes, n_supplied, stock, about[SEQS];
	uint64_t aside;
};

static struct left look(void)
{
	const struct step *st = &session->step;
	struct left x = {
		.all = st->class[0].all, .decoding = st->class[0].decoding, .prompts = st->class[0].prompts,
		.n_kseq = st->n_kseq, .n_classes = st->n_classes, .n_supplied = st->pages.n_supplied,
		.stock = session->stock.n, .aside = st->pages.aside_change,
	};

	ck_assert_uint_ge(st->n_padded, st->n_decode);
	ck_assert_uint_eq(st->n_kseq, st->n_padded + st->n - st->n_decode);
	ck_assert_uint_le(st->n_kseq, PADDED);
	memcpy(x.kseq, st->kseq, st->n_kseq * st->n_classes * sizeof(*x.kseq));
	for (uint32_t i = 0; i < st->n; i++) {
		ck_assert(st->seqs[i]->in_step);
		x.about[i] = st->seqs[i]->next_about;
	}
	return x;
}

static void same_batch(const struct skv_batch *a, const struct skv_batch *b)
{
	ck_assert_uint_eq(a->n, b->n);
	ck_assert_uint_eq(a->max_len, b->max_len);
	ck_assert_uint_eq(a->max_q, b->max_q);
	ck_assert_uint_eq(a->max_state, b->max_state);
	ck_assert_uint_eq(a->max_compress, b->max_compress);
}

static void same(const struct left *a, const struct left *b)
{
	const size_t bytes = offsetof(struct skv_kseq, prompt_continues) + sizeof(a->kseq->prompt_continues);

	ck_assert_uint_eq(a->n_kseq, b->n_kseq);
	ck_assert_uint_eq(a->n_classes, b->n_classes);
	ck_assert_uint_eq(a->n_supplied, b->n_supplied);
	ck_assert_uint_eq(a->aside, b->aside);
	same_batch(&a->all, &b->all);
	same_batch(&a->decoding, &b->decoding);
	same_batch(&a->prompts, &b->prompts);
	for (uint32_t i = 0; i < a->n_kseq * a->n_classes; i++)
		ck_assert_mem_eq(&a->kseq[i], &b->kseq[i], bytes);
	ck_assert_mem_eq(a->about, b->about, sizeof(a->about));
}

static void attend_all(uint32_t rows)
{
	struct devmem_rows r = devmem_rows_new(&model, rows);

	for (size_t i = 0; i < (size_t)rows * model.n_heads * model.head_dim; i++)
		r.q[i] = (float)rnd_unit();
	for (size_t i = 0; i < (size_t)rows * model.n_kv_heads * model.head_dim; i++)
		r.k[i] = r.v[i] = (float)rnd_unit();
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		OK(devmem_attend(session, layer, &r, false));
	devmem_rows_free(&r);
}

/* `steady`: whether the step must be steady; -1: either. */
static void step(const struct skv_step_item *items, uint32_t n, int steady)
{
	uint32_t rows = 0, rejects = rnd_below(12) == 0 && items[0].n_tokens == 1 ? rnd_below(n) : n;
	uint32_t accepted[SEQS];
	struct left first, again;

	for (uint32_t i = 0; i < n; i++) {
		rows += items[i].n_tokens;
		accepted[i] = i == rejects ? 0 : items[i].n_tokens;
	}
	OK(skv_step_begin(session, items, n, NULL));
	if (steady >= 0)
		ck_assert_int_eq(session->step.steady.on, steady);
	n_steady += session->step.steady.on;
	first = look();
	if (rnd_below(3) == 0) { /* otherwise the next step may be steady after a steady one */
		skv_step_abort(session);
		OK(skv_step_begin(session, items, n, NULL));
		ck_assert(!session->step.steady.on);
		again = look();
		same(&first, &again);
	}
	attend_all(rows);
	OK(skv_step_end(session, NULL, rejects < n ? accepted : NULL));
}

static void decode(uint32_t n, int steady)
{
	struct skv_step_item items[SEQS];
	int32_t id = (int32_t)rnd_below(1000);

	for (uint32_t i = 0; i < n; i++)
		items[i] = SKV_STEP_ITEM(.seq = seqs[i], .n_tokens = 1, .tokens = rnd_below(2) ? &id : NULL);
	step(items, n, steady);
}

static void prompt(uint32_t i)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seqs[i], .n_tokens = 1 + rnd_below(40), .flags = SKV_STEP_PROMPT);

	step(&item, 1, 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const char *any_spec(int i)
{
	return policy_row(SET_STEADY, i % policy_rows(SET_STEADY))->spec;
}

static void open_all(const char *spec)
{
	refmodel_model(&model, "steady", rnd_below(3), TOKENS);
	OK(skv_open(client, &model, spec, &session));
	for (uint32_t i = 0; i < SEQS; i++) {
		OK(skv_seq_new(session, NULL, 0, &seqs[i]));
		prompt(i);
	}
}

/* Do something that prevents a steady step. */
static void disturb(void)
{
	const uint32_t i = rnd_below(SEQS), len = skv_seq_len(seqs[i]);
	struct skv_seq *other = seqs[i];

	switch (rnd_below(6)) {
	case 0:
		OK(skv_seq_fork(seqs[i], NULL, SKV_ALL, &other));
		OK(skv_seq_drop(rnd_below(2) ? seqs[i] : other));
		seqs[i] = session->seqs == other ? other : seqs[i];
		break;
	case 1: /* fails if the policy has evicted what the shorter sequence needs */
		skv_seq_truncate(seqs[i], len - rnd_below(len < 20 ? len : 20), -1);
		break;
	case 2:
		OK(skv_seq_policy(seqs[i], rnd_below(3) ? any_spec((int)rnd_below(100)) : NULL));
		break;
	case 3:
		OK(skv_seq_drop(seqs[i]));
		OK(skv_seq_new(session, NULL, 0, &seqs[i]));
		/* fall through */
	case 4:
		prompt(i);
		break;
	default:
		seqs[i] = seqs[0];
		seqs[0] = other;
	}
}

START_TEST(as_in_full)
{
	const char *spec = any_spec(_i);

	rnd_begin((uint64_t)_i);
	n_steady = 0;
	open_all(spec);
	for (uint32_t i = 0; i < 250; i++) {
		if (i > 20 && rnd_below(8) == 0) /* it may give a sequence a policy without steady steps */
			disturb();
		decode(rnd_below(16) ? SEQS : 1 + rnd_below(SEQS), -1);
	}
	if (policy_action(spec) != SKV_ACT_EVICT || policy_evicts_by_position(spec))
		ck_assert_uint_gt(n_steady, 0);
	skv_close(session);
}
END_TEST

/* Decode steps are steady from the second one on, also where pages are taken, until the sequence is full. */
START_TEST(to_the_end)
{
	struct skv_step_item item;
	uint32_t n = 0;

	open_all("full");
	item = SKV_STEP_ITEM(.seq = seqs[0], .n_tokens = 1);
	for (; skv_seq_len(seqs[0]) < TOKENS; n++) {
		OK(skv_step_begin(session, &item, 1, NULL));
		ck_assert_int_eq(session->step.steady.on, n > 0);
		attend_all(1);
		OK(skv_step_end(session, NULL, NULL));
	}
	FAILS(skv_step_begin(session, &item, 1, NULL), E2BIG, "was made for");
	skv_close(session);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-steady");
	TCase *t = add_case(s, "steady", 60, setup, client_end, to_the_end, NULL);

	tcase_add_loop_test(t, as_in_full, 0, 2 * policy_rows(SET_STEADY));
	return run_suite(s);
}
