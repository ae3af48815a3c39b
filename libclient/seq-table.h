/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/seq-table.h - the page tables of a sequence as a whole: checked, counted, given back. */
#ifndef SKV_CLIENT_SEQ_TABLE_H
#define SKV_CLIENT_SEQ_TABLE_H

#include "libclient/seq.h"

/* Check all committed entries of a sequence that was mapped, and count its pages as ours. */
int seq_claim_pages(struct skv_seq *q);
/* Count shared pages anew: the daemon has shared the pages of a parent. */
int seq_recount(struct skv_seq *q);
/* Has a fork that timed out been answered by now? Then the table is counted anew. 0, or -ETIMEDOUT. */
int seq_settle_fork(struct skv_seq *q);
uint64_t seq_resident(const struct skv_seq *q); /* pages, of all layers */
/* Has it the pages that its slots are in? 0, or -EBADMSG; looks for gaps. */
int seq_check_pages(struct skv_seq *q);
/*
 * The pages of one kind in its tables are of no more use here. To be said before the daemon is told that
 * they are free: from then on it may withdraw their segments at any moment.
 */
void seq_unhold(struct skv_seq *q, enum skv_pte_kind kind);
void seq_take_own(struct skv_seq *q); /* its own pages, still on lease, into the stock */
void seq_put_own(struct skv_seq *q);  /* or back to the daemon, behind a DROP that was not answered so far */

#endif
