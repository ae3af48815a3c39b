/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/env.h - settings that libraries read before main(), and the directory of the program.
 */
#ifndef ENG_ENV_H
#define ENG_ENV_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Call this first in main(). If a setting below is missing from the environment, it sets it and executes the program
 * again. Settings of the user stay.
 *
 * GOMP_SPINCOUNT: OpenMP threads spin while they wait for work, by default for a few milliseconds. On a busy machine
 * that takes time from the thread that they wait for, and decoding becomes ten times slower. A few microseconds are
 * enough on an idle machine, too.
 *
 * OPENBLAS_CORETYPE: OpenBLAS treats a processor newer than itself as one of 2004, with SSE3 only (0.3.21 does so on
 * Intel's of 2023). Its products are then five times slower than with the right kernels.
 */
void eng_env_init(char **argv);

/* Writes the directory of this executable, without libtool's .libs. Returns false if it is unknown. */
bool eng_env_directory(char *to, size_t room);

#endif
