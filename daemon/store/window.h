/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/window.h - room for values in the memory that others read: a ring, in which the oldest make room for new ones.
 *
 * Nobody is asked whether a value is being read while another takes its room: what a reader gets then has not the right tag.
 */
#ifndef SKV_STORE_WINDOW_H
#define SKV_STORE_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_store_held;
struct skv_store_window {
	uint8_t *at; /* borrowed */
	size_t bytes, next; /* where the next value goes */
	struct skv_store_held *oldest, *newest;
	struct skv_store_held *gone; /* whose room was taken, and nobody has been told */
};

/* Room for n bytes, which are the key's; NULL: there is not as much in all, or no memory. */
uint8_t *skv_store_window_take(struct skv_store_window *, size_t n, const char *key);
/* One whose value has no room any more, in ret; false: there is none more. */
bool skv_store_window_gone(struct skv_store_window *, char *ret, size_t size);
void skv_store_window_deinit(struct skv_store_window *);

#endif
