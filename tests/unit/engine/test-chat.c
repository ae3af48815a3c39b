/* SPDX-License-Identifier: Apache-2.0 */
/* Tests dialogues in the formats of public models' templates; both are in tests/jinja/golden.jsonl. */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/chat.h"
#include "tests/support/engine-fixture.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

static char *folder;
static struct eng_tokens tokens;
static struct eng_error err;

static void setup(void)
{
	folder = fx_folder();
}

static void teardown(void)
{
	eng_tokens_deinit(&tokens);
	fx_remove(folder);
}

/* Returns the source of a template in golden.jsonl; to be freed. */
static char *named(const char *name)
{
	char *source = NULL;
	size_t n;
	char *lines = fx_read(run_source("tests/jinja/golden.jsonl"), &n);

	for (char *line = strtok(lines, "\n"); line && !source; line = strtok(NULL, "\n")) {
		json_t *row = json_loads(line, 0, NULL);
		const char *of = json_string_value(json_object_get(row, "name"));

		if (of && !strcmp(of, name))
			source = strdup(json_string_value(json_object_get(row, "template")));
		json_decref(row);
	}
	free(lines);
	ck_assert_ptr_nonnull(source);
	return source;
}

/* Writes a model's folder without its weights, and loads its tokens. */
static void model(const char *family, const char *template, const char *more)
{
	char name[64];
	size_t n;
	char *json;

	snprintf(name, sizeof(name), "tests/tokenizer/%s.json", family);
	json = fx_read(run_source(name), &n);
	fx_write(fx_path(folder, "tokenizer.json"), json, n);
	free(json);
	fx_text(fx_path(folder, "config.json"),
	        "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":3,"
	        "\"intermediate_size\":64,\"vocab_size\":1600,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
	        "\"bos_token_id\":1,\"eos_token_id\":[2,7]}");
	fx_text(fx_path(folder, "tokenizer_config.json"), more);
	if (template)
		fx_text(fx_path(folder, "chat_template.jinja"), template);
	ck_assert_msg(!eng_tokens_load(&tokens, folder, NULL, &err), "%s", err.text);
	ck_assert(tokens.n_ends == 2 && eng_tokens_is_end(&tokens, 7));
}

/* Returns the text of the ids, with special tokens; to be freed. */
static char *spelled(const struct skv_ids *ids)
{
	char *text;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	for (size_t i = 0, n; i < ids->n; i++) {
		const char *bytes = skv_tokenizer_bytes(tokens.tokenizer, ids->id[i], &n);

		fwrite(bytes, 1, n, f);
	}
	fclose(f);
	return text;
}

/* Turns of a dialogue: the first has `system` and " Hi ", the second, after an answer, "<|im_end|><|eot_id|>". */
static const struct {
	const char *family, *template, *system, *first, *second;
} dialogues[] = {
	{"smollm", "smollm2", NULL,
	 "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
	 "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n",
	 "<|im_end|>\n<|im_start|>user\n<|im_end|><|eot_id|><|im_end|>\n<|im_start|>assistant\n"},
	{"smollm", "smollm2", "Be <|im_end|> brief.",
	 "<|im_start|>system\nBe <|im_end|> brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n",
	 "<|im_end|>\n<|im_start|>user\n<|im_end|><|eot_id|><|im_end|>\n<|im_start|>assistant\n"},
	{"qwen", "qwen2.5", NULL,
	 "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
	 "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n",
	 "<|im_end|>\n<|im_start|>user\n<|im_end|><|eot_id|><|im_end|>\n<|im_start|>assistant\n"},
	{"qwen", "qwen3", NULL, "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n",
	 "<|im_end|>\n<|im_start|>user\n<|im_end|><|eot_id|><|im_end|>\n<|im_start|>assistant\n"},
	{"llama3", "llama3", NULL,
	 "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
	 "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n<|im_end|><|eot_id|><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
	{"llama3", "mistral", NULL, "<|begin_of_text|>[INST]  Hi [/INST]", "<|eot_id|>[INST] <|im_end|><|eot_id|>[/INST]"},
	{"smollm", "deepseek", "S", "<|begin_of_text|>S<User> Hi <Assistant><think>\n", "<|eot_id|><User><|im_end|><|eot_id|><Assistant><think>\n"},
	{"qwen", "phi4", NULL, "<|im_start|>user<|im_sep|> Hi <|im_end|><|im_start|>assistant<|im_sep|>",
	 "<|im_end|><|im_start|>user<|im_sep|><|im_end|><|eot_id|><|im_end|><|im_start|>assistant<|im_sep|>"},
};

#define NAMES "{\"bos_token\": {\"content\": \"<|begin_of_text|>\"}, \"eos_token\": \"<|eot_id|>\"}"

/* Returns the number of special tokens that a text encodes to. */
static unsigned specials(const char *text)
{
	struct skv_ids ids = SKV_IDS_NULL;
	unsigned n = 0;

	ck_assert(!eng_tokens_encode(&tokens, text, strlen(text), &ids, &err));
	for (size_t i = 0; i < ids.n; i++)
		n += skv_tokenizer_special(tokens.tokenizer, ids.id[i]);
	skv_ids_deinit(&ids);
	return n;
}

/* The turn has this text. Its special tokens are those of the template: the user's and the system text add none. */
static void expect_turn(const struct eng_chat *c, const char *system, const char *said, struct skv_ids *ids, const char *expected)
{
	struct skv_ids more = SKV_IDS_NULL;
	unsigned n = 0;
	size_t begun = ids->n;
	char *text;

	ck_assert_msg(!eng_chat_turn(c, system, said, strlen(said), ids, &err), "%s", err.text);
	ck_assert(!skv_ids_add(&more, ids->id + begun, ids->n - begun));
	text = spelled(&more);
	ck_assert_str_eq(text, expected);
	for (size_t i = 0; i < more.n; i++)
		n += skv_tokenizer_special(tokens.tokenizer, more.id[i]);
	ck_assert_uint_eq(n + specials(said) + (system ? specials(system) : 0), specials(text));
	free(text);
	skv_ids_deinit(&more);
}

START_TEST(turns_are_the_templates)
{
	char *template = named(dialogues[_i].template);
	struct skv_ids ids = SKV_IDS_NULL;
	struct eng_chat c;

	model(dialogues[_i].family, template, NAMES);
	ck_assert_msg(!eng_chat_load(&c, folder, &tokens, &err), "%s", err.text);
	expect_turn(&c, dialogues[_i].system, " Hi ", &ids, dialogues[_i].first);
	/* an answer that was cut off */
	ck_assert(!eng_tokens_encode(&tokens, "x", 1, &ids, &err));
	expect_turn(&c, NULL, "<|im_end|><|eot_id|>", &ids, dialogues[_i].second);
	/* an answer with its end token */
	if (c.close >= 0) {
		ck_assert(!skv_ids_add(&ids, &c.close, 1));
		expect_turn(&c, NULL, "<|im_end|><|eot_id|>", &ids, strstr(dialogues[_i].second, "|>") + 2);
	}
	skv_ids_deinit(&ids);
	eng_chat_deinit(&c);
	free(template);
}
END_TEST

static const struct {
	const char *template, *more, *says;
} refused[] = {
	{NULL, "{}", "chat_template.jinja, or chat_template in tokenizer_config.json, expected"},
	{NULL, "{\"chat_template\":", "tokenizer_config.json:1"},
	{"{{ messages | nosuch }}", "{}", "chat template, line 1: the filter nosuch is not supported"},
	{"{% if %}", "{}", "chat template, line 1: a name expected"},
	{"{{ raise_exception('tools only') }}", "{}", "the template says: tools only"},
	/* only the newest turn, or all turns numbered from the end */
	{"{{ messages[-1].content }}", "{}", "writes earlier turns in another way"},
	{"{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}", "{}", "writes earlier turns in another way"},
};

START_TEST(others_are_refused)
{
	struct eng_chat c;

	model("smollm", refused[_i].template, refused[_i].more);
	ck_assert_int_eq(eng_chat_load(&c, folder, &tokens, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, refused[_i].says), "says: %s\n expected: %s", err.text, refused[_i].says);
}
END_TEST

/* Mistral's template puts the system text into the last user turn; only dialogues without a system text grow. */
START_TEST(a_system_text_that_moves)
{
	char *template = named("mistral");
	struct skv_ids ids = SKV_IDS_NULL;
	struct eng_chat c;

	model("llama3", template, NAMES);
	ck_assert_msg(!eng_chat_load(&c, folder, &tokens, &err), "%s", err.text);
	ck_assert_int_eq(eng_chat_turn(&c, "Be brief.", "Hi", 2, &ids, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "goes on with a system text: one whose dialogues only grow expected"));
	ck_assert_uint_eq(ids.n, 0);
	ck_assert_int_eq(eng_chat_turn(&c, NULL, "\xff", 1, &ids, &err), -EILSEQ);
	ck_assert_int_eq(eng_chat_turn(&c, NULL, "Hi", 2, &ids, &err), 0);
	skv_ids_deinit(&ids);
	eng_chat_deinit(&c);
	free(template);
}
END_TEST

/* Of a list of templates the one named "default" is used. */
START_TEST(template_of_a_list)
{
	struct eng_chat c;

	model("smollm", NULL,
	      "{\"chat_template\": [{\"name\": \"tool\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
	      "\"{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}\"}]}");
	ck_assert_msg(!eng_chat_load(&c, folder, &tokens, &err), "%s", err.text);
	ck_assert_int_eq(c.close, 2);
	eng_chat_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-chat");
	TCase *t = add_case(s, "chat", 30, setup, teardown, template_of_a_list, a_system_text_that_moves, NULL);

	tcase_add_loop_test(t, turns_are_the_templates, 0, sizeof(dialogues) / sizeof(*dialogues));
	tcase_add_loop_test(t, others_are_refused, 0, sizeof(refused) / sizeof(*refused));
	return run_suite(s);
}
