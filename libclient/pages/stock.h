/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/pages/stock.h - a session's free list: pages that the daemon has leased to it and no page table names. */
#ifndef SKV_CLIENT_PAGES_STOCK_H
#define SKV_CLIENT_PAGES_STOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/session.h"

struct skv_seq;

/*
 * Add n to the session's number of leased pages, and make room for them in the stock's stack, so that pushing a page
 * cannot fail.
 */
int stock_grow(struct skv_session *s, uint64_t n);
/* Ensure that at least `need` pages are in stock. Waits for the daemon if necessary. */
int stock_reserve(struct skv_session *s, uint32_t need);
/* Record that n pages are set aside for the rest of the sequence's prompt, as of its last commit. */
void stock_put_aside(struct skv_seq *q, uint64_t n);
/* Number of pages set aside for prompts of the session, including the change that the open step's commit makes. */
uint64_t stock_set_aside(const struct skv_session *s);
/* At the end of a session: give all pages of the stock back, if the daemon can be reached. */
void stock_return(struct skv_session *s);
/* Give the stock's pages back to the daemon, except those set aside for prompts. Returns whether there were any. */
bool stock_return_spare(struct skv_session *s);
/* Post LEASE_PUT or SEQ_RELEASE of these pages, in several messages if needed. Sorts ids; returns the number posted. */
uint32_t stock_post(struct skv_session *s, uint16_t type, uint32_t seq, uint32_t *ids, uint32_t n);
/*
 * Report the shared pages that the sequence gave up to the daemon; without `flush`, only if all earlier messages were
 * sent.
 */
void stock_release(struct skv_seq *q, bool flush);

static inline uint32_t stock_pop(struct stock *st)
{
	return st->ids[--st->n];
}
static inline void stock_push(struct stock *st, uint32_t page)
{
	st->ids[st->n++] = page;
}

/*
 * Ask the daemon how many pages a step could take: those in stock, less those set aside for prompts, plus those that
 * the daemon could lease to the session now.
 */
int stock_room(struct skv_session *s, uint64_t *ret_pages);

#endif
