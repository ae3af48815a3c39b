/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/run-program.h - run a built program as a user would, and look at what it wrote. */
#ifndef SKV_TEST_RUN_PROGRAM_H
#define SKV_TEST_RUN_PROGRAM_H

#include <sys/types.h>

#define RUN_ARGS 40

/*
 * Paths in the build directory and in the source tree: as built, or where $SKV_BUILDDIR and $SKV_SRCDIR say
 * that they were carried to. A static buffer each.
 */
const char *run_built(const char *name);
const char *run_source(const char *name);

/*
 * Start build tree program `argv[0]` ("engine/sparsekv-eval"), stdout and stderr going to FOLDER/out and
 * FOLDER/err. argv is NULL-terminated.
 */
pid_t run_start(const char *folder, const char *const *argv);

/* Wait for it: the exit status, or -signal. If it takes longer it is killed, and the test fails. */
int run_wait(pid_t pid, int seconds);

/* Both. */
int run(const char *folder, const char *const *argv, int seconds);

/* What it wrote, to be freed. */
char *run_out(const char *folder);
char *run_err(const char *folder);

#endif
