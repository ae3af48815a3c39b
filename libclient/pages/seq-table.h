/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/pages/seq-table.h - the page tables of a sequence as a whole: checked, counted, given back. */
#ifndef SKV_CLIENT_PAGES_SEQ_TABLE_H
#define SKV_CLIENT_PAGES_SEQ_TABLE_H

#include "libclient/seq.h"

/* Check all committed entries of a sequence that was just mapped, and count its pages as this client's. */
int seq_claim_pages(struct skv_seq *q);
/* Count shared pages again: the daemon has shared the pages of a parent. */
int seq_recount(struct skv_seq *q);
/* If a fork that timed out has been answered by now, count the tables again. 0, -ETIMEDOUT, or another error. */
int seq_settle_fork(struct skv_seq *q);
uint64_t seq_resident(const struct skv_seq *q); /* pages, of all layers */
/*
 * The pages of one kind in its tables are no longer used here. Call it before the daemon is told that they are free:
 * from then on it may withdraw their segments at any moment.
 */
void seq_unhold(struct skv_seq *q, enum skv_pte_kind kind);
void seq_take_own(struct skv_seq *q); /* put its own pages, still on lease, into the stock */
void seq_put_own(struct skv_seq *q);  /* or give them back to the daemon, behind a DROP that was not answered yet */

#endif
