/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/child.h - child processes of a test.
 *
 * Check's assertions report to the parent of the test through a file, also when they pass; a child that is killed in
 * the middle of that leaves half a message there, and the test fails with "Bad message type arg". So tests fork with
 * child_fork(). In such a child a passing assertion reports nothing, and a failing one leaves its text in memory that
 * child and parent share, and ends the child with status 1. (child.c replaces the two functions of Check that
 * assertions call, by the linker's --wrap.)
 */
#ifndef SKV_TEST_CHILD_H
#define SKV_TEST_CHILD_H

#include <sys/types.h>

/* As fork(2), which must not fail. The child is killed when its parent ends. */
pid_t child_fork(void);
/* Wait for it: it must exit with 0, or the test fails with what the child said. */
void child_wait(pid_t);
/*
 * Called, where it is not NULL, when an assertion fails, in a child or not, before the process ends: what else is to be said of it.
 */
extern void (*child_before_failure)(void);

/* The text of the first assertion that failed in a child of this test; "" when none has. */
const char *child_problem(void);

#endif
