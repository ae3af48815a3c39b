/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/times.h - how long something took, each time, in memory that processes may share: quantiles to 5 %,
 * and the longest.
 *
 * All zero is none. Any process may add to it at any time, and may be killed there.
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
/* In seconds: this share of them, at least, took no longer; 0 where there are none. */
double times_at(const struct times *, double share);
double times_longest(const struct times *);
/* One line: "N times WHAT: p50 …, p99 …, longest …". */
void times_print(const struct times *, const char *what);

#endif
