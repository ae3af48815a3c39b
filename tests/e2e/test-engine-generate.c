/* SPDX-License-Identifier: Apache-2.0 */
/* Runs sparsekv-generate as users do, with the reference model: see tests/support/engine-programs.h. */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/progress.h"
#include "tests/support/engine-programs.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

START_TEST(generates)
{
	char *out, *err;

	out = generate("--policy", "full", "--prompt", prompt);
	err = run_err(folder);
	ck_assert_str_eq(out, answer);
	ck_assert_ptr_nonnull(strstr(err, "to the end of text"));
	ck_assert_ptr_nonnull(strstr(err, "attended  100.0 % of the tokens, kept 100.0 % of the KV"));
	ck_assert_ptr_nonnull(strstr(err, "policy    full"));
	ck_assert_ptr_null(strchr(err, '\r')); /* no progress line in a file */
	free(out);
	free(err);

	fx_text(fx_path(folder, "prompt"), prompt);
	out = generate("--policy", "full", "--prompt-file", fx_path(folder, "prompt"), "--max-tokens", "10",
	               "--quiet", "--threads", "1");
	err = run_err(folder);
	ck_assert_uint_eq(strlen(out), 10);
	ck_assert_mem_eq(out, answer, 10);
	ck_assert_str_eq(err, "");
	free(out);
	free(err);

	/* a prompt may end with the end-of-text token; another text then follows it */
	out = generate("--policy", "full", "--ids", "97,98,257", "--max-tokens", "3");
	ck_assert_int_ge(atoi(out), 0);
	ck_assert_uint_gt(strspn(out, "0123456789"), 0);
	free(out);

	/* an empty prompt is the bos token alone */
	out = generate("--policy", "full", "--prompt", "", "--max-tokens", "3");
	ck_assert_uint_le(strlen(out), 3);
	free(out);
}
END_TEST

/* Speculative decoding gives the same text in half the steps. */
START_TEST(drafts_change_no_text)
{
	const struct policy_row *row = policy_row(SET_DRAFTS, _i);
	char policy[512], *out, *plain, *err;
	unsigned steps = 0;

	snprintf(policy, sizeof(policy), "%s%s%s", row->spec, row->codec ? "&file=" : "",
	         row->codec ? run_source("models/reference/deltakv.safetensors") : "");
	plain = generate("--policy", policy, "--prompt", prompt);
	out = generate("--policy", policy, "--prompt", prompt, "--draft", "8", "--seq", "d", "--max-tokens", "40");
	ck_assert_uint_eq(strlen(out), 40);
	ck_assert_mem_eq(out, plain, 40);
	free(out);
	out = generate("--policy", policy, "--prompt", prompt, "--draft", "8", "--seq", "d");
	ck_assert_str_eq(out, plain);
	free(out);
	out = generate("--policy", policy, "--prompt", prompt, "--draft", "8");
	ck_assert_str_eq(out, plain);
	free(out);
	err = run_err(folder);
	ck_assert_int_eq(sscanf(strstr(err, "computed in"), "computed in %u steps", &steps), 1);
	ck_assert_uint_lt(steps, strlen(plain) * 3 / 4);
	free(err);
	free(plain);
}
END_TEST

START_TEST(a_named_sequence_goes_on)
{
	char *first, *second, *whole, *err;

	first = generate("--policy", "full", "--prompt", prompt, "--seq", "talk", "--max-tokens", "20");
	ck_assert_uint_eq(strlen(first), 20);
	/* without a prompt: the continuation */
	second = generate("--policy", "full", "--seq", "talk", "--max-tokens", "15");
	ck_assert_uint_eq(strlen(second), 15);
	ck_assert_mem_eq(second, answer + 20, 15);
	/* the same command with a higher limit prints the whole answer, but computes only the new tokens */
	whole = generate("--policy", "full", "--prompt", prompt, "--seq", "talk");
	ck_assert_str_eq(whole, answer);
	err = run_err(folder);
	ck_assert_ptr_nonnull(strstr(err, " 0 computed in"));
	free(err);
	free(first);
	free(second);
	free(whole);

	/* the answer has ended: nothing is added, and the sequence still has all of it */
	whole = generate("--policy", "full", "--seq", "talk");
	ck_assert_str_eq(whole, "");
	free(whole);
	whole = generate("--policy", "full", "--seq", "talk", "--prompt", prompt, "--max-tokens", "7");
	ck_assert_uint_eq(strlen(whole), 7);
	free(whole);

	/* another text under the same name is refused, and changes nothing */
	ck_assert_int_eq(
		run(folder,
	            (const char *[]){GENERATE, MODEL, SOCKET, "--policy", "full", "--seq", "talk",
	                             "--prompt", "#dag\nabc:4", NULL},
	            LIMIT),
		EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_ptr_nonnull(
		strstr(err, "sequence talk holds another text, not the prompt, from token 10 on"));
	free(err);
	ck_assert_int_eq(run(folder,
	                     (const char *[]){GENERATE, MODEL, SOCKET, "--policy", "full", "--seq", "absent", NULL},
	                     LIMIT),
	                 EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_ptr_nonnull(strstr(err, "absent"));
	free(err);
}
END_TEST

/* Writes a prompt of the dev tasks that takes a while to read and to answer to FOLDER/prompt. */
static void long_prompt(void)
{
	size_t n;
	char *cases = fx_read(tasks, &n), *line = strstr(cases, "\"id\": \"recur-2048-0\""), *from, *to, *out;

	ck_assert_ptr_nonnull(line);
	from = strstr(line, "\"prompt\": \"") + strlen("\"prompt\": \"");
	to = out = from;
	for (; *from != '"'; from++) /* \n is the only escape in these prompts */
		*to++ = from[0] == '\\' && from[1] == 'n' ? (from++, '\n') : *from;
	fx_write(fx_path(folder, "prompt"), out, (size_t)(to - out));
	free(cases);
}

/* Waits until the program has run for so many ms or has written so many bytes, then kills it. Returns its status. */
static int kill_at(pid_t pid, unsigned ms, size_t written)
{
	siginfo_t info = {.si_pid = 0};
	struct stat out = {.st_size = 0};

	for (double begun = eng_now();
	     eng_now() - begun < ms / 1000.0 && (size_t)out.st_size < written && !info.si_pid;) {
		poll(NULL, 0, 1);
		stat(fx_path(folder, "out"), &out);
		waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG);
	}
	kill(pid, SIGKILL);
	return run_wait(pid, LIMIT);
}

/* Killed at any moment and started again, the program prints what it prints without a kill. */
START_TEST(death_loses_nothing)
{
	static const char *const policies[] = {"full", POLICY_PAGES "?budget=8&layers=2,7,12",
	                                       POLICY_WINDOW "?budget=200&dense=2", POLICY_SCORES "?budget=200&dense=2",
	                                       POLICY_EVICTED_PAGES ":ratio?budget=24&dense=2"};
	const char *policy = policies[_i];
	char *file = strdup(fx_path(folder, "prompt")), *want, *got;
	const char *argv[RUN_ARGS] = {GENERATE, MODEL,          SOCKET, "--policy", policy, "--prompt-file",
	                              file,     "--max-tokens", "400",  "--seq",    "hurt"};
	size_t n;

	rnd_begin((uint64_t)_i);
	long_prompt();
	want = generate("--policy", policy, "--prompt-file", file, "--max-tokens", "400");
	n = strlen(want);
	ck_assert_uint_gt(n, 100);
	/* while it starts or reads the prompt, then at three places of its answer */
	kill_at(run_start(folder, argv), 10 + rnd_below(120), n / 4);
	for (size_t i = 1; i < 4; i++)
		ck_assert_int_eq(kill_at(run_start(folder, argv), 1000 * LIMIT,
		                         n * i / 4 + rnd_below((uint32_t)n / 5)),
		                 -SIGKILL);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	got = run_out(folder);
	ck_assert_str_eq(got, want);
	free(got);
	free(want);
	free(file);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-generate");
	TCase *t = add_case(s, "sparsekv-generate", 120, programs_setup, daemon_teardown, generates, a_named_sequence_goes_on, NULL);

	add_share(t, death_loses_nothing, 5, 5);
	add_share(t, drafts_change_no_text, policy_rows(SET_DRAFTS), 5);
	return run_suite(s);
}
