/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs with a model that has a tokenizer: a small random model, whose texts are meaningless but reproducible.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/engine-daemon.h"

#define GENERATE "engine/sparsekv-generate"
#define MODEL "--model", folder, "--socket", eng_private_socket(engine_daemon), "--kv-dtype", "fp32", "--threads", "1"
#define TEMPLATE                                                                                                                 \
	"{% if messages[0].role != 'system' %}<|im_start|>system\\nBe good.<|im_end|>\\n{% endif %}{% for m in messages %}"           \
	"<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n" \
	"{% endif %}"

static const struct fx_model shape = {48, 3, 4, 2, 16, 80, 1600, 512, 10000, 1e-5, FX_BF16, true};

static void setup(void)
{
	struct fx_weights *w = fx_weights_new(&shape);
	size_t n;
	char *json;

	daemon_setup();
	fx_model_write(&shape, w, folder);
	fx_weights_free(w);
	json = fx_read(run_source("tests/tokenizer/smollm.json"), &n);
	fx_write(fx_path(folder, "tokenizer.json"), json, n);
	free(json);
	fx_text(fx_path(folder, "tokenizer_config.json"), "{\"chat_template\": \"" TEMPLATE "\"}");
}

/* Runs the program; returns its stdout, which the caller frees. `input` is its stdin. */
static char *generate(const char *input, const char *const *more)
{
	const char *argv[RUN_ARGS] = {GENERATE, MODEL, "--policy", "full", "--max-tokens", "12"};
	int n = 13, fd;
	char *err;

	fx_text(fx_path(folder, "in"), input);
	fd = open(fx_path(folder, "in"), O_RDONLY | O_CLOEXEC);
	ck_assert(fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
	close(fd);
	while (*more)
		argv[n++] = *more++;
	if (run(folder, argv, LIMIT)) {
		err = run_err(folder);
		ck_abort_msg("sparsekv-generate failed: %s", err);
	}
	return run_out(folder);
}
#define generate(input, ...) generate(input, (const char *[]){__VA_ARGS__, NULL})

START_TEST(ids_and_text_say_the_same)
{
	char *text = generate("", "--prompt", "<|im_start|>"), *ids = generate("", "--ids", "1");
	char *again = generate("", "--ids", "1", "--seq", "n", "--max-tokens", "5"), *more;

	ck_assert_uint_gt(strlen(text), 0);
	ck_assert_uint_eq(strspn(ids, "0123456789,"), strlen(ids) - 1);
	/* the same beginning; and with more tokens, all of it */
	ck_assert(strlen(again) > 5 && !strncmp(again, ids, strlen(again) - 1));
	more = generate("", "--ids", "1", "--seq", "n");
	ck_assert_str_eq(more, ids);
	free(text);
	free(ids);
	free(again);
	free(more);
}
END_TEST

START_TEST(a_dialogue_goes_on)
{
	char *both = generate("one\n\ntwo\r\n", "--chat"), *first = generate("one\n", "--chat", "--seq", "talk");
	char *second = generate("two\n", "--chat", "--seq", "talk"), *none, *other;
	char whole[4096];

	/*
	 * An answer of 12 tokens is cut off, not ended; the second program finishes it first, so they differ from here
	 * on.
	 */
	ck_assert(strlen(first) > 1 && !strncmp(both, first, strlen(first)));
	/* the answer may be empty: a model of random weights may end at once */
	none = generate("", "--chat", "--seq", "other");
	ck_assert_str_eq(none, "");
	other = generate("one\n", "--chat", "--system", "Be bad.");
	snprintf(whole, sizeof(whole), "%s", other);
	ck_assert_str_ne(whole, first);
	free(both);
	free(first);
	free(second);
	free(none);
	free(other);
}
END_TEST

static const struct {
	const char *args[6], *says;
} refused[] = {
	{{"--ids", "1,,2"}, "--ids ,2: ids below 1600"},
	{{"--ids", "1600"}, "--ids 1600: ids below 1600"},
	{{"--ids", "1", "--chat"}, "exclude each other"},
	{{"--system", "x", "--prompt", "x"}, "--system: only with --chat"},
	{{"--prompt", ""}, "the prompt is empty"},
	{{"--prompt", "\xff"}, "not UTF-8 at byte 0"},
};

START_TEST(others_are_refused)
{
	const char *argv[RUN_ARGS] = {GENERATE, MODEL, "--policy", "full"};
	char *err;

	for (int i = 0; i < 6; i++)
		argv[11 + i] = refused[_i].args[i];
	ck_assert_int_eq(run(folder, argv, LIMIT), EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_msg(strstr(err, refused[_i].says), "says: %s\n expected: %s", err, refused[_i].says);
	free(err);
}
END_TEST

START_TEST(tasks_of_text_and_ids)
{
	const char *path = fx_path(folder, "t.jsonl");
	const char *argv[] = {"engine/sparsekv-eval", MODEL, "--tasks", path, "--policy", "full", "--summary", NULL};
	char *out;

	fx_text(path, "{\"id\":\"a\",\"task\":\"t\",\"size\":1,\"prompt\":\"na\xc3\xafve 12\",\"answer\":\"word\",\"eos\":false}\n"
	              "{\"id\":\"b\",\"task\":\"t\",\"size\":1,\"prompt_ids\":[5,1503,9],\"answer_ids\":[7,2]}\n");
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "of 2"));
	free(out);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-text");
	TCase *t = add_case(s, "text", 120, setup, daemon_teardown, ids_and_text_say_the_same, a_dialogue_goes_on,
	                    tasks_of_text_and_ids, NULL);

	tcase_add_loop_test(t, others_are_refused, 0, sizeof(refused) / sizeof(*refused));
	return run_suite(s);
}
