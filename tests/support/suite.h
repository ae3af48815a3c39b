/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/suite.h - common parts of every test program's main(). */
#ifndef SKV_TEST_SUITE_H
#define SKV_TEST_SUITE_H

#include <check.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include "tests/support/random.h"

#ifdef SKV_SANITIZER /* set by configure */
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Under valgrind or a sanitizer: times mean little, and the tool itself makes system calls and allocations. */
static inline bool slowed(void)
{
	return SANITIZED || rnd_hurried();
}

/* Returns the most seconds that something may take: on a machine that is only a little busy, as many as given. */
static inline double patience(double seconds)
{
	return (slowed() ? 10 : 1) * seconds;
}

/* Makes a program's suite, and seeds the random numbers (random.h). */
static inline Suite *begin_suite(const char *program)
{
	rnd_seed(program);
	return suite_create(program);
}

/*
 * Adds a case with tests, terminated by NULL; setup and teardown may be NULL. Loop tests are added to the returned
 * case. `seconds` is ample for a test on an idle machine; the timeout is longer, as other tests run at the same time.
 */
__attribute__((sentinel)) static inline TCase *add_case(Suite *s, const char *name, double seconds,
                                                        void (*setup)(void), void (*teardown)(void), ...)
{
	TCase *t = tcase_create(name);
	const TTest *test;
	va_list tests;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, (SANITIZED ? 6 : 2) * seconds);
	va_start(tests, teardown);
	while ((test = va_arg(tests, const TTest *)))
		tcase_add_test(t, test);
	va_end(tests);
	suite_add_tcase(s, t);
	return t;
}

/* Adds a test for each i from 0 to n - 1 in this run's share, which is every parts-th: see rnd_share(). */
static inline void add_share(TCase *t, const TTest *test, int n, int parts)
{
	const int step = rnd_takes_all() ? 1 : parts;

	for (int i = step > 1 ? (int)rnd_share((unsigned)parts) : 0; i < n; i += step)
		tcase_add_loop_test(t, test, i, i + 1);
}

/*
 * Runs all of a few cases, a third of more, a sixth of many; half of that with a sanitizer, which is ten times as slow.
 */
static inline void add_cases(TCase *t, const TTest *test, int n)
{
	const int parts = n <= 6 ? 1 : n <= 12 ? 3 : 6;

	add_share(t, test, n, SANITIZED && parts > 1 ? 2 * parts : parts);
}

/* Runs the suite as a program; returns the exit status. */
static inline int run_suite(Suite *s)
{
	SRunner *r = srunner_create(s);
	int failed;

	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
