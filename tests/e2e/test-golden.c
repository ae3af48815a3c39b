/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test-golden - compares the reference model's output through sparsekvd with that of transformers.
 *
 * models/reference/golden-dev.jsonl has for each of 200 cases what transformers computed in fp32: the first answer
 * token's best logits, the answer's mean negative log-likelihood, whether every argmax is right, and by how little. The
 * policy is `full`, so any difference is a fault of the engine, the kernels or the page tables. `make check` runs six
 * of the short cases, a share. `make check-golden` sets SKV_SHARE=all and runs all 200, with fp32 and with bf16 pages.
 * With SKV_TEST_DEVICE=1 a device computes them.
 */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/engine-fixture.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

#define TASKS_MAX 16
#define N_OF_1024 40u /* cases of 1,024 bytes */

static char *folder;
static bool whole;
static const char *device; /* --device: with SKV_TEST_DEVICE=1 the first one, and then only with bf16 pages */

static void setup(void)
{
	folder = fx_folder();
}

static void teardown(void)
{
	fx_remove(folder);
}

/* Returns the lines of a JSONL file as one object, by id. */
static json_t *by_id(const char *path)
{
	FILE *f = fopen(path, "re");
	json_t *all = json_object(), *o;
	json_error_t je;

	ck_assert_msg(f, "%s cannot be opened", path);
	while ((o = json_loadf(f, JSON_DISABLE_EOF_CHECK, &je)))
		ck_assert_int_eq(json_object_set_new(all, json_string_value(json_object_get(o, "id")), o), 0);
	fclose(f);
	return all;
}

static double number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	ck_assert_msg(json_is_number(v), "no number \"%s\"", key);
	return json_number_value(v);
}

static json_t *golden_figures(void)
{
	return by_id(run_source("models/reference/golden-dev.jsonl"));
}

/*
 * Writes the run's share of the tasks to a file: of each task one of the eight cases of 512 bytes, and one of all cases
 * of 1,024.
 */
static const char *share_of_tasks(void)
{
	char *all = fx_read(run_source("models/reference/tasks-dev.jsonl"), NULL), *of_512, *save, *line;
	unsigned of_1024 = rnd_share(N_OF_1024), n = 0;
	const char *path = strdup(fx_path(folder, "tasks"));
	FILE *f = fopen(path, "w");

	ck_assert(asprintf(&of_512, "-512-%u\"", rnd_share(8)) > 0);
	for (line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (strstr(line, of_512) || (strstr(line, "-1024-") && n++ == of_1024))
			fprintf(f, "%s\n", line);
	ck_assert_int_eq(fclose(f), 0);
	free(of_512);
	free(all);
	return path;
}

/* Runs `full` over the dev tasks with pages of this dtype; returns the cases by id. */
static json_t *evaluate(const char *dtype)
{
	char *model = strdup(run_source("models/reference"));
	const char *tasks = whole ? strdup(run_source("models/reference/tasks-dev.jsonl")) : share_of_tasks();
	const char *argv[RUN_ARGS] = {"engine/sparsekv-eval",
	                              "--private",
	                              "--model",
	                              model,
	                              "--tasks",
	                              tasks,
	                              "--policy",
	                              "full",
	                              "--device",
	                              device,
	                              "--kv-dtype",
	                              dtype,
	                              "--dump",
	                              fx_path(folder, "dump")};
	char *err;

	if (run(folder, argv, whole ? 3600 : 600)) {
		err = run_err(folder);
		ck_abort_msg("sparsekv-eval failed: %s", err);
	}
	free(model);
	free((char *)tasks);
	return by_id(fx_path(folder, "dump"));
}

/* The best ids' logits must be within 0.05 of the golden ones; ids may change places within that. */
static void compare_top(const char *id, const json_t *got, const json_t *want)
{
	const json_t *golden = json_object_get(want, "first_top8"),
		     *ours = json_object_get(got, "first_top8");
	double least = 0;

	ck_assert_uint_eq(json_array_size(golden), 8);
	ck_assert_uint_eq(json_array_size(ours), 8);
	least = json_number_value(json_array_get(json_array_get(golden, 7), 1));
	for (size_t i = 0; i < 8; i++) {
		const json_t *g = json_array_get(golden, i);
		double logit = json_number_value(json_array_get(g, 1)), diff = INFINITY;

		for (size_t j = 0; j < 8; j++) {
			const json_t *o = json_array_get(ours, j);

			if (json_integer_value(json_array_get(o, 0)) ==
			    json_integer_value(json_array_get(g, 0)))
				diff = fabs(json_number_value(json_array_get(o, 1)) - logit);
		}
		/* an id that is level with the eighth may have been displaced by another such id */
		ck_assert_msg(diff <= 0.05 || (isinf(diff) && logit - least <= 0.05),
		              "%s: logit %zu of the first answer token differs by %g", id, i, diff);
	}
}

/* Compares the mean nll by task with the golden one. */
static void compare_nll(const json_t *ours, const json_t *golden)
{
	struct {
		char task[16];
		double got, want;
		unsigned n;
	} sums[TASKS_MAX] = {{.n = 0}};
	const char *id;
	json_t *o;

	json_object_foreach ((json_t *)ours, id, o) {
		size_t name = strcspn(id, "-"), i = 0;

		ck_assert_uint_lt(name, sizeof(sums[0].task));
		while (sums[i].n && (strlen(sums[i].task) != name || strncmp(sums[i].task, id, name)))
			ck_assert_uint_lt(++i, TASKS_MAX);
		memcpy(sums[i].task, id, name);
		sums[i].got += number(o, "nll");
		sums[i].want += number(json_object_get(golden, id), "nll");
		sums[i].n++;
	}
	for (size_t i = 0; i < TASKS_MAX && sums[i].n; i++) {
		printf("%-6s %3u cases, mean nll %.6f, golden %.6f\n", sums[i].task, sums[i].n,
		       sums[i].got / sums[i].n, sums[i].want / sums[i].n);
		ck_assert_double_eq_tol(sums[i].got / sums[i].n, sums[i].want / sums[i].n, 0.005);
	}
}

START_TEST(fp32_pages)
{
	json_t *golden = golden_figures(), *ours = evaluate("fp32"), *o;
	const char *id;

	ck_assert_uint_eq(json_object_size(ours), whole ? 200 : 6);
	json_object_foreach (ours, id, o) {
		const json_t *g = json_object_get(golden, id);

		ck_assert_msg(g, "%s is not among the golden ones", id);
		compare_top(id, o, g);
		if (number(g, "smallest_margin") > 0.2)
			ck_assert_msg(json_equal(json_object_get(o, "exact"), json_object_get(g, "exact")),
			              "%s: exact differs, by a margin of %g", id,
			              number(g, "smallest_margin"));
	}
	compare_nll(ours, golden);
	json_decref(ours);
	json_decref(golden);
}
END_TEST

START_TEST(bf16_pages)
{
	json_t *golden = golden_figures(), *ours = evaluate("bf16"), *o;
	unsigned differ = 0;
	const char *id;

	json_object_foreach (ours, id, o)
		differ += !json_equal(json_object_get(o, "exact"),
		                      json_object_get(json_object_get(golden, id), "exact"));
	printf("bf16 pages: exact differs on %u of %zu cases\n", differ, json_object_size(ours));
	ck_assert_uint_le(differ, 2);
	json_decref(ours);
	json_decref(golden);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-golden");
	TCase *t;

	whole = rnd_takes_all();
	t = add_case(s, "full", whole ? 3700 : 610, setup, teardown, NULL);
	device = getenv("SKV_TEST_DEVICE") ? "cuda:0" : "host";
	if (whole || strcmp(device, "host") || rnd_share(2) == 0)
		tcase_add_test(t, bf16_pages);
	if (!strcmp(device, "host") && (whole || rnd_share(2) == 1))
		tcase_add_test(t, fp32_pages);
	return run_suite(s);
}
