/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/env.h - settings that libraries read before main(), and where the program lies.
 */
#ifndef ENG_ENV_H
#define ENG_ENV_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Call it first in main(): where a setting below is missing from the environment, the program starts itself
 * again with it. What the user has set stays.
 *
 * GOMP_SPINCOUNT: OpenMP threads that wait for work spin, for a few milliseconds by default. On a machine
 * that has other work too, that is time taken from the thread they wait for, and decoding becomes ten
 * times slower. A few microseconds serve an idle machine as well.
 *
 * OPENBLAS_CORETYPE: OpenBLAS takes a processor younger than itself for one of 2004, with SSE3 alone (0.3.21
 * does so on Intel's of 2023), and its products are five times slower than with the kernels that fit.
 */
void eng_env_init(char **argv);

/* Directory of this executable, as seen from outside libtool's .libs. False when it is unknown. */
bool eng_env_directory(char *to, size_t room);

#endif
