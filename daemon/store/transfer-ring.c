/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/transfer-ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN ((size_t)64)

struct skv_store_held {
	struct skv_store_held *next; /* the next newer value; in the list `gone`, the next evicted value */
	size_t at;
	char key[];
};

static void evict_oldest(struct skv_store_window *w)
{
	struct skv_store_held *h = w->oldest;

	w->oldest = h->next;
	if (!w->oldest)
		w->newest = NULL;
	h->next = w->gone;
	w->gone = h;
}

/*
 * Makes room for n bytes at `next`, or at the beginning of the window if they do not fit before its end: evicts the
 * values that overlap them. From `next` to the end of the window, and then from its beginning, values go from oldest to
 * newest.
 */
static void make_room(struct skv_store_window *w, size_t n)
{
	if (n > w->bytes - w->next) {
		while (w->oldest && w->oldest->at >= w->next)
			evict_oldest(w);
		w->next = 0;
	}
	while (w->oldest && w->oldest->at >= w->next && w->oldest->at < w->next + n)
		evict_oldest(w);
}

uint8_t *skv_store_window_take(struct skv_store_window *w, size_t n_value, const char *key)
{
	const size_t n = (n_value + ALIGN - 1) / ALIGN * ALIGN;
	struct skv_store_held *h;

	if (n == 0 || n > w->bytes)
		return NULL;
	h = malloc(sizeof(*h) + strlen(key) + 1);
	if (!h)
		return NULL;
	make_room(w, n);
	h->next = NULL;
	h->at = w->next;
	strcpy(h->key, key);
	if (w->newest)
		w->newest->next = h;
	else
		w->oldest = h;
	w->newest = h;
	w->next += n;
	return w->at + h->at;
}

bool skv_store_window_gone(struct skv_store_window *w, char *ret, size_t size)
{
	struct skv_store_held *h = w->gone;

	if (!h)
		return false;
	w->gone = h->next;
	snprintf(ret, size, "%s", h->key);
	free(h);
	return true;
}

void skv_store_window_deinit(struct skv_store_window *w)
{
	char key[1];

	while (w->oldest)
		evict_oldest(w);
	while (skv_store_window_gone(w, key, sizeof(key)))
		;
}
