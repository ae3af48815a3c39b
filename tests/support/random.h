/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/random.h - reproducible random numbers, and shares of tests that take too long to run completely each
 * time.
 *
 * A test program calls rnd_seed() at the start of main(): the seed is $SKV_SEED, or else the clock, and it is printed.
 * Check forks for each test, so every test starts from that seed, whatever ran before. Tests that do not fork, and loop
 * tests, call rnd_begin().
 */
#ifndef SKV_TEST_RANDOM_H
#define SKV_TEST_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void rnd_seed(const char *program);

/*
 * Starts series i of the seed, whatever was drawn before; for example the test number of a loop test. rnd_resume() with
 * the returned value continues the previous series.
 */
uint64_t rnd_begin(uint64_t i);
void rnd_resume(uint64_t was);

/* Each thread has its own numbers, starting from the seed. */
uint64_t rnd64(void);

/* Returns 0 … n - 1; n is at least 1. */
uint32_t rnd_below(uint32_t n);

/* Returns 0 ≤ x < 1. */
double rnd_unit(void);

void rnd_bytes(void *to, size_t n);

/*
 * Returns the number of the share, of `parts`, that this run takes. `make check` sets $SKV_SHARE to a number derived
 * from the commit, so successive commits take different shares. Without it the seed decides. If it is "all",
 * rnd_takes_all() is true and a test runs all of its cases.
 */
unsigned rnd_share(unsigned parts);
bool rnd_takes_all(void);

/*
 * Returns whether the program runs under valgrind, or with SKV_SLOW under a slow tool for devices. Tests then do less.
 */
bool rnd_hurried(void);

#endif
