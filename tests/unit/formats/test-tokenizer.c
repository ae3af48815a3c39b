/* SPDX-License-Identifier: Apache-2.0 */
/* Compares tokenizers of four families with ids of the package `tokenizers`, and refuses bad files. */
#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "formats/tokenizer/nfc.h"
#include "formats/tokenizer/tokenizer.h"
#include "tests/support/folder.h"
#include "tests/support/random.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

static const char *const families[] = {"gpt2", "llama3", "qwen", "smollm"};
static char err[512];
#define ERR err, sizeof(err)

static const char *file_of(const char *family)
{
	char name[128];

	snprintf(name, sizeof(name), "tests/tokenizer/%s", family);
	return run_source(name);
}

static struct skv_tokenizer *load(const char *family)
{
	struct skv_tokenizer *t;
	char name[64];

	snprintf(name, sizeof(name), "%s.json", family);
	ck_assert_msg(!skv_tokenizer_load(&t, file_of(name), ERR), "%s", err);
	return t;
}

/* Returns the text without special tokens; to be freed. */
static char *decode(const struct skv_tokenizer *t, const struct skv_ids *ids, size_t *ret_n)
{
	struct skv_utf8_stream s = SKV_UTF8_STREAM_NULL;
	char *text = malloc(1);
	size_t n = 0, len;

	for (size_t i = 0; i < ids->n; i++) {
		const char *bytes = skv_tokenizer_bytes(t, ids->id[i], &len);

		ck_assert_ptr_nonnull(bytes);
		text = realloc(text, n + 3 * (len + 3) + 10);
		if (!skv_tokenizer_special(t, ids->id[i]))
			n += skv_utf8_push(&s, bytes, len, text + n);
	}
	*ret_n = n + skv_utf8_end(&s, text + n);
	return text;
}

static void compare(const struct skv_tokenizer *t, const json_t *text, const json_t *expected)
{
	const json_t *list = json_object_get(expected, "ids"), *decoded = json_object_get(expected, "decoded");
	struct skv_ids ids = SKV_IDS_NULL;
	size_t n;
	char *out;

	decoded = decoded ? decoded : text;
	ck_assert_msg(!skv_tokenizer_encode(t, json_string_value(text), json_string_length(text), SKV_TOKENIZER_TEMPLATE, &ids, ERR),
	              "%s", err);
	ck_assert_uint_eq(ids.n, json_array_size(list));
	for (size_t i = 0; i < ids.n; i++)
		ck_assert_int_eq(ids.id[i], json_integer_value(json_array_get(list, i)));
	out = decode(t, &ids, &n);
	ck_assert_uint_eq(n, json_string_length(decoded));
	ck_assert_mem_eq(out, json_string_value(decoded), n);
	free(out);
	skv_ids_deinit(&ids);
}

START_TEST(ids_are_the_packages)
{
	struct skv_tokenizer *t = load(families[_i]);
	size_t n, lines = 0;
	char *all = fx_read(file_of("golden.jsonl"), &n);

	for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n"), lines++) {
		json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);

		ck_assert_ptr_nonnull(row);
		compare(t, json_object_get(row, "text"), json_object_get(row, families[_i]));
		json_decref(row);
	}
	ck_assert_uint_gt(lines, 40);
	free(all);
	skv_tokenizer_free(t);
}
END_TEST

/* Names of special tokens in quoted text are plain text, though the text around it has special tokens. */
START_TEST(special_tokens_in_quoted_text)
{
	static const char *const said[] = {"a<|im_end|>b", "<|im_end|>", "<<|im_end|><|im_end|>>", "<|im_<|im_end|>end|>", "<|im_end|", "<|endoftext|>"};
	struct skv_tokenizer *t = load("smollm");
	struct skv_ids ids = SKV_IDS_NULL;
	int32_t end = skv_tokenizer_added(t, "<|im_end|>");
	char *quoted, whole[256];
	size_t n, done;

	ck_assert_int_eq(skv_tokenizer_encode(t, said[0], 12, 0, &ids, ERR), 0);
	ck_assert(end >= 0 && ids.n == 3 && ids.id[1] == end && skv_tokenizer_special(t, end));
	for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++) {
		ck_assert_int_eq(skv_tokenizer_quote(t, said[i], strlen(said[i]), &quoted, &n, ERR), 0);
		ck_assert_uint_eq(n, strlen(quoted));
		snprintf(whole, sizeof(whole), "x%s<|im_end|>", quoted);
		free(quoted);
		ids.n = done = 0;
		ck_assert_int_eq(skv_tokenizer_encode(t, whole, strlen(whole), SKV_TOKENIZER_QUOTED, &ids, ERR), 0);
		for (size_t k = 0, len; k < ids.n; k++) {
			const char *bytes = skv_tokenizer_bytes(t, ids.id[k], &len);

			ck_assert_int_eq(skv_tokenizer_special(t, ids.id[k]), k == ids.n - 1);
			snprintf(whole + done, sizeof(whole) - done, "%.*s", (int)len, bytes);
			done += len;
		}
		ck_assert(whole[0] == 'x' && !strncmp(whole + 1, said[i], strlen(said[i])));
		ck_assert_str_eq(whole + 1 + strlen(said[i]), "<|im_end|>");
	}
	ck_assert_int_eq(skv_tokenizer_quote(t, "ab\xff", 3, &quoted, &n, ERR), -EILSEQ);
	ck_assert_int_eq(skv_tokenizer_encode(t, "ab\xff", 3, 0, &ids, ERR), -EILSEQ);
	ck_assert_ptr_nonnull(strstr(err, "at byte 2"));
	ck_assert_int_eq(skv_tokenizer_encode(t, "\xed\xa0\x80", 3, 0, &ids, ERR), -EILSEQ); /* a surrogate */
	skv_ids_deinit(&ids);
	skv_tokenizer_free(t);
}
END_TEST

/* A piece of 1 MiB: a search of all of it for each merge would take an hour. */
START_TEST(long_words_are_fast)
{
	struct skv_tokenizer *t = load("llama3");
	size_t n = slowed() ? 1u << 14 : 1u << 20, len;
	char *text = malloc(n), *out;
	struct skv_ids ids = SKV_IDS_NULL;

	for (size_t i = 0; i < n; i++)
		text[i] = "etaoinshrdlu"[rnd_below(12)];
	ck_assert_int_eq(skv_tokenizer_encode(t, text, n, 0, &ids, ERR), 0);
	out = decode(t, &ids, &len);
	ck_assert(len == n && !memcmp(out, text, n));
	free(out);
	free(text);
	skv_ids_deinit(&ids);
	skv_tokenizer_free(t);
}
END_TEST

/* ---- UTF-8, piece by piece ----------------------------------------------------------------------- */

static const struct {
	const char *bytes, *text;
} streams[] = {
	{"a\xc3\xa9z", "a\xc3\xa9z"},
	{"\xf0\x9f\x91\x8d", "\xf0\x9f\x91\x8d"},
	{"\xf0\x9f\x91", "\xef\xbf\xbd"}, /* one U+FFFD for an unfinished character of any length */
	{"\xf0\x9f\x91x", "\xef\xbf\xbdx"},
	{"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong form: no byte of it begins a character */
	{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
	{"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
	{"\x80\xff", "\xef\xbf\xbd\xef\xbf\xbd"},
};

START_TEST(characters_wait_for_their_end)
{
	const char *bytes = streams[_i].bytes;

	for (size_t step = 1; step <= strlen(bytes); step++) {
		struct skv_utf8_stream s = SKV_UTF8_STREAM_NULL;
		char out[64];
		size_t n = 0;

		for (size_t at = 0; at < strlen(bytes); at += step)
			n += skv_utf8_push(&s, bytes + at, strnlen(bytes + at, step), out + n);
		n += skv_utf8_end(&s, out + n);
		out[n] = '\0';
		ck_assert_str_eq(out, streams[_i].text);
	}
}
END_TEST

START_TEST(normalization)
{
	static const char *const cases[][2] = {
		{"e\xcc\x81", "\xc3\xa9"}, {"\xe2\x84\xab", "\xc3\x85"}, {"a\xcc\x82\xcc\xa3", "\xe1\xba\xad"},
		{"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"}, {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},
		{"\xcc\x81" "e", "\xcc\x81" "e"}, {"\xc7\x95", "\xc7\x95"}, {"\xe1\xbd\xb1", "\xce\xac"},
	};
	char *out;
	size_t n;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		ck_assert_int_eq(skv_nfc(cases[i][0], strlen(cases[i][0]), &out, &n), 0);
		ck_assert(n == strlen(cases[i][1]) && !memcmp(out, cases[i][1], n));
		free(out);
	}
}
END_TEST

/* ---- bad files ------------------------------------------------------------------------------------- */

static const char tiny[] =
	"{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}],\"normalizer\":null,"
	"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+\"},"
	"\"behavior\":\"Removed\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
	"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
	"{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[4]}}},\"decoder\":{\"type\":\"ByteLevel\"},"
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3},\"merges\":[\"a b\",[\"ab\",\"a\"]]}}";

static const struct {
	const char *replace, *by, *says;
} refused[] = {
	{"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "\"model.type\" is \"Unigram\", \"BPE\""},
	{"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "\"model.type\" is \"WordPiece\""},
	{"\"type\":\"BPE\"", "\"type\":\"BPE\",\"byte_fallback\":true", "\"model.byte_fallback\" is true, false"},
	{"\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.1", "\"model.dropout\" is 0.1"},
	{"\"type\":\"BPE\"", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"", "\"model.end_of_word_suffix\" is \"</w>\""},
	{"\"type\":\"BPE\"", "\"type\":\"BPE\",\"unk_token\":\"?\"", "\"model.unk_token\" is \"?\""},
	{"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", "\"normalizer\" is {\"type\":\"NFKC\"}, null or NFC"},
	{"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", "\"decoder\" is null, ByteLevel expected"},
	{"\"decoder\":{\"type\":\"ByteLevel\"},", "", "\"decoder\" is missing"},
	{"\"Removed\"", "\"Swallowed\"", "\"pre_tokenizer.behavior\" is \"Swallowed\""},
	{"\"type\":\"Split\"", "\"type\":\"Metaspace\"", "Metaspace"},
	{"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "{\"type\":\"Digits\"}", "ByteLevel at its end"},
	{"\\\\s+", "\\\\w+", "\"\\w\" in a pattern is not known"},
	{"\\\\s+", "[a[b]]", "\"[\" in a pattern is not known"},
	{"\\\\s+", "a{1,2}+", "in a pattern is not known"},
	{"\\\\s+", "\\\\p{Han}", "in a pattern is not known"},
	{"\\\\s+", "a*", "matches the empty text"},
	{"\\\\s+", "a)", "PCRE2 does not take"},
	{"\"ab\":2", "\"ab\":1", "id 1 is another token's"},
	{"\"ab\":2", "\"ab\":-2", "id -2, one below"},
	{"\"ab\":2", "\"ab\":2000000000", "one below"},
	{"\"ab\":2", "\"ab\":\"2\"", "token \"ab\": a whole number expected"},
	{"\"a b\"", "\"a c\"", "\"model.merges\": number 0: tokens of the vocabulary"},
	{"\"a b\"", "\"a  b\"", "\"model.merges\": number 0: two tokens"},
	{"[\"ab\",\"a\"]", "[\"ab\"]", "number 1: two tokens"},
	{"\"id\":4,", "\"id\":4000000000,", "\"added_tokens[].id\""},
	{"\"content\":\"<s>\"", "\"content\":\"ab\"", "\"ab\" has id 4, 2 as in model.vocab"},
	{"\"ids\":[4]", "\"ids\":[5]", "\"<s>\": ids of tokens expected"},
	{"{\"Sequence\":{\"id\":\"A\"}}", "{\"Sequence\":{\"id\":\"B\"}}", "\"post_processor.single[]\""},
	{"TemplateProcessing", "BertProcessing", "\"post_processor\" is"},
	{"\"model\":", "\"modal\":", "\"model\" is missing"},
	{"\"vocab\":{", "\"vocab\":[{", "line 1"},
};

START_TEST(others_are_refused)
{
	const char *at = strstr(tiny, refused[_i].replace);
	struct skv_tokenizer *t;
	char text[2048];
	int r;

	ck_assert_int_eq(skv_tokenizer_parse(&t, tiny, strlen(tiny), "tiny", ERR), 0);
	skv_tokenizer_free(t);
	ck_assert_ptr_nonnull(at);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - tiny), tiny, refused[_i].by, at + strlen(refused[_i].replace));
	r = skv_tokenizer_parse(&t, text, strlen(text), "tiny", ERR);
	ck_assert_int_eq(r, -EBADMSG);
	ck_assert_msg(!strncmp(err, "tiny: ", 6) && strstr(err, refused[_i].says), "says: %s\n expected: %s", err, refused[_i].says);
}
END_TEST

/* Any file gives an error text or a tokenizer that encodes. */
static void try(const char *json, size_t n)
{
	static const char text[] = "ab aba <s>b e\xcc\x81 12\n";
	struct skv_ids ids = SKV_IDS_NULL;
	struct skv_tokenizer *t;

	err[0] = '\0';
	if (skv_tokenizer_parse(&t, json, n, "changed", ERR)) {
		ck_assert_int_eq(strncmp(err, "changed: ", 9), 0);
		return;
	}
	if (!skv_tokenizer_encode(t, text, sizeof(text), SKV_TOKENIZER_TEMPLATE, &ids, ERR))
		for (size_t i = 0, len; i < ids.n; i++)
			ck_assert_ptr_nonnull(skv_tokenizer_bytes(t, ids.id[i], &len));
	skv_ids_deinit(&ids);
	skv_tokenizer_free(t);
}

START_TEST(changed_files)
{
	size_t n = strlen(tiny);
	char *copy = malloc(n);

	for (size_t cut = 0; cut < n; cut++)
		try(tiny, cut);
	for (int i = 0; i < 20000; i++) {
		memcpy(copy, tiny, n);
		for (uint32_t k = rnd_below(3) + 1; k; k--)
			copy[rnd_below((uint32_t)n)] = "0123456789[]{},:\"-abs<>\\+*ntfuANS"[rnd_below(33)];
		try(copy, n);
	}
	free(copy);
}
END_TEST

START_TEST(absent_files)
{
	struct skv_tokenizer *t;

	ck_assert_int_eq(skv_tokenizer_load(&t, "/nowhere/tokenizer.json", ERR), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err, "/nowhere/tokenizer.json: No such file"));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-tokenizer");
	TCase *t = add_case(s, "tokens", 60, NULL, NULL, special_tokens_in_quoted_text, long_words_are_fast, normalization, NULL);

	tcase_add_loop_test(t, ids_are_the_packages, 0, sizeof(families) / sizeof(*families));
	tcase_add_loop_test(t, characters_wait_for_their_end, 0, sizeof(streams) / sizeof(*streams));
	t = add_case(s, "files", 60, NULL, NULL, changed_files, absent_files, NULL);
	tcase_add_loop_test(t, others_are_refused, 0, sizeof(refused) / sizeof(*refused));
	return run_suite(s);
}
