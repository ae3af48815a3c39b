/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/suite.h - what every test program's main() does. */
#ifndef SKV_TEST_SUITE_H
#define SKV_TEST_SUITE_H

#include <check.h>
#include <stdlib.h>

/* A test case of the suite; setup and teardown may be NULL. */
static inline TCase *add_case(Suite *s, const char *name, double seconds, void (*setup)(void), void (*teardown)(void))
{
	TCase *t = tcase_create(name);

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, seconds);
	suite_add_tcase(s, t);
	return t;
}

/* Run the suite as a program; the exit status. */
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
