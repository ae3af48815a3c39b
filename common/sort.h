/* SPDX-License-Identifier: Apache-2.0 */
/* common/sort.h - sorts arrays of 32-bit numbers. */
#ifndef SKV_SORT_H
#define SKV_SORT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Sorts n numbers in ascending order. The function never fails: it allocates room for a second copy of the numbers, and
 * uses qsort() if there is no memory.
 */
void skv_sort_u32(uint32_t *v, size_t n);

#endif
