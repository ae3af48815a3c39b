/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/window.h - allocates room for values in the memory that other hosts read: a ring, in which new values
 * evict the oldest.
 *
 * Readers are not synchronized with eviction: a reader of an overwritten value gets data without a valid tag.
 */
#ifndef SKV_STORE_WINDOW_H
#define SKV_STORE_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_store_held;
struct skv_store_window {
	uint8_t *at; /* borrowed */
	size_t bytes, next; /* next: offset of the next value */
	struct skv_store_held *oldest, *newest;
	struct skv_store_held *gone; /* evicted values that were not reported yet */
};

/* Returns room for n bytes of this key's value; NULL: n exceeds the window, or out of memory. */
uint8_t *skv_store_window_take(struct skv_store_window *, size_t n, const char *key);
/* Returns the key of an evicted value in ret; false: there are no more. */
bool skv_store_window_gone(struct skv_store_window *, char *ret, size_t size);
void skv_store_window_deinit(struct skv_store_window *);

#endif
