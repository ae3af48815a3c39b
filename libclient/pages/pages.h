/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/pages/pages.h - which pages a step takes, writes to and evicts. */
#ifndef SKV_CLIENT_PAGES_H
#define SKV_CLIENT_PAGES_H

#include <stdbool.h>
#include <stdint.h>

struct skv_seq;
struct span;
struct skv_session;

/*
 * Pages that a step takes; copies of shared ones among them; pages that a step like it could take; entries that become
 * holes; pages that its prompts will still take.
 */
struct pages {
	uint64_t need, copies, demand, holes, set_aside;
	uint64_t aside_change; /* change of set_aside with the step's commit, modulo 2^64 */
};
int pages_count(struct skv_seq *q, struct pages *p);
/* Pages that a new sequence of the session takes for a prompt of n tokens; `chunked`: several steps read it. */
uint64_t pages_of_prompt(struct skv_session *s, uint32_t n, bool chunked);
/* The entries of a table whose pages the step writes to. Is this page shared, so that it must be copied first? */
struct span pages_written(const struct skv_seq *q, uint32_t table);
bool pages_shares(const struct skv_seq *q, uint32_t table, uint32_t page);
/* Copy shared pages that the step writes to: copy-on-write.c. */
int pages_unshare(struct skv_session *s);
/* Make room to record so many pages that the step takes. */
int pages_prepare(struct skv_session *s, uint64_t need);
/* Fill missing entries with pages; the stock must have them. */
void pages_supply(struct skv_session *s, struct skv_seq *q);
/* Put them back into the stock. */
void pages_undo(struct skv_session *s);
/* Put back pages that only rejected rows needed. No queued work may use them. */
void pages_undo_surplus(struct skv_session *s);
/* State pages of a layer for so many tokens, by the sequence's policy. */
uint32_t pages_of_state(const struct skv_seq *q, uint32_t layer, uint32_t tokens);
/* Evict the page in this entry with the step's commit. False: the journal is full. */
bool pages_evict(struct skv_seq *q, uint32_t table, uint32_t page);
/* Evict also the pages beyond the sequence's slots, and what was saved of a prompt that ends with the step. */
void pages_evict_surplus(struct skv_seq *q);
/* Drop the page of an entry, which becomes a hole or SKV_PTE_NONE. No queued work may use the page. */
void pages_drop(struct skv_seq *q, uint32_t table, uint32_t page);
/*
 * Another policy takes the sequence over: drop page bounds or sketches, and what was saved of the prompt, so that later
 * rows begin a new one. Nothing of the sequence may be queued.
 */
void pages_forget_state(struct skv_seq *q);
/* A policy takes the sequence over from its last holder: drop what it cannot go on with. The same holds. */
void pages_take_over(struct skv_seq *q);
void pages_unpark(struct skv_seq *q); /* restores the entry beyond the committed length, after attach or compaction */
/*
 * Drop what a torn step left in unused entries, and page bounds or sketches beyond the layer's slots. Returns whether
 * any was there.
 */
bool pages_trim(struct skv_seq *q);
/* Does the sequence have the pages of its slots? 0, or -EBADMSG. Sets q->gaps. */
int pages_check(struct skv_seq *q);

#endif
