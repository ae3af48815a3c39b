/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/run-program.h - runs a built program as a user would, and reads its output. */
#ifndef SKV_TEST_RUN_PROGRAM_H
#define SKV_TEST_RUN_PROGRAM_H

#include <sys/types.h>

#define RUN_ARGS 40

/*
 * Paths in the build directory and in the source tree: as built, or in the copies that $SKV_BUILDDIR and $SKV_SRCDIR
 * name. Each returns a static buffer.
 */
const char *run_built(const char *name);
const char *run_source(const char *name);

/*
 * Starts program `argv[0]` of the build tree ("engine/sparsekv-eval") with stdout and stderr in FOLDER/out and
 * FOLDER/err. argv is NULL-terminated.
 */
pid_t run_start(const char *folder, const char *const *argv);

/* Waits for the program; returns the exit status, or -signal. After `seconds` kills it and fails the test. */
int run_wait(pid_t pid, int seconds);

/* run_start() and run_wait(). */
int run(const char *folder, const char *const *argv, int seconds);

/* Return the program's output; the caller frees it. */
char *run_out(const char *folder);
char *run_err(const char *folder);

#endif
