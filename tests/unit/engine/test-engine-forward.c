/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests a model's steps with a real daemon: small random models against a plain computation in double precision; and
 * on a device, if there is one, against the host, with and without recordings.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/forward.h"
#include "engine/progress.h"
#include "tests/support/engine-daemon.h"
#include "tests/support/engine-backends.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* ---- small models ---------------------------------------------------------------------------- */

/* In the order of struct fx_model's fields. */
static const struct fx_model models[] = {
	{48, 3, 4, 2, 16, 80, 264, 512, 10000, 1e-5, FX_BF16, true},
	{40, 2, 6, 1, 32, 56, 259, 300, 500000, 1e-6, FX_F16, false},
	{64, 2, 5, 5, 48, 33, 300, 400, 10000, 1e-5, FX_F32, false},
};

/* A sequence with all its tokens known beforehand; the first `prompt` of them are read as prompt. */
struct track {
	struct skv_seq *seq;
	int32_t tokens[200];
	uint32_t n, prompt, at;
	double *want; /* logits [n][vocab] */
};

/* Gives each track its next rows: a random chunk of the prompt, or one row. Returns the number of items. */
static uint32_t next_items(struct track *tracks, uint32_t n, struct skv_step_item *items, struct track **of)
{
	uint32_t n_items = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct track *t = &tracks[i];
		uint32_t left = t->prompt > t->at ? t->prompt - t->at : 0;

		if (t->at == t->n || !rnd_below(5))
			continue;
		of[n_items] = t;
		items[n_items++] = SKV_STEP_ITEM(
			.seq = t->seq,
			.n_tokens = left ? rnd_below(left) + 1 : 1,
			.flags = left ? SKV_STEP_PROMPT : 0,
			.tokens = t->tokens + t->at);
	}
	return n_items;
}

static void check_row(const struct track *t, uint32_t vocab, const float *logits)
{
	for (uint32_t i = 0; i < vocab; i++)
		ck_assert_msg(fabs(logits[i] - t->want[(size_t)t->at * vocab + i]) < 2e-4,
		              "token %u, logit %u: %g, expected %g", t->at, i, (double)logits[i],
		              t->want[(size_t)t->at * vocab + i]);
}

/* Prompt chunks of any size and decode rows, mixed in one step, give the logits of a plain computation. */
START_TEST(forward_is_right)
{
	const struct fx_model *m = &models[_i];
	struct fx_weights *w = fx_weights_new(m);
	struct eng_forward f;
	struct eng_model model;
	struct skv_model shape;
	struct skv_session *session;
	struct track tracks[4];
	struct eng_error err;
	unsigned decoded = 0;

	fx_model_write(m, w, folder);
	ck_assert_msg(!eng_model_load(&model, folder, eng_backend_host(), SKV_F32, &err), "%s", err.text);
	ck_assert_int_eq(eng_forward_init(&f, &model, 800, &err), 0);
	shape = eng_model_describe(&model, SKV_F32);
	ok(skv_open(engine_client, &shape, "full", &session));
	for (int i = 0; i < 4; i++) {
		struct track *t = &tracks[i];

		*t = (struct track){.n = 20 + rnd_below(180)};
		t->prompt = rnd_below(t->n);
		for (uint32_t k = 0; k < t->n; k++)
			t->tokens[k] = (int32_t)rnd_below(m->vocab);
		t->want = fx_reference(m, w, t->tokens, t->n);
		ok(skv_seq_new(session, NULL, 0, &t->seq));
	}
	for (unsigned done = 0; done < 4;) {
		struct skv_step_item items[4];
		struct track *of[4];
		const float *logits;
		uint32_t n = next_items(tracks, 4, items, of), row = 0;

		if (!n)
			continue;
		ck_assert_msg(!eng_forward(&f, session, items, n, &err), "%s", err.text);
		ck_assert_int_eq(eng_forward_logits(&f, &logits, &err), 0);
		for (uint32_t i = 0; i < n; i++) {
			if (!(items[i].flags & SKV_STEP_PROMPT))
				check_row(of[i], m->vocab, logits + (size_t)row++ * m->vocab);
			of[i]->at += items[i].n_tokens;
			done += of[i]->at == of[i]->n;
		}
		ok(skv_step_end(session, NULL, NULL));
		decoded += row;
	}
	ck_assert_uint_gt(decoded, 0);
	for (int i = 0; i < 4; i++)
		free(tracks[i].want);
	skv_close(session);
	eng_forward_deinit(&f);
	eng_model_deinit(&model);
	fx_weights_free(w);
}
END_TEST

START_TEST(forward_refuses_bad_rows)
{
	struct fx_weights *w = fx_weights_new(&models[0]);
	struct eng_model model;
	struct eng_forward f;
	struct skv_model shape;
	struct skv_session *session;
	struct skv_seq *seq;
	struct eng_error err;
	int32_t ids[6] = {1, 2, 264, 3, 4, 5};
	struct skv_step_item item = SKV_STEP_ITEM(.n_tokens = 3, .flags = SKV_STEP_PROMPT, .tokens = ids);

	fx_model_write(&models[0], w, folder);
	ck_assert_int_eq(eng_model_load(&model, folder, eng_backend_host(), SKV_F32, &err), 0);
	ck_assert_int_eq(eng_forward_init(&f, &model, 5, &err), 0);
	shape = eng_model_describe(&model, SKV_F32);
	ok(skv_open(engine_client, &shape, "full", &session));
	ok(skv_seq_new(session, NULL, 4, &seq));
	item.seq = seq;
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), -EINVAL);
	ck_assert_str_eq(err.text, "token id 264, the vocabulary has 264");
	item.n_tokens = 6;
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), -EINVAL);
	ck_assert_str_eq(err.text, "a step of more than 5 rows");
	ids[2] = 0;
	item.n_tokens = 5;
	/* an error of the library, with its text */
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), -E2BIG);
	ck_assert_int_gt((int)strlen(err.text), 0);
	item.n_tokens = 4;
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), 0); /* no refused call left a step open */
	skv_step_abort(session);
	skv_close(session);
	eng_forward_deinit(&f);
	eng_model_deinit(&model);
	fx_weights_free(w);
}
END_TEST

/* ---- backends -------------------------------------------------------------------------------- */

#define RANDOM_SHAPE                                                                                         \
	.hidden = 96, .n_layers = 3, .n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .ffn = 200, .vocab = 300, \
	.max_positions = 2048, .rms_eps = 1e-5f, .rope = {.type = SKV_ROPE_DEFAULT, .theta = 10000}

static const struct eng_config shape_of_random = {RANDOM_SHAPE};
/*
 * With the families' extra parts. test-engine-golden compares the host with transformers; here the device is compared
 * with the host.
 */
static const struct eng_config random_shapes[] = {
	{RANDOM_SHAPE},
	{RANDOM_SHAPE, .qkv_bias = true, .tied = true},                     /* Qwen2 */
	{RANDOM_SHAPE, .qk_norm = true},                                    /* Qwen3 */
	{RANDOM_SHAPE, .qkv_bias = true, .o_bias = true, .mlp_bias = true}, /* Llama with all its biases */
};
#define RANDOM_SHAPES (sizeof(random_shapes) / sizeof(*random_shapes))

/* A model on a backend, and a session for it. */
struct bench {
	struct eng_model model;
	struct eng_forward f;
	struct skv_session *session;
};

static void bench_init(struct bench *b, const struct eng_config *config, const struct at *at,
                       const char *policy)
{
	struct skv_model shape;
	struct eng_error err;

	ck_assert_msg(!eng_model_random(&b->model, config, at->place, at->dtype, 11, &err), "%s", err.text);
	ck_assert_msg(!eng_forward_init(&b->f, &b->model, 800, &err), "%s", err.text);
	shape = eng_model_describe(&b->model, SKV_BF16);
	ok(skv_open(engine_client, &shape, policy, &b->session));
}

static void bench_deinit(struct bench *b)
{
	skv_close(b->session);
	eng_forward_deinit(&b->f);
	eng_model_deinit(&b->model);
}

/* Runs one step on both; their logits must agree. Returns the number of decode rows. */
static uint32_t step_both(struct bench *host, struct bench *device, const struct skv_step_item *items,
                          struct skv_seq *const *there, uint32_t n, double slack)
{
	uint32_t vocab = shape_of_random.vocab, rows = 0;
	struct skv_step_item other[n];
	const float *a, *b;
	struct eng_error err;

	for (uint32_t i = 0; i < n; i++) {
		other[i] = items[i];
		other[i].seq = there[i];
		rows += !(items[i].flags & SKV_STEP_PROMPT);
	}
	ck_assert_msg(!eng_forward(&host->f, host->session, items, n, &err), "%s", err.text);
	ck_assert_msg(!eng_forward(&device->f, device->session, other, n, &err), "%s", err.text);
	ck_assert_msg(!eng_forward_logits(&host->f, &a, &err), "%s", err.text);
	ck_assert_msg(!eng_forward_logits(&device->f, &b, &err), "%s", err.text);
	for (uint32_t i = 0; i < rows * vocab; i++)
		ck_assert_msg(fabs(a[i] - b[i]) < slack, "row %u, logit %u: %g on the host, %g on the device",
		              i / vocab, i % vocab, (double)a[i], (double)b[i]);
	ok(skv_step_end(host->session, NULL, NULL));
	ok(skv_step_end(device->session, NULL, NULL));
	return rows;
}

/* The same model and steps on the host and on the device, in fp32 and in bf16; pages are bf16. */
START_TEST(device_is_as_the_host)
{
	struct at at[3];
	struct bench host, device;
	struct track tracks[4];
	struct skv_seq *copy[4];
	double slack[] = {0, 0.02, 0.15};
	unsigned decoded = 0;
	const struct eng_config *shape = &random_shapes[(unsigned)_i % RANDOM_SHAPES];
	const unsigned place = 1 + (unsigned)_i / RANDOM_SHAPES;

	if (places_all(at) == 1)
		return;
	bench_init(&host, shape, &at[0], "full");
	bench_init(&device, shape, &at[place], "full");
	for (int i = 0; i < 4; i++) {
		tracks[i] = (struct track){.n = 20 + rnd_below(180)};
		tracks[i].prompt = rnd_below(tracks[i].n);
		for (uint32_t k = 0; k < tracks[i].n; k++)
			tracks[i].tokens[k] = (int32_t)rnd_below(shape_of_random.vocab);
		ok(skv_seq_new(host.session, NULL, 0, &tracks[i].seq));
		ok(skv_seq_new(device.session, NULL, 0, &copy[i]));
	}
	for (unsigned done = 0; done < 4;) {
		struct skv_step_item items[4];
		struct skv_seq *there[4];
		struct track *of[4];
		uint32_t n = next_items(tracks, 4, items, of);

		for (uint32_t i = 0; i < n; i++)
			there[i] = copy[of[i] - tracks];
		if (n)
			decoded += step_both(&host, &device, items, there, n, slack[place]);
		for (uint32_t i = 0; i < n; i++) {
			of[i]->at += items[i].n_tokens;
			done += of[i]->at == of[i]->n;
		}
	}
	ck_assert_uint_gt(decoded, 0);
	bench_deinit(&host);
	bench_deinit(&device);
}
END_TEST

/* Random weights of the families' extra parts have an effect: they change the logits. */
START_TEST(parts_of_random_models_count)
{
	const struct at at = {eng_backend_host(), SKV_F32};
	struct bench b[2];
	const float *logits[2];
	struct eng_error err;
	double most = 0;

	for (int i = 0; i < 2; i++) {
		int32_t ids[] = {5, 6, 7};
		struct skv_step_item item = SKV_STEP_ITEM(.n_tokens = 1);

		bench_init(&b[i], &random_shapes[i ? _i : 0], &at, "full");
		ok(skv_seq_new(b[i].session, NULL, 0, &item.seq));
		for (int t = 0; t < 3; t++) {
			item.tokens = &ids[t];
			ck_assert_msg(!eng_forward(&b[i].f, b[i].session, &item, 1, &err), "%s", err.text);
			ok(skv_step_end(b[i].session, NULL, NULL));
		}
		ck_assert_msg(!eng_forward_logits(&b[i].f, &logits[i], &err), "%s", err.text);
	}
	for (uint32_t i = 0; i < shape_of_random.vocab; i++)
		most = fmax(most, fabs(logits[0][i] - logits[1][i]));
	ck_assert_double_gt(most, 0.5);
	bench_deinit(&b[0]);
	bench_deinit(&b[1]);
}
END_TEST

/* Sequences that are decoded together: artificial prompts of different lengths, then `steps` tokens each. */
struct batch {
	uint32_t n, longest, steps;
};
#define BATCH_MOST 64

static uint32_t prompt_length(const struct batch *batch, uint32_t i)
{
	return batch->longest >> i % 3;
}

static void prompt_into(int32_t *ids, const struct batch *batch, uint32_t i, uint32_t vocab)
{
	for (uint32_t k = 0; k < prompt_length(batch, i); k++)
		ids[k] = (int32_t)((i * 7919u + k * k * 31u + k) % vocab);
}

/* Reads the prompts except their last tokens; each step publishes a next id. Waits for the device. */
static void read_prompts(struct bench *b, const struct batch *batch, struct skv_seq **seq)
{
	int32_t ids[batch->longest];
	struct eng_error err;

	for (uint32_t i = 0; i < batch->n; i++) {
		uint32_t n = prompt_length(batch, i) - 1;

		prompt_into(ids, batch, i, b->model.config.vocab);
		ok(skv_seq_new(b->session, NULL, 0, &seq[i]));
		for (uint32_t at = 0; at < n; at += 500) {
			struct skv_step_item item = SKV_STEP_ITEM(.seq = seq[i], .n_tokens = n - at < 500 ? n - at : 500);

			item.flags = SKV_STEP_PROMPT;
			item.tokens = ids + at;
			ck_assert_msg(!eng_forward(&b->f, b->session, &item, 1, &err), "%s", err.text);
			ck_assert_int_eq(eng_forward_choose(&b->f, ids + n, 1, &err), 0);
			ok(skv_step_end(b->session, b->f.id, NULL));
		}
		skv_seq_tokens(seq[i], NULL);
	}
}

enum way { AS_RECORDED, ONE_BY_ONE, FORCED };

/* Runs one step of all sequences; `said`: [sequence][steps], the tokens of an earlier run. */
static void decode_step(struct bench *b, const struct batch *batch, struct skv_seq **seq, enum way way,
                        uint32_t t, const int32_t *said)
{
	struct skv_step_item items[BATCH_MOST];
	int32_t ids[batch->longest], first[BATCH_MOST];
	struct eng_error err;

	for (uint32_t i = 0; i < batch->n; i++) {
		items[i] = SKV_STEP_ITEM(.seq = seq[i], .n_tokens = 1);
		if (!t) {
			prompt_into(ids, batch, i, b->model.config.vocab);
			first[i] = ids[prompt_length(batch, i) - 1];
			items[i].tokens = &first[i];
		} else if (way == FORCED) {
			items[i].tokens = &said[i * batch->steps + t - 1];
		}
	}
	ck_assert_msg(!eng_forward(&b->f, b->session, items, batch->n, &err), "%s", err.text);
	ok(skv_step_end(b->session, b->f.id, NULL));
}

/*
 * Decodes `steps` tokens: each chosen token is the next input without a copy to the host, or (FORCED) the inputs come
 * from `said`. Writes the tokens to `said`. Returns the seconds per step.
 */
static double decode(struct bench *b, const struct batch *batch, enum way way, int32_t *said)
{
	struct skv_seq *seq[BATCH_MOST];
	int32_t prompt[batch->longest];
	unsigned recorded = 0;
	double begun, seconds;

	read_prompts(b, batch, seq);
	b->f.one_by_one = way == ONE_BY_ONE;
	begun = eng_now();
	for (uint32_t t = 0; t < batch->steps; t++)
		decode_step(b, batch, seq, way, t, said);
	skv_seq_tokens(seq[0], NULL);
	seconds = (eng_now() - begun) / batch->steps;
	for (uint32_t i = 0; i < batch->n; i++) {
		uint32_t len, n = prompt_length(batch, i);
		const int32_t *ids = skv_seq_tokens(seq[i], &len);

		prompt_into(prompt, batch, i, b->model.config.vocab);
		ck_assert_uint_eq(len, n + batch->steps - 1);
		ck_assert_mem_eq(ids, prompt, n * sizeof(*ids));
		memcpy(said + i * batch->steps, ids + n, batch->steps * sizeof(*ids));
		skv_seq_drop(seq[i]);
	}
	for (uint32_t i = 0; i < ENG_RECORDINGS; i++)
		recorded += b->f.recordings.list[i].recording != NULL;
	ck_assert(way == ONE_BY_ONE || !b->model.backend->ops->record || recorded);
	return seconds;
}

/* Replayed steps choose the tokens of kernels launched one by one, and the tokens of forced inputs. */
START_TEST(ways_to_decode_agree)
{
	static const char *const policies[] = {"full", POLICY_PAGES "?budget=8&layers=1",
	                                       POLICY_WINDOW "?budget=0.25&dense=1"};
	const struct batch batch = {.n = 3, .longest = 1500, .steps = 200};
	int32_t first[3 * 200], other[3 * 200];
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++) {
		struct bench b;

		bench_init(&b, &random_shapes[(unsigned)_i % RANDOM_SHAPES], &at[a], policies[_i]);
		decode(&b, &batch, AS_RECORDED, first);
		decode(&b, &batch, ONE_BY_ONE, other);
		ck_assert_mem_eq(first, other, sizeof(first));
		decode(&b, &batch, FORCED, other);
		ck_assert_mem_eq(first, other, sizeof(first));
		decode(&b, &batch, AS_RECORDED, other);
		ck_assert_mem_eq(first, other, sizeof(first));
		bench_deinit(&b);
	}
}
END_TEST

/* The shape of Qwen2.5 1.5B, 64 sequences at a time, on a device. */
START_TEST(a_model_of_real_size)
{
	const struct eng_config config = {
		.hidden = 1536,
		.n_layers = 28,
		.n_heads = 12,
		.n_kv_heads = 2,
		.head_dim = 128,
		.ffn = 8960,
		.vocab = 151936,
		.max_positions = 4096,
		.rms_eps = 1e-6f,
		.rope = {.type = SKV_ROPE_DEFAULT, .theta = 10000},
	};
	const struct batch batch = {.n = BATCH_MOST, .longest = 1200, .steps = 60};
	static int32_t recorded[BATCH_MOST * 60], other[BATCH_MOST * 60];
	struct at at[3];
	struct bench b;
	double ms[2];

	if (places_all(at) == 1)
		return;
	bench_init(&b, &config, &at[2], "full");
	ms[0] = 1e3 * decode(&b, &batch, AS_RECORDED, recorded);
	ms[1] = 1e3 * decode(&b, &batch, ONE_BY_ONE, other);
	printf("1.5 B parameters, %u sequences: %.2f ms a step, %.2f one by one\n", batch.n, ms[0], ms[1]);
	ck_assert_mem_eq(recorded, other, sizeof(recorded));
	bench_deinit(&b);
}
END_TEST

/* An aborted step leaves nothing behind: the next one at the same position has the same logits. */
START_TEST(a_step_given_up)
{
	const struct batch batch = {.n = 1, .longest = 700};
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++) {
		float was[shape_of_random.vocab];
		struct bench b;
		struct skv_seq *seq;
		struct eng_error err;

		bench_init(&b, &shape_of_random, &at[a], "full");
		read_prompts(&b, &batch, &seq);
		for (int i = 0; i < 6; i++) {
			int32_t id = 7;
			struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = 1, .tokens = &id);
			const float *logits;

			ck_assert_msg(!eng_forward(&b.f, b.session, &item, 1, &err), "%s", err.text);
			ck_assert_msg(!eng_forward_logits(&b.f, &logits, &err), "%s", err.text);
			if (i)
				ck_assert_mem_eq(logits, was, sizeof(was));
			memcpy(was, logits, sizeof(was));
			skv_step_abort(b.session);
		}
		bench_deinit(&b);
	}
}
END_TEST

START_TEST(rows_without_ids_are_the_last_ones)
{
	struct at at = {eng_backend_host(), SKV_F32};
	struct bench b;
	struct skv_seq *seq[2];
	struct skv_step_item items[2];
	struct eng_error err;
	int32_t id = 3;

	bench_init(&b, &shape_of_random, &at, "full");
	for (int i = 0; i < 2; i++) {
		ok(skv_seq_new(b.session, NULL, 0, &seq[i]));
		items[i] = SKV_STEP_ITEM(.seq = seq[i], .n_tokens = 1);
	}
	ck_assert_int_eq(eng_forward(&b.f, b.session, items, 1, &err), -EINVAL);
	ck_assert_str_eq(err.text, "1 rows without token ids, the last step chose 0");
	items[0].tokens = &id;
	ck_assert_int_eq(eng_forward(&b.f, b.session, items, 2, &err), -EINVAL);
	ck_assert_str_eq(err.text, "token ids for all items expected, or decode rows and no ids");
	items[0].tokens = NULL;
	items[0].flags = SKV_STEP_PROMPT;
	ck_assert_int_eq(eng_forward(&b.f, b.session, items, 1, &err), -EINVAL);
	bench_deinit(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("engine: steps");
	TCase *t = add_case(s, "small models", 60, daemon_setup, daemon_teardown, forward_refuses_bad_rows,
	                    NULL);

	if (!places_begin("test-engine-forward"))
		return EXIT_FAILURE;
	tcase_add_loop_test(t, forward_is_right, 0, sizeof(models) / sizeof(*models));
	t = add_case(s, "places", 120, daemon_setup, daemon_teardown, a_model_of_real_size, a_step_given_up,
	             rows_without_ids_are_the_last_ones, NULL);
	tcase_add_loop_test(t, device_is_as_the_host, 0, 2 * (int)RANDOM_SHAPES);
	tcase_add_loop_test(t, ways_to_decode_agree, 0, 3);
	tcase_add_loop_test(t, parts_of_random_models_count, 1, (int)RANDOM_SHAPES);
	return run_suite(s);
}
