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
 * Numbers that pages_count() adds up for a step: pages that the step takes (need); those of them that become copies of
 * shared pages (copies); pages that a step like this one could take (demand); entries of page tables that the step may
 * make holes (holes); pages that the rest of its prompts will take (set_aside).
 */
struct pages {
	uint64_t need, copies, demand, holes, set_aside;
	uint64_t aside_change; /* change of the session's stock.set_aside with the step's commit, modulo 2^64 */
};
int pages_count(struct skv_seq *q, struct pages *p);
/* Pages that a new sequence of the session takes for a prompt of n tokens; `chunked`: several steps read it. */
uint64_t pages_of_prompt(struct skv_session *s, uint32_t n, bool chunked);
/*
 * pages_written() returns the range of a table's entries whose pages the step writes to. pages_shares(): is this page
 * shared, so that it must be copied before it is written?
 */
struct span pages_written(const struct skv_seq *q, uint32_t table);
bool pages_shares(const struct skv_seq *q, uint32_t table, uint32_t page);
/* Copy shared pages that the step writes to: copy-on-write.c. */
int pages_unshare(struct skv_session *s);
/* Allocate memory in which pages_supply() can record `need` pages that the step takes. */
int pages_prepare(struct skv_session *s, uint64_t need);
/* Put pages from the stock into the table entries that the step needs filled; the stock must have enough. */
void pages_supply(struct skv_session *s, struct skv_seq *q);
/* Put all pages that pages_supply() has put into tables in this step back into the stock. */
void pages_undo(struct skv_session *s);
/* Put pages that only rejected rows needed back into the stock. No queued work may use these pages. */
void pages_undo_surplus(struct skv_session *s);
/*
 * The number of state pages (page bounds or sketches) that a layer needs for so many tokens under the sequence's
 * policy.
 */
uint32_t pages_of_state(const struct skv_seq *q, uint32_t layer, uint32_t tokens);
/* Evict the page in this entry with the step's commit. Returns false if the journal is full. */
bool pages_evict(struct skv_seq *q, uint32_t table, uint32_t page);
/*
 * With the step's commit, evict pages beyond the slots that the sequence will have, and the saved queries of a prompt
 * that ends with the step.
 */
void pages_evict_surplus(struct skv_seq *q);
/*
 * Remove the page from an entry, which becomes a hole or SKV_PTE_NONE: a private page goes to the stock, a shared page
 * is given up. No queued work may use the page.
 */
void pages_drop(struct skv_seq *q, uint32_t table, uint32_t page);
/*
 * Called when another policy takes the sequence over: drops page bounds or sketches, and the saved queries of the
 * prompt, so that later rows begin a new prompt. No work on the sequence may be queued.
 */
void pages_forget_state(struct skv_seq *q);
/*
 * Called when a policy takes the sequence over from its last holder: drops the pages that the policy cannot use. No
 * work on the sequence may be queued.
 */
void pages_take_over(struct skv_seq *q);
/* after attach or compaction, restores the page table entry just beyond the committed length */
void pages_unpark(struct skv_seq *q);
/*
 * Drop pages that a step without a commit left in unused entries, and page bounds or sketches beyond the layer's slots.
 * Returns whether there was such a page.
 */
bool pages_trim(struct skv_seq *q);
/* Check that the sequence has all pages of its slots. Returns 0, or -EBADMSG. Sets q->gaps. */
int pages_check(struct skv_seq *q);

#endif
