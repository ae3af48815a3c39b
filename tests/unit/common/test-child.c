/* SPDX-License-Identifier: Apache-2.0 */
/* Children of tests: their reports; and a child killed in the middle of an assertion does not damage other messages. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/suite.h"

#define KILLS 300

START_TEST(failure_is_told)
{
	pid_t pid = child_fork();
	int status;

	if (pid == 0) {
		ck_assert_int_eq(1, 1);
		ck_assert_msg(0, "the answer is %d", 42);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	ck_assert_ptr_nonnull(strstr(child_problem(), "the answer is 42"));
	ck_assert_ptr_nonnull(strstr(child_problem(), "test-child.c:"));
}
END_TEST

/* Children that assert without pause are killed; the test's own assertions still work. */
START_TEST(killed_while_asserting)
{
	for (int i = 0; i < KILLS; i++) {
		pid_t pid = child_fork();
		int status;

		if (pid == 0)
			for (unsigned n = 0;; n++)
				ck_assert_uint_eq(n, n);
		usleep((useconds_t)(i % 50) * 20);
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert(WIFSIGNALED(status));
	}
	ck_assert_str_eq(child_problem(), "");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-child");

	add_case(s, "child", 60, NULL, NULL, failure_is_told, killed_while_asserting, NULL);
	return run_suite(s);
}
