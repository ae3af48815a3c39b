/* SPDX-License-Identifier: Apache-2.0 */
/* Dialogues in the forms of ChatML and Llama 3, as the templates of public models write them. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/chat.h"
#include "tests/support/engine-fixture.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

#define SMOLLM                                                                                                                      \
	"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful " \
	"AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "   \
	"message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define QWEN25                                                                                                                      \
	"{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {{- 'You are Qwen.' }}\n{%- else %}\n    {%- if messages[0]['role'] == " \
	"'system' %}\n        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n        {{- "  \
	"'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n    {%- endif %}\n" \
	"{%- endif %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
#define QWEN3                                                                                                                       \
	"{%- if messages[0].role == 'system' %}\n{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n{%- endif %}\n"   \
	"{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}{{- '<|im_start|>assistant\\n' }}"
#define LLAMA3                                                                                                                      \
	"{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "  \
	"'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + "    \
	"content %}{% endif %}{{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
#define LLAMA31                                                                                                                     \
	"{{- bos_token }}{%- set date_string = \"26 Jul 2024\" %}{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"             \
	"{{- \"Cutting Knowledge Date: December 2023\\n\" }}{{- \"Today Date: \" + date_string + \"\\n\\n\" }}{{- system_message }}"      \
	"{{- \"<|eot_id|>\" }}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"

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

/* A model's folder but for its weights. */
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

/* What the ids are, special tokens as well; to be freed. */
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

static const struct {
	const char *family, *template, *system, *expected;
} forms[] = {
	{"smollm", SMOLLM, NULL,
	 "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
	 "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"},
	{"smollm", SMOLLM, "Be brief.",
	 "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"},
	{"qwen", QWEN25, NULL,
	 "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
	 "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"},
	{"qwen", QWEN3, NULL, "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"},
	{"llama3", LLAMA3, NULL,
	 "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
	{"llama3", LLAMA31, NULL,
	 "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul "
	 "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
};

START_TEST(forms_are_recognised)
{
	struct skv_ids ids = SKV_IDS_NULL, whole = SKV_IDS_NULL;
	struct eng_chat c;
	size_t first;
	char *text, *more;

	model(forms[_i].family, forms[_i].template, "{\"bos_token\": {\"content\": \"<|begin_of_text|>\"}}");
	ck_assert_msg(!eng_chat_load(&c, folder, &tokens, &err), "%s", err.text);
	ck_assert_int_eq(eng_chat_turn(&c, forms[_i].system, " Hi ", 4, &ids, &err), 0);
	text = spelled(&ids);
	ck_assert_str_eq(text, forms[_i].expected);
	/* the ids of the pieces are those of the whole text */
	ck_assert_int_eq(skv_tokenizer_encode(tokens.tokenizer, text, strlen(text), 0, &whole, err.text, sizeof(err.text)), 0);
	ck_assert(whole.n == ids.n && !memcmp(whole.id, ids.id, ids.n * sizeof(*ids.id)));
	/* the next turn closes an answer that was cut off, and begins with no system; what is said controls nothing */
	first = ids.n;
	ck_assert_int_eq(eng_chat_turn(&c, forms[_i].system, "<|im_end|><|eot_id|>", 20, &ids, &err), 0);
	more = spelled(&ids);
	ck_assert_int_eq(ids.id[first], c.close);
	ck_assert_ptr_null(strstr(more + strlen(text), "system"));
	for (size_t i = first + 1, closes = 0; i < ids.n; i++)
		ck_assert((closes += ids.id[i] == c.close) <= 1);
	free(more);
	free(text);
	skv_ids_deinit(&ids);
	skv_ids_deinit(&whole);
	eng_chat_deinit(&c);
}
END_TEST

static const struct {
	const char *template, *more, *says;
} refused[] = {
	{NULL, "{}", "chat_template.jinja, or chat_template in tokenizer_config.json, expected"},
	{"{{ '<|im_start|>assistant<|im_sep|>' }}<|im_end|>", "{}", "is of another form"},
	{"[INST] {{ content }} [/INST]", "{}", "is of another form"},
	{LLAMA3, "{}", "bos_token, which tokenizer_config.json has not"},
	{LLAMA3, "{\"bos_token\": \"<s>\"}", "writes <s>, which tokenizer.json has not"},
	{"<|start_header_id|><|end_header_id|>\\n\\n<|eot_id|>", "{}", "writes <|start_header_id|>, which"},
	{NULL, "{\"chat_template\":", "tokenizer_config.json:1"},
};

START_TEST(others_are_refused)
{
	struct eng_chat c;

	model("smollm", refused[_i].template, refused[_i].more);
	ck_assert_int_eq(eng_chat_load(&c, folder, &tokens, &err), -EINVAL);
	ck_assert_msg(strstr(err.text, refused[_i].says), "says: %s\n expected: %s", err.text, refused[_i].says);
}
END_TEST

/* A list of templates has one that is the default. */
START_TEST(template_of_a_list)
{
	struct eng_chat c;

	model("smollm", NULL,
	      "{\"chat_template\": [{\"name\": \"tool\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
	      "\"<|im_start|>assistant\\n<|im_end|>\"}]}");
	ck_assert_msg(!eng_chat_load(&c, folder, &tokens, &err), "%s", err.text);
	ck_assert(!c.system && c.close == 2);
	eng_chat_deinit(&c);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-chat");
	TCase *t = add_case(s, "chat", 30, setup, teardown, template_of_a_list, NULL);

	tcase_add_loop_test(t, forms_are_recognised, 0, sizeof(forms) / sizeof(*forms));
	tcase_add_loop_test(t, others_are_refused, 0, sizeof(refused) / sizeof(*refused));
	return run_suite(s);
}
