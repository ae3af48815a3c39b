/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/random.h - random numbers that a seed repeats, and shares of tests that are too long for each run.
 *
 * A test program calls rnd_seed() at the start of main(): the seed is $SKV_SEED, else the clock, and it
 * is printed. Check forks for each test, so every test starts from that seed whatever ran before it. Where it does not
 * fork, and in loops, rnd_begin() sees to it.
 */
#ifndef SKV_TEST_RANDOM_H
#define SKV_TEST_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void rnd_seed(const char *program);

/*
 * The numbers that follow are those of series i of the seed, whatever was drawn before: of a test in a loop, say.
 * rnd_resume(what this returned) goes on with those before.
 */
uint64_t rnd_begin(uint64_t i);
void rnd_resume(uint64_t was);

/* Each thread has numbers of its own; they begin with the seed's. */
uint64_t rnd64(void);

/* 0 … n - 1; n at least 1 */
uint32_t rnd_below(uint32_t n);

/* 0 ≤ x < 1 */
double rnd_unit(void);

void rnd_bytes(void *to, size_t n);

/*
 * The number of the share that this run takes, of `parts`. `make check` sets $SKV_SHARE to a number made of the commit, so successive
 * commits take different shares. Without it the seed decides. If it is "all", rnd_takes_all() is true and a test runs all of its cases.
 */
unsigned rnd_share(unsigned parts);
bool rnd_takes_all(void);

/* Under a tool that makes all slow: valgrind, or with SKV_SLOW one for devices. Then there is less of it. */
bool rnd_hurried(void);

#endif
