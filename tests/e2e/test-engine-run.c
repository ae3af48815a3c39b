/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's programs: their command lines, and the daemon that --private starts. */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/engine-daemon.h"
#include "tests/support/policies.h"
#include "tests/support/suite.h"

#define REFERENCE SKV_SRCDIR "/models/reference"
#define TASKS REFERENCE "/tasks-dev.jsonl"

/* Counts folders of private daemons under TMPDIR. */
static unsigned private_folders(void)
{
	char command[600];
	unsigned n = 0;
	FILE *f;

	snprintf(command, sizeof(command), "ls -d %s/sparsekv-* 2>/dev/null | wc -l", folder);
	f = popen(command, "r");
	ck_assert_int_eq(fscanf(f, "%u", &n), 1);
	pclose(f);
	return n;
}

/* ---- the command lines ----------------------------------------------------------------------- */

#define GENERATE "engine/sparsekv-generate"
#define EVAL "engine/sparsekv-eval"
#define CALIBRATE "engine/sparsekv-calibrate"
#define MODEL "--model", REFERENCE

static const struct {
	const char *argv[14];
	const char *says;
} refusals[] = {
	{{GENERATE}, "--model is missing"},
	{{GENERATE, MODEL}, "--policy is missing"},
	{{GENERATE, MODEL, "--policy", "full"}, "--prompt is missing"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--prompt-file", "b"}, "exclude each other"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt-file", "/absent", "--private"},
         "/absent: No such file"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--max-tokens", "0"},
         "--max-tokens 0: a whole number from 1"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--max-tokens", "1k"}, "--max-tokens 1k"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--kv-dtype", "int4"},
         "--kv-dtype int4: fp32, fp16, bf16 or fp8"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "gpu"},
         "--device gpu: host, or cuda:0 to cuda:15 expected"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "cuda:16"}, "--device cuda:16: host"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "cuda:1x"}, "--device cuda:1x: host"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "cuda:2", "--kv-dtype", "fp32"},
         "--kv-dtype fp32: bf16, fp16 or fp8 expected with --device cuda:2"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--threads", "-1"}, "--threads -1"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "b"}, "b: options only"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--private", "--socket", "s"},
         "exclude each other"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--socket", "/absent/s"}, "/absent/s"},
	{{GENERATE, MODEL, "--policy", "none", "--prompt", "a", "--private"}, "none"},
	{{GENERATE, MODEL, "--policy", "full?budget=x", "--prompt", "a", "--private"}, "budget"},
	{{GENERATE, "--model", "/absent", "--policy", "full", "--prompt", "a"},
         "/absent/config.json: No such file"},
	{{GENERATE, "--modal"}, "--modal"},
	{{CALIBRATE}, "--model is missing"},
	{{CALIBRATE, MODEL, "--text", "a", "--tasks", "b"}, "one of --text and --tasks"},
	{{CALIBRATE, MODEL, "--text", "/absent", "--private"}, "/absent: No such file"},
	{{CALIBRATE, MODEL, "--text", "/dev/zero", "--private"}, "/dev/zero: a file of 16 bytes"},
	{{CALIBRATE, MODEL, "--text", TASKS, "--private", "--delta-layers", "15"}, "the model has 16 layers, 14"},
	{{CALIBRATE, MODEL, "--tasks", TASKS, "--private", "--context", "100"}, "no case is left"},
	{{CALIBRATE, MODEL, "--text", TASKS, "--device", "cuda:0"}, "--device: only the search"},
	{{CALIBRATE, MODEL, "--text", "a", "--by", "chance"}, "--by chance: papers or loss"},
	{{CALIBRATE, MODEL, "--text", "a", "--budget", "1"}, "--budget 1: a share"},
	{{CALIBRATE, MODEL, "--text", TASKS, "--by", "loss", "--context", "60", "--private"}, "--context from 128"},
	{{CALIBRATE, MODEL, "--import", "a"}, "--import: --output alone"},
	{{CALIBRATE, MODEL, "--import", "a", "-o", "b", "--text", "c"}, "--import: --output alone"},
	{{CALIBRATE, MODEL, "--import", "/absent_layers_0.npy", "-o", "b"}, "/absent_layers_0.npy: No such file"},
	{{CALIBRATE, MODEL, "--import", TASKS, "-o", "b"}, "NumPy's format"},
	{{CALIBRATE, MODEL, "--text", "a", "--deltakv-pca", "b", "--palu", "c"}, "one of --deltakv-pca and --palu"},
	{{CALIBRATE, MODEL, "--text", "a", "--palu", "b", "-o", "c"}, "--palu: a compressor alone"},
	{{CALIBRATE, MODEL, "--text", "a", "--deltakv-pca", "b", "--by", "loss"}, "--deltakv-pca: a compressor alone"},
	{{CALIBRATE, MODEL, "--text", "a", "--width", "64"}, "--width: only with"},
	{{CALIBRATE, MODEL, "--text", "a", "--palu", "b", "--near", "2"}, "--stride, --near: only with"},
	{{CALIBRATE, MODEL, "--text", "a", "--deltakv-pca", "b", "--stride", "0", "--near", "2"}, "--near: with --stride 0"},
	{{CALIBRATE, MODEL, "--text", "a", "--deltakv-pca", "b", "--near", "5"}, "--near 5: a whole number from 1 to 4"},
	{{CALIBRATE, MODEL, "--text", TASKS, "--private", "--deltakv-pca", "b", "--width", "65"},
         "--width 65: of the model's 256 elements of K and V a multiple of 32"},
	{{CALIBRATE, MODEL, "--text", TASKS, "--private", "--texts", "1", "--context", "16", "--deltakv-pca", "b"}, "too short"},
	{{EVAL}, "--model is missing"},
	{{EVAL, MODEL, "--policy", "full"}, "--tasks is missing"},
	{{EVAL, MODEL, "--tasks", TASKS}, "--policy is missing"},
	{{EVAL, MODEL, "--tasks", "/absent", "--policy", "full"}, "/absent: No such file"},
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--sizes", "99"}, "no case is left"},
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--sizes", "1x"}, "--sizes 1x"},
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--mode", "fast"},
         "--mode fast: forced or free"},
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--batch", "0"},
         "--batch 0: a whole number from 1 to 256"},
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--csv", "/absent/f"},
         "/absent/f: No such file"},
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--policy", POLICY_PAGES "?colour=3", "--private"},
         "colour"},
};

START_TEST(refusals_are_clear)
{
	char *err, *out;

	ck_assert_int_eq(run(folder, refusals[_i].argv, LIMIT), EXIT_FAILURE);
	err = run_err(folder);
	out = run_out(folder);
	ck_assert_msg(strstr(err, refusals[_i].says), "says: %s\n expected: %s", err, refusals[_i].says);
	ck_assert_str_eq(out, "");
	free(err);
	free(out);
}
END_TEST

/* A file that is no module of this engine is refused with a reason, and no private daemon stays behind. */
START_TEST(modules_are_looked_at)
{
	static const struct {
		const char *module, *says;
	} modules[] = {
		{"/absent.so", "this engine cannot use CUDA here: /absent.so: cannot open shared object file"},
		{SKV_BUILDDIR "/policies/.libs/full.so", "full.so has no eng_cuda_ops"},
		{SKV_BUILDDIR "/tests/support/plugins/.libs/old-engine.so", "old-engine.so has version "},
	};
	char *err;

	setenv("SPARSEKV_ENGINE_CUDA_MODULE", modules[_i].module, 1);
	ck_assert_int_eq(run(folder,
	                     (const char *[]){GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--private",
	                                      "--device", "cuda:0", NULL},
	                     LIMIT),
	                 EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_msg(strstr(err, modules[_i].says), "%s", err);
	free(err);
	ck_assert_uint_eq(private_folders(), 1); /* the fixture's */
}
END_TEST

START_TEST(help_and_version)
{
	static const char *const programs[] = {GENERATE, EVAL};

	for (int i = 0; i < 2; i++) {
		char *out;

		ck_assert_int_eq(run(folder, (const char *[]){programs[i], "--help", NULL}, LIMIT), 0);
		out = run_out(folder);
		ck_assert_ptr_nonnull(strstr(out, "Usage: sparsekv-"));
		ck_assert_ptr_nonnull(strstr(out, "--private"));
		free(out);
		ck_assert_int_eq(run(folder, (const char *[]){programs[i], "--version", NULL}, LIMIT), 0);
		out = run_out(folder);
		ck_assert_ptr_nonnull(strstr(out, skv_version()));
		free(out);
	}
}
END_TEST

/* ---- the private daemon ---------------------------------------------------------------------- */

START_TEST(private_daemon_goes_with_the_program)
{
	const char *prompt = "#dag\nabc:3\ndef:4\nabc+def=ghi:?\n?ghi\n>\n";
	const char *argv[] = {GENERATE,   MODEL,  "--private",    "--policy", "full",
	                      "--prompt", prompt, "--max-tokens", "16000",    NULL};
	const int how[] = {0, SIGKILL, SIGINT, SIGTERM};

	ck_assert_uint_eq(private_folders(), 1); /* the fixture's */
	for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++) {
		pid_t pid;
		int waited = 0;

		/* a prompt with a long answer, so that the signal comes in the middle */
		argv[7] = how[i] ? "#recur\nx[n]=x[n-1]+x[n-2] to 900\nx0:1\nx1:1\n>\n" : prompt;
		pid = run_start(folder, argv);
		if (how[i]) {
			char *out = NULL;

			do { /* until it writes */
				free(out);
				poll(NULL, 0, 10);
				out = run_out(folder);
			} while (!*out && waited++ < 1000);
			ck_assert_str_ne(out, "");
			free(out);
			ck_assert_uint_eq(private_folders(), 2);
			kill(pid, how[i]);
		}
		ck_assert_int_eq(run_wait(pid, LIMIT), -how[i]);
		for (waited = 0; private_folders() > 1 && waited < 100; waited++)
			poll(NULL, 0, how[i] ? 50 : 0); /* after a normal exit it is already gone */
		ck_assert_msg(private_folders() == 1, "signal %d leaves the private daemon behind", how[i]);
		ck_assert(how[i] || !waited);
	}
}
END_TEST

/*
 * A fork of the program has copies of its descriptors. The program ends its private daemon even so; the fork, with its
 * copy of the daemon, does not.
 */
START_TEST(private_daemon_ends_beside_a_fork)
{
	struct skv_client *client, *another;
	struct eng_private *p;
	struct eng_error err;
	pid_t stops, lives;

	ck_assert_msg(!eng_private_start(0, NULL, &p, &client, &err), "%s", err.text);
	stops = child_fork();
	if (stops == 0) {
		eng_private_stop(p);
		_exit(0);
	}
	child_wait(stops);
	ok(skv_connect(&another, eng_private_socket(p)));
	lives = child_fork();
	if (lives == 0)
		for (;;)
			pause();
	skv_disconnect(another);
	skv_disconnect(client);
	eng_private_stop(p);
	ck_assert_uint_eq(private_folders(), 1);
	ck_assert_int_eq(kill(lives, SIGKILL), 0);
	ck_assert_int_eq(waitpid(lives, NULL, 0), lives);
}
END_TEST

START_TEST(private_daemon_that_cannot_start)
{
	const char *argv[] = {GENERATE, MODEL, "--private", "--policy", "full", "--prompt", "a", NULL};
	char *err, *script;

	setenv("SPARSEKVD", "/absent", 1);
	ck_assert_int_eq(run(folder, argv, LIMIT), EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_ptr_nonnull(strstr(err, "SPARSEKVD=/absent: not a program"));
	free(err);

	script = strdup(fx_path(folder, "daemon"));
	fx_text(script, "#!/bin/sh\necho this machine has no room >&2\nexit 3\n");
	ck_assert_int_eq(chmod(script, 0700), 0);
	setenv("SPARSEKVD", script, 1);
	ck_assert_int_eq(run(folder, argv, LIMIT), EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_msg(strstr(err, "ended at once: this machine has no room"), "%s", err);
	free(err);
	free(script);
	ck_assert_uint_eq(private_folders(), 1);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-engine-run");
	TCase *t = add_case(s, "command lines", 60, daemon_setup, daemon_teardown, help_and_version, NULL);

	tcase_add_loop_test(t, refusals_are_clear, 0, sizeof(refusals) / sizeof(*refusals));
	tcase_add_loop_test(t, modules_are_looked_at, 0, 3);
	add_case(s, "private daemon", 60, daemon_setup, daemon_teardown, private_daemon_goes_with_the_program,
	         private_daemon_ends_beside_a_fork, private_daemon_that_cannot_start, NULL);
	return run_suite(s);
}
