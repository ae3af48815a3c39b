/* SPDX-License-Identifier: Apache-2.0 */
/* sparsekv-eval: run a task file under several policies and say how right they are. See sparsekv-eval(1). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/cli.h"
#include "engine/report.h"
#include "engine/env.h"

#define PROGRAM "sparsekv-eval"
#define LIST_MAX 32u

static const char help[] =
	"Usage: sparsekv-eval --model DIR --tasks F.jsonl --policy SPEC [--policy SPEC…] [OPTION…]\n"
	"Run task cases under policies, compare with the true answers, print a table.\n\n"
	"  --tasks FILE       one JSON object a line: id, task, size, prompt, answer\n"
	"  --policy SPEC      name?key=value&…; give it again for another policy\n"
	"  --mode MODE        forced (default): feed the true answer, compare every argmax\n"
	"                     free: feed what the model says\n"
	"  --task A,B         these tasks only\n"
	"  --sizes N,M        these sizes only\n"
	"  --limit N          the first N cases of each task and size\n"
	"  --batch N          cases decoded together (default 16)\n"
	"  --chunk N          tokens of a prompt in a step, at most (default 512)\n"
	"  --recall N         measure attention recall, in one step of N (default 0: never)\n"
	"  --summary          one line a policy instead of the whole table\n"
	"  --csv FILE         the whole table as CSV, - for stdout instead of the table\n"
	"  --dump FILE        every case as a line of JSON\n" ENG_CLI_HELP;

enum {
	OPT_TASKS = ENG_OPT_OWN,
	OPT_POLICY,
	OPT_MODE,
	OPT_TASK,
	OPT_SIZES,
	OPT_LIMIT,
	OPT_BATCH,
	OPT_CHUNK,
	OPT_RECALL,
	OPT_SUMMARY,
	OPT_CSV,
	OPT_DUMP,
};

static const struct option options[] = {
	{"tasks", required_argument, NULL, OPT_TASKS},
	{"policy", required_argument, NULL, OPT_POLICY},
	{"mode", required_argument, NULL, OPT_MODE},
	{"task", required_argument, NULL, OPT_TASK},
	{"sizes", required_argument, NULL, OPT_SIZES},
	{"limit", required_argument, NULL, OPT_LIMIT},
	{"batch", required_argument, NULL, OPT_BATCH},
	{"chunk", required_argument, NULL, OPT_CHUNK},
	{"recall", required_argument, NULL, OPT_RECALL},
	{"summary", no_argument, NULL, OPT_SUMMARY},
	{"csv", required_argument, NULL, OPT_CSV},
	{"dump", required_argument, NULL, OPT_DUMP},
	ENG_CLI_OPTIONS,
	{NULL, 0, NULL, 0},
};

struct arguments {
	struct eng_cli cli;
	const char *tasks, *csv, *dump;
	const char *policies[LIST_MAX];
	uint32_t n_policies;
	const char *names[LIST_MAX]; /* into the command line */
	uint32_t sizes[LIST_MAX];
	struct eng_task_filter filter;
	enum eng_mode mode;
	uint32_t batch, chunk, recall;
	bool summary;
};

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
	stop = signal;
}

/* ---- the command line ------------------------------------------------------------------------ */

static int take_sizes(struct arguments *a, char *list, struct eng_error *err)
{
	for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
		if (a->filter.n_sizes == LIST_MAX)
			return eng_fail(err, -EINVAL, "--sizes: at most %u expected", LIST_MAX);
		if (eng_cli_count("--sizes", word, 1, UINT32_MAX, &a->sizes[a->filter.n_sizes++], err))
			return -EINVAL;
	}
	return a->filter.n_sizes
	               ? 0
	               : eng_fail(err, -EINVAL, "--sizes: numbers with commas between them expected");
}

static int take_names(struct arguments *a, char *list, struct eng_error *err)
{
	for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
		if (a->filter.n_tasks == LIST_MAX)
			return eng_fail(err, -EINVAL, "--task: at most %u expected", LIST_MAX);
		a->names[a->filter.n_tasks++] = word;
	}
	return a->filter.n_tasks ? 0
	                         : eng_fail(err, -EINVAL, "--task: names with commas between them expected");
}

static int take_mode(struct arguments *a, const char *text, struct eng_error *err)
{
	if (strcmp(text, "forced") && strcmp(text, "free"))
		return eng_fail(err, -EINVAL, "--mode %.60s: forced or free expected", text);
	a->mode = strcmp(text, "free") ? ENG_FORCED : ENG_FREE;
	return 0;
}

static int take(struct arguments *a, int option, struct eng_error *err)
{
	int r = eng_cli_take(&a->cli, option, PROGRAM, help, err);

	if (r)
		return r < 0 ? r : 0;
	switch (option) {
	case OPT_TASKS:
		a->tasks = optarg;
		return 0;
	case OPT_POLICY:
		if (a->n_policies == LIST_MAX)
			return eng_fail(err, -EINVAL, "--policy: at most %u expected", LIST_MAX);
		a->policies[a->n_policies++] = optarg;
		return 0;
	case OPT_MODE:
		return take_mode(a, optarg, err);
	case OPT_TASK:
		return take_names(a, optarg, err);
	case OPT_SIZES:
		return take_sizes(a, optarg, err);
	case OPT_LIMIT:
		return eng_cli_count("--limit", optarg, 1, UINT32_MAX, &a->filter.limit, err);
	case OPT_BATCH:
		return eng_cli_count("--batch", optarg, 1, 256, &a->batch, err);
	case OPT_CHUNK:
		return eng_cli_count("--chunk", optarg, 1, SKV_MAX_TOKENS, &a->chunk, err);
	case OPT_RECALL:
		return eng_cli_count("--recall", optarg, 0, UINT32_MAX, &a->recall, err);
	case OPT_SUMMARY:
		a->summary = true;
		return 0;
	case OPT_CSV:
		a->csv = optarg;
		return 0;
	case OPT_DUMP:
		a->dump = optarg;
		return 0;
	default: /* getopt_long has said what is wrong */
		exit(EXIT_FAILURE);
	}
}

static int parse(struct arguments *a, int argc, char **argv, struct eng_error *err)
{
	int option, r = 0;

	*a = (struct arguments){.cli = ENG_CLI_INIT, .batch = 16, .chunk = ENG_CHUNK};
	a->filter.sizes = a->sizes;
	a->filter.tasks = a->names;
	while (!r && (option = getopt_long(argc, argv, "", options, NULL)) >= 0)
		r = take(a, option, err);
	if (r)
		return r;
	if (optind < argc)
		return eng_fail(err, -EINVAL, "%.200s: options only expected; try --help", argv[optind]);
	if (!a->cli.model)
		return eng_fail(err, -EINVAL, "--model is missing: the directory of a model expected");
	if (!a->tasks)
		return eng_fail(err, -EINVAL, "--tasks is missing: a file of cases expected");
	if (!a->n_policies)
		return eng_fail(err, -EINVAL,
		                "--policy is missing: a policy such as full or delta?budget=0.25 expected");
	return 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Files are opened before the work, so that a bad name does not cost it. */
static int open_output(const char *path, FILE **ret, struct eng_error *err)
{
	if (!path)
		return 0;
	*ret = strcmp(path, "-") ? fopen(path, "we") : stdout;
	return *ret ? 0 : eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
}

static int close_output(FILE *f, const char *path, struct eng_error *err)
{
	int bad;

	if (!f)
		return 0;
	bad = ferror(f);
	bad |= f == stdout ? fflush(f) : fclose(f);
	return bad ? eng_fail(err, -EIO, "%.300s: could not be written", path) : 0;
}

static int run(const struct arguments *a, const struct eng_host *host, const struct eng_cases *cases,
               FILE *csv, FILE *dump, struct eng_error *err)
{
	struct eng_eval eval = {
		.model = &host->model,
		.client = host->client,
		.kv_dtype = a->cli.kv_dtype,
		.policies = a->policies,
		.n_policies = a->n_policies,
		.cases = cases,
		.mode = a->mode,
		.batch = a->batch,
		.chunk = a->chunk,
		.recall = a->recall,
		.quiet = a->cli.quiet,
		.no_graph = a->cli.no_graph,
		.stop = &stop,
	};
	struct eng_result *results;
	int r = eng_evaluate(&eval, &results, err);

	if (r)
		return r;
	if (csv)
		eng_report_csv(csv, &eval, results);
	if (dump)
		eng_report_dump(dump, &eval, results);
	if (csv != stdout && dump != stdout) {
		if (a->summary)
			eng_report_summary(stdout, &eval, results);
		else
			eng_report_table(stdout, &eval, results);
	}
	free(results);
	return 0;
}

int main(int argc, char **argv)
{
	struct eng_cases cases = ENG_CASES_NULL;
	struct eng_host host = ENG_HOST_NULL;
	FILE *csv = NULL, *dump = NULL;
	struct arguments a;
	struct eng_error err;
	int r;

	eng_env_init(argv);
	r = parse(&a, argc, argv, &err);
	r = r ? r : eng_cases_load(&cases, a.tasks, &a.filter, &err);
	r = r ? r : open_output(a.csv, &csv, &err);
	r = r ? r : open_output(a.dump, &dump, &err);
	r = r ? r : eng_host_open(&host, &a.cli, &err);
	if (!r) {
		sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESETHAND},
		          NULL);
		sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESETHAND},
		          NULL);
		r = run(&a, &host, &cases, csv, dump, &err);
		eng_host_close(&host);
	}
	r = r ? r : close_output(csv, a.csv, &err);
	r = r ? r : close_output(dump == csv ? NULL : dump, a.dump, &err);
	r = r ? r : close_output(stdout, "stdout", &err);
	eng_cases_deinit(&cases);
	if (stop) {
		/* end as the signal asks, now that the daemon has its sequences back */
		signal(stop, SIG_DFL);
		raise(stop);
	}
	return r ? eng_cli_failed(PROGRAM, &err) : EXIT_SUCCESS;
}
