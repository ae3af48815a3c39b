/* SPDX-License-Identifier: Apache-2.0 */
/* common/sort.h - sorting of numbers. */
#ifndef SKV_SORT_H
#define SKV_SORT_H

#include <stddef.h>
#include <stdint.h>

/* Sorts n numbers in ascending order. Never fails; uses memory for a second copy if available. */
void skv_sort_u32(uint32_t *v, size_t n);

#endif
