/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/random.h - random numbers that can be had again.
 *
 * A test program calls rnd_seed() at the start of main(): the seed is $SKV_SEED, else the clock, and it
 * is printed. Check forks for each test, so every test starts from that seed whatever ran before it.
 */
#ifndef SKV_TEST_RANDOM_H
#define SKV_TEST_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t rnd_state;

static inline void rnd_seed(const char *program)
{
	const char *given = getenv("SKV_SEED");
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	rnd_state = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (given)
		rnd_state = strtoull(given, NULL, 0);
	printf("%s: SKV_SEED=%llu\n", program, (unsigned long long)rnd_state);
	fflush(stdout);
}

/* splitmix64 */
static inline uint64_t rnd64(void)
{
	uint64_t x = rnd_state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* 0 … n - 1; n at least 1 */
static inline uint32_t rnd_below(uint32_t n)
{
	return (uint32_t)(rnd64() % n);
}

/* 0 ≤ x < 1 */
static inline double rnd_unit(void)
{
	return (double)(rnd64() >> 11) * 0x1p-53;
}

static inline void rnd_bytes(void *to, size_t n)
{
	for (unsigned char *p = to; n > 0; n--)
		*p++ = (unsigned char)rnd64();
}

/* Under a tool that makes all slow: valgrind, or with SKV_SLOW one for devices. Then there is less of it. */
static inline bool rnd_hurried(void)
{
	return getenv("SKV_VALGRIND") || getenv("SKV_SLOW");
}

#endif
