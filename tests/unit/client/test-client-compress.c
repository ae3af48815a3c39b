/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences whose tokens are compressed, in libclient: their outputs under any policy that follows; random orders of
 * forks, steps, swaps and hand-overs; and the memory that they take.
 *
 * SKV_CODES_OPS is the number of operations in random order; HACKING.md says which target sets it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"
#include "tests/support/reference-codec.h"

#define TOKENS 600u
/* Of outputs: codes have 8 bits besides the exponent, and a device multiplies numbers of as many bits. */
#define TOLERANCE (devmem_is_device() ? 1e-2 : 2e-3)

static struct refmodel w;
static char codec[80]; /* path of a codec's file */
static uint32_t whole; /* layers below it have all tokens */

/* With a fake device the host does the work, and more of it. */
static bool hurried(void)
{
	return slowed() || getenv("FAKE_CUDA_DIR");
}

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "codes", SKV_F32, TOKENS);
	refmodel_packable(&w.model);
	whole = w.model.n_layers;
	snprintf(codec, sizeof(codec), "%.60s/codec", daemon_.dir);
}

static void with_codec(char *to, size_t bytes, const char *spec)
{
	snprintf(to, bytes, "%s&file=%s", spec, codec);
}

/* ---- what attention sees --------------------------------------------------------------------- */

/* n more tokens, which attend to all. */
static void go_on(struct refmodel_seq *q, uint64_t key, uint32_t n, bool prompt)
{
	const struct skv_model *m = &w.model;
	float *out = calloc((size_t)m->n_layers * n * m->n_heads * m->head_dim, sizeof(*out)), *at = out;
	uint64_t content[TOKENS];
	bool there[TOKENS];

	memset(there, true, sizeof(there));
	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(key, q->len + i);
	OK(refmodel_run(&w, q->seq, content, n, prompt, out, NULL));
	refmodel_seq_append(&w, q, content, n, true);
	for (uint32_t layer = 0; layer < whole; layer++)
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t h = 0; h < m->n_heads; h++, at += m->head_dim)
				refmodel_compare(&w, q, layer, q->len - n + i + 1, h, there, at);
	free(out);
}

static void decode(struct refmodel_seq *q, uint64_t key, uint32_t n)
{
	while (n-- > 0)
		go_on(q, key, 1, false);
}

/*
 * With a codec that changes nothing but by rounding, rows attend to what was there: while it is compressed, after a
 * fork has gone another way, and when another policy has made rows of it again.
 */
START_TEST(as_rows)
{
	struct refmodel_seq q, fork;
	struct skv_seq *seq;
	char spec[256];

	rnd_begin((uint64_t)_i);
	with_codec(spec, sizeof(spec),
	           POLICY_LATENT "?budget=600&layers=1,3&dense=1&residual=16&block=16&" REFMODEL_CODES);
	refmodel_codec(&w.model, 0, codec);
	OK(skv_open(client, &w.model, spec, &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	refmodel_seq_init(&w, &q, seq, TOKENS);
	go_on(&q, 1, 30 + rnd_below(80), true);
	w.tolerance = TOLERANCE;
	decode(&q, 1, 40);
	go_on(&q, 1, 1 + rnd_below(30), true);
	decode(&q, 1, 20);
	OK(skv_seq_fork(q.seq, NULL, SKV_ALL, &seq));
	refmodel_seq_copy(&w, &fork, &q, seq);
	decode(&fork, 2, 40);
	decode(&q, 1, 40);
	OK(skv_seq_policy(q.seq, policy_row(SET_SEES_ALL, _i)->spec));
	decode(&q, 1, 3);
	decode(&fork, 2, 3);
	go_on(&q, 1, 5, true);
	OK(skv_seq_policy(q.seq, NULL));
	decode(&q, 1, 20);
	decode(&fork, 2, 20);
	refmodel_seq_deinit(&q);
	refmodel_seq_deinit(&fork);
}
END_TEST

/*
 * A policy that compresses more layers than the last one, some of which have lost tokens, compresses none, and leaves
 * none compressed.
 */
START_TEST(lost_elsewhere)
{
	struct refmodel_seq q;
	struct skv_seq *seq;
	char spec[256];

	w.model.n_layers = 6;
	whole = 4;
	w.tolerance = TOLERANCE;
	refmodel_codec(&w.model, 0, codec);
	OK(skv_open(client, &w.model, POLICY_WINDOW "?budget=40&sinks=4&dense=4", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	refmodel_seq_init(&w, &q, seq, TOKENS);
	go_on(&q, 1, 120, true);
	decode(&q, 1, 2);
	with_codec(spec, sizeof(spec),
	           POLICY_LATENT "?budget=600&layers=1,4,5&dense=1&residual=16&block=16&" REFMODEL_CODES);
	OK(skv_seq_policy(q.seq, spec));
	decode(&q, 1, 20);
	with_codec(spec, sizeof(spec),
	           POLICY_LATENT "?budget=600&layers=1&dense=1&residual=16&block=16&" REFMODEL_CODES);
	OK(skv_seq_policy(q.seq, spec));
	decode(&q, 1, 20);
	refmodel_seq_deinit(&q);
}
END_TEST

/* No sequence has a page. (The fixture checks the state's balance when the daemon ends.) */
static void balanced(void)
{
	json_t *j = raw_query(op, SKV_QUERY_POOLS), *pools = json_object_get(j, "pools"), *p;
	size_t i;

	json_array_foreach(pools, i, p) {
		ck_assert_int_eq(json_integer_value(json_object_get(p, "lease")), 0);
		ck_assert_int_eq(json_integer_value(json_object_get(p, "seq")), 0);
		ck_assert_int_eq(json_integer_value(json_object_get(p, "shared")), 0);
	}
	json_decref(j);
}

/* ---- in any order ---------------------------------------------------------------------------- */

#define AT_ONCE 6u
#define LONGEST 260u
#define EVENTS 400u

#define COMPRESSED(layers) POLICY_LATENT "?budget=40&recent=8&layers=" layers "&dense=1&"

/* Policies that a sequence may run; number 0 is the session's. */
static const char *const runs[] = {
	COMPRESSED("1,3") "bits=4&scale_block=32&residual=16&block=16&" REFMODEL_CODES,
	COMPRESSED("1,3") "bits=4&scale_block=32&residual=50&block=48&" REFMODEL_CODES,
	COMPRESSED("1") "bits=8&scale_block=32&ref_bits=8&residual=16&block=32&" REFMODEL_CODES,
	COMPRESSED("1,3") "bits=0&residual=1&block=16&stride=7&n_refs=4",
	COMPRESSED("1,3") "bits=8&scale_block=32&full_bits=4&residual=16&block=16&" REFMODEL_CODES,
	POLICY_QUANTIZES "?bits=2&residual=20&block=64",
	"full",
	POLICY_TOKENS "?budget=40&recent=8&layers=1,3&dense=1",
	POLICY_BOUNDS "?budget=5&dense=1",
	POLICY_SCORES "?budget=100&dense=1",
	POLICY_WINDOW "?budget=100&sinks=4&dense=3",
};
#define RUNS (sizeof(runs) / sizeof(*runs))

struct event {
	enum { PROMPT, DECODE, RUN, GIVEN_UP } what;
	uint32_t n; /* tokens, or which of runs[] */
	uint64_t key;
	uint64_t hash; /* of the outputs */
};

/* A sequence, and all that has happened to it. */
static struct life {
	struct skv_seq *seq; /* NULL: detached */
	bool there;
	char name[16];
	uint32_t len, n;
	struct event event[EVENTS];
} lives[AT_ONCE];

/* runs[which], with the codec if it needs one. */
static void spec_of_run(char *to, size_t bytes, uint32_t which)
{
	if (strncmp(runs[which], POLICY_LATENT, strlen(POLICY_LATENT)) == 0)
		with_codec(to, bytes, runs[which]);
	else
		snprintf(to, bytes, "%s", runs[which]);
}

static void run(struct skv_seq *seq, uint32_t which)
{
	char spec[256];

	spec_of_run(spec, sizeof(spec), which);
	OK(skv_seq_policy(seq, which == 0 ? NULL : spec));
}

static void give_up(struct skv_seq *seq)
{
	const struct skv_step_item it = SKV_STEP_ITEM(.seq = seq, .n_tokens = 1);

	OK(skv_step_begin(w.session, &it, 1, NULL));
	skv_step_abort(w.session);
}

/* Apply an event to a sequence of this length, alone; returns the hash of its outputs. */
static uint64_t happen(struct skv_seq *seq, uint32_t len, const struct event *e)
{
	size_t row = (size_t)w.model.n_layers * w.model.n_heads * w.model.head_dim;
	float *out = calloc(e->n * row, sizeof(*out));
	uint64_t content[5000], h = 0;

	for (uint32_t i = 0; e->what <= DECODE && i < e->n; i++)
		content[i] = refmodel_content(e->key, len + i);
	if (e->what == RUN)
		run(seq, e->n);
	else if (e->what == GIVEN_UP)
		give_up(seq);
	else if (e->what == PROMPT)
		OK(refmodel_run(&w, seq, content, e->n, true, out, NULL));
	for (uint32_t i = 0; e->what == DECODE && i < e->n; i++)
		OK(refmodel_run(&w, seq, content + i, 1, false, out + i * row, NULL));
	h = e->what <= DECODE ? output_hash(h, out, e->n * row) : 0;
	free(out);
	return h;
}

static void note(struct life *l, struct event e)
{
	ck_assert_uint_lt(l->n, EVENTS);
	l->event[l->n++] = e;
	l->len += e.what <= DECODE ? e.n : 0;
}

static void do_now(struct life *l, struct event e)
{
	e.hash = happen(l->seq, l->len, &e);
	note(l, e);
}

/* Repeat all of it in a session without other sequences, where nothing is shared: the same bits. */
static void again(const struct life *l, struct skv_session *alone)
{
	struct skv_session *with = w.session;
	struct skv_seq *seq;
	uint32_t len = 0;

	w.session = alone;
	OK(skv_seq_new(alone, NULL, 0, &seq));
	for (uint32_t i = 0; i < l->n; i++) {
		const struct event *e = &l->event[i];

		ck_assert_msg(happen(seq, len, e) == e->hash, "%s: event %u, of kind %u and %u tokens from %u on, differs", l->name,
		              i, e->what, e->n, len);
		len += e->what <= DECODE ? e->n : 0;
	}
	OK(skv_seq_drop(seq));
	w.session = with;
}

static void end_of(struct life *l, struct skv_session *alone)
{
	again(l, alone);
	OK(skv_seq_drop(l->seq));
	l->there = false;
}

static void begin(struct life *l, struct life *parent)
{
	static uint32_t names;
	struct skv_seq *seq;
	char name[16];

	snprintf(name, sizeof(name), "life-%u", names++);
	if (parent) {
		OK(skv_seq_fork(parent->seq, name, SKV_ALL, &seq));
		*l = *parent;
	} else {
		OK(skv_seq_new(w.session, name, 0, &seq));
		*l = (struct life){0};
	}
	l->seq = seq;
	l->there = true;
	memcpy(l->name, name, sizeof(name));
	if (!parent)
		do_now(l, (struct event){PROMPT, 1 + rnd_below(120), rnd64(), 0});
}

/* Some of them decode together. */
static void decode_some(struct life *first)
{
	struct life *some[AT_ONCE] = {first};
	struct skv_seq *seqs[AT_ONCE] = {first->seq};
	size_t row = (size_t)w.model.n_heads * w.model.head_dim;
	uint32_t n = 1, steps = 1 + rnd_below(12);
	struct event e[AT_ONCE];
	uint64_t content[AT_ONCE];
	float *out;

	for (struct life *l = lives; l < lives + AT_ONCE; l++)
		if (l != first && l->there && l->seq && l->len < LONGEST && l->n < EVENTS - 2 && rnd_below(3) == 0) {
			seqs[n] = l->seq;
			some[n++] = l;
		}
	out = calloc(n * w.model.n_layers * row, sizeof(*out));
	for (uint32_t i = 0; i < n; i++)
		e[i] = (struct event){DECODE, steps, rnd64(), 0};
	for (uint32_t t = 0; t < steps; t++) {
		for (uint32_t i = 0; i < n; i++)
			content[i] = refmodel_content(e[i].key, some[i]->len + t);
		OK(refmodel_decode(&w, seqs, content, n, out));
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t layer = 0; layer < w.model.n_layers; layer++)
				e[i].hash = output_hash(e[i].hash, out + (layer * n + i) * row, row);
	}
	for (uint32_t i = 0; i < n; i++)
		note(some[i], e[i]);
	free(out);
}

static void one_operation(struct skv_session *alone)
{
	struct life *l = &lives[rnd_below(AT_ONCE)], *other = &lives[rnd_below(AT_ONCE)];
	uint32_t what = rnd_below(20);

	if (!l->there) {
		begin(l, other->there && other->seq && rnd_below(3) > 0 ? other : NULL);
		return;
	}
	if (!l->seq) {
		OK(skv_seq_attach(w.session, l->name, &l->seq));
		return;
	}
	if (l->len > LONGEST || l->n > EVENTS - 3 || what == 0)
		end_of(l, alone);
	else if (what == 1) {
		OK(skv_seq_detach(l->seq));
		l->seq = NULL;
		note(l, (struct event){RUN, 0, 0, 0}); /* an attached sequence runs the session's policy */
	} else if (what < 5)
		do_now(l, (struct event){RUN, rnd_below(3) ? rnd_below(4) : rnd_below(RUNS), 0, 0});
	else if (what == 5)
		do_now(l, (struct event){GIVEN_UP, 0, 0, 0});
	else if (what < 8)
		do_now(l, (struct event){PROMPT, 1 + rnd_below(40), rnd64(), 0});
	else
		decode_some(l);
}

START_TEST(any_order)
{
	const char *wanted = getenv("SKV_CODES_OPS");
	unsigned long ops = wanted ? strtoul(wanted, NULL, 0) : hurried() ? 100 : 300;
	struct skv_session *alone;
	char spec[256];

	refmodel_codec(&w.model, 1, codec);
	with_codec(spec, sizeof(spec), runs[0]);
	OK(skv_open(client, &w.model, spec, &w.session));
	OK(skv_open(client, &w.model, spec, &alone));
	for (unsigned long i = 0; i < ops; i++)
		one_operation(alone);
	for (struct life *l = lives; l < lives + AT_ONCE; l++) {
		if (l->there && !l->seq)
			OK(skv_seq_attach(w.session, l->name, &l->seq));
		if (l->there)
			end_of(l, alone);
	}
	skv_close(w.session);
	skv_close(alone);
	balanced();
}
END_TEST

/*
 * A step that is aborted has prepared the sequence for compression, without a commit that says so. Another policy, a
 * fork, and an engine that attaches the sequence find what was committed.
 */
START_TEST(prepared_in_vain)
{
	const struct event prompt = {PROMPT, 40, 1, 0}, decode = {DECODE, 3, 1, 0}, two = {DECODE, 2, 1, 0};
	struct skv_seq *q, *fork;
	char spec[256];

	refmodel_codec(&w.model, 1, codec);
	with_codec(spec, sizeof(spec), runs[0]);
	OK(skv_open(client, &w.model, POLICY_EVICTED_PAGES "?budget=100", &w.session));
	OK(skv_seq_new(w.session, "prepared", 0, &q));
	(void)happen(q, 0, &prompt);
	(void)happen(q, 40, &decode);
	OK(skv_seq_policy(q, spec));
	give_up(q);
	OK(skv_seq_policy(q, "full"));
	OK(skv_seq_fork(q, NULL, SKV_ALL, &fork));
	OK(skv_seq_detach(q));
	OK(skv_seq_attach(w.session, "prepared", &q));
	ck_assert(happen(q, 43, &two) == happen(fork, 43, &two));
}
END_TEST

/*
 * n tokens in prompts and decode steps, in random chunks, or in one prompt and one step; the hash of the last output.
 */
static uint64_t cut(uint32_t n, bool anyhow)
{
	struct event e = {.key = 5};
	struct skv_seq *seq;
	uint32_t len = 0;

	OK(skv_seq_new(w.session, NULL, 0, &seq));
	while (len < n) {
		e.what = len == n - 1 || (anyhow && rnd_below(2)) ? DECODE : PROMPT;
		e.n = e.what == DECODE ? 1 : anyhow ? 1 + rnd_below(n / 4) : n - 1;
		if (e.what == PROMPT && len + e.n > n - 1)
			e.n = n - 1 - len;
		e.hash = happen(seq, len, &e);
		len += e.n;
	}
	OK(skv_seq_drop(seq));
	return e.hash;
}

/*
 * What is stored of a token depends on the tokens before it, not on when and with which it is compressed, to the bit.
 */
START_TEST(cut_anyhow)
{
	static const struct {
		uint32_t run, len;
	} c[] = {{0, 150}, {0, 300}, {0, 4500}, {5, 300}, {5, 4500}}; /* the long ones in several steps */
	char spec[256];

	if (c[_i].len > 1000 && hurried())
		return;
	w.model.max_tokens = 5000;
	refmodel_codec(&w.model, 1, codec);
	spec_of_run(spec, sizeof(spec), c[_i].run);
	OK(skv_open(client, &w.model, spec, &w.session));
	ck_assert_uint_eq(cut(c[_i].len, true), cut(c[_i].len, false));
}
END_TEST

/* It attends to as many tokens as the policy that selects them without compression. */
START_TEST(attended)
{
	static const char *const specs[] = {POLICY_TOKENS "?budget=40&more=0&recent=8&layers=1,3&dense=1", NULL};
	uint64_t count[2], causal;
	char spec[256];

	refmodel_codec(&w.model, 1, codec);
	with_codec(spec, sizeof(spec), runs[0]);
	OK(skv_open(client, &w.model, spec, &w.session));
	for (int i = 0; i < 2; i++) {
		struct skv_seq *seq;

		OK(skv_seq_new(w.session, NULL, 0, &seq));
		OK(skv_seq_policy(seq, specs[i]));
		happen(seq, 0, &(struct event){PROMPT, 100, 1, 0});
		happen(seq, 100, &(struct event){DECODE, 50, 1, 0});
		skv_seq_attended(seq, &count[i], &causal);
	}
	ck_assert_uint_eq(count[0], count[1]);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Pages of the only sequence, by the daemon's count. */
static uint64_t pages_of_kind(const char *kind)
{
	json_t *j = raw_query(op, SKV_QUERY_SEQS), *rows = json_object_get(j, "sequences");
	json_t *pages = json_object_get(json_array_get(rows, 0), "pages");
	uint64_t n = (uint64_t)json_integer_value(json_object_get(pages, kind));

	ck_assert_uint_eq(json_array_size(rows), 1);
	ck_assert(json_is_object(pages));
	json_decref(j);
	return n;
}

/* After a decode step, with residual=16, block=32, 4-bit codes in scale blocks of 32, and REFMODEL_CODES. */
static void check_memory(struct skv_seq *seq, uint32_t len)
{
	const uint32_t each = w.model.kv_dtype == SKV_F32 ? 4 : 2;
	const uint32_t d = 2 * w.model.n_kv_heads * w.model.head_dim, page_bytes = 16 * d * each, layers = w.model.n_layers;
	const uint32_t packing = layers - 3, coded = len < 64 ? 0 : 16 + (len - 32) / 32 * 32; /* all but 0, 1 and 3 */
	const uint32_t a_page_codes = page_bytes / 32; /* 3 * 2 bytes, {scale, least}, 16 bytes: padded to 32 */
	const uint32_t a_page_refs = 16;
	uint32_t codes = 0, refs = coded ? 16 : 0, rows = (len + 15) / 16;
	uint64_t resident, total, all;

	for (uint32_t t = 16; t < coded; t++)
		*((t - 16) % REFMODEL_STRIDE == 0 ? &refs : &codes) += 1;
	codes = (codes + a_page_codes - 1) / a_page_codes;
	refs = (refs + a_page_refs - 1) / a_page_refs;
	skv_seq_pages(seq, &resident, &total); /* waits for a device */
	ck_assert_uint_eq(pages_of_kind("kv"), rows * layers - (coded ? packing * (coded / 16 - 1) : 0));
	ck_assert_uint_eq(pages_of_kind("codes"), packing * codes);
	ck_assert_uint_eq(pages_of_kind("refs"), packing * refs);
	all = pages_of_kind("kv") + pages_of_kind("codes") + pages_of_kind("refs");
	ck_assert_uint_eq(resident, all);
	ck_assert_uint_eq(total, rows * layers);
}

/* Rows that were compressed are free at once, and the records take as much as they should. */
START_TEST(memory)
{
	struct skv_seq *seq;
	char spec[256];
	uint64_t content;

	refmodel_codec(&w.model, 1, codec);
	with_codec(spec, sizeof(spec),
	           POLICY_LATENT "?layers=1,3&dense=1&bits=4&scale_block=32&residual=16&block=32&" REFMODEL_CODES);
	OK(skv_open(client, &w.model, spec, &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	happen(seq, 0, &(struct event){PROMPT, 1 + rnd_below(200), 1, 0});
	while (skv_seq_len(seq) < 500) {
		content = refmodel_content(1, skv_seq_len(seq));
		OK(refmodel_decode(&w, &seq, &content, 1, NULL));
		check_memory(seq, skv_seq_len(seq));
	}
	OK(skv_seq_policy(seq, "full"));
	OK(refmodel_decode(&w, &seq, &content, 1, NULL));
	ck_assert_uint_eq(pages_of_kind("kv"), skv_pages_of(501) * w.model.n_layers);
	ck_assert_uint_eq(pages_of_kind("codes") + pages_of_kind("refs"), 0);
	OK(skv_seq_drop(seq));
	skv_close(w.session);
	balanced();
}
END_TEST

/* A layer that compresses has room for the selected tokens; if none were, the step fails, and nothing is overrun. */
START_TEST(nothing_selected)
{
	struct skv_seq *seq;
	uint64_t content[300];
	char spec[256];
	uint32_t len;
	int e;

	ck_assert_int_eq(raw_policy_load(op, fix_built("tests/support/plugins/.libs/unselected.so")), 0);
	refmodel_codec(&w.model, 1, codec);
	with_codec(spec, sizeof(spec),
	           POLICY_LATENT "?budget=20&recent=4&layers=1,3&dense=1&scale_block=32&residual=16&"
	                         "block=16&" REFMODEL_CODES);
	OK(skv_open(client, &w.model, spec, &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	for (uint32_t i = 0; i < 300; i++)
		content[i] = refmodel_content(1, i);
	OK(refmodel_run(&w, seq, content, 300, true, NULL, NULL));
	do {
		len = skv_seq_len(seq);
		e = refmodel_run(&w, seq, content, 1, false, NULL, NULL);
	} while (e == 0 && len < 350);
	if (e == 0 && devmem_is_device())
		return; /* steps were replayed, which calls no hooks: they went on as recorded */
	FAILS(e, ENOTRECOVERABLE, "but it selected nothing");
	ck_assert_uint_eq(skv_seq_len(seq), len);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-compress");
	TCase *t = add_case(s, "codes", getenv("SKV_CODES_OPS") ? 3600 : 120, setup, client_end, lost_elsewhere,
	                    any_order, prepared_in_vain, attended, memory, nothing_selected, NULL);

	tcase_add_loop_test(t, as_rows, 0, policy_rows(SET_SEES_ALL));
	tcase_add_loop_test(t, cut_anyhow, 0, 5);
	return run_suite(s);
}
