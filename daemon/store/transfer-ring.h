/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/transfer-ring.h - allocates room for values in the memory that other hosts read (export.h). The memory
 * is a ring buffer, in which new values evict the oldest ones.
 *
 * Other hosts read without synchronization. A host that reads a value while it is overwritten gets data whose
 * authentication tag does not match (sealed-value.h), and so counts the value as absent.
 */
#ifndef SKV_STORE_TRANSFER_RING_H
#define SKV_STORE_TRANSFER_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_store_held;
struct skv_store_window {
	uint8_t *at; /* borrowed */
	size_t bytes, next; /* size of the window; byte offset of the next value */
	struct skv_store_held *oldest, *newest;
	struct skv_store_held *gone; /* evicted values whose keys skv_store_window_gone() has not returned yet */
};

/* Returns room for the value of this key, of n bytes. NULL: n exceeds the window, or out of memory. */
uint8_t *skv_store_window_take(struct skv_store_window *, size_t n, const char *key);
/* Takes an evicted value from the list `gone` and returns its key in ret; false: there are no more. */
bool skv_store_window_gone(struct skv_store_window *, char *ret, size_t size);
void skv_store_window_deinit(struct skv_store_window *);

#endif
