/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/use-order.h - a user's sealed prefixes that may be evicted, in a binary heap: the least recently used one
 * is first. Entering and taking out take time logarithmic in the number of prefixes.
 */
#ifndef SKV_DISK_USE_ORDER_H
#define SKV_DISK_USE_ORDER_H

#include <stdbool.h>
#include <stddef.h>

struct skv_parked;

struct skv_use_order {
	struct skv_parked **entry; /* [n] */
	size_t n, cap;
};

/* Makes room for `n` entries. Returns false if there is no memory. */
bool skv_use_order_reserve(struct skv_use_order *, size_t n);
/* Enters a prefix, for which room was reserved; or, if it is in the heap, moves it to where its `used_ns` belongs. */
void skv_use_order_put(struct skv_use_order *, struct skv_parked *);
/* Takes the prefix out, if it is in the heap. */
void skv_use_order_take(struct skv_use_order *, struct skv_parked *);

#endif
