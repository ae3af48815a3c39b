/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv-generate, sparsekv-eval and sparsekv-calibrate as their users run them, with the reference model, on the
 * host, or with SKV_TEST_DEVICE=1 on the first device.
 */
#include <check.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/progress.h"
#include "tests/support/engine-daemon.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define GENERATE "engine/sparsekv-generate"
#define EVAL "engine/sparsekv-eval"
#define CALIBRATE "engine/sparsekv-calibrate"
#define MODEL "--model", model, "--device", device
#define SOCKET "--socket", eng_private_socket(engine_daemon)
#define MODEL_ARGS 4

static const char *model, *tasks, *device;

static void setup(void)
{
	device = getenv("SKV_TEST_DEVICE") ? "cuda:0" : "host";
	model = strdup(run_source("models/reference"));
	tasks = strdup(run_source("models/reference/tasks-dev.jsonl"));
	daemon_setup();
}

/* ---- sparsekv-generate ----------------------------------------------------------------------- */

static const char prompt[] =
	"#dag\nabc:3\ndef:4\nghi:5\nabc+def=jkl:?\njkl+ghi=mno:?\nmno+mno=pqr:?\nabc+pqr=stu:?\n"
	"stu+jkl=vwx:?\n?vwx\n>\n";
static const char answer[] = "abc:3+def:4=jkl:7\njkl:7+ghi:5=mno:2\nmno:2+mno:2=pqr:4\nabc:3+pqr:4=stu:7\n"
			     "stu:7+jkl:7=vwx:4\n#vwx:4\n";

/* Run sparsekv-generate on the fixture's daemon with these further arguments; its stdout, to be freed. */
static char *generate(const char *const *more)
{
	const char *argv[RUN_ARGS] = {GENERATE, MODEL, SOCKET};
	int n = 3 + MODEL_ARGS;
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

static const char *const verifying[] = {
	"full", "streaming?budget=0.25", "quest?budget=0.25", "delta?budget=0.25", "omnikv?budget=0.25", "kascade?budget=0.25",
	"sketch?budget=0.125",
	"kivi?bits=4", "deltakv?layers=2,7,12&residual=16&block=16&file=%s",
};

/* Speculative decoding: the same text, in half the steps. */
START_TEST(drafts_change_no_text)
{
	char policy[512], *out, *plain, *err;
	unsigned steps = 0;

	snprintf(policy, sizeof(policy), verifying[_i], run_source("models/reference/deltakv.safetensors"));
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

/* A prompt of the dev tasks that takes a while to read and to answer, into FOLDER/prompt. */
static void long_prompt(void)
{
	size_t n;
	char *cases = fx_read(tasks, &n), *line = strstr(cases, "\"id\": \"recur-2048-0\""), *from, *to, *out;

	ck_assert_ptr_nonnull(line);
	from = strstr(line, "\"prompt\": \"") + strlen("\"prompt\": \"");
	to = out = from;
	for (; *from != '"'; from++) /* the only escape in these prompts is \n */
		*to++ = from[0] == '\\' && from[1] == 'n' ? (from++, '\n') : *from;
	fx_write(fx_path(folder, "prompt"), out, (size_t)(to - out));
	free(cases);
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
	                                       "streaming?budget=200&dense=2", "h2o?budget=200&dense=2",
	                                       "raas:ratio?budget=24&dense=2"};
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

/* ---- sparsekv-eval --------------------------------------------------------------------------- */

/* Run sparsekv-eval on the fixture's daemon, 512-byte cases; with a dump. */
static void eval(const char *const *more)
{
	const char *argv[RUN_ARGS] = {EVAL,      MODEL, SOCKET,   "--tasks", tasks,
	                              "--sizes", "512", "--dump", fx_path(folder, "dump")};
	int n = 9 + MODEL_ARGS;
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

/*
 * What evicts from each head alone keeps what its budget says: all of it if that is enough, so that the answer is
 * right, else a part. The prompt's queries count in a session of its own, whichever session comes first.
 */
START_TEST(eval_of_heads_that_evict)
{
	static const struct {
		const char *enough, *less;
		double least, most; /* kept of about 600 tokens, in 14 of 16 layers */
	} c[] = {
		{"h2o?budget=1000", "h2o?budget=200&dense=2", 0.38, 0.46},
		{"snapkv?budget=1000", "snapkv?budget=200&dense=2&interval=32", 0.38, 0.5},
		{"adakv?budget=1000", "adakv?budget=200&dense=2&interval=32", 0.6, 0.85}, /* 1.8 times as much is for one head */
		{"pyramidkv?budget=20000", "pyramidkv?budget=200&dense=2&interval=32", 0.36, 0.5},
		{"rkv?budget=1000", "rkv?budget=200&dense=2&interval=32", 0.38, 0.5},
		{"raas?budget=64", "raas?budget=34&dense=2", 0.9, 1}, /* the prompt stays */
	};
	char *csv, *line, name[128];
	double exact, share, kept;

	eval("--policy", "full", "--policy", c[_i].enough, "--policy", c[_i].less, "--limit", "1", "--task", "kv", "--csv",
	     fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	for (int less = 0; less < 2; less++) {
		snprintf(name, sizeof(name), "\n%s,kv,512,1,", less ? c[_i].less : c[_i].enough);
		line = strstr(csv, name);
		ck_assert_ptr_nonnull(line);
		ck_assert_int_eq(sscanf(line + strlen(name), "%lf,%*[^,],%*[^,],%*[^,],%lf,%lf", &exact, &share, &kept), 3);
		if (less)
			ck_assert_msg(kept >= c[_i].least && kept <= c[_i].most, "%s keeps %g", c[_i].less, kept);
		else
			ck_assert_msg(exact == 1 && share == 1 && kept == 1, "%s: %g, %g, %g", c[_i].enough, exact,
			              share, kept);
	}
	free(csv);
}
END_TEST

START_TEST(eval_writes_its_figures)
{
	char *csv, *out, *line, *err;
	double share, kept, recall;

	eval("--policy", "full", "--policy", "streaming?budget=0.25&dense=2", "--limit", "1", "--task",
	     "kv,recur", "--recall", "8", "--quiet", "--csv", fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	out = run_out(folder);
	err = run_err(folder);
	ck_assert_str_eq(err, "");
	ck_assert(!strncmp(
		csv,
		"policy,task,size,n,exact,line,token,decode_len,attended_share,kept_share,recall,tokens_per_s\n",
		93));
	ck_assert_ptr_nonnull( /* full looks at everything: there is no recall */
		strstr(csv, "\nfull,kv,512,1,1.000000,1.000000,1.000000,85.000,1.000000,1.000000,,"));
	ck_assert_ptr_nonnull(strstr(csv, "\nfull,all,all,2,1.000000,"));
	line = strstr(csv, "\nstreaming?budget=0.25&dense=2,recur,512,1,");
	ck_assert_ptr_nonnull(line);
	ck_assert_int_eq(sscanf(line, "\n%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%lf,%lf,%lf",
	                        &share, &kept, &recall),
	                 3);
	ck_assert(recall > 0.1 && recall < 0.99);
	ck_assert(share > 0.1 && share < 0.75 && kept > 0.1 && kept < 0.9);
	ck_assert_ptr_nonnull(strstr(out, "attended_share  kept_share  recall"));
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

/* The first policy is what the others are compared with. */
START_TEST(eval_compares)
{
	double kl[2], agree[2], change[2];
	char *out, *line;

	eval("--policy", "full", "--policy", "streaming?budget=0.25", "--limit", "1", "--task", "recur", "--csv", "-",
	     "--compare");
	line = out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "tokens_per_s,kl,agree,dnll\n"));
	for (int i = 0; i < 2; i++) {
		line = strstr(line, ",,"); /* no recall; then the speed */
		ck_assert_ptr_nonnull(line);
		ck_assert_int_eq(sscanf(line++, ",,%*[^,],%lf,%lf,%lf", &kl[i], &agree[i], &change[i]), 3);
		line = i ? line : strstr(line, "\nstreaming");
	}
	ck_assert(kl[0] == 0 && agree[0] == 1 && change[0] == 0);
	ck_assert(kl[1] > 0.001 && agree[1] < 1 && fabs(change[1]) > 1e-6);
	free(out);
}
END_TEST

/* What a calibration writes is what a policy takes, and it is drawn. */
START_TEST(calibrates)
{
	char *out, *svg, *profile, spec[300], path[200], prefix[200];
	const char *argv[] = {CALIBRATE, "--model", model, SOCKET, "--tasks", tasks, "--texts", "1",
	                      "--context", "700", "--rows", "10", "--sinks", "16", "--window", "128",
	                      "-o", path, "--svg", prefix, NULL};

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	snprintf(prefix, sizeof(prefix), "%s/drawn", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\ndelta layers:      2,7,"));
	ck_assert_ptr_nonnull(strstr(out, "\nkascade anchors:   0,"));
	ck_assert_ptr_nonnull(strstr(out, "\nthe correction does harm: ")); /* bytes are not alike */
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"helps\": false"));
	ck_assert_ptr_nonnull(strstr(profile, "\"sparsekv_profile\": 1"));
	svg = fx_read(fx_path(folder, "drawn-similarity.svg"), NULL);
	ck_assert_int_eq(strncmp(svg, "<svg ", 5), 0);
	ck_assert_ptr_nonnull(strstr(svg, "</svg>\n"));
	free(svg);
	svg = fx_read(fx_path(folder, "drawn-shift.svg"), NULL);
	ck_assert_ptr_nonnull(strstr(svg, "</svg>\n"));
	free(svg);
	svg = fx_read(fx_path(folder, "drawn-alike.svg"), NULL);
	ck_assert_ptr_nonnull(strstr(svg, "</svg>\n"));
	free(svg);
	free(profile);
	free(out);

	snprintf(spec, sizeof(spec), "delta?profile=%s", path);
	out = generate("--policy", spec, "--prompt", prompt);
	ck_assert_str_eq(out, answer);
	free(out);
	snprintf(spec, sizeof(spec), "kascade?profile=%s", path);
	out = generate("--policy", spec, "--prompt", prompt, "--max-tokens", "5");
	ck_assert_uint_eq(strlen(out), 5);
	free(out);
}
END_TEST

/* A compressor is made of texts, and then sequences are packed with it. */
START_TEST(calibrates_compressors)
{
	static const struct {
		const char *option, *policy;
	} cases[] = {{"--deltakv-pca", "deltakv?layers=2,7,12&residual=32&file="},
	             {"--palu", "palu?residual=32&file="}};
	char *out, *csv, *line, spec[300], path[200];
	double exact, lines, kept;
	const char *argv[] = {CALIBRATE, "--model", model, SOCKET, "--tasks", tasks, "--texts", "1",
	                      "--context", "700", cases[_i].option, path, NULL};

	snprintf(path, sizeof(path), "%s/made.safetensors", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, " for 256 of K and V"));
	free(out);

	snprintf(spec, sizeof(spec), "%s%s", cases[_i].policy, path);
	eval("--policy", spec, "--task", "kv,niah", "--limit", "2", "--csv", fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	line = strstr(csv, ",all,");
	ck_assert_ptr_nonnull(line);
	ck_assert_int_eq(sscanf(line, ",all,%*[^,],%*[^,],%lf,%lf,%*[^,],%*[^,],%*[^,],%lf", &exact, &lines, &kept), 3);
	ck_assert_msg(lines > 0.7 && kept < 0.8, "%f of the lines right, %f kept:\n%s", lines, kept, csv);
	free(csv);
}
END_TEST

/* A search begins with what the papers' criteria chose, and the profile has both. */
START_TEST(calibrates_by_loss)
{
	char *profile, spec[300], path[200];
	const char *argv[] = {CALIBRATE, MODEL, SOCKET, "--text", tasks, "--by",
	                      "loss", "--budget", "0.1", "--texts", "1", "--context", "300", "--rows", "8",
	                      "--delta-layers", "2", "--anchors", "1", "--filters", "1", "-o", path, NULL};
	char *out;

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\ndelta layers:      2,"));
	ck_assert_ptr_nonnull(strstr(out, "\nno text is longer than these")); /* than the sinks and the window of the policies */
	ck_assert_ptr_nonnull(strstr(out, "\nby loss, 8 tokens, a budget of 0.1:\ndelta layers:      2,"));
	ck_assert_ptr_nonnull(strstr(out, "\nkascade anchors:   0  loss "));
	ck_assert_ptr_nonnull(strstr(out, ", 1 sets tried\n"));
	free(out);
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"papers\": {"));
	ck_assert_ptr_nonnull(strstr(profile, "\"papers_loss\": "));
	free(profile);
	snprintf(spec, sizeof(spec), "delta?profile=%s", path);
	out = generate("--policy", spec, "--prompt", prompt);
	ck_assert_str_eq(out, answer);
	free(out);
}
END_TEST

/* Without a text it takes the one that is installed, and a run that is not interrupted is not partial. */
START_TEST(calibrates_prose)
{
	char *profile, path[200];
	const char *argv[] = {CALIBRATE, "--model", model, SOCKET, "--context", "300", "--texts", "2", "--rows", "8",
	                      "-o", path, NULL};

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	ck_assert_int_eq(run(folder, argv, LIMIT), 0);
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"from\": \"prose.txt\""));
	ck_assert_ptr_nonnull(strstr(profile, "\"texts\": 2,"));
	ck_assert_ptr_nonnull(strstr(profile, "\"tokens\": 600,"));
	ck_assert_ptr_null(strstr(profile, "\"partial\""));
	free(profile);
}
END_TEST

/* Interrupted while it reads, or searches: what it has is a profile that says so. */
START_TEST(interrupted_calibration)
{
	char path[200];
	const char *reads[] = {CALIBRATE, "--model", model, SOCKET, "--context", "700", "--texts", "500", "-o", path, NULL};
	const char *searches[] = {CALIBRATE, "--model", model, SOCKET, "--context", "300", "--texts", "4", "--rows", "64",
	                          "--by", "loss", "-o", path, NULL};
	char *profile, *out, *err, spec[300];
	int status = -SIGTERM;

	snprintf(path, sizeof(path), "%s/profile.json", folder);
	/* a signal that comes before anything was measured ends it, and nothing is written: then later */
	for (int ms = 2000; status == -SIGTERM && ms <= 32000; ms *= 2) {
		pid_t pid = run_start(folder, _i ? searches : reads);

		ck_assert_int_lt(access(path, F_OK), 0);
		poll(NULL, 0, ms);
		kill(pid, SIGTERM);
		status = run_wait(pid, LIMIT);
	}
	err = run_err(folder);
	ck_assert_msg(status == 3, "status %d: %s", status, err);
	ck_assert_ptr_nonnull(strstr(err, "interrupted: this profile rests on "));
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\nkascade anchors:   0,"));
	profile = fx_read(path, NULL);
	ck_assert_ptr_nonnull(strstr(profile, "\"partial\": {"));
	ck_assert_ptr_nonnull(strstr(profile, _i ? "\"of_texts\": 4," : "\"of_texts\": 500,"));
	ck_assert_int_lt(access(fx_path(folder, "profile.json.part"), F_OK), 0);
	snprintf(spec, sizeof(spec), "delta?profile=%s", path);
	free(out);
	out = generate("--policy", spec, "--prompt", prompt, "--max-tokens", "5");
	ck_assert_uint_eq(strlen(out), 5);
	free(out);
	free(err);
	free(profile);
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
	const char *argv[] = {EVAL,       MODEL,  SOCKET,     "--tasks",             tasks,
	                      "--policy", "full", "--policy", "delta?layers=2,7,12", "--sizes", "1024", NULL};
	const char *ctl[] = {"daemon/ctl/sparsekvctl", SOCKET, "--json", "seq", "list", NULL};
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

int main(void)
{
	Suite *s = begin_suite("test-engine-work");
	TCase *t = add_case(s, "sparsekv-generate", 120, setup, daemon_teardown, generates,
	                    a_named_sequence_goes_on, NULL);

	tcase_add_loop_test(t, death_loses_nothing, 0, 5);
	tcase_add_loop_test(t, drafts_change_no_text, 0, sizeof(verifying) / sizeof(*verifying));
	t = add_case(s, "sparsekv-eval", 120, setup, daemon_teardown, eval_writes_its_figures, eval_compares,
	             eval_cleans_up_when_interrupted, NULL);
	tcase_add_loop_test(t, eval_of_heads_that_evict, 0, 6);
	tcase_add_loop_test(t, batch_and_mode_do_not_matter, 0, 2);
	t = add_case(s, "sparsekv-calibrate", 120, setup, daemon_teardown, calibrates, calibrates_by_loss,
	             NULL);
	tcase_add_test(t, calibrates_prose);
	tcase_add_loop_test(t, interrupted_calibration, 0, 2);
	tcase_add_loop_test(t, calibrates_compressors, 0, 2);
	return run_suite(s);
}
