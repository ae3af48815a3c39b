/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t seed;
static _Thread_local uint64_t state; /* 0: new thread, starts from the seed */

void rnd_seed(const char *program)
{
	const char *given = getenv("SKV_SEED"), *share = getenv("SKV_SHARE");
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (given)
		seed = strtoull(given, NULL, 0);
	state = seed;
	printf("%s: SKV_SEED=%llu SKV_SHARE=%s\n", program, (unsigned long long)seed, share ? share : "of the seed");
	fflush(stdout);
}

/* splitmix64 */
uint64_t rnd64(void)
{
	uint64_t x = state = (state ? state : seed) + 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t rnd_begin(uint64_t i)
{
	const uint64_t was = state;

	state = seed + i * 0xd1342543de82ef95u;
	state = rnd64(); /* otherwise series i + 1 would overlap with series i */
	return was;
}

void rnd_resume(uint64_t was)
{
	state = was;
}

uint32_t rnd_below(uint32_t n)
{
	return (uint32_t)(rnd64() % n);
}

double rnd_unit(void)
{
	return (double)(rnd64() >> 11) * 0x1p-53;
}

void rnd_bytes(void *to, size_t n)
{
	for (unsigned char *p = to; n > 0; n--)
		*p++ = (unsigned char)rnd64();
}

bool rnd_takes_all(void)
{
	const char *share = getenv("SKV_SHARE");

	return share && !strcmp(share, "all");
}

unsigned rnd_share(unsigned parts)
{
	const char *share = getenv("SKV_SHARE");

	return (unsigned)((share && !rnd_takes_all() ? strtoull(share, NULL, 0) : seed) % parts);
}

bool rnd_hurried(void)
{
	return getenv("SKV_VALGRIND") || getenv("SKV_SLOW");
}
