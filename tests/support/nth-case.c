/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nth-case.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/daemon-fixture.h"
#include "tests/support/nth-engine.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define STRIDE 4u /* each pair's values of N are divided into this many parts */
/* stop after this many N in a row that are not reached: the number of calls varies a little between runs */
#define UNREACHED 3

char nth_folder[64], nth_policy_path[96];
struct fail_nth *nth_fails;
struct nth_failure nth_failure;
static char page_path[96];
static const struct nth_program *program;
static unsigned part, parts = 1; /* SKV_NTH_PART */

/* For each pair of scenario and failure, the N that is being tried: printed if the test fails. */
static struct under_way {
	uint32_t n;
	char where[sizeof(nth_fails->where)];
} *all_under_way, *under_way;

/* ---- failures -------------------------------------------------------------------------------- */

void nth_note_where(void)
{
	memcpy(under_way->where, nth_fails->where, sizeof(under_way->where));
}

void nth_arm(uint32_t n)
{
	nth_fails->nth = n;
	nth_fails->error = nth_failure.error;
	nth_fails->onwards = nth_failure.onwards;
	nth_fails->seen = nth_fails->fired = 0;
	nth_fails->where[0] = 0;
	nth_fails->kind = nth_failure.kind;
}

void nth_disarm(void)
{
	nth_fails->kind = FAIL_NOTHING;
	nth_note_where();
}

void nth_preload(bool on)
{
	if (on) {
		setenv("LD_PRELOAD", fix_built("tests/support/.libs/fail-nth.so"), 1);
		setenv(FAIL_NTH_PAGE, page_path, 1);
	} else {
		unsetenv("LD_PRELOAD");
		unsetenv(FAIL_NTH_PAGE);
	}
}

void nth_check_log(const char *log)
{
	static const char *const bad[] = {"cannot be restored", "are lost", "is lost", "state is inconsistent",
	                                  "memory is not valid"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_msg(!strstr(log, bad[i]), "the log says \"%s\":\n%s", bad[i], log);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void make_files(void)
{
	int fd;

	nth_engine_policies(nth_folder);
	snprintf(nth_policy_path, sizeof(nth_policy_path), "--policy-path=%s", nth_folder);
	snprintf(page_path, sizeof(page_path), "%s/page", nth_folder);
	fd = open(page_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	ck_assert_int_eq(ftruncate(fd, sizeof(*nth_fails)), 0);
	nth_fails = mmap(NULL, sizeof(*nth_fails), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(nth_fails, MAP_FAILED);
	close(fd);
	nth_fails->processes = nth_failure.processes;
}

static void remove_files(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", nth_folder);
	ck_assert_int_eq(system(command), 0);
}

/* ---- the loops ------------------------------------------------------------------------------- */

/* Runs the scenario; returns whether it reached the Nth call. */
static bool one(const struct nth_scenario *s, uint32_t n)
{
	bool reached;

	under_way->n = n;
	s->run(n);
	nth_disarm();
	reached = nth_fails->fired;
	if (program->check)
		program->check();
	return reached;
}

static bool is_mine(unsigned pair, uint32_t n)
{
	return (pair * STRIDE + n % STRIDE) % parts == part;
}

static bool has_mine(unsigned pair)
{
	for (uint32_t n = 0; n < STRIDE; n++)
		if (is_mine(pair, n))
			return true;
	return false;
}

static void all_of(const struct nth_scenario *s, unsigned pair)
{
	const char *only = getenv("SKV_NTH");
	const double begun = fix_now();
	uint32_t n = only && strcmp(only, "all") ? (uint32_t)atoi(only) - 1 : 0, calls, unreached = 0;
	char more[256] = "";

	(void)one(s, 0);
	calls = nth_fails->seen;
	while (only && unreached < UNREACHED)
		if (is_mine(pair, ++n))
			unreached = one(s, n) ? 0 : unreached + 1;
	for (unsigned i = 0; !only && i < program->sample && calls; i++)
		(void)one(s, n = 1 + rnd_below(calls));
	if (program->tell)
		program->tell(more, sizeof(more));
	printf("%s, %s: %u calls, N up to %u, %.0f s%s\n", s->name, nth_failure.name, calls, n, fix_now() - begun, more);
	fflush(stdout);
}

START_TEST(every_failure)
{
	const char *kind = getenv("SKV_NTH_KIND");

	rnd_begin((uint64_t)_i);
	nth_failure = program->failures[_i % program->n_failures];
	if (kind ? !strstr(nth_failure.name, kind) : !getenv("SKV_NTH") && program->one_of && rnd_below(program->one_of))
		return;
	if (!has_mine((unsigned)_i))
		return;
	under_way = &all_under_way[_i];
	make_files();
	if (program->begin)
		program->begin();
	all_of(&program->scenarios[_i / program->n_failures], (unsigned)_i);
	if (program->end)
		program->end();
	remove_files();
	under_way->n = 0;
}
END_TEST

/* Prints at which N tests failed, and where the failing call came from. */
static void tell_failed(void)
{
	for (int i = 0; i < program->n_scenarios * program->n_failures; i++)
		if (all_under_way[i].n)
			printf("%s, %s, N = %u: called from%s\n", program->scenarios[i / program->n_failures].name,
			       program->failures[i % program->n_failures].name, all_under_way[i].n, all_under_way[i].where);
}

int nth_main(const struct nth_program *p)
{
	Suite *s = begin_suite(p->name);
	int failed;

	if (getenv("SKV_VALGRIND")) {
		printf("skipped: allocations are valgrind's, and cannot be made to fail\n");
		return 77;
	}
	program = p;
	if (getenv("SKV_NTH_PART") && (sscanf(getenv("SKV_NTH_PART"), "%u/%u", &part, &parts) != 2 || part >= parts)) {
		fprintf(stderr, "SKV_NTH_PART is %s, expected K/M with K from 0 to M - 1\n", getenv("SKV_NTH_PART"));
		return 2;
	}
	for (int i = 0; i < p->n_scenarios; i++)
		tcase_add_loop_test(add_case(s, p->scenarios[i].name, 3600, NULL, NULL, NULL), every_failure, i * p->n_failures,
		                    (i + 1) * p->n_failures);
	all_under_way = mmap(NULL, (size_t)(p->n_failures * p->n_scenarios) * sizeof(*all_under_way), PROT_READ | PROT_WRITE,
	                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	failed = run_suite(s);
	tell_failed();
	return failed;
}
