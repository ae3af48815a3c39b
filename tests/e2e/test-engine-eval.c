/* SPDX-License-Identifier: Apache-2.0 */
/* Runs sparsekv-eval as users do, with the reference model: see tests/support/engine-programs.h. */
#include <check.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/engine-programs.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* Returns the lines "id exact" of the dump, in its order; the caller frees the text. */
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
 * Policies that evict per head keep as many tokens as their budget says. With a budget for the whole prompt they keep
 * all, and the answer is right; with a smaller one they keep a part. The order of the policies does not matter.
 */
START_TEST(eval_of_heads_that_evict)
{
	const struct policy_row *row = policy_row(SET_EVAL, _i);
	char enough[64];
	char *csv, *line, name[128];
	double exact, share, kept;

	snprintf(enough, sizeof(enough), "%.*s?budget=20000", (int)strcspn(row->spec, "?"), row->spec);
	eval("--policy", "full", "--policy", enough, "--policy", row->spec, "--limit", "1", "--task", "kv", "--csv",
	     fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	for (int less = 0; less < 2; less++) {
		snprintf(name, sizeof(name), "\n%s,kv,512,1,", less ? row->spec : enough);
		line = strstr(csv, name);
		ck_assert_ptr_nonnull(line);
		ck_assert_int_eq(sscanf(line + strlen(name), "%lf,%*[^,],%*[^,],%*[^,],%lf,%lf", &exact, &share, &kept), 3);
		if (less)
			ck_assert_msg(kept >= row->kept.least && kept <= row->kept.most, "%s keeps %g", row->spec,
			              kept);
		else
			ck_assert_msg(exact == 1 && share == 1 && kept == 1, "%s: %g, %g, %g", enough, exact, share,
			              kept);
	}
	free(csv);
}
END_TEST

START_TEST(eval_writes_its_figures)
{
	char *csv, *out, *line, *err;
	double share, kept, recall;

	eval("--policy", "full", "--policy", POLICY_WINDOW "?budget=0.25&dense=2", "--limit", "1", "--task",
	     "kv,niah", "--recall", "8", "--quiet", "--csv", fx_path(folder, "csv"));
	csv = fx_read(fx_path(folder, "csv"), NULL);
	out = run_out(folder);
	err = run_err(folder);
	ck_assert_str_eq(err, "");
	ck_assert(!strncmp(
		csv,
		"policy,task,size,n,exact,line,token,decode_len,attended_share,kept_share,recall,tokens_per_s\n",
		93));
	ck_assert_ptr_nonnull( /* full attends to everything: there is no recall */
		strstr(csv, "\nfull,kv,512,1,1.000000,1.000000,1.000000,85.000,1.000000,1.000000,,"));
	ck_assert_ptr_nonnull(strstr(csv, "\nfull,all,all,2,1.000000,"));
	line = strstr(csv, "\nstreaming?budget=0.25&dense=2,niah,512,1,");
	ck_assert_ptr_nonnull(line);
	ck_assert_int_eq(sscanf(line, "\n%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%*[^,],%lf,%lf,%lf",
	                        &share, &kept, &recall),
	                 3);
	ck_assert(recall > 0.1 && recall < 0.99);
	ck_assert(share > 0.1 && share < 0.75 && kept > 0.1 && kept < 0.9);
	ck_assert_ptr_nonnull(strstr(out, "attended_share  kept_share  recall"));
	ck_assert_ptr_nonnull(strstr(out, "niah"));
	free(csv);
	free(out);
	free(err);

	eval("--policy", "full", "--policy", POLICY_PAGES "?layers=2,7,12", "--limit", "1", "--task", "kv",
	     "--summary");
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "exact answers  tokens attended  KV kept  tokens/s\n"));
	ck_assert_ptr_nonnull(strstr(out, "full                        1 of 1          100.0 %  100.0 %"));
	free(out);

	/* CSV only, with a spec that has commas */
	eval("--policy", POLICY_PAGES "?layers=2,7,12", "--limit", "1", "--task", "kv", "--csv", "-");
	out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "\n\"" POLICY_PAGES "?layers=2,7,12\",kv,512,1,1.000000"));
	ck_assert_ptr_null(strstr(out, "policy  "));
	free(out);
}
END_TEST

/* The other policies are compared with the first one. */
START_TEST(eval_compares)
{
	double kl[2], agree[2], change[2];
	char *out, *line;

	eval("--policy", "full", "--policy", POLICY_WINDOW "?budget=0.25", "--limit", "1", "--task", "kv", "--csv", "-",
	     "--compare");
	line = out = run_out(folder);
	ck_assert_ptr_nonnull(strstr(out, "tokens_per_s,kl,agree,dnll\n"));
	for (int i = 0; i < 2; i++) {
		line = strstr(line, ",,"); /* no recall; the speed follows */
		ck_assert_ptr_nonnull(line);
		ck_assert_int_eq(sscanf(line++, ",,%*[^,],%lf,%lf,%lf", &kl[i], &agree[i], &change[i]), 3);
		line = i ? line : strstr(line, "\nstreaming");
	}
	ck_assert(kl[0] == 0 && agree[0] == 1 && change[0] == 0);
	ck_assert(kl[1] > 0.001 && agree[1] < 1 && fabs(change[1]) > 1e-6);
	free(out);
}
END_TEST

/* Neither the batch nor the way to choose the next token changes which cases are exact. */
START_TEST(batch_and_mode_do_not_matter)
{
	const char *policy = _i ? POLICY_PAGES "?budget=0.25&layers=2,7,12" : "full";
	char *batched, *alone, *freely;

	eval("--policy", policy, "--limit", "1", "--task", "kv,vt");
	batched = verdicts();
	eval("--policy", policy, "--limit", "1", "--task", "kv,vt", "--batch", "3");
	alone = verdicts();
	ck_assert_str_eq(batched, alone);
	eval("--policy", policy, "--limit", "1", "--task", "kv,vt", "--mode", "free");
	freely = verdicts();
	ck_assert_str_eq(batched, freely);
	ck_assert_ptr_nonnull(strstr(batched, " true"));
	ck_assert_ptr_nonnull(strstr(batched, " fals")); /* vt */
	free(batched);
	free(alone);
	free(freely);
}
END_TEST

/* Ctrl-C ends the program by that signal, and no sequence that it handed over between sessions stays behind. */
START_TEST(eval_cleans_up_when_interrupted)
{
	const char *argv[] = {EVAL,       MODEL,  SOCKET,     "--tasks",             tasks,
	                      "--policy", "full", "--policy", POLICY_PAGES "?layers=2,7,12", "--sizes", "1024", NULL};
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
	Suite *s = begin_suite("test-engine-eval");
	TCase *t = add_case(s, "sparsekv-eval", 120, programs_setup, daemon_teardown, eval_writes_its_figures, eval_compares,
	                    eval_cleans_up_when_interrupted, NULL);

	add_share(t, eval_of_heads_that_evict, policy_rows(SET_EVAL), 3);
	add_share(t, batch_and_mode_do_not_matter, 2, 2);
	return run_suite(s);
}
