/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon raises its limit of descriptors as far as it may, and reports how many it needs if that is not enough. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

/* Runs in a process of its own, which cannot raise the hard limit again. */
static void start_with_64(void *unused)
{
	const char *argv[] = {"daemon/sparsekvd", "--config=/dev/null", "--socket=/tmp/sparsekv-none", "--max-policies=40", NULL};
	char *folder = fx_folder(), *said;

	(void)unused;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}), 0);
	ck_assert_int_eq(run(folder, argv, 20), EXIT_FAILURE);
	said = run_err(folder);
	ck_assert_msg(strstr(said, "RLIMIT_NOFILE: got 64, expected at least 136 ") != NULL, "%s", said);
	free(said);
	fx_remove(folder);
}

START_TEST(too_few_are_named)
{
	fix_in_child(0, start_with_64, NULL);
}
END_TEST

static void lower_soft_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		_exit(126);
	r.rlim_cur = 64;
	if (setrlimit(RLIMIT_NOFILE, &r) < 0)
		_exit(126);
}

START_TEST(the_soft_limit_is_raised)
{
	struct fix f;
	struct rlimit r;

	fix_before_exec = lower_soft_limit;
	fix_start_process(&f, NULL);
	fix_before_exec = NULL;
	ck_assert_int_eq(prlimit(f.pid, RLIMIT_NOFILE, NULL, &r), 0);
	ck_assert_uint_gt(r.rlim_cur, 64);
	ck_assert_uint_eq(r.rlim_cur, r.rlim_max);
	fix_stop(&f);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-descriptors");

	add_case(s, "limits", 60, NULL, NULL, too_few_are_named, the_soft_limit_is_raised, NULL);
	return run_suite(s);
}
