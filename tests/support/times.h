/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/times.h - statistics of durations in memory that processes may share: quantiles to 5 %, and the
 * maximum.
 *
 * All zeros means empty. Any process may add to it at any time, and may be killed meanwhile.
 */
#ifndef SKV_TEST_TIMES_H
#define SKV_TEST_TIMES_H

#include <stdint.h>

#define TIMES_STEPS 560u /* of 5 %, from a nanosecond to ten minutes */

struct times {
	_Atomic uint64_t n, longest_ns;
	_Atomic uint64_t count[TIMES_STEPS];
};

void times_add(struct times *, double seconds);
/* In seconds: at least this share of the durations is no longer; 0 if there are none. */
double times_at(const struct times *, double share);
double times_longest(const struct times *);
/* Prints one line: "N times WHAT: p50 …, p99 …, longest …". */
void times_print(const struct times *, const char *what);

#endif
