/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/engine-programs.h - runs the engine's programs as users do, with the reference model, on the host, or
 * with SKV_TEST_DEVICE=1 on the first device. They connect to the daemon of engine-daemon.h.
 */
#ifndef SKV_TEST_ENGINE_PROGRAMS_H
#define SKV_TEST_ENGINE_PROGRAMS_H

#include "tests/support/engine-daemon.h"

#define GENERATE "engine/sparsekv-generate"
#define EVAL "engine/sparsekv-eval"
#define CALIBRATE "engine/sparsekv-calibrate"
#define MODEL "--model", model, "--device", device
#define SOCKET "--socket", eng_private_socket(engine_daemon)

extern const char *model, *tasks, *device; /* valid after programs_setup() */
extern const char prompt[], answer[];      /* what the model answers under full attention */

/* A checked fixture, with daemon_teardown(). */
void programs_setup(void);

/* Runs sparsekv-generate with these arguments, terminated by NULL. Returns its stdout, which the caller frees. */
char *run_generate(const char *const *more);
#define generate(...) run_generate((const char *[]){__VA_ARGS__, NULL})

/* Runs sparsekv-eval on cases of 512 bytes, with these arguments; it writes FOLDER/dump. */
void run_eval(const char *const *more);
#define eval(...) run_eval((const char *[]){__VA_ARGS__, NULL})

#endif
