/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences whose tokens are packed, in libclient: what attention makes of them, under whatever policy comes next; in any
 * order of forks, steps, swaps and hand-overs; the memory that they take; and compressors that are not there, or are no
 * good.
 *
 * SKV_CODES_OPS is how many operations there are in random order; HACKING.md says who sets it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/client-test.h"
#include "tests/world-codec.h"

#define TOKENS 600u

static struct fix daemon_;
static struct raw *op;
static struct skv_client *client;
static struct world w;
static char codec[80]; /* the path of a compressor */
static uint32_t whole; /* layers below have all tokens */

static void setup(void)
{
	fix_start_process(&daemon_, NULL);
	op = raw_hello(daemon_.socket);
	OK(skv_connect(&client, daemon_.socket));
	world_model(&w.model, "codes", SKV_F32, TOKENS);
	world_packable(&w.model);
	whole = w.model.n_layers;
	snprintf(codec, sizeof(codec), "%.60s/codec", daemon_.dir);
}

static void teardown(void)
{
	skv_disconnect(client);
	raw_close(op);
	fix_stop(&daemon_);
}

static void with_codec(char *to, size_t bytes, const char *spec)
{
	snprintf(to, bytes, "%s&file=%s", spec, codec);
}

/* ---- what attention sees --------------------------------------------------------------------- */

/* Each looks at all tokens, as long as there are no more than these. */
static const char *const all_of[] = {
	"full",
	"streaming?budget=600&sinks=4",
	"delta?budget=600&layers=1,3&dense=1",
	"quest?budget=600",
	"omnikv?budget=600&layers=1,3&dense=1",
	"h2o?budget=600",
	"snapkv?budget=600",
	"adakv?budget=600",
	"rkv?budget=600",
	"raas?budget=600",
};
#define ALL_OF (sizeof(all_of) / sizeof(*all_of))

/* n more tokens, which attend to all. */
static void go_on(struct world_seq *q, uint64_t key, uint32_t n, bool prompt)
{
	const struct skv_model *m = &w.model;
	float *out = calloc((size_t)m->n_layers * n * m->n_heads * m->head_dim, sizeof(*out)), *at = out;
	uint64_t content[TOKENS];
	bool there[TOKENS];

	memset(there, true, sizeof(there));
	for (uint32_t i = 0; i < n; i++)
		content[i] = world_content(key, q->len + i);
	OK(world_run(&w, q->seq, content, n, prompt, out, NULL));
	world_seq_append(&w, q, content, n, true);
	for (uint32_t layer = 0; layer < whole; layer++)
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t h = 0; h < m->n_heads; h++, at += m->head_dim)
				world_compare(&w, q, layer, q->len - n + i + 1, h, there, at);
	free(out);
}

static void decode(struct world_seq *q, uint64_t key, uint32_t n)
{
	while (n-- > 0)
		go_on(q, key, 1, false);
}

/*
 * With a compressor that changes nothing but by rounding: all that is attended to is what was there, while it is packed,
 * when it was packed and a fork goes another way, and when another policy has it in rows again.
 */
START_TEST(as_rows)
{
	struct world_seq q, fork;
	struct skv_seq *seq;
	char spec[256];

	with_codec(spec, sizeof(spec), "deltakv?budget=600&layers=1,3&dense=1&raw=16&block=16&" WORLD_CODES);
	world_codec(&w.model, 0, codec);
	OK(skv_open(client, &w.model, spec, &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	world_seq_init(&w, &q, seq, TOKENS);
	go_on(&q, 1, 30 + rnd_below(80), true);
	w.tolerance = 2e-3; /* codes are of 8 bits but for the exponent */
	decode(&q, 1, 40);
	go_on(&q, 1, 1 + rnd_below(30), true);
	decode(&q, 1, 20);
	OK(skv_seq_fork(q.seq, NULL, &seq));
	world_seq_copy(&w, &fork, &q, seq);
	decode(&fork, 2, 40);
	decode(&q, 1, 40);
	OK(skv_seq_policy(q.seq, all_of[_i]));
	decode(&q, 1, 3);
	decode(&fork, 2, 3);
	go_on(&q, 1, 5, true);
	OK(skv_seq_policy(q.seq, NULL));
	decode(&q, 1, 20);
	decode(&fork, 2, 20);
	world_seq_deinit(&q);
	world_seq_deinit(&fork);
}
END_TEST

/* One that packs more layers than the last, of which some have lost tokens, packs none: and finds none packed. */
START_TEST(lost_elsewhere)
{
	struct world_seq q;
	struct skv_seq *seq;
	char spec[256];

	w.model.n_layers = 6;
	whole = 4;
	w.tolerance = 2e-3;
	world_codec(&w.model, 0, codec);
	OK(skv_open(client, &w.model, "streaming?budget=40&sinks=4&dense=4", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	world_seq_init(&w, &q, seq, TOKENS);
	go_on(&q, 1, 120, true);
	decode(&q, 1, 2);
	with_codec(spec, sizeof(spec), "deltakv?budget=600&layers=1,4,5&dense=1&raw=16&block=16&" WORLD_CODES);
	OK(skv_seq_policy(q.seq, spec));
	decode(&q, 1, 20);
	with_codec(spec, sizeof(spec), "deltakv?budget=600&layers=1&dense=1&raw=16&block=16&" WORLD_CODES);
	OK(skv_seq_policy(q.seq, spec));
	decode(&q, 1, 20);
	world_seq_deinit(&q);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("client-codes");
	TCase *t = tcase_create("codes");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, as_rows, 0, ALL_OF);
	tcase_add_test(t, lost_elsewhere);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return run_suite(suite(), "test-client-codes");
}
