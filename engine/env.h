/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/env.h - sets environment variables that libraries read before main(), and finds the directory of the program.
 */
#ifndef ENG_ENV_H
#define ENG_ENV_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The first call of main(). If a variable below is missing from the environment, sets the variable and executes the
 * program again, because libraries read it before main(). Variables that the user has set are not changed.
 *
 * GOMP_SPINCOUNT: OpenMP threads that wait for work spin, by default for a few milliseconds. On a busy machine the
 * spinning takes processor time from the thread that they wait for, and decoding becomes ten times slower. The variable
 * limits the spinning to a few microseconds, which is enough even on an idle machine.
 *
 * OPENBLAS_CORETYPE: If a processor is newer than OpenBLAS, OpenBLAS may take it for one of 2004 that has only SSE3
 * (version 0.3.21 does so on Intel processors of 2023). Its matrix products are then five times slower than with the
 * right kernels, which the variable names.
 */
void eng_env_init(char **argv);

/*
 * Writes the directory of this executable, without libtool's .libs at its end. Returns false if the directory is
 * unknown.
 */
bool eng_env_directory(char *to, size_t room);

#endif
