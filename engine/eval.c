/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv-eval: runs the cases of a task file under several policies, and reports the accuracy of each policy. See
 * sparsekv-eval(1).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/cli.h"
#include "engine/report.h"
#include "engine/env.h"

#define PROGRAM "sparsekv-eval"

static const char usage[] =
	"Usage: sparsekv-eval --model DIR --tasks F.jsonl --policy SPEC [--policy SPEC…] [OPTION…]\n"
	"Run task cases under policies, compare with the true answers, print a table.\n";

struct arguments {
	struct eng_cli cli;
	const char *tasks, *csv, *dump;
	const char *policies[ENG_LIST_MAX];
	uint32_t n_policies;
	const char *names[ENG_LIST_MAX]; /* names of tasks, pointers into the command line */
	uint32_t sizes[ENG_LIST_MAX];
	struct eng_task_filter filter;
	uint32_t mode; /* enum eng_mode */
	uint32_t batch, chunk, recall, first_dtype;
	bool summary, compare, answers;
};

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
	stop = signal;
}

/* ---- the command line ------------------------------------------------------------------------ */

static int parse(struct arguments *a, int argc, char **argv, struct eng_error *err)
{
	static const char *const modes[] = {[ENG_FORCED] = "forced", [ENG_FREE] = "free", NULL};
	const struct eng_option table[] = {
		ENG_TEXT("tasks", "FILE", &a->tasks, "one JSON object a line: id, task, size, prompt, answer"),
		ENG_TEXTS("policy", "SPEC", a->policies, &a->n_policies,
		          "name?key=value&…; give it again for another policy"),
		ENG_NAME("mode", "MODE", &a->mode, modes,
		         "forced (default): feed the true answer, compare every argmax\n"
		         "free: feed what the model says"),
		ENG_WORDS("task", "A,B", a->names, &a->filter.n_tasks, "these tasks only"),
		ENG_COUNTS("sizes", "N,M", a->sizes, &a->filter.n_sizes, 1, UINT32_MAX, "these sizes only"),
		ENG_COUNT("limit", &a->filter.limit, 1, UINT32_MAX, "the first N cases of each task and size"),
		ENG_COUNT("batch", &a->batch, 1, 256, "cases decoded together (default 16)"),
		ENG_COUNT("chunk", &a->chunk, 1, SKV_MAX_TOKENS, "tokens of a prompt in a step, at most (default 512)"),
		ENG_COUNT("recall", &a->recall, 0, UINT32_MAX,
		          "measure attention recall, in one step of N (default 0: never)"),
		ENG_FLAG("compare", &a->compare,
		         "forced mode: how far each policy's next-token distributions are from the\n"
		         "first policy's, in the columns kl, agree and dnll"),
		ENG_NAME("first-dtype", "TYPE", &a->first_dtype, eng_cli_dtypes,
		         "pages of the first policy alone (default: --kv-dtype's)"),
		ENG_FLAG("summary", &a->summary, "one line a policy instead of the whole table"),
		ENG_FLAG("answers", &a->answers, "free mode: what each policy answers to each case, above the table"),
		ENG_TEXT("csv", "FILE", &a->csv, "the whole table as CSV, - for stdout instead of the table"),
		ENG_TEXT("dump", "FILE", &a->dump, "every case as a line of JSON"),
		ENG_CLI_RANKS(&a->cli),
		ENG_CLI_OPTIONS(&a->cli),
	};
	const struct eng_command command = {PROGRAM, usage, table, sizeof(table) / sizeof(*table), false};
	int r;

	*a = (struct arguments){.cli = ENG_CLI_INIT, .batch = 16, .chunk = ENG_CHUNK, .mode = ENG_FORCED, .first_dtype = UINT32_MAX};
	a->filter.sizes = a->sizes;
	a->filter.tasks = a->names;
	r = eng_options(&command, argc, argv, err);
	if (r)
		return r;
	if (a->first_dtype == UINT32_MAX)
		a->first_dtype = a->cli.kv_dtype;
	if (!a->cli.model)
		return eng_fail(err, -EINVAL, "--model is missing: the directory of a model expected");
	if (!a->tasks)
		return eng_fail(err, -EINVAL, "--tasks is missing: a file of cases expected");
	if (!a->n_policies)
		return eng_fail(err, -EINVAL,
		                "--policy is missing: a policy such as full or delta?budget=0.25 expected");
	if (a->compare && a->mode != ENG_FORCED)
		return eng_fail(err, -EINVAL, "--compare: all policies must be fed the same text: --mode forced expected");
	if (a->answers && a->mode != ENG_FREE)
		return eng_fail(err, -EINVAL, "--answers: the model must say what it likes: --mode free expected");
	return 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

/*
 * Opens an output file. Files are opened before the evaluation, so that a wrong name does not waste the work of the
 * evaluation.
 */
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

static int run(const struct arguments *a, const struct eng_host *host, const struct eng_tokens *tokens,
               const struct eng_cases *cases, FILE *csv, FILE *dump, struct eng_error *err)
{
	struct eng_eval eval = {
		.model = &host->model,
		.tokens = tokens,
		.client = host->client,
		.ranks = host->ranks,
		.kv_dtype = a->cli.kv_dtype,
		.first_dtype = a->first_dtype,
		.policies = a->policies,
		.n_policies = a->n_policies,
		.cases = cases,
		.mode = a->mode,
		.batch = a->batch,
		.chunk = a->chunk,
		.recall = a->recall,
		.compare = a->compare,
		.quiet = a->cli.quiet,
		.no_graph = a->cli.no_graph,
		.stop = &stop,
	};
	struct eng_result *results;
	int r = eng_evaluate(&eval, &results, err);

	if (r)
		return r;
	if (eng_ranks_number(host->ranks) > 0) { /* the first rank has the same results and reports them */
		eng_results_free(&eval, results);
		return 0;
	}
	if (csv)
		eng_report_csv(csv, &eval, results);
	if (dump)
		eng_report_dump(dump, &eval, results);
	if (csv != stdout && dump != stdout) {
		if (a->answers)
			eng_report_answers(stdout, &eval, results);
		if (a->summary)
			eng_report_summary(stdout, &eval, results);
		else
			eng_report_table(stdout, &eval, results);
	}
	eng_results_free(&eval, results);
	return 0;
}

int main(int argc, char **argv)
{
	struct eng_tokens tokens = ENG_TOKENS_NULL;
	struct eng_cases cases = ENG_CASES_NULL;
	struct eng_host host = ENG_HOST_NULL;
	FILE *csv = NULL, *dump = NULL;
	struct arguments a;
	struct eng_error err;
	int r;

	eng_env_init(argv);
	r = parse(&a, argc, argv, &err);
	r = r ? r : eng_tokens_load(&tokens, a.cli.model, NULL, &err);
	r = r ? r : eng_cases_load(&cases, a.tasks, &a.filter, &tokens, &err);
	r = r ? r : open_output(a.csv, &csv, &err);
	r = r ? r : open_output(a.dump, &dump, &err);
	r = r ? r : eng_host_open(&host, &a.cli, &err);
	if (!r) {
		struct eng_ranks *ranks = host.ranks;

		sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESETHAND},
		          NULL);
		sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESETHAND},
		          NULL);
		a.cli.quiet |= eng_ranks_number(ranks) > 0;
		r = run(&a, &host, &tokens, &cases, csv, dump, &err);
		eng_host_close(&host);
		r = eng_ranks_end(ranks, r, &err);
	}
	r = r ? r : close_output(csv, a.csv, &err);
	r = r ? r : close_output(dump == csv ? NULL : dump, a.dump, &err);
	r = r ? r : close_output(stdout, "stdout", &err);
	eng_cases_deinit(&cases);
	eng_tokens_deinit(&tokens);
	if (stop) {
		/* terminate by the signal, now that all sequences in the daemon are dropped */
		signal(stop, SIG_DFL);
		raise(stop);
	}
	return r ? eng_cli_failed(PROGRAM, &err) : EXIT_SUCCESS;
}
