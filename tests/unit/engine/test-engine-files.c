/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the engine's input files, good and bad: config.json, models, tasks. Tensors: test-safetensors.c. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/config.h"
#include "engine/model.h"
#include "engine/tasks.h"
#include "engine/tokens.h"
#include "tests/support/engine-fixture.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static char *folder;

static void setup(void)
{
	folder = fx_folder();
}

static void teardown(void)
{
	fx_remove(folder);
}

/* A text that must be refused, and what the error must say. */
struct bad {
	const char *text, *says;
};

/* ---- config.json ----------------------------------------------------------------------------- */

#define BARE                                                                                                 \
	"\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"    \
	"\"intermediate_size\":96,\"vocab_size\":264,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6"
#define SHAPE BARE ",\"bos_token_id\":256,\"eos_token_id\":[257,258]"
#define LLAMA3                                                                                               \
	",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"original_max_position_embeddings\":8192,"
#define YARN                                                                                                 \
	",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32768"
#define MISTRAL "{\"architectures\":[\"MistralForCausalLM\"],"
#define QWEN2 "{\"architectures\":[\"Qwen2ForCausalLM\"],"
#define QWEN3 "{\"architectures\":[\"Qwen3ForCausalLM\"],"
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"],"

static int load_config(const char *text, struct eng_config *c, struct eng_error *err)
{
	const char *path = fx_path(folder, "config.json");

	fx_text(path, text);
	return eng_config_load(c, path, err);
}

START_TEST(config_is_understood)
{
	struct eng_config c;
	struct eng_error err;

	ck_assert_int_eq(load_config(LLAMA SHAPE "}", &c, &err), 0);
	ck_assert(c.hidden == 64 && c.n_layers == 2 && c.n_heads == 4 && c.n_kv_heads == 2 &&
	          c.head_dim == 16);
	ck_assert(c.ffn == 96 && c.vocab == 264 && c.max_positions == 128 && c.bos == 256 && c.eos == 257 &&
	          !c.tied);
	ck_assert(c.rope.type == SKV_ROPE_DEFAULT && c.rope.theta == 10000);
	ck_assert_float_eq(c.rms_eps, 1e-6f);

	ck_assert_int_eq(load_config(LLAMA SHAPE
	                             ",\"head_dim\":32,\"tie_word_embeddings\":true,\"attention_bias\":false,"
	                             "\"sliding_window\":null,\"rope_theta\":5e5,\"rope_scaling\":null}",
	                             &c, &err),
	                 0);
	ck_assert(c.head_dim == 32 && c.tied && c.rope.theta == 5e5);

	ck_assert_int_eq(load_config(LLAMA SHAPE
	                             ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e5}}",
	                             &c, &err),
	                 0);
	ck_assert(c.rope.theta == 7e5);
	ck_assert_int_eq(
		load_config(LLAMA SHAPE
	                    ",\"rope_theta\":9e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}",
	                    &c, &err),
		0);
	ck_assert(c.rope.type == SKV_ROPE_LINEAR && c.rope.theta == 9e5 && c.rope.factor == 4);
	ck_assert_int_eq(load_config(LLAMA SHAPE LLAMA3 "\"low_freq_factor\":1,\"high_freq_factor\":4}}", &c, &err), 0);
	ck_assert(c.rope.type == SKV_ROPE_LLAMA3 && c.rope.factor == 8 && c.rope.low == 1 && c.rope.high == 4 &&
	          c.rope.original == 8192);
	ck_assert_int_eq(load_config(LLAMA SHAPE YARN "}}", &c, &err), 0);
	ck_assert(c.rope.type == SKV_ROPE_YARN && c.rope.factor == 4 && c.rope.low == 1 && c.rope.high == 32 &&
	          c.rope.original == 32768 && c.rope.attention == 0);
	ck_assert_int_eq(load_config(LLAMA SHAPE YARN ",\"beta_slow\":2,\"beta_fast\":16,\"attention_factor\":0.5}}",
	                             &c, &err),
	                 0);
	ck_assert(c.rope.low == 2 && c.rope.high == 16 && c.rope.attention == 0.5);
}
END_TEST

/* Missing keys have the defaults of transformers. */
START_TEST(rope_has_defaults)
{
	struct eng_config c;
	struct eng_error err;

	ck_assert_int_eq(load_config(LLAMA SHAPE ",\"rope_theta\":3e4,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
	                             &c, &err), 0);
	ck_assert(c.rope.type == SKV_ROPE_YARN && c.rope.original == 128 && c.rope.theta == 3e4);
	/* a key beside the rope object takes precedence over the same key in it */
	ck_assert_int_eq(load_config(LLAMA SHAPE YARN "},\"original_max_position_embeddings\":64}", &c, &err), 0);
	ck_assert(c.rope.original == 64);
	/* mscale and mscale_all_dim count only if both are given */
	ck_assert_int_eq(load_config(LLAMA SHAPE YARN ",\"mscale\":0.5}}", &c, &err), 0);
	ck_assert(c.rope.attention == 0);
	ck_assert_int_eq(load_config(LLAMA SHAPE YARN ",\"mscale\":1,\"mscale_all_dim\":0.5}}", &c, &err), 0);
	ck_assert_double_eq_tol(c.rope.attention, (0.1 * log(4) + 1) / (0.05 * log(4) + 1), 1e-12);
	ck_assert_int_eq(load_config(LLAMA SHAPE YARN ",\"attention_factor\":null,\"beta_fast\":null}}", &c, &err), 0);
	ck_assert(c.rope.attention == 0 && c.rope.high == 32);
	/* theta beside rope_parameters, or missing; rope_scaling takes precedence over rope_parameters */
	ck_assert_int_eq(load_config(LLAMA SHAPE ",\"rope_theta\":5e4,\"rope_parameters\":{\"rope_type\":\"default\"}}",
	                             &c, &err), 0);
	ck_assert(c.rope.theta == 5e4);
	ck_assert_int_eq(load_config(LLAMA SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\"}}", &c, &err), 0);
	ck_assert(c.rope.theta == 10000);
	ck_assert_int_eq(load_config(LLAMA SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e5},"
	                             "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":8e5}}",
	                             &c, &err), 0);
	ck_assert(c.rope.type == SKV_ROPE_LINEAR && c.rope.factor == 2 && c.rope.theta == 8e5);
}
END_TEST

START_TEST(families_differ)
{
	struct eng_config c;
	struct eng_error err;

	ck_assert_int_eq(load_config(LLAMA SHAPE ",\"attention_bias\":true,\"mlp_bias\":true}", &c, &err), 0);
	ck_assert(c.qkv_bias && c.o_bias && c.mlp_bias && !c.qk_norm);
	/* the default window of 4,096, though there are 128 positions */
	ck_assert_int_eq(load_config(MISTRAL SHAPE "}", &c, &err), 0);
	ck_assert(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && c.window[0] == 4096 && c.window[1] == 4096);
	ck_assert_int_eq(load_config(MISTRAL SHAPE ",\"sliding_window\":null,\"head_dim\":null}", &c, &err), 0);
	ck_assert(c.window[0] == 0 && c.head_dim == 16);
	ck_assert_int_eq(load_config(QWEN2 SHAPE ",\"sliding_window\":64,\"max_window_layers\":0}", &c, &err), 0);
	ck_assert(c.qkv_bias && !c.o_bias && !c.qk_norm && c.head_dim == 16 && c.window[0] == 0 && c.window[1] == 0);
	ck_assert_int_eq(load_config(QWEN2 SHAPE ",\"use_sliding_window\":true,\"sliding_window\":128,"
	                             "\"max_window_layers\":1}", &c, &err), 0);
	ck_assert(c.window[0] == 0 && c.window[1] == 128);
	ck_assert_int_eq(load_config(QWEN2 SHAPE ",\"use_sliding_window\":true,\"max_window_layers\":0,"
	                             "\"quantization_config\":null}", &c, &err), 0);
	ck_assert(c.window[0] == 4096 && c.window[1] == 4096);
	ck_assert_int_eq(load_config(QWEN3 SHAPE ",\"use_sliding_window\":true,\"sliding_window\":128,"
	                             "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}", &c, &err), 0);
	ck_assert(c.window[0] == 128 && c.window[1] == 0);
	ck_assert_int_eq(load_config(QWEN3 SHAPE "}", &c, &err), 0);
	ck_assert(!c.qkv_bias && !c.o_bias && c.qk_norm && c.head_dim == 128);
	ck_assert_int_eq(load_config(QWEN3 SHAPE ",\"attention_bias\":true,\"head_dim\":32}", &c, &err), 0);
	ck_assert(c.qkv_bias && c.o_bias && c.head_dim == 32);
}
END_TEST

START_TEST(texts_end)
{
	struct eng_config c;
	struct eng_error err;

	ck_assert_int_eq(load_config(LLAMA SHAPE "}", &c, &err), 0);
	ck_assert(eng_config_ends(&c, 257) && eng_config_ends(&c, 258) && !eng_config_ends(&c, 256));
	ck_assert_int_eq(load_config(LLAMA BARE ",\"eos_token_id\":0,\"bos_token_id\":null}", &c, &err), 0);
	ck_assert(c.bos == -1 && c.eos == 0 && eng_config_ends(&c, 0) && !eng_config_ends(&c, -1));
	for (int i = 0; i < 3; i++) { /* texts without an end token */
		static const char *const none[] = {LLAMA BARE "}", LLAMA BARE ",\"eos_token_id\":null}", LLAMA BARE ",\"eos_token_id\":[]}"};

		ck_assert_int_eq(load_config(none[i], &c, &err), 0);
		ck_assert(c.eos == -1 && !eng_config_ends(&c, -1) && !eng_config_ends(&c, 0));
	}
}
END_TEST

/* Python's json module writes such numbers; in keys that the engine does not need they are no error. */
START_TEST(numbers_of_python)
{
	struct eng_config c;
	struct eng_error err;

	ck_assert_msg(!load_config(LLAMA SHAPE ",\"model_max_length\":1000000000000000019884624838656,\"a\":NaN,\"b\":[Infinity,-Infinity],"
	                           "\"c\":-99999999999999999999,\"NaN \\\"1e999\":\"12345678901234567890123\"}",
	                           &c, &err), "%s", err.text);
	ck_assert_int_eq(load_config(LLAMA "\"hidden_size\":NaN}", &c, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, "\"hidden_size\" is null"), "%s", err.text);
	ck_assert_int_eq(load_config(LLAMA "\"hidden_size\":100000000000000000000}", &c, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, "\"hidden_size\" is 1e20") || strstr(err.text, "\"hidden_size\" is 1.0e20"), "%s", err.text);
	ck_assert_int_eq(load_config(LLAMA SHAPE ",\"a\":nan}", &c, &err), -EINVAL); /* Python writes NaN */
}
END_TEST

static const struct bad bad_configs[] = {
	{"", "config.json:1"},
	{"[1]", "not a JSON object"},
	{LLAMA SHAPE ",\"vocab_size\":3}", "duplicate"},
	{"{" SHAPE "}", "\"architectures\" is missing"},
	{"{\"architectures\":[\"GPT2LMHeadModel\"]," SHAPE "}",
         "is [\"GPT2LMHeadModel\"], one of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3"},
	{"{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SHAPE "}", "is [\"Qwen3MoeForCausalLM\"], one of"},
	{"{\"architectures\":[\"SmolLM3ForCausalLM\"]," SHAPE "}", "is [\"SmolLM3ForCausalLM\"], one of"},
	{LLAMA "\"hidden_size\":64}",
         "\"num_hidden_layers\" is missing, a whole number from 1 to 256 expected"},
	{LLAMA "\"hidden_size\":0}", "\"hidden_size\" is 0"},
	{LLAMA "\"hidden_size\":64.5}", "\"hidden_size\" is 64.5"},
	{LLAMA "\"hidden_size\":\"64\"}", "\"hidden_size\" is \"64\""},
	{LLAMA "\"hidden_size\":1e999}", "config.json"},
	{LLAMA SHAPE ",\"head_dim\":24}", "\"head_dim\" is 24, a multiple of 16"},
	{LLAMA SHAPE ",\"head_dim\":272}", "\"head_dim\" is 272"},
	{LLAMA SHAPE ",\"hidden_act\":\"gelu\"}", "\"hidden_act\" is \"gelu\", \"silu\" expected"},
	{LLAMA SHAPE ",\"attention_bias\":1}", "\"attention_bias\" is 1, true or false expected"},
	{MISTRAL SHAPE ",\"attention_bias\":true}", "\"attention_bias\" is true, null or false"},
	{QWEN2 SHAPE ",\"attention_bias\":true}", "\"attention_bias\" is true, null or false"},
	{MISTRAL SHAPE ",\"mlp_bias\":true}", "\"mlp_bias\" is true"},
	{LLAMA SHAPE ",\"sliding_window\":4096}", "\"sliding_window\" is 4096"},
	{LLAMA SHAPE ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "\"full_attention\" for each layer, as there is no sliding window"},
	{MISTRAL SHAPE ",\"layer_types\":[\"full_attention\",\"full_attention\"]}", "\"layer_types\" is ["},
	{QWEN2 SHAPE ",\"max_window_layers\":-1}", "\"max_window_layers\" is -1"},
	{MISTRAL SHAPE ",\"sliding_window\":0}", "\"sliding_window\" is 0, a whole number from 1"},
	{QWEN2 SHAPE ",\"use_sliding_window\":1}", "\"use_sliding_window\" is 1, true or false"},
	{QWEN2 SHAPE ",\"sliding_window\":64,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "\"full_attention\" for each layer, as there is no sliding window"},
	{QWEN2 SHAPE ",\"layer_types\":[\"full_attention\"]}", "a list of num_hidden_layers words"},
	{QWEN3 SHAPE ",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\",\"chunked_attention\"]}",
         "\"full_attention\" or \"sliding_attention\" for each layer"},
	{LLAMA SHAPE ",\"partial_rotary_factor\":0.25}", "\"partial_rotary_factor\" is 0.25, 1 expected"},
	{LLAMA BARE ",\"bos_token_id\":264,\"eos_token_id\":1}", "\"bos_token_id\" is 264"},
	{LLAMA BARE ",\"eos_token_id\":true}", "\"eos_token_id\" is true, a token id below vocab_size, a list"},
	{LLAMA BARE ",\"eos_token_id\":[1,264]}", "\"eos_token_id\" is [1,264]"},
	{LLAMA BARE ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "\"eos_token_id\" is [1,2,3,4,5,6,7,8,9]"},
	{LLAMA SHAPE ",\"quantization_config\":{}}", "quantization_config"},
	{LLAMA SHAPE ",\"rope_theta\":-1}", "\"rope_theta\" is -1"},
	{LLAMA SHAPE ",\"rope_scaling\":4}", "\"rope_scaling\" is 4, an object expected"},
	{LLAMA SHAPE ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4}}",
         "\"type\" is \"longrope\", \"default\""},
	{LLAMA SHAPE ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", "\"type\" is \"dynamic\", \"default\""},
	{LLAMA SHAPE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}}",
         "\"original_max_position_embeddings\" is 0, a number above 0"},
	{LLAMA SHAPE YARN ",\"beta_fast\":1}}", "\"beta_fast\" is 1, more than beta_slow"},
	{LLAMA SHAPE YARN ",\"mscale\":-0.5,\"mscale_all_dim\":1}}", "\"mscale\" is -0.5"},
	{LLAMA SHAPE YARN ",\"truncate\":false}}", "\"truncate\" is false, true"},
	{LLAMA SHAPE YARN ",\"attention_factor\":0}}", "\"attention_factor\" is 0"},
	{LLAMA SHAPE ",\"rope_scaling\":{\"factor\":4}}", "\"type\" is missing"},
	{LLAMA SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":0}}", "\"rope_theta\" is 0"},
	{LLAMA SHAPE ",\"rope_theta\":1}", "\"rope_theta\" is 1, a number above 1"},
	{LLAMA SHAPE
         ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":2,\"partial_rotary_factor\":0.5}}",
         "\"partial_rotary_factor\" is 0.5"},
	{LLAMA SHAPE LLAMA3 "\"low_freq_factor\":4,\"high_freq_factor\":4}}",
         "more than low_freq_factor"},
};

START_TEST(config_is_refused)
{
	struct eng_config c = {.hidden = 7};
	struct eng_error err;

	ck_assert_int_eq(load_config(bad_configs[_i].text, &c, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, bad_configs[_i].says), "%s\n says: %s\n expected: %s",
	              bad_configs[_i].text, err.text, bad_configs[_i].says);
	ck_assert_uint_eq(c.hidden, 7);
}
END_TEST

START_TEST(config_survives_random_damage)
{
	const char good[] = LLAMA SHAPE
		",\"head_dim\":32,\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":5e5,"
		"\"factor\":2},\"attention_bias\":false}";
	struct eng_config c;
	struct eng_error err;

	for (unsigned round = 0; round < 4000; round++) {
		char text[sizeof(good)];

		memcpy(text, good, sizeof(good));
		for (unsigned k = rnd_below(3) + 1; k; k--)
			text[rnd_below(sizeof(good) - 1)] = "0123456789[]{},:\"-.eEn"[rnd_below(22)];
		if (!load_config(text, &c, &err)) {
			ck_assert(c.head_dim % 16 == 0 && c.head_dim && c.n_kv_heads &&
			          c.n_heads % c.n_kv_heads == 0);
			ck_assert(c.bos >= -1 && c.bos < (int)c.vocab && c.eos >= -1 && c.eos < (int)c.vocab && c.rope.theta > 0);
		}
	}
}
END_TEST

START_TEST(vocabulary_must_be_bytes)
{
	struct eng_config small = {.vocab = 264, .bos = 256, .eos = 257},
			  words = {.vocab = 32000, .bos = 1, .eos = 2};
	struct eng_config large = {.vocab = 128256, .bos = 128000, .eos = 128001};
	struct eng_error err;

	ck_assert_int_eq(eng_tokens_check_bytes(&small, &err), 0);
	ck_assert_int_eq(eng_tokens_check_bytes(&words, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "not bytes: 32000 ids"));
	ck_assert_int_eq(eng_tokens_check_bytes(&large, &err), -EINVAL);
}
END_TEST

START_TEST(bytes_are_tokens)
{
	struct eng_tokens t;
	struct eng_error err;
	struct skv_ids ids = SKV_IDS_NULL;

	fx_text(fx_path(folder, "config.json"), LLAMA SHAPE "}");
	ck_assert_msg(!eng_tokens_load(&t, folder, NULL, &err), "%s", err.text);
	ck_assert_ptr_null(t.tokenizer);
	ck_assert_int_eq(eng_tokens_prompt(&t, "a\0\xff", 3, &ids, &err), 0);
	ck_assert(ids.n == 4 && ids.id[0] == 256 && ids.id[1] == 'a' && ids.id[2] == 0 && ids.id[3] == 255);
	ck_assert(eng_tokens_is_end(&t, 257) && !eng_tokens_is_end(&t, 256) && eng_tokens_ends_line(&t, '\n'));
	eng_tokens_deinit(&t);
	/* generation_config.json adds ids that end a text */
	fx_text(fx_path(folder, "generation_config.json"), "{\"eos_token_id\": [257, 10]}");
	ck_assert_int_eq(eng_tokens_load(&t, folder, NULL, &err), 0);
	ck_assert(t.eos == 257 && t.n_ends == 3 && eng_tokens_is_end(&t, 258) && eng_tokens_is_end(&t, 10));
	eng_tokens_deinit(&t);
	fx_text(fx_path(folder, "generation_config.json"), "{\"eos_token_id\": 264}");
	ck_assert_int_eq(eng_tokens_load(&t, folder, NULL, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "generation_config.json: \"eos_token_id\": an id below 264"));
	skv_ids_deinit(&ids);
}
END_TEST

/* ---- whole models ---------------------------------------------------------------------------- */

static int load_model(struct eng_error *err)
{
	struct eng_model m;
	int r = eng_model_load(&m, folder, eng_backend_host(), SKV_BF16, err);

	if (!r)
		eng_model_deinit(&m);
	return r;
}

/* Replaces the first `from` in a file by `to` of the same length. */
static void patch(const char *name, const char *from, const char *to)
{
	size_t n;
	char *bytes = fx_read(fx_path(folder, name), &n), *at = memmem(bytes, n, from, strlen(from));

	ck_assert_ptr_nonnull(at);
	memcpy(at, to, strlen(to));
	fx_write(fx_path(folder, name), bytes, n);
	free(bytes);
}

START_TEST(models_are_described)
{
	struct fx_model tiny = FX_TINY;
	struct fx_weights *w = fx_weights_new(&tiny);
	struct eng_error err;
	struct eng_model m;
	char *real = realpath(folder, NULL);
	struct skv_model d;

	fx_model_write(&tiny, w, folder);
	fx_weights_free(w);
	ck_assert_ptr_nonnull(real);
	ck_assert_msg(!eng_model_load(&m, folder, eng_backend_host(), SKV_BF16, &err), "%s", err.text);
	d = eng_model_describe(&m, SKV_BF16);
	ck_assert_uint_eq(d.size, sizeof(d));
	ck_assert(d.n_layers == m.config.n_layers && d.kv_dtype == SKV_BF16 && d.io_dtype == SKV_F32);
	ck_assert_str_eq(d.files, real);
	ck_assert(d.rope.type == SKV_ROPE_DEFAULT && d.rope.theta == m.config.rope.theta);
	eng_model_deinit(&m);
	free(real);
}
END_TEST

START_TEST(models_must_match_their_config)
{
	struct fx_model tiny = FX_TINY;
	struct fx_weights *w = fx_weights_new(&tiny);
	struct eng_error err;

	fx_model_write(&tiny, w, folder);
	ck_assert_msg(!load_model(&err), "%s", err.text);
	patch("config.json", "\"num_hidden_layers\":3", "\"num_hidden_layers\":4");
	ck_assert_int_eq(load_model(&err), -ENOENT);
	ck_assert_ptr_nonnull(
		strstr(err.text, "model.layers.3.input_layernorm.weight is missing (48 expected)"));
	fx_model_write(&tiny, w, folder);
	patch("config.json", "\"intermediate_size\":80", "\"intermediate_size\":90");
	ck_assert_int_eq(load_model(&err), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err.text, "mlp.gate_proj.weight is 80 × 48, 90 × 48 expected"));
	fx_model_write(&tiny, w, folder);
	patch("config.json", "\"tie_word_embeddings\":true", "\"tie_word_embeddings\":null");
	ck_assert_int_eq(load_model(&err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.text, "lm_head.weight is missing"));
	fx_model_write(&tiny, w, folder);
	patch("model.safetensors", "\"BF16\",\"shape\":[48]", "\"I16\" ,\"shape\":[48]");
	ck_assert_int_eq(load_model(&err), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err.text, "has dtype I16, F32, F16 or BF16 expected"));
	unlink(fx_path(folder, "model.safetensors"));
	ck_assert_int_eq(load_model(&err), -ENOENT);
	fx_weights_free(w);
}
END_TEST

/* A checkpoint's own output matrix is used even if the configuration says that it is tied to the embedding. */
START_TEST(tied_with_an_output_of_its_own)
{
	struct fx_model tiny = FX_TINY;
	struct fx_weights *w;
	struct eng_model m;
	struct eng_error err;

	tiny.tied = false;
	w = fx_weights_new(&tiny);
	fx_model_write(&tiny, w, folder);
	fx_weights_free(w);
	patch("config.json", "\"tie_word_embeddings\":false", "\"tie_word_embeddings\":true ");
	ck_assert_msg(!eng_model_load(&m, folder, eng_backend_host(), SKV_F32, &err), "%s", err.text);
	ck_assert(!m.config.tied && m.output != m.embedding);
	ck_assert(memcmp(m.output, m.embedding, 48 * sizeof(float)) != 0);
	eng_model_deinit(&m);
	tiny.tied = true;
	w = fx_weights_new(&tiny);
	fx_model_write(&tiny, w, folder);
	fx_weights_free(w);
	ck_assert_int_eq(eng_model_load(&m, folder, eng_backend_host(), SKV_F32, &err), 0);
	ck_assert(m.config.tied && m.output == m.embedding);
	eng_model_deinit(&m);
}
END_TEST

/* Sequences belong to a model by its name, so other weights must give another name. */
START_TEST(names_tell_weights_apart)
{
	struct fx_model tiny = FX_TINY;
	struct eng_model a, b;
	struct eng_error err;

	for (int i = 0; i < 2; i++) {
		struct fx_weights *w = fx_weights_new(&tiny);

		fx_model_write(&tiny, w, folder);
		fx_weights_free(w);
		ck_assert_int_eq(eng_model_load(i ? &b : &a, folder, eng_backend_host(), SKV_F32, &err), 0);
	}
	ck_assert_str_ne(a.name, b.name);
	ck_assert_str_eq(eng_model_describe(&a, SKV_F16).name, a.name);
	eng_model_deinit(&a);
	eng_model_deinit(&b);
}
END_TEST

/* ---- task files ------------------------------------------------------------------------------ */

#define CASE(id, task, size)                                                                                 \
	"{\"id\":\"" id "\",\"task\":\"" task "\",\"size\":" size                                            \
	",\"prompt\":\"p\\u0000\",\"answer\":\"a\\n\"}\n"

/* A model whose tokens are bytes. */
static int32_t bos = 256;
static const struct eng_tokens bytes = {.begin = {&bos, 1, 1}, .vocab = 264, .eos = 257, .ends = {257}, .n_ends = 1};

START_TEST(cases_have_ids_or_text)
{
	const char *path = fx_path(folder, "t.jsonl");
	struct eng_task_filter all = {.limit = 0}, short_ones = {.longest = 5};
	struct eng_cases cases;
	struct eng_error err;

	fx_text(path, "{\"id\":\"a\",\"task\":\"t\",\"size\":1,\"prompt_ids\":[7,263],\"answer_ids\":[9]}\n"
	              "{\"id\":\"b\",\"task\":\"t\",\"size\":1,\"prompt\":\"pqr\",\"answer\":\"a\",\"eos\":false}\n"
	              "{\"id\":\"c\",\"task\":\"t\",\"size\":1,\"prompt\":\"pqrs\",\"answer_ids\":[9,8]}\n");
	ck_assert_msg(!eng_cases_load(&cases, path, &all, &bytes, &err), "%s", err.text);
	ck_assert(cases.n == 3 && cases.list[0].n_prompt == 2 && cases.list[0].prompt[1] == 263);
	ck_assert(cases.list[0].n_answer == 1 && cases.list[1].n_answer == 1 && cases.list[1].answer[0] == 'a');
	ck_assert(cases.list[2].n_prompt == 5 && cases.list[2].prompt[0] == 256 && cases.list[2].n_answer == 2);
	eng_cases_deinit(&cases);
	ck_assert_int_eq(eng_cases_load(&cases, path, &short_ones, &bytes, &err), 0);
	ck_assert_uint_eq(cases.n, 2);
	eng_cases_deinit(&cases);
}
END_TEST

START_TEST(cases_are_filtered)
{
	const char *path = fx_path(folder, "t.jsonl");
	const uint32_t sizes[] = {512, 1024};
	const char *const tasks[] = {"kv"};
	struct eng_task_filter all = {.limit = 0}, limited = {.limit = 1},
			       chosen = {.sizes = sizes, .n_sizes = 2, .tasks = tasks, .n_tasks = 1};
	struct eng_cases cases;
	struct eng_error err;

	fx_text(path, CASE("1", "kv", "512") CASE("2", "kv", "512") "\n" CASE("3", "vt", "512")
	                      CASE("4", "kv", "2048"));
	ck_assert_int_eq(eng_cases_load(&cases, path, &all, &bytes, &err), 0);
	ck_assert_uint_eq(cases.n, 4);
	ck_assert(cases.list[0].n_prompt == 3 && !memcmp(cases.list[0].prompt, (int32_t[]){256, 'p', 0}, 12));
	ck_assert(cases.list[0].n_answer == 3 && !memcmp(cases.list[0].answer, (int32_t[]){'a', '\n', 257}, 12));
	eng_cases_deinit(&cases);
	ck_assert_int_eq(eng_cases_load(&cases, path, &limited, &bytes, &err), 0);
	ck_assert_uint_eq(cases.n, 3);
	ck_assert_str_eq(cases.list[2].id, "4");
	eng_cases_deinit(&cases);
	ck_assert_int_eq(eng_cases_load(&cases, path, &chosen, &bytes, &err), 0);
	ck_assert_uint_eq(cases.n, 2);
	eng_cases_deinit(&cases);
	chosen.sizes = &sizes[1];
	chosen.n_sizes = 1;
	ck_assert_int_eq(eng_cases_load(&cases, path, &chosen, &bytes, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "no case is left"));
}
END_TEST

static const struct bad bad_tasks[] = {
	{"", "is empty"},
	{CASE("1", "kv", "512") "{\"id\":\n", "t.jsonl:2: column"},
	{"5\n", "t.jsonl:1"},
	{"[]\n", "t.jsonl:1: a JSON object expected"},
	{CASE("1", "kv", "512") CASE("1", "kv", "0"), "t.jsonl:2: \"size\": a whole number above 0"},
	{CASE("1", "kv", "5.5"), "\"size\""},
	{CASE("1", "", "5"), "\"task\""},
	{"{\"id\":3,\"task\":\"kv\",\"size\":5,\"prompt\":\"p\",\"answer\":\"a\"}", "\"id\": a string"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt\":\"\",\"answer\":\"a\"}", "\"prompt\""},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt\":\"p\"}", "\"answer\""},
	{"{\"id\":\"3\",\"id\":\"3\"}", "duplicate"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt\":\"p\",\"prompt_ids\":[1],\"answer\":\"a\"}",
	 "\"prompt\" and \"prompt_ids\": one of them"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt_ids\":[1,264],\"answer\":\"a\"}", "number 2: an id below 264"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt_ids\":\"x\",\"answer\":\"a\"}", "\"prompt_ids\": a list of ids"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt\":\"p\",\"answer_ids\":[]}", "\"answer_ids\": a list of ids"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt\":\"p\",\"answer\":\"\",\"eos\":false}", "\"answer\": a token"},
	{"{\"id\":\"3\",\"task\":\"kv\",\"size\":5,\"prompt\":\"p\",\"answer\":\"\",\"eos\":1}", "\"eos\": true or false"},
};

START_TEST(tasks_are_refused)
{
	const char *path = fx_path(folder, "t.jsonl");
	struct eng_task_filter all = {.limit = 0};
	struct eng_cases cases;
	struct eng_error err;

	fx_text(path, bad_tasks[_i].text);
	ck_assert_int_eq(eng_cases_load(&cases, path, &all, &bytes, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, bad_tasks[_i].says), "says: %s\n expected: %s", err.text,
	              bad_tasks[_i].says);
	ck_assert_int_eq(eng_cases_load(&cases, fx_path(folder, "absent"), &all, &bytes, &err), -ENOENT);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-files");
	TCase *t = add_case(s, "config", 30, setup, teardown, config_survives_random_damage,
	                    vocabulary_must_be_bytes, bytes_are_tokens, models_are_described, models_must_match_their_config,
	                    tied_with_an_output_of_its_own, names_tell_weights_apart, config_is_understood, numbers_of_python, rope_has_defaults, families_differ, texts_end, NULL);

	tcase_add_loop_test(t, config_is_refused, 0, sizeof(bad_configs) / sizeof(*bad_configs));
	t = add_case(s, "tasks", 60, setup, teardown, cases_are_filtered, cases_have_ids_or_text, NULL);
	tcase_add_loop_test(t, tasks_are_refused, 0, sizeof(bad_tasks) / sizeof(*bad_tasks));
	return run_suite(s);
}
