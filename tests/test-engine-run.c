/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine on a real daemon: small random models against a plain double-precision computation,
 * and the two programs as their users run them.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/forward.h"
#include "engine/private.h"
#include "engine/progress.h"
#include "tests/engine-fixture.h"
#include "tests/random.h"
#include "tests/run-program.h"

#define REFERENCE SKV_SRCDIR "/models/reference"
#define TASKS REFERENCE "/tasks-dev.jsonl"
#define LIMIT 60 /* seconds that a program may take */

static char *folder;
static struct eng_private *daemon_;
static struct skv_client *client;

static void setup(void)
{
	struct eng_error err;
	int r;

	folder = fx_folder();
	/* whatever the programs leave in the temporary directory is seen */
	setenv("TMPDIR", folder, 1);
	setenv("SPARSEKVD", SKV_BUILDDIR "/daemon/sparsekvd", 1);
	r = eng_private_start(&daemon_, &client, &err);
	ck_assert_msg(!r, "%s", err.text);
}

static void teardown(void)
{
	skv_disconnect(client);
	eng_private_stop(daemon_);
	fx_remove(folder);
}

static void ok(int r)
{
	ck_assert_msg(r >= 0, "%s", skv_last_error());
}

/* Folders of private daemons under TMPDIR. */
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

/* ---- small models ---------------------------------------------------------------------------- */

/* In the order of struct fx_model. */
static const struct fx_model models[] = {
	{48, 3, 4, 2, 16, 80, 264, 512, 10000, 1e-5, FX_BF16, true},
	{40, 2, 6, 1, 32, 56, 259, 300, 500000, 1e-6, FX_F16, false},
	{64, 2, 5, 5, 48, 33, 300, 400, 10000, 1e-5, FX_F32, false},
};

/* A sequence on its way: tokens known beforehand, the first `prompt` of them read as prompt. */
struct track {
	struct skv_seq *seq;
	int32_t tokens[200];
	uint32_t n, prompt, at;
	double *want; /* logits [n][vocab] */
};

/* Give each track its next rows: a random chunk of the prompt, or one row. Returns how many items. */
static uint32_t next_items(struct track *tracks, uint32_t n, struct skv_step_item *items, struct track **of)
{
	uint32_t n_items = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct track *t = &tracks[i];
		uint32_t left = t->prompt > t->at ? t->prompt - t->at : 0;

		if (t->at == t->n || !rnd_below(5))
			continue;
		of[n_items] = t;
		items[n_items++] = (struct skv_step_item){
			.seq = t->seq,
			.n_tokens = left ? rnd_below(left) + 1 : 1,
			.flags = left ? SKV_STEP_PROMPT : 0,
			.tokens = t->tokens + t->at,
		};
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

/* Prompts in chunks of any size and decode rows, mixed in one step, give what a plain computation gives. */
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
	ck_assert_msg(!eng_model_load(&model, folder, eng_place_host(), SKV_F32, &err), "%s", err.text);
	ck_assert_int_eq(eng_forward_init(&f, &model, 800, &err), 0);
	shape = eng_model_describe(&model, SKV_F32);
	ok(skv_open(client, &shape, "full", &session));
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
		ok(skv_step_end(session, NULL));
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
	struct skv_step_item item = {.n_tokens = 3, .flags = SKV_STEP_PROMPT, .tokens = ids};

	fx_model_write(&models[0], w, folder);
	ck_assert_int_eq(eng_model_load(&model, folder, eng_place_host(), SKV_F32, &err), 0);
	ck_assert_int_eq(eng_forward_init(&f, &model, 5, &err), 0);
	shape = eng_model_describe(&model, SKV_F32);
	ok(skv_open(client, &shape, "full", &session));
	ok(skv_seq_new(session, NULL, 4, &seq));
	item.seq = seq;
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), -EINVAL);
	ck_assert_str_eq(err.text, "token id 264, the vocabulary has 264");
	item.n_tokens = 6;
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), -EINVAL);
	ck_assert_str_eq(err.text, "a step of more than 5 rows");
	ids[2] = 0;
	item.n_tokens = 5;
	/* the library's own refusal, and its text */
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), -E2BIG);
	ck_assert_int_gt((int)strlen(err.text), 0);
	item.n_tokens = 4;
	ck_assert_int_eq(eng_forward(&f, session, &item, 1, &err), 0); /* none of which left a step open */
	skv_step_abort(session);
	skv_close(session);
	eng_forward_deinit(&f);
	eng_model_deinit(&model);
	fx_weights_free(w);
}
END_TEST

/* ---- the command lines ----------------------------------------------------------------------- */

#define GENERATE "engine/sparsekv-generate"
#define EVAL "engine/sparsekv-eval"
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
         "--kv-dtype int4: bf16, fp16 or fp32"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "gpu"},
         "--device gpu: host, or cuda:0 to cuda:15 expected"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "cuda:16"}, "--device cuda:16: host"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "cuda:1x"}, "--device cuda:1x: host"},
	{{GENERATE, MODEL, "--policy", "full", "--prompt", "a", "--device", "cuda:2", "--kv-dtype", "fp32"},
         "--kv-dtype fp32: bf16 or fp16 expected with --device cuda:2"},
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
	{{EVAL, MODEL, "--tasks", TASKS, "--policy", "full", "--policy", "delta?colour=3", "--private"},
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

/* What is no module of this engine's is refused with a reason, and a private daemon does not stay behind. */
START_TEST(modules_are_looked_at)
{
	static const struct {
		const char *module, *says;
	} modules[] = {
		{"/absent.so", "this engine cannot use CUDA here: /absent.so: cannot open shared object file"},
		{SKV_BUILDDIR "/policies/.libs/full.so", "full.so has no eng_cuda_ops"},
		{SKV_BUILDDIR "/tests/plugins/.libs/old-engine.so", "has version 2 of 8 bytes, expected 1 of "},
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

/* ---- sparsekv-generate ----------------------------------------------------------------------- */

static const char prompt[] =
	"#dag\nabc:3\ndef:4\nghi:5\nabc+def=jkl:?\njkl+ghi=mno:?\nmno+mno=pqr:?\nabc+pqr=stu:?\n"
	"stu+jkl=vwx:?\n?vwx\n>\n";
static const char answer[] = "abc:3+def:4=jkl:7\njkl:7+ghi:5=mno:2\nmno:2+mno:2=pqr:4\nabc:3+pqr:4=stu:7\n"
			     "stu:7+jkl:7=vwx:4\n#vwx:4\n";

/* Run sparsekv-generate on the fixture's daemon with these further arguments; its stdout, to be freed. */
static char *generate(const char *const *more)
{
	const char *argv[RUN_ARGS] = {GENERATE, MODEL, "--socket", eng_private_socket(daemon_)};
	int n = 5;
	char *err;

	while (*more)
		argv[n++] = *more++;
	if (run(folder, argv, LIMIT)) {
		err = run_err(folder);
		ck_abort_msg("sparsekv-generate failed: %s", err);
	}
	return run_out(folder);
}
#define generate(...) generate((const char *[]){__VA_ARGS__, NULL})

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

	/* an empty prompt is bos alone */
	out = generate("--policy", "full", "--prompt", "", "--max-tokens", "3");
	ck_assert_uint_le(strlen(out), 3);
	free(out);
}
END_TEST

START_TEST(a_named_sequence_goes_on)
{
	char *first, *second, *whole, *err;

	first = generate("--policy", "full", "--prompt", prompt, "--seq", "talk", "--max-tokens", "20");
	ck_assert_uint_eq(strlen(first), 20);
	/* without a prompt: what comes next */
	second = generate("--policy", "full", "--seq", "talk", "--max-tokens", "15");
	ck_assert_uint_eq(strlen(second), 15);
	ck_assert_mem_eq(second, answer + 20, 15);
	/* the same command with more tokens: everything behind the prompt, only the rest computed */
	whole = generate("--policy", "full", "--prompt", prompt, "--seq", "talk");
	ck_assert_str_eq(whole, answer);
	err = run_err(folder);
	ck_assert_ptr_nonnull(strstr(err, " 0 computed in"));
	free(err);
	free(first);
	free(second);
	free(whole);

	/* it has ended: nothing comes next, the whole is still there */
	whole = generate("--policy", "full", "--seq", "talk");
	ck_assert_str_eq(whole, "");
	free(whole);
	whole = generate("--policy", "full", "--seq", "talk", "--prompt", prompt, "--max-tokens", "7");
	ck_assert_uint_eq(strlen(whole), 7);
	free(whole);

	/* another text under the same name is refused, and costs nothing */
	ck_assert_int_eq(
		run(folder,
	            (const char *[]){GENERATE, MODEL, "--socket", eng_private_socket(daemon_), "--policy",
	                             "full", "--seq", "talk", "--prompt", "#dag\nabc:4", NULL},
	            LIMIT),
		EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_ptr_nonnull(
		strstr(err, "sequence talk holds another text, not the prompt, from byte 9 on"));
	free(err);
	ck_assert_int_eq(run(folder,
	                     (const char *[]){GENERATE, MODEL, "--socket", eng_private_socket(daemon_),
	                                      "--policy", "full", "--seq", "absent", NULL},
	                     LIMIT),
	                 EXIT_FAILURE);
	err = run_err(folder);
	ck_assert_ptr_nonnull(strstr(err, "absent"));
	free(err);
}
END_TEST

/* A prompt of the dev tasks that takes a while to read and to answer, into FOLDER/prompt. */
static void long_prompt(void)
{
	size_t n;
	char *tasks = fx_read(TASKS, &n), *line = strstr(tasks, "\"id\": \"recur-2048-0\""), *from, *to, *out;

	ck_assert_ptr_nonnull(line);
	from = strstr(line, "\"prompt\": \"") + strlen("\"prompt\": \"");
	to = out = from;
	for (; *from != '"'; from++) /* the only escape in these prompts is \n */
		*to++ = from[0] == '\\' && from[1] == 'n' ? (from++, '\n') : *from;
	fx_write(fx_path(folder, "prompt"), out, (size_t)(to - out));
	free(tasks);
}

/* Let a program live for so many ms or until it has written so many bytes; then kill it. What became of it.
 */
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

/* Killed at any moment and started again, the program says what it says when nobody kills it. */
START_TEST(death_loses_nothing)
{
	static const char *const policies[] = {"full", "delta?budget=8&layers=2,7,12",
	                                       "streaming?budget=200&dense=2"};
	const char *policy = policies[_i];
	char *file = strdup(fx_path(folder, "prompt")), *want, *got;
	const char *argv[RUN_ARGS] = {GENERATE,       MODEL,  "--socket",      eng_private_socket(daemon_),
	                              "--policy",     policy, "--prompt-file", file,
	                              "--max-tokens", "400",  "--seq",         "hurt"};
	size_t n;

	long_prompt();
	want = generate("--policy", policy, "--prompt-file", file, "--max-tokens", "400");
	n = strlen(want);
	ck_assert_uint_gt(n, 100);
	/* twice while it starts or reads the prompt, then at five places of its answer */
	for (int i = 0; i < 2; i++)
		kill_at(run_start(folder, argv), 10 + rnd_below(120), n / 6);
	for (size_t i = 1; i < 6; i++)
		ck_assert_int_eq(kill_at(run_start(folder, argv), 1000 * LIMIT,
		                         n * i / 6 + rnd_below((uint32_t)n / 7)),
		                 -SIGKILL);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	got = run_out(folder);
	ck_assert_str_eq(got, want);
	free(got);
	free(want);
	free(file);
}
END_TEST

/* ---- the private daemon ---------------------------------------------------------------------- */

START_TEST(private_daemon_goes_with_the_program)
{
	const char *argv[] = {GENERATE,   MODEL,  "--private",    "--policy", "full",
	                      "--prompt", prompt, "--max-tokens", "16000",    NULL};
	const int how[] = {0, SIGKILL, SIGINT, SIGTERM};

	ck_assert_uint_eq(private_folders(), 1); /* the fixture's */
	for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++) {
		pid_t pid;
		int waited = 0;

		/* prompt with a long answer, so that the signal comes in the middle */
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
			poll(NULL, 0, how[i] ? 50 : 0); /* after a return it is gone already */
		ck_assert_msg(private_folders() == 1, "signal %d leaves the private daemon behind", how[i]);
		ck_assert(how[i] || !waited);
	}
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

/* ---- sparsekv-eval --------------------------------------------------------------------------- */

/* Run sparsekv-eval on the fixture's daemon, 512-byte cases; with a dump. */
static void eval(const char *const *more)
{
	const char *argv[RUN_ARGS] = {
		EVAL,      MODEL, "--socket", eng_private_socket(daemon_), "--tasks", TASKS,
		"--sizes", "512", "--dump",   fx_path(folder, "dump")};
	int n = 11;
	char *err;

	while (*more)
		argv[n++] = *more++;
	if (run(folder, argv, LIMIT)) {
		err = run_err(folder);
		ck_abort_msg("sparsekv-eval failed: %s", err);
	}
}
#define eval(...) eval((const char *[]){__VA_ARGS__, NULL})

/* The rows of "id exact" that a dump has, in its order; to be freed. */
static char *verdicts(void)
{
	char *dump = fx_read(fx_path(folder, "dump"), NULL), *list = NULL, *save, *line;
	size_t n = 0;
	FILE *f = open_memstream(&list, &n);

	for (line = strtok_r(dump, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		const char *id = strstr(line, "\"id\":\""), *exact = strstr(line, "\"exact\":");

		ck_assert(id && exact);
		fprintf(f, "%.12s %.4s\n", id + 6, exact + 8);
	}
	fclose(f);
	free(dump);
	return list;
}

START_TEST(eval_writes_its_figures)
{
	char *csv, *out, *line, *err;
	double share, kept;

	eval("--policy", "full", "--policy", "streaming?budget=0.25&dense=2", "--limit", "1", "--task",
	     "kv,recur", "--csv", fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	out = run_out(folder);
	err = run_err(folder);
	ck_assert_str_eq(err, "");
	ck_assert(!strncmp(
		csv,
		"policy,task,size,n,exact,line,token,decode_len,attended_share,kept_share,tokens_per_s\n",
		86));
	ck_assert_ptr_nonnull(
		strstr(csv, "\nfull,kv,512,1,1.000000,1.000000,1.000000,85.000,1.000000,1.000000,"));
	ck_assert_ptr_nonnull(strstr(csv, "\nfull,all,all,2,1.000000,"));
	line = strstr(csv, "\nstreaming?budget=0.25&dense=2,recur,512,1,");
	ck_assert_ptr_nonnull(line);
	ck_assert_int_eq(sscanf(line, "\n%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%lf,%lf",
	                        &share, &kept),
	                 2);
	ck_assert(share > 0.1 && share < 0.75 && kept > 0.1 && kept < 0.9);
	ck_assert_ptr_nonnull(strstr(out, "attended_share"));
	ck_assert_ptr_nonnull(strstr(out, "recur"));
	free(csv);
	free(out);
	free(err);

	eval("--policy", "full", "--policy", "delta?layers=2,7,12", "--limit", "1", "--task", "kv",
	     "--summary");
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "exact answers  tokens attended  KV kept  tokens/s\n"));
	ck_assert_ptr_nonnull(strstr(out, "full                        1 of 1          100.0 %  100.0 %"));
	free(out);

	/* as CSV alone, with a spec that has commas */
	eval("--policy", "delta?layers=2,7,12", "--limit", "1", "--task", "kv", "--csv", "-");
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\n\"delta?layers=2,7,12\",kv,512,1,1.000000"));
	ck_assert_ptr_null(strstr(out, "policy  "));
	free(out);
}
END_TEST

/* Neither the batch nor how the next token is chosen changes what is exact. */
START_TEST(batch_and_mode_do_not_matter)
{
	const char *policy = _i ? "delta?budget=0.25&layers=2,7,12" : "full";
	char *batched, *alone, *freely;

	eval("--policy", policy, "--limit", "2", "--task", "kv,niah,vt,dag");
	batched = verdicts();
	eval("--policy", policy, "--limit", "2", "--task", "kv,niah,vt,dag", "--batch", "3");
	alone = verdicts();
	ck_assert_str_eq(batched, alone);
	eval("--policy", policy, "--limit", "2", "--task", "kv,niah,vt,dag", "--mode", "free");
	freely = verdicts();
	ck_assert_str_eq(batched, freely);
	ck_assert_ptr_nonnull(strstr(batched, " true"));
	ck_assert_ptr_nonnull(strstr(batched, " fals")); /* vt */
	free(batched);
	free(alone);
	free(freely);
}
END_TEST

/* Ctrl-C ends it by that signal, and no sequence of a hand-over stays behind. */
START_TEST(eval_cleans_up_when_interrupted)
{
	const char *argv[] = {EVAL,       MODEL,  "--socket", eng_private_socket(daemon_), "--tasks", TASKS,
	                      "--policy", "full", "--policy", "delta?layers=2,7,12",       "--sizes", "1024",
	                      NULL};
	const char *ctl[] = {"daemon/ctl/sparsekvctl",
	                     "--socket",
	                     eng_private_socket(daemon_),
	                     "--json",
	                     "seq",
	                     "list",
	                     NULL};
	char *out;
	pid_t pid = run_start(folder, argv);

	poll(NULL, 0, 1500);
	kill(pid, SIGINT);
	ck_assert_int_eq(run_wait(pid, LIMIT), -SIGINT);
	ck_assert_int_eq(run(folder, ctl, LIMIT), 0);
	out = run_out(folder);
	ck_assert_msg(!strstr(out, "sparsekv-eval"), "%s", out);
	free(out);
}
END_TEST

static TCase *tcase(Suite *s, const char *name, double seconds)
{
	TCase *t = tcase_create(name);

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, seconds);
	suite_add_tcase(s, t);
	return t;
}

int main(void)
{
	Suite *s = suite_create("engine: with a daemon");
	TCase *t = tcase(s, "small models", 60);
	SRunner *r;
	int failed;

	tcase_add_loop_test(t, forward_is_right, 0, sizeof(models) / sizeof(*models));
	tcase_add_test(t, forward_refuses_bad_rows);
	t = tcase(s, "command lines", 60);
	tcase_add_loop_test(t, refusals_are_clear, 0, sizeof(refusals) / sizeof(*refusals));
	tcase_add_loop_test(t, modules_are_looked_at, 0, 3);
	tcase_add_test(t, help_and_version);
	t = tcase(s, "sparsekv-generate", 120);
	tcase_add_test(t, generates);
	tcase_add_test(t, a_named_sequence_goes_on);
	tcase_add_loop_test(t, death_loses_nothing, 0, 3);
	t = tcase(s, "private daemon", 60);
	tcase_add_test(t, private_daemon_goes_with_the_program);
	tcase_add_test(t, private_daemon_that_cannot_start);
	t = tcase(s, "sparsekv-eval", 120);
	tcase_add_test(t, eval_writes_its_figures);
	tcase_add_loop_test(t, batch_and_mode_do_not_matter, 0, 2);
	tcase_add_test(t, eval_cleans_up_when_interrupted);

	r = srunner_create(s);
	rnd_seed("test-engine-run");
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
