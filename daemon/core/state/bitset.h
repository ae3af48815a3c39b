/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/bitset.h - a set of numbers below a fixed limit, as bits in several levels. The next number of the
 * set is found in a few steps, however large the set is.
 *
 * Level 0 has a bit for each number. Each further level has a bit for each 64-bit word of the level below, which is set
 * if that word is not 0.
 */
#ifndef SKV_CORE_BITSET_H
#define SKV_CORE_BITSET_H

#include <stdbool.h>
#include <stdint.h>

#define SKV_BITSET_LEVELS 5 /* maximum of levels; each resolves 6 bits of a number: numbers below 2^30 */
#define SKV_BITSET_NONE UINT32_MAX

struct skv_bitset {
	uint32_t levels;
	uint32_t words[SKV_BITSET_LEVELS];
	uint64_t *level[SKV_BITSET_LEVELS];
};

/* Makes an empty set for numbers below n. -ENOMEM: no memory stays allocated. */
int skv_bitset_init(struct skv_bitset *, uint32_t n);
void skv_bitset_deinit(struct skv_bitset *); /* accepts a zeroed struct */
void skv_bitset_put(struct skv_bitset *, uint32_t number, bool in);
bool skv_bitset_has(const struct skv_bitset *, uint32_t number);
/* The set's smallest number that is not below `from`; the set's largest number. SKV_BITSET_NONE: there is none. */
uint32_t skv_bitset_next(const struct skv_bitset *, uint32_t from);
uint32_t skv_bitset_last(const struct skv_bitset *);

#endif
