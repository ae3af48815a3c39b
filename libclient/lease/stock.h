/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/lease/stock.h - a session's free list: pages on lease that no table names. */
#ifndef SKV_CLIENT_LEASE_STOCK_H
#define SKV_CLIENT_LEASE_STOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/session.h"

struct skv_seq;

int stock_init(struct skv_session *s);
void stock_deinit(struct skv_session *s);
/* `n` more pages of this session's tables are on lease: a push of each must fit. */
int stock_grow(struct skv_session *s, uint64_t n);
/* At least `need` pages in stock, waiting if it must. */
int stock_reserve(struct skv_session *s, uint32_t need);
/* So many pages are set aside for the sequence's prompt, as of its last commit. */
void stock_put_aside(struct skv_seq *q, uint64_t n);
/* Pages that are set aside for prompts, those of the step that begins as it will leave them. */
uint64_t stock_set_aside(const struct skv_session *s);
/* Ahead of need: ask for more, give surplus and released pages back; never waits. */
void stock_tend(struct skv_session *s, uint32_t demand);
/* Everything back, as far as the daemon can be reached; for the end of a session. */
void stock_return(struct skv_session *s);
/*
 * Post LEASE_PUT or SEQ_RELEASE of these pages, in as many messages as it takes; sorts them, returns how
 * many were told.
 */
uint32_t stock_post(struct skv_session *s, uint16_t type, uint32_t seq, uint32_t *ids, uint32_t n);
/* Tell of the shared pages that the sequence gave up; only while the socket takes them unless `flush`. */
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
 * Pages that a step could take: of the stock, but for what is set aside for prompts, and what the daemon could lease now. Asks it.
 */
int stock_room(struct skv_session *s, uint64_t *ret_pages);

#endif
