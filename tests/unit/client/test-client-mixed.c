/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences with policies of their own in libclient: batches of them, swaps between any two policies in the middle of a
 * generation, and refusals.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"
#include "tests/support/reference-codec.h"

#define TOKENS 700u

static struct refmodel w;

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "mixed", rnd_below(3), TOKENS);
}

static void open_with(const char *spec)
{
	w.policy = (struct refmodel_policy){.kind = REFMODEL_FULL};
	OK(skv_open(client, &w.model, spec, &w.session));
}

/* ---- batches --------------------------------------------------------------------------------- */

#define SEQS 6u

/* A sequence that the reference knows, and its policy if that is not the session's. */
static struct mixed {
	struct refmodel_seq q;
	struct refmodel_policy policy;
	char spec[160];
} all[SEQS];

/* Give one of them another policy: its own, or the session's. */
static void give(struct mixed *m)
{
	m->q.own = rnd_below(4) ? &m->policy : NULL;
	if (m->q.own)
		m->policy = refmodel_policy(&w.model, m->spec);
	OK(skv_seq_policy(m->q.seq, m->q.own ? m->spec : NULL));
	RUNS_SPEC(skv_seq_policy_spec(m->q.seq), m->q.own ? m->spec : skv_policy_spec(w.session));
}

/* A step of some of them in random order, one or two with a few rows of a prompt. */
static void step(void)
{
	struct refmodel_item items[SEQS];
	uint64_t content[SEQS][40];
	uint32_t n = 0, first = rnd_below(SEQS);

	for (uint32_t i = 0; i < SEQS; i++) {
		struct refmodel_seq *q = &all[(first + i) % SEQS].q;
		bool prompt = rnd_below(8) == 0;

		if (rnd_below(5) == 0 && (n > 0 || i < SEQS - 1))
			continue;
		items[n] = (struct refmodel_item){q, 1 + rnd_below(prompt ? 40 : rnd_below(2) ? 1 : SKV_STEP_ROWS), prompt, NULL, 0};
		refmodel_speculate(&items[n], (first + i) % SEQS, content[n]);
		n++;
	}
	ck_assert_int_eq(refmodel_step(&w, items, n, rnd_below(10) ? -1 : (int)rnd_below(w.model.n_layers)) % ECANCELED, 0);
}

/* Each attends as its own policy says, whatever the others run, and whatever the session is swapped to. */
START_TEST(batches)
{
	rnd_begin((uint64_t)_i);
	open_with("full");
	w.measures = _i % 2;
	skv_set_recall(w.session, _i % 2);
	for (uint32_t i = 0; i < SEQS; i++) {
		struct skv_seq *seq;

		OK(skv_seq_new(w.session, NULL, 0, &seq));
		refmodel_seq_init(&w, &all[i].q, seq, TOKENS);
		refmodel_feed(&w, &all[i].q, i, 20 + rnd_below(250), true);
	}
	for (uint32_t i = 0; i < 40; i++) {
		if (rnd_below(3) == 0)
			give(&all[rnd_below(SEQS)]);
		if (i % 10 == 9) {
			w.next = refmodel_policy(&w.model, w.next_spec);
			ck_assert_int_eq(raw_policy_swap(op, w.next_spec), 0);
		}
		step();
	}
	for (uint32_t i = 0; i < SEQS; i++)
		refmodel_seq_deinit(&all[i].q);
}
END_TEST

/* ---- the same as alone ----------------------------------------------------------------------- */

#define ALONE 4u

/* Some steps of n sequences, each with content of its own; `out` gets the outputs of all steps. */
static void decode(struct skv_session *s, struct skv_seq *const *seqs, const uint32_t *key, uint32_t n, uint32_t steps,
                   float *out)
{
	size_t size = (size_t)w.model.n_layers * n * w.model.n_heads * w.model.head_dim;
	uint64_t content[ALONE];

	w.session = s;
	for (uint32_t t = 0; t < steps; t++) {
		for (uint32_t i = 0; i < n; i++)
			content[i] = refmodel_content(key[i], skv_seq_len(seqs[i]));
		OK(refmodel_decode(&w, seqs, content, n, out + t * size));
	}
}

static void feed(struct skv_session *s, struct skv_seq *seq, uint32_t key, uint32_t n)
{
	uint64_t *content = calloc(n, sizeof(*content));

	w.session = s;
	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(key, i);
	OK(refmodel_run(&w, seq, content, n, true, NULL, NULL));
	free(content);
}

/* The same bits as for each sequence alone, in a session of its policy. */
START_TEST(as_alone)
{
	static const char *const specs[ALONE] = {"full", POLICY_PAGES "?budget=4&layers=1,3&dense=1",
	                                         POLICY_PAGES "?budget=8&layers=1,3&dense=1",
	                                         POLICY_BOUNDS "?budget=5&dense=1"};
	enum { STEPS = 24 };
	size_t row = (size_t)w.model.n_heads * w.model.head_dim, size = (size_t)STEPS * w.model.n_layers * row;
	float *together = calloc(ALONE * size, sizeof(*together)), *alone = calloc(size, sizeof(*alone));
	struct skv_session *session, *one[ALONE];
	struct skv_seq *seqs[ALONE], *seq;
	const uint32_t key[ALONE] = {0, 1, 2, 3};
	uint64_t a, b, causal;

	OK(skv_open(client, &w.model, POLICY_WINDOW, &session));
	for (uint32_t i = 0; i < ALONE; i++) {
		uint32_t at = (i + (uint32_t)_i) % ALONE; /* in another order */

		OK(skv_seq_new(session, NULL, 0, &seqs[at]));
		OK(skv_seq_policy(seqs[at], specs[at]));
		feed(session, seqs[at], at, 150 + 60 * at);
	}
	decode(session, seqs, key, ALONE, STEPS, together);
	for (uint32_t i = 0; i < ALONE; i++) {
		OK(skv_open(client, &w.model, specs[i], &one[i]));
		OK(skv_seq_new(one[i], NULL, 0, &seq));
		feed(one[i], seq, i, 150 + 60 * i);
		decode(one[i], &seq, &key[i], 1, STEPS, alone);
		for (uint32_t k = 0; k < STEPS * w.model.n_layers; k++)
			ck_assert_msg(!memcmp(alone + k * row, together + (k * ALONE + i) * row, row * sizeof(float)),
			              "%s: step %u, layer %u differs", specs[i], k / w.model.n_layers, k % w.model.n_layers);
		skv_seq_attended(seqs[i], &a, &causal);
		skv_seq_attended(seq, &b, &causal);
		ck_assert_uint_eq(a, b);
	}
	free(together);
	free(alone);
}
END_TEST

/* ---- from any policy to any other ------------------------------------------------------------ */

static const char *spec_of(int i, char to[POLICY_SPEC])
{
	return policy_row_spec(policy_row(SET_SWAPS, i), daemon_.dir, to);
}

/*
 * In the middle of a generation a sequence that is given a policy continues, bit by bit, as its fork does in a session
 * that has run the policy from the beginning; and also when it goes back.
 */
START_TEST(any_two)
{
	enum { BEFORE = 40, STEPS = 3 };
	uint32_t key = 7;
	float *swapped, *taken, *before;
	struct skv_session *session;
	struct skv_seq *first;
	char from[POLICY_SPEC], to[POLICY_SPEC], name[32];
	size_t size;

	refmodel_packable(&w.model);
	policy_codecs(&w.model, 1, daemon_.dir);
	spec_of(_i, from);
	size = (size_t)w.model.n_layers * w.model.n_heads * w.model.head_dim;
	swapped = calloc(STEPS * size, sizeof(*swapped));
	taken = calloc(STEPS * size, sizeof(*taken));
	before = calloc(BEFORE * size, sizeof(*before));
	OK(skv_open(client, &w.model, from, &session));
	OK(skv_seq_new(session, NULL, 0, &first));
	feed(session, first, key, 260);
	decode(session, &first, &key, 1, BEFORE, before);
	for (int i = 0; i < policy_rows(SET_SWAPS); i++) {
		struct skv_session *other;
		struct skv_seq *seq, *fork;

		if (i == _i)
			continue;
		/* what another policy has evicted cannot be compressed any more */
		OK(skv_seq_fork(first, NULL, SKV_ALL, &seq));
		spec_of(i, to);
		for (int back = 0; back < 2; back++) {
			snprintf(name, sizeof(name), "to-%d-%d", i, back);
			OK(skv_open(client, &w.model, back ? from : to, &other));
			OK(skv_seq_fork(seq, name, SKV_ALL, &fork));
			OK(skv_seq_detach(fork));
			OK(skv_seq_attach(other, name, &fork));
			OK(skv_seq_policy(seq, back ? NULL : to));
			decode(session, &seq, &key, 1, STEPS, swapped);
			decode(other, &fork, &key, 1, STEPS, taken);
			ck_assert_msg(!memcmp(swapped, taken, STEPS * size * sizeof(float)), "%s %s %s differs", from,
			              back ? "back from" : "to", to);
			OK(skv_seq_drop(fork));
			skv_close(other);
		}
		OK(skv_seq_drop(seq));
	}
	free(swapped);
	free(taken);
	free(before);
}
END_TEST

/* ---- the rest -------------------------------------------------------------------------------- */

START_TEST(refused)
{
	const struct skv_step_item item = SKV_STEP_ITEM(.n_tokens = 1);
	struct skv_step_item one = item;
	struct skv_seq *seq, *fresh;

	ck_assert_int_eq(raw_policy_load(op, fix_built("tests/support/plugins/.libs/refuse-adopt.so")), 0);
	open_with("full");
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	OK(skv_seq_policy(seq, POLICY_WINDOW "?budget=50&sinks=4"));
	feed(w.session, seq, 1, 30);
	FAILS(skv_seq_policy(seq, "no-such?x=1"), ENOENT, "no-such");
	FAILS(skv_seq_policy(seq, POLICY_PAGES "?budget="), EINVAL, "budget");
	FAILS(skv_seq_policy(seq, POLICY_PAGES "?layers=99"), EINVAL, "layer 99");
	FAILS(skv_seq_policy(seq, "Full"), EINVAL, "Full");
	FAILS(skv_seq_policy(seq, "refuse-adopt"), ENOTSUP, "takes none");
	RUNS_SPEC(skv_seq_policy_spec(seq), POLICY_WINDOW "?budget=50&sinks=4&dense=0");
	/* a new one is taken over from no policy */
	OK(skv_seq_new(w.session, NULL, 0, &fresh));
	OK(skv_seq_policy(fresh, "refuse-adopt"));
	one.seq = seq;
	OK(skv_step_begin(w.session, &one, 1, devmem_stream()));
	FAILS(skv_seq_policy(seq, NULL), EBUSY, "open step");
	OK(skv_seq_policy(fresh, NULL));
	skv_step_abort(w.session);
	OK(skv_seq_policy(seq, NULL));
	RUNS_SPEC(skv_seq_policy_spec(seq), "full");
}
END_TEST

/* Swaps of the session do not affect the sequence; forks run its policy; an attach gives it the session's policy. */
START_TEST(stays)
{
	const char *own = POLICY_BOUNDS "?variant=shared&budget=5&dense=1";
	struct skv_seq *seq, *other, *fork;
	uint64_t content;

	open_with("full");
	OK(skv_seq_new(w.session, "own", 0, &seq));
	OK(skv_seq_new(w.session, NULL, 0, &other));
	OK(skv_seq_policy(seq, POLICY_BOUNDS ":shared?budget=5&dense=1"));
	feed(w.session, seq, 1, 100);
	ck_assert_int_eq(raw_policy_swap(op, POLICY_WINDOW "?budget=64&sinks=4&dense=0"), 0);
	for (uint32_t i = 0; i < 100 && refmodel_runs(skv_policy_spec(w.session), "full"); i++) {
		content = refmodel_content(1, skv_seq_len(seq));
		OK(refmodel_decode(&w, &seq, &content, 1, NULL));
	}
	RUNS_SPEC(skv_policy_spec(w.session), POLICY_WINDOW "?budget=64&sinks=4&dense=0");
	RUNS_SPEC(skv_seq_policy_spec(other), POLICY_WINDOW "?budget=64&sinks=4&dense=0");
	RUNS_SPEC(skv_seq_policy_spec(seq), own);
	/* when its policy's file is replaced, it keeps the old one */
	ck_assert_int_eq(raw_policy_load(op, fix_built("policies/.libs/" POLICY_BOUNDS ".so")), 0);
	content = refmodel_content(1, skv_seq_len(seq));
	OK(refmodel_decode(&w, &seq, &content, 1, NULL));
	OK(skv_seq_fork(seq, NULL, SKV_ALL, &fork));
	RUNS_SPEC(skv_seq_policy_spec(fork), own);
	OK(skv_seq_detach(seq));
	OK(skv_seq_attach(w.session, "own", &seq));
	RUNS_SPEC(skv_seq_policy_spec(seq), POLICY_WINDOW "?budget=64&sinks=4&dense=0");
	/* the same policy as the session: in its policy batch, until the session is swapped */
	OK(skv_seq_policy(fork, POLICY_WINDOW "?budget=64&sinks=4&dense=0"));
	ck_assert_ptr_eq(skv_seq_policy_spec(fork), skv_policy_spec(w.session));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-mixed");
	TCase *t = add_case(s, "mixed", 60, setup, client_end, refused, stays, NULL);

	tcase_add_loop_test(t, batches, 0, 6);
	tcase_add_loop_test(t, as_alone, 0, 3);
	tcase_add_loop_test(t, any_two, 0, policy_rows(SET_SWAPS));
	return run_suite(s);
}
