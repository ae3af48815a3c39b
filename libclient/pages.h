/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/pages.h - which pages a step takes, writes to and evicts. */
#ifndef SKV_CLIENT_PAGES_H
#define SKV_CLIENT_PAGES_H

#include <stdbool.h>
#include <stdint.h>

struct skv_seq;
struct span;
struct skv_session;

/*
 * Pages that a step takes, of them copies of shared ones, what one like it could take, and entries of holes; and
 * pages that its prompts will still take.
 */
struct pages {
	uint64_t need, copies, demand, holes, set_aside;
	uint64_t aside_change; /* of set_aside, once the step is committed: a difference, modulo 2^64 */
};
int pages_count(struct skv_seq *q, struct pages *p);
/* Pages that a new sequence of the session takes for a prompt of n tokens; `chunked`: that is read in several steps. */
uint64_t pages_of_prompt(struct skv_session *s, uint32_t n, bool chunked);
/* Pages of a table that the step writes to; does the entry name one that is shared, so that it must be copied first? */
struct span pages_written(const struct skv_seq *q, uint32_t table);
bool pages_shares(const struct skv_seq *q, uint32_t table, uint32_t page);
/* No sequence of the step will write to a page that it shares: copy-on-write.c. */
int pages_unshare(struct skv_session *s);
/* Room to note down so many pages of the step's. */
int pages_prepare(struct skv_session *s, uint64_t need);
/* Pages for what is missing; the stock has them. */
void pages_supply(struct skv_session *s, struct skv_seq *q);
/* They are in the stock again. */
void pages_undo(struct skv_session *s);
/* So are those that are of no use to the rows that are accepted. Nothing that runs may need them. */
void pages_undo_surplus(struct skv_session *s);
/* State pages of a layer for so many tokens, by the sequence's policy. */
uint32_t pages_of_state(const struct skv_seq *q, uint32_t layer, uint32_t tokens);
/* The page in this entry goes with the step's commit. False: the journal is full. */
bool pages_evict(struct skv_seq *q, uint32_t table, uint32_t page);
/* So do those that the sequence has beyond its slots, and what was saved of a prompt that is over with it. */
void pages_evict_surplus(struct skv_seq *q);
/* Give up what is in an entry, which becomes what it is without a page. Nothing that runs may need the page. */
void pages_drop(struct skv_seq *q, uint32_t table, uint32_t page);
/* Nothing is saved of the prompt that was being read: what comes begins anew. The device, if any, is waited for. */
void pages_forget_prompt(struct skv_seq *q);
/* Nor of bounds or sketches, which another policy kept. */
void pages_forget_state(struct skv_seq *q);
void pages_unpark(struct skv_seq *q); /* the entry beyond the committed length, after an attach and a compaction */
/*
 * Drop what a torn step has left in entries of no use; of bounds and sketches, what is beyond the layer's slots. Was there
 * any?
 */
bool pages_trim(struct skv_seq *q);
/* Does the sequence have the pages that its slots are in? NULL, or what is wrong. Finds gaps. */
const char *pages_check(struct skv_seq *q);

#endif
