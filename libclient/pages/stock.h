/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/pages/stock.h - a session's free list: pages on lease that no table names. */
#ifndef SKV_CLIENT_PAGES_STOCK_H
#define SKV_CLIENT_PAGES_STOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/session.h"

struct skv_seq;

/* Count `n` more leased pages of this session: the stack gets room to push each of them. */
int stock_grow(struct skv_session *s, uint64_t n);
/* Ensure that at least `need` pages are in stock. Waits for the daemon if necessary. */
int stock_reserve(struct skv_session *s, uint32_t need);
/* Set n pages aside for the sequence's prompt, as of its last commit. */
void stock_put_aside(struct skv_seq *q, uint64_t n);
/* Pages set aside for prompts, including the change that the step being begun makes. */
uint64_t stock_set_aside(const struct skv_session *s);
/* Give all pages back as far as the daemon can be reached; for the end of a session. */
void stock_return(struct skv_session *s);
/* Post LEASE_PUT or SEQ_RELEASE of these pages, in several messages if needed. Sorts ids; returns the number posted. */
uint32_t stock_post(struct skv_session *s, uint16_t type, uint32_t seq, uint32_t *ids, uint32_t n);
/* Tell the daemon of the shared pages that the sequence gave up; without `flush`, only if all else is sent. */
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
 * Asks the daemon how many pages a step could take: those in stock, less those set aside for prompts, plus those that
 * it could lease now.
 */
int stock_room(struct skv_session *s, uint64_t *ret_pages);

#endif
