/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares small models of each family with the logits that transformers computes (golden/, made by
 * tests/compare-transformers.py). The logits must differ if a part that the family adds to a plain Llama is left out:
 * this shows that the part has an effect. Runs on the host, and on a device if there is one.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/forward.h"
#include "formats/safetensors.h"
#include "tests/support/engine-backends.h"
#include "tests/support/engine-daemon.h"
#include "tests/support/suite.h"

#define TOKENS 40u
#define PROMPT 13u /* the first of these tokens */
#define VOCAB 64u

static void without_rope_scaling(struct eng_model *m)
{
	m->config.rope.type = SKV_ROPE_DEFAULT;
}

static void without_attention_factor(struct eng_model *m)
{
	ck_assert_uint_eq(m->config.rope.type, SKV_ROPE_YARN);
	m->config.rope.attention = 1;
}

static void with_embedding_as_output(struct eng_model *m)
{
	m->output = m->embedding;
}

/* Leaves out a vector of each layer. */
#define WITHOUT(field)                                                  \
	static void without_##field(struct eng_model *m)                \
	{                                                               \
		for (uint32_t l = 0; l < m->config.n_layers; l++) {     \
			ck_assert_ptr_nonnull(m->layers[l].field);      \
			m->layers[l].field = NULL;                      \
		}                                                       \
	}
WITHOUT(qkv_bias)
WITHOUT(o_bias)
WITHOUT(gate_up_bias)
WITHOUT(down_bias)
WITHOUT(q_norm)
WITHOUT(k_norm)

static void without_window(struct eng_model *m)
{
	for (uint32_t l = 0; l < m->config.n_layers; l++)
		m->attention[l].window = 0;
}

/* Gives layer 0 the window of layer 1. */
static void with_window_in_all(struct eng_model *m)
{
	ck_assert_uint_eq(m->attention[0].window, 0);
	m->attention[0].window = m->attention[1].window;
}

static const struct {
	const char *model;
	void (*without)(struct eng_model *);
} golden[] = {
	{"llama3", without_rope_scaling}, /* tied */
	{"yarn", without_rope_scaling},   /* weights in fp16 */
	{"yarn", without_attention_factor},
	{"linear", without_rope_scaling}, /* Mistral */
	{"qwen2", without_qkv_bias},      /* four files */
	{"qwen2", with_embedding_as_output},
	{"qwen3", without_q_norm},        /* tied */
	{"qwen3", without_k_norm},
	{"biases", without_qkv_bias},     /* fp32 */
	{"biases", without_o_bias},
	{"biases", without_gate_up_bias},
	{"biases", without_down_bias},
	{"window", without_window},       /* Mistral */
	{"windows", without_window},      /* Qwen2: only its second layer has a window */
	{"windows", with_window_in_all},
};
#define MODELS (sizeof(golden) / sizeof(*golden))

struct expected {
	int32_t ids[TOKENS];
	float logits[TOKENS][VOCAB];
};

static void read_expected(const char *directory, struct expected *to)
{
	struct skv_safetensors st;
	struct eng_error err;
	float ids[TOKENS];
	char path[512];

	snprintf(path, sizeof(path), "%s/golden.safetensors", directory);
	ck_assert_msg(!skv_safetensors_open(&st, path, err.text, sizeof(err.text)), "%s", err.text);
	ck_assert_int_eq(skv_safetensors_read(&st, "ids", TOKENS, 0, ids, err.text, sizeof(err.text)), 0);
	ck_assert_int_eq(skv_safetensors_read(&st, "logits", TOKENS, VOCAB, to->logits[0], err.text, sizeof(err.text)),
	                 0);
	for (uint32_t i = 0; i < TOKENS; i++)
		to->ids[i] = (int32_t)ids[i];
	skv_safetensors_deinit(&st);
}

static void step(struct eng_forward *f, struct skv_session *session, struct skv_seq *seq, const int32_t *ids,
                 uint32_t n, uint32_t flags)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = flags, .tokens = ids);
	struct eng_error err;

	ck_assert_msg(!eng_forward(f, session, &item, 1, &err), "%s", err.text);
	ok(skv_step_end(session, NULL, NULL));
}

/* Returns the largest difference of any logit of the tokens decoded after a prompt. */
static double difference(const struct at *at, const char *directory, const struct expected *want,
                         void (*without)(struct eng_model *))
{
	struct eng_model model;
	struct eng_forward f;
	struct eng_error err;
	struct skv_model shape;
	struct skv_session *session;
	struct skv_seq *seq;
	double most = 0;

	ck_assert_msg(!eng_model_load(&model, directory, at->place, at->dtype, &err), "%s", err.text);
	if (without)
		without(&model);
	ck_assert_int_eq(eng_forward_init(&f, &model, TOKENS, &err), 0);
	shape = eng_model_describe(&model, at->place->device == SKV_DEVICE_HOST ? SKV_F32 : SKV_BF16);
	ok(skv_open(engine_client, &shape, "full", &session));
	ok(skv_seq_new(session, NULL, 0, &seq));
	step(&f, session, seq, want->ids, PROMPT, SKV_STEP_PROMPT);
	for (uint32_t t = PROMPT; t < TOKENS; t++) {
		const float *logits;

		step(&f, session, seq, want->ids + t, 1, 0);
		ck_assert_int_eq(eng_forward_logits(&f, &logits, &err), 0);
		for (uint32_t i = 0; i < VOCAB; i++)
			most = fmax(most, fabs(logits[i] - want->logits[t][i]));
	}
	eng_forward_deinit(&f);
	skv_close(session);
	eng_model_deinit(&model);
	return most;
}

START_TEST(logits_are_as_in_transformers)
{
	static const double most[] = {1e-4, 0.25, 0.45}; /* fp32; bf16 pages; all in bf16 */
	const char *model = golden[_i].model;
	struct expected want;
	char directory[480], name[64];
	struct at at[3];
	unsigned n_at = places_all(at);

	snprintf(name, sizeof(name), "tests/unit/engine/golden/%s", model);
	snprintf(directory, sizeof(directory), "%s", run_source(name));
	read_expected(directory, &want);
	for (unsigned a = 0; a < n_at; a++) {
		double with = difference(&at[a], directory, &want, NULL);
		double without = difference(&at[a], directory, &want, golden[_i].without);

		ck_assert_msg(with < most[a], "%s, place %u: a logit is %g off", model, a, with);
		ck_assert_msg(without > 2 * most[a], "%s, place %u: what is left out changes logits by %g only", model,
		              a, without);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("engine: golden logits");
	TCase *t = add_case(s, "families", 60, daemon_setup, daemon_teardown, NULL);

	if (!places_begin("test-engine-golden"))
		return EXIT_FAILURE;
	tcase_add_loop_test(t, logits_are_as_in_transformers, 0, (int)MODELS);
	return run_suite(s);
}
