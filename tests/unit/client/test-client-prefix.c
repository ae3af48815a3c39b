/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed prefixes: what follows from one must be, bit by bit, what follows from reading the prompt, under every policy under which its
 * tokens can be sealed; and nobody gets another's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"

#define PROMPT 700u
#define SEALED 512u
#define STEPS 12u
#define TOKENS 1024u

static struct refmodel w;
static int32_t prompt[PROMPT];

static const struct kind {
	const char *spec;
	bool seals;
} kinds[] = {
	{"full", true},
	{"sketch?budget=60&recent=16", true},
	{"quest?budget=6&dense=1", true},
	{"delta?budget=6&layers=0,2&dense=1", true},
	{"omnikv?budget=80&layers=1&dense=1", true},
	{"kascade?budget=80&layers=0,2", true},
	{"tidal?budget=80", true},
	{"lessismore?budget=80", true},
	{"streaming?budget=64&sinks=4&dense=1", false},
	{"kivi?residual=16&block=32", false},
	{"h2o?budget=60&dense=1", false},
	{"snapkv?budget=60", false},
	{"raas?budget=13&alpha=0.02&dense=1", false},
};
#define KINDS (int)(sizeof(kinds) / sizeof(*kinds))

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "prefix", SKV_F32, TOKENS);
	rnd_begin(1);
	for (uint32_t i = 0; i < PROMPT; i++)
		prompt[i] = refmodel_token(rnd64());
}

static size_t out_size(void)
{
	return (size_t)w.model.n_layers * w.model.n_heads * w.model.head_dim;
}

/* Tokens [from, to): their ids are content numbers, from which K, V and q follow. */
static void read_tokens(struct skv_seq *seq, const int32_t *ids, uint32_t from, uint32_t to, bool reads, float *out)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = to - from, .flags = reads ? SKV_STEP_PROMPT : 0);
	uint64_t content[TOKENS];

	for (uint32_t i = from; i < to; i++)
		content[i - from] = (uint64_t)ids[i];
	OK(refmodel_items(&w, &item, 1, content, to - from, NULL, out));
}

/* The rest of the prompt, then STEPS tokens; what they gave. */
static float *go_on(struct skv_seq *seq, const int32_t *ids)
{
	float *out = calloc(STEPS * out_size(), sizeof(*out));
	int32_t more[PROMPT + STEPS];

	memcpy(more, ids, PROMPT * sizeof(*more));
	if (skv_seq_len(seq) < SEALED) /* as the other has been read */
		read_tokens(seq, ids, skv_seq_len(seq), SEALED, true, NULL);
	read_tokens(seq, ids, SEALED, PROMPT, true, NULL);
	for (uint32_t i = 0; i < STEPS; i++) {
		more[PROMPT + i] = (int32_t)i;
		read_tokens(seq, more, PROMPT + i, PROMPT + i + 1, false, out + i * out_size());
	}
	return out;
}

static void same_as(const float *want, struct skv_seq *seq, const int32_t *ids, const char *spec)
{
	float *got = go_on(seq, ids);

	ck_assert_msg(!memcmp(want, got, STEPS * out_size() * sizeof(*got)), "%s: another output than after reading the prompt", spec);
	free(got);
	OK(skv_seq_drop(seq));
}

static uint32_t begin_from(const int32_t *ids, uint32_t n, struct skv_seq **ret)
{
	OK(skv_seq_new_from(w.session, NULL, 0, ids, n, ret));
	return skv_seq_len(*ret);
}

START_TEST(as_if_read)
{
	const struct kind *k = &kinds[_i];
	struct skv_seq *a, *b;
	uint32_t sealed = 9, len;
	float *want;

	OK(skv_open(client, &w.model, k->spec, &w.session));
	ck_assert_uint_eq(begin_from(prompt, PROMPT, &a), 0); /* nothing is sealed */
	want = go_on(a, prompt);
	if (!k->seals) {
		FAILS(skv_seq_seal(a, PROMPT, &sealed), ESTALE, "cannot be sealed");
		ck_assert_uint_eq(sealed, 0);
		ck_assert_uint_eq(begin_from(prompt, PROMPT, &b), 0);
		same_as(want, b, prompt, k->spec);
	} else {
		OK(skv_seq_seal(a, PROMPT, &sealed));
		ck_assert_uint_eq(sealed, SEALED);
		for (int i = 0; i < 2; i++) { /* it is there while the sequence is that it is of, and later */
			ck_assert_uint_eq(begin_from(prompt, PROMPT, &b), SEALED);
			ck_assert_mem_eq(skv_seq_tokens(b, &len), prompt, SEALED * sizeof(*prompt));
			same_as(want, b, prompt, k->spec);
			if (i == 0)
				OK(skv_seq_seal(a, SKV_ALL, &sealed)); /* again, and it goes on */
			if (i == 0)
				OK(skv_seq_drop(a));
		}
		ck_assert_uint_eq(sealed, SEALED);
	}
	free(want);
	skv_close(w.session);
}
END_TEST

START_TEST(the_longest)
{
	int32_t other[PROMPT];
	struct skv_seq *a, *b;

	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	read_tokens(a, prompt, 0, PROMPT, true, NULL);
	OK(skv_seq_seal(a, PROMPT, NULL));
	memcpy(other, prompt, sizeof(other));
	other[300]++;
begin_from(other, PROMPT, &b);	OK(skv_seq_drop(b));
	ck_assert_uint_eq(begin_from(prompt, 513, &b), 512); /* a token at least is left */
	OK(skv_seq_drop(b));
	ck_assert_uint_eq(begin_from(prompt, 512, &b), 256);
	OK(skv_seq_drop(b));
	ck_assert_uint_eq(begin_from(prompt, 256, &b), 0);
	OK(skv_seq_drop(b));
	other[0]++;
	ck_assert_uint_eq(begin_from(other, PROMPT, &b), 0);
	OK(skv_seq_drop(b));
	OK(skv_seq_new_from(w.session, "named", PROMPT + 1, prompt, PROMPT, &b)); /* shorter than the first one may become */
	ck_assert_uint_eq(skv_seq_len(b), SEALED);
	OK(skv_seq_detach(b));
	OK(skv_seq_attach(w.session, "named", &b));
	ck_assert_uint_eq(skv_seq_len(b), SEALED);
	FAILS(skv_seq_new_from(w.session, "named", 0, prompt, PROMPT, &a), EEXIST, "named");
	skv_close(w.session);
}
END_TEST

/* Of another policy, other parameters, another model: not found. Of another client of the user: found. */
START_TEST(whose)
{
	struct skv_session *first, *other;
	struct skv_client *second;
	struct skv_model m = w.model;
	struct skv_seq *a, *b;

	OK(skv_open(client, &w.model, "quest?budget=6", &first));
	w.session = first;
	OK(skv_seq_new(first, NULL, 0, &a));
	read_tokens(a, prompt, 0, PROMPT, true, NULL);
	OK(skv_seq_seal(a, PROMPT, NULL));
	OK(skv_open(client, &w.model, "quest?budget=7", &other));
	OK(skv_seq_new_from(other, NULL, 0, prompt, PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), 0);
	skv_close(other);
	snprintf(m.name, sizeof(m.name), "another");
	OK(skv_open(client, &m, "quest?budget=6", &other));
	OK(skv_seq_new_from(other, NULL, 0, prompt, PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), 0);
	skv_close(other);
	OK(skv_connect(&second, daemon_.socket));
	OK(skv_open(second, &w.model, "quest?budget=6", &other));
	OK(skv_seq_new_from(other, NULL, 0, prompt, PROMPT, &b));
	ck_assert_uint_eq(skv_seq_len(b), SEALED);
	skv_disconnect(second);
	skv_close(first);
}
END_TEST

START_TEST(refused)
{
	struct skv_seq *a, *b = NULL;
	uint32_t sealed;

	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &a));
	FAILS(skv_seq_new_from(w.session, NULL, 0, NULL, 5, &b), EINVAL, "prompt");
	FAILS(skv_seq_new_from(w.session, NULL, 0, prompt, 0, &b), EINVAL, "prompt");
	FAILS(skv_seq_new_from(w.session, NULL, 100, prompt, 101, &b), EINVAL, "prompt");
	FAILS(skv_seq_new_from(w.session, "a b", 0, prompt, 5, &b), EINVAL, "name");
	FAILS(skv_seq_new_from(w.session, NULL, TOKENS + 1, prompt, 5, &b), EINVAL, "max_tokens");
	OK(skv_seq_seal(a, SKV_ALL, &sealed)); /* nothing to seal */
	ck_assert_uint_eq(sealed, 0);
	FAILS(skv_seq_seal(a, 1, &sealed), EINVAL, "first 1");
	read_tokens(a, prompt, 0, 300, true, NULL);
	FAILS(skv_seq_seal(a, 301, &sealed), EINVAL, "first 301");
	OK(skv_step_begin(w.session, &SKV_STEP_ITEM(.seq = a, .n_tokens = 1), 1, devmem_stream()));
	FAILS(skv_seq_seal(a, 300, &sealed), EBUSY, "open step");
	skv_step_abort(w.session);
	skv_close(w.session);
}
END_TEST

/* Sealed again and again with the dialogue, over many turns, with several sequences at it. */
START_TEST(dialogues)
{
	struct skv_seq *a, *b;
	uint32_t len = 0;

	OK(skv_open(client, &w.model, "delta?budget=6&layers=0,2&dense=1", &w.session));
	for (uint32_t turn = 1; turn <= 7; turn++) {
		const uint32_t n = turn * 100;

		OK(skv_seq_new_from(w.session, NULL, 0, prompt, n, &a));
		ck_assert_uint_eq(skv_seq_len(a), len);
		read_tokens(a, prompt, len, n, true, NULL);
		OK(skv_seq_seal(a, SKV_ALL, &len));
		ck_assert_uint_eq(len, n / 256 * 256);
		OK(skv_seq_fork(a, NULL, SKV_ALL, &b)); /* pages are shared with all of them */
		OK(skv_seq_drop(a));
		if (turn < 7)
			read_tokens(b, prompt, n, n + 1, false, NULL);
		OK(skv_seq_drop(b));
	}
	skv_close(w.session);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("client-prefix");
	TCase *tc = tcase_create("client-prefix");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, client_end);
	tcase_add_loop_test(tc, as_if_read, 0, KINDS);
	tcase_add_test(tc, the_longest);
	tcase_add_test(tc, whose);
	tcase_add_test(tc, refused);
	tcase_add_test(tc, dialogues);
	suite_add_tcase(s, tc);
	return run_suite(s);
}
