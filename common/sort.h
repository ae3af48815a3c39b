/* SPDX-License-Identifier: Apache-2.0 */
/* common/sort.h - numbers in order. */
#ifndef SKV_SORT_H
#define SKV_SORT_H

#include <stddef.h>
#include <stdint.h>

/* Sort n numbers, ascending. Never fails; it takes memory for a second copy if there is some. */
void skv_sort_u32(uint32_t *v, size_t n);

#endif
