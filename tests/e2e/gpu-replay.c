/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded layers of a session on a device, while steps of several kinds alternate: each kind is replayed when it
 * occurs again, also with another number of sequences and with prompts in the step. Outputs are those of a session
 * whose buffers move, so that nothing is replayed.
 *
 * Skipped (77) without a device, but a failure if SPARSEKV_REQUIRE_GPU=1.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/device/device.h"
#include "libclient/session.h"
#include "tests/support/client-test.h"
#include "tests/support/kernel-backend.h"
#include "tests/support/policies.h"

#define SEQS 8u
#define ROWS 2u /* maximum per sequence */

static struct fix daemon_;
static struct skv_client *client;

static const struct skv_model model = {
	.size = sizeof(model), .n_layers = 4, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .kv_dtype = SKV_BF16,
	.io_dtype = SKV_F32, .max_tokens = 8192, .n_ranks = 1, .device = SKV_DEVICE_CUDA(0), .name = "gpu-replay",
	.rope = {.type = SKV_ROPE_DEFAULT, .theta = 1e4},
};
#define WIDTH ((size_t)model.n_heads * model.head_dim)

/* Sequences of a session, and rows of a step. `out` is twice as large if rows move. */
struct engine {
	struct skv_session *session;
	struct skv_seq *seq[SEQS];
	float *rows, *out;
	bool moves;
	uint32_t steps;
};

/* The backend, with counters of recordings and launches. */
static struct skv_backend counting;
static uint32_t captures, launches;

static int count_capture(void *stream)
{
	captures++;
	return devmem_device()->begin_capture(stream);
}

static int count_launch(void *graph, void *stream)
{
	launches++;
	return devmem_device()->graph_launch(graph, stream);
}

static void setup(void)
{
	fix_start_process(&daemon_, (const char *[]){"--cuda-pool-bytes=1G", "--cuda-segment-bytes=16M", NULL});
	devmem_device();
	OK(skv_connect(&client, daemon_.socket));
}

static void teardown(void)
{
	skv_disconnect(client);
	fix_stop(&daemon_);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void run(struct engine *e, const struct skv_step_item *items, uint32_t n)
{
	float *out = e->out + (e->moves && e->steps++ % 2 ? 512 * WIDTH : 0);

	OK(skv_step_begin(e->session, items, n, devmem_stream()));
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		OK(skv_attend(e->session, layer, &SKV_ATTN(.q = e->rows, .k = e->rows + 16 * layer, .v = e->rows + 32 * layer, .out = out)));
	OK(skv_step_end(e->session, NULL, NULL));
	OK(devmem_device()->wait(devmem_stream()));
	if (out != e->out) /* so that both are compared in the same buffer */
		OK(devmem_device()->copy(e->out, out, 512 * WIDTH * sizeof(float), devmem_stream()));
}

static void prompt(struct engine *e, uint32_t seq, uint32_t n)
{
	for (uint32_t take; n > 0; n -= take) {
		take = n < 256 ? n : 256;
		run(e, &SKV_STEP_ITEM(.seq = e->seq[seq], .n_tokens = take, .flags = SKV_STEP_PROMPT), 1);
	}
}

static void engine_begin(struct engine *e, const char *spec, bool moves)
{
	float *rows = malloc(512 * WIDTH * sizeof(*rows));

	*e = (struct engine){.moves = moves};
	OK(skv_open(client, &model, spec, &e->session));
	rnd_begin(1);
	for (size_t i = 0; i < 512 * WIDTH; i++)
		rows[i] = (float)(2 * rnd_unit() - 1);
	e->rows = devmem_get(512 * WIDTH * sizeof(float));
	e->out = devmem_get(1024 * WIDTH * sizeof(float));
	devmem_to(e->rows, rows, 512 * WIDTH * sizeof(float));
	free(rows);
}

static void engine_fill(struct engine *e)
{
	for (uint32_t i = 0; i < SEQS; i++) {
		OK(skv_seq_new(e->session, NULL, 0, &e->seq[i]));
		prompt(e, i, 100 + 30 * i);
	}
}

static void engine_open(struct engine *e, const char *spec, bool moves)
{
	engine_begin(e, spec, moves);
	engine_fill(e);
}

static void engine_close(struct engine *e)
{
	skv_close(e->session);
	devmem_put(e->rows);
	devmem_put(e->out);
}

/* A step of both engines: n sequences decode `rows` rows each, and the last one has prompt_rows of a prompt. */
static void step(struct engine e[2], uint32_t n, uint32_t rows, uint32_t prompt_rows)
{
	const size_t floats = (n * rows + prompt_rows) * WIDTH;
	float *x = malloc(2 * floats * sizeof(*x)), *y = x + floats;

	for (int k = 0; k < 2; k++) {
		struct skv_step_item items[SEQS];

		for (uint32_t i = 0; i < n; i++)
			items[i] = SKV_STEP_ITEM(.seq = e[k].seq[i], .n_tokens = rows);
		if (prompt_rows > 0)
			items[n] = SKV_STEP_ITEM(.seq = e[k].seq[SEQS - 1], .n_tokens = prompt_rows, .flags = SKV_STEP_PROMPT);
		run(&e[k], items, n + (prompt_rows > 0));
	}
	devmem_from(x, e[0].out, floats * sizeof(*x));
	devmem_from(y, e[1].out, floats * sizeof(*x));
	ck_assert_msg(!memcmp(x, y, floats * sizeof(*x)), "a step of %u sequences with %u rows and %u of a prompt differs", n, rows,
	              prompt_rows);
	free(x);
}

/* Runs each kind once, `times` times over: all sequences, one less, ... */
static void turns(struct engine e[2], uint32_t kinds, uint32_t times)
{
	captures = launches = 0;
	for (uint32_t i = 0; i < kinds * times; i++)
		step(e, SEQS - i % kinds % SEQS, 1 + i % kinds / SEQS % ROWS, 0);
}

/* Runs the same step `times` times. */
static void again(struct engine e[2], uint32_t times, uint32_t n, uint32_t prompt_rows)
{
	captures = launches = 0;
	for (uint32_t i = 0; i < times; i++)
		step(e, n, 1, prompt_rows);
}

static void engines_open(struct engine e[2], const char *spec)
{
	engine_open(&e[0], spec, true);
	engine_open(&e[1], spec, false);
	counting = *e[1].session->device->backend;
	counting.begin_capture = count_capture;
	counting.graph_launch = count_launch;
	e[1].session->device->backend = &counting;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const char *const specs[] = {"full", POLICY_BOUNDS "?budget=8&dense=1", POLICY_WINDOW "?budget=64",
                                    POLICY_LATENT "?budget=60&layers=1&dense=1&bits=0&residual=16&block=16"};
#define N_SPECS (int)(sizeof(specs) / sizeof(*specs))

START_TEST(take_turns)
{
	struct engine e[2];

	engines_open(e, specs[_i]);
	turns(e, 4, 4); /* workspaces grow; each kind is seen and recorded */
	turns(e, 4, 5);
	ck_assert_uint_eq(captures, 0);
	ck_assert_uint_eq(launches, 4 * 5 * model.n_layers);
	prompt(&e[0], 0, 20); /* prompts in between do not invalidate recordings */
	prompt(&e[1], 0, 20);
	turns(e, 4, 1);
	ck_assert_uint_eq(launches, 4 * model.n_layers);
	turns(e, 2 * SEQS, 3); /* more kinds than fit, unless some share recordings */
	turns(e, 4, 3);
	ck_assert_uint_gt(launches, 0);
	prompt(&e[0], 1, 3000); /* larger workspaces, so other keys */
	prompt(&e[1], 1, 3000);
	turns(e, 4, 4);
	ck_assert_uint_gt(launches, 0);
	OK(skv_seq_policy(e[0].seq[0], specs[(_i + 1) % N_SPECS])); /* other policy batches */
	OK(skv_seq_policy(e[1].seq[0], specs[(_i + 1) % N_SPECS]));
	turns(e, 4, 4);
	ck_assert_uint_gt(launches, 0);
	for (int k = 0; k < 2; k++)
		engine_close(&e[k]);
}
END_TEST

/* If a sequence leaves or joins, the same recordings are used. */
START_TEST(other_numbers)
{
	struct engine e[2];

	engines_open(e, specs[_i]);
	again(e, 5, 5, 0);
	ck_assert_uint_eq(captures, model.n_layers);
	again(e, 1, 6, 0);
	again(e, 1, 5, 0);
	ck_assert_uint_eq(captures, 0);
	ck_assert_uint_eq(launches, model.n_layers);
	for (int k = 0; k < 2; k++)
		engine_close(&e[k]);
}
END_TEST

/* Prompts are not part of recordings, and do not prevent replays of the other sequences. */
START_TEST(beside_prompts)
{
	struct engine e[2];

	engines_open(e, specs[_i]);
	again(e, 3, 4, 0);
	again(e, 3, 4, 5);
	again(e, 2, 4, 7);
	ck_assert_uint_eq(captures, 0);
	ck_assert_uint_eq(launches, 2 * model.n_layers);
	again(e, 2, 4, 0);
	ck_assert_uint_eq(captures, 0);
	ck_assert_uint_eq(launches, 2 * model.n_layers);
	for (int k = 0; k < 2; k++)
		engine_close(&e[k]);
}
END_TEST

/* Each sequence under its own policy: in parallel branches, without and with replays. */
START_TEST(side_by_side)
{
	static const char *const all[SEQS] = {
		"full",
		POLICY_BOUNDS "?budget=8&dense=1",
		POLICY_WINDOW "?budget=64",
		POLICY_SCORES "?budget=48",
		POLICY_SKETCHES "?budget=32",
		POLICY_Q_HEADS "?budget=32&layers=1",
		POLICY_PAGES "?budget=8&layers=1",
		POLICY_LATENT "?budget=60&layers=1&dense=1&bits=0&residual=16&block=16",
	};
	struct engine e[2];

	engines_open(e, "full");
	for (uint32_t i = 0; i < SEQS; i++) {
		OK(skv_seq_policy(e[0].seq[i], all[i]));
		OK(skv_seq_policy(e[1].seq[i], all[i]));
	}
	again(e, 40, SEQS, 0);
	ck_assert_uint_gt(e[1].session->step.n_branches, 1);
	ck_assert_uint_gt(launches, 30 * model.n_layers);
	again(e, 4, SEQS - 1, 20);
	for (int k = 0; k < 2; k++)
		engine_close(&e[k]);
}
END_TEST

/* ---- padded steps ----------------------------------------------------------------------- */

#define PADDED 1024u /* tokens that steps are padded to */

/* A recording of whole steps of up to n sequences. */
struct recording {
	uint32_t n;
	uint64_t key;
	void *graph;
};

static void attend_all(struct engine *e)
{
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		OK(skv_attend(e->session, layer, &SKV_ATTN(.q = e->rows, .k = e->rows + 16 * layer, .v = e->rows + 32 * layer, .out = e->out)));
}

/* As an engine does when it starts, before it has sequences. */
static struct recording record(struct engine *e, uint32_t n)
{
	struct recording r = {.n = n};
	struct skv_seq *own;

	OK(skv_pad_steps(e->session, n, PADDED));
	OK(skv_seq_new(e->session, NULL, 0, &own));
	OK(skv_step_begin(e->session, &SKV_STEP_ITEM(.seq = own, .n_tokens = 1), 1, devmem_stream()));
	r.key = skv_step_key(e->session);
	ck_assert_uint_ne(r.key, 0);
	OK(devmem_device()->begin_capture(devmem_stream()));
	attend_all(e);
	OK(devmem_device()->end_capture(devmem_stream(), &r.graph));
	skv_step_abort(e->session);
	OK(skv_seq_drop(own));
	return r;
}

/* A step of the first n sequences, from a recording if the step has its key. Returns whether it had. */
static bool padded(struct engine *e, const struct recording *r, uint32_t n)
{
	struct skv_step_item items[SEQS] = {0};
	bool fits;

	for (uint32_t i = 0; i < n; i++)
		items[i] = SKV_STEP_ITEM(.seq = e->seq[i], .n_tokens = 1);
	OK(skv_pad_steps(e->session, r->n, PADDED));
	OK(skv_step_begin(e->session, items, n, devmem_stream()));
	fits = skv_step_key(e->session) == r->key;
	if (fits) {
		OK(devmem_device()->graph_launch(r->graph, devmem_stream()));
		OK(skv_step_replayed(e->session, r->key));
	} else {
		attend_all(e);
	}
	OK(skv_step_end(e->session, NULL, NULL));
	OK(devmem_device()->wait(devmem_stream()));
	return fits;
}

static bool padded_as_alone(struct engine e[2], const struct recording *r, uint32_t n)
{
	struct skv_step_item items[SEQS] = {0};
	const size_t floats = n * WIDTH;
	float *x = malloc(2 * floats * sizeof(*x)), *y = x + floats;
	bool fits;

	for (uint32_t i = 0; i < n; i++)
		items[i] = SKV_STEP_ITEM(.seq = e[0].seq[i], .n_tokens = 1);
	run(&e[0], items, n);
	fits = padded(&e[1], r, n);
	devmem_from(x, e[0].out, floats * sizeof(*x));
	devmem_from(y, e[1].out, floats * sizeof(*x));
	ck_assert_msg(!memcmp(x, y, floats * sizeof(*x)), "a step of %u sequences padded to %u differs", n, r->n);
	free(x);
	return fits;
}

static const char *const padded_specs[] = {"full", POLICY_BOUNDS "?budget=8&dense=1", POLICY_WINDOW "?budget=64",
                                           POLICY_SKETCHES "?budget=32", POLICY_Q_HEADS "?budget=32&layers=1"};

/*
 * Graphs that were recorded before there were sequences serve all padded steps: any number of sequences, of any
 * length, also after long prompts have enlarged the memory of other steps.
 */
START_TEST(of_padded_steps)
{
	struct recording r[2];
	struct engine e[2];

	engine_open(&e[0], padded_specs[_i], true);
	engine_begin(&e[1], padded_specs[_i], false);
	r[0] = record(&e[1], SEQS);
	r[1] = record(&e[1], 3);
	engine_fill(&e[1]);
	rnd_begin(17 + (uint64_t)_i);
	for (uint32_t i = 0; i < 40; i++) {
		const uint32_t n = 1 + rnd_below(SEQS), grows = rnd_below(SEQS - 1), by = 1 + rnd_below(60);

		ck_assert(padded_as_alone(e, &r[n <= 3 && rnd_below(2)], n));
		if (i % 8 == 7) {
			prompt(&e[0], grows, by);
			prompt(&e[1], grows, by);
		}
	}
	prompt(&e[0], SEQS - 1, 3000); /* it is too long for padding */
	prompt(&e[1], SEQS - 1, 3000);
	ck_assert(!padded_as_alone(e, &r[0], SEQS));
	ck_assert(padded_as_alone(e, &r[0], SEQS - 1));
	ck_assert(!padded_as_alone(e, &r[1], 4)); /* more sequences than it is padded to */
	ck_assert(padded_as_alone(e, &r[1], 2));
	OK(skv_seq_policy(e[0].seq[0], "streaming")); /* two policies */
	OK(skv_seq_policy(e[1].seq[0], "streaming"));
	ck_assert(!padded_as_alone(e, &r[0], 4));
	for (int k = 0; k < 2; k++) {
		OK(devmem_device()->graph_free(r[k].graph));
		engine_close(&e[k]);
	}
}
END_TEST

/* The key of a step of a new sequence under a policy of its own. */
static uint64_t key_under(const struct engine *e, const char *spec)
{
	struct skv_seq *own;
	uint64_t key;

	OK(skv_seq_new(e->session, NULL, 0, &own));
	OK(skv_seq_policy(own, spec));
	OK(skv_step_begin(e->session, &SKV_STEP_ITEM(.seq = own, .n_tokens = 1), 1, devmem_stream()));
	key = skv_step_key(e->session);
	skv_step_abort(e->session);
	OK(skv_seq_drop(own));
	ck_assert_uint_ne(key, 0);
	return key;
}

/* A recording outlives the sequences whose policy it is of, also if others come under other policies meanwhile. */
START_TEST(of_policies_that_come_again)
{
	struct engine e;
	uint64_t key;

	engine_begin(&e, "full", false);
	OK(skv_pad_steps(e.session, 4, PADDED));
	key = key_under(&e, POLICY_BOUNDS "?budget=8");
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 1; i < POLICIES_KEPT; i++) {
			char other[64];

			snprintf(other, sizeof(other), POLICY_BOUNDS "?budget=%u", 8 + 8 * i);
			ck_assert_uint_ne(key_under(&e, other), key);
		}
		ck_assert_uint_eq(key_under(&e, POLICY_BOUNDS "?budget=8"), key);
	}
	engine_close(&e);
}
END_TEST

START_TEST(padding_refused)
{
	struct engine e;

	engine_open(&e, "full", false);
	FAILS(skv_pad_steps(e.session, 4, model.max_tokens + 1), EINVAL, "max_tokens = 8193, expected at most the model's 8192");
	OK(skv_step_begin(e.session, &SKV_STEP_ITEM(.seq = e.seq[0], .n_tokens = 1), 1, devmem_stream()));
	FAILS(skv_pad_steps(e.session, 4, 0), EBUSY, "a step is open");
	skv_step_abort(e.session);
	engine_close(&e);
}
END_TEST

int main(void)
{
	enum case_device there = case_begin("gpu-replay");
	Suite *s = begin_suite("gpu-replay");
	TCase *t = add_case(s, "replay", 120, setup, teardown, NULL);

	if (there != CASE_HAS_DEVICE)
		return there == CASE_LACKS_DEVICE ? EXIT_FAILURE : 77;
	tcase_add_loop_test(t, take_turns, 0, N_SPECS);
	tcase_add_loop_test(t, other_numbers, 0, 3);
	tcase_add_loop_test(t, beside_prompts, 0, 3);
	tcase_add_test(t, side_by_side);
	tcase_add_loop_test(t, of_padded_steps, 0, (int)(sizeof(padded_specs) / sizeof(*padded_specs)));
	tcase_add_test(t, of_policies_that_come_again);
	tcase_add_test(t, padding_refused);
	return run_suite(s);
}
