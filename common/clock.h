/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SKV_CLOCK_H
#define SKV_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t skv_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Returns wall-clock time in nanoseconds since 1970. Such times can be compared across boots, but the clock may be set
 * back.
 */
static inline uint64_t skv_real_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
