/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/child.h - child processes of a test.
 *
 * Check's assertions write to the parent of the test through a file, also when they pass. A child that is killed in the
 * middle of a write leaves half a message, and the test fails with "Bad message type arg". Tests therefore fork with
 * child_fork(): in such a child a passing assertion reports nothing, and a failing one stores its text in memory that
 * child and parent share, and ends the child with status 1. child.c replaces the two functions of Check that assertions
 * call, with the linker's --wrap.
 */
#ifndef SKV_TEST_CHILD_H
#define SKV_TEST_CHILD_H

#include <sys/types.h>

/* Like fork(2), but a failure ends the test. The child is killed when its parent ends. */
pid_t child_fork(void);
/* Waits for the child. If it does not exit with 0, the test fails with the child's message. */
void child_wait(pid_t);
/*
 * If not NULL, called when an assertion fails, in the test or in a child, before the process ends; prints more details.
 */
extern void (*child_before_failure)(void);

/* Returns the text of the first assertion that failed in a child of this test; "" if none failed. */
const char *child_problem(void);

#endif
