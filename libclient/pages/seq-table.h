/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/pages/seq-table.h - all page tables of a sequence at once: checking, counting and giving back their pages.
 */
#ifndef SKV_CLIENT_PAGES_SEQ_TABLE_H
#define SKV_CLIENT_PAGES_SEQ_TABLE_H

#include "libclient/seq.h"

/*
 * Check all committed entries in the tables of a sequence that was just mapped, and record its pages as used by this
 * client.
 */
int seq_claim_pages(struct skv_seq *q);
/* Count the sequence's shared pages again, after the daemon has made pages of a fork's parent shared. */
int seq_recount(struct skv_seq *q);
/*
 * If the daemon has by now answered a fork that timed out, count the sequence's shared pages again. Returns 0,
 * -ETIMEDOUT if there is no answer yet, or another error.
 */
int seq_settle_fork(struct skv_seq *q);
uint64_t seq_resident(const struct skv_seq *q); /* number of resident pages with tokens, over all layers */
/*
 * Record that this client no longer uses the pages of one kind (private or shared) in the sequence's tables. Must be
 * called before the daemon is told that the pages are free, because from then on the daemon may withdraw their segments
 * at any moment.
 */
void seq_unhold(struct skv_seq *q, enum skv_pte_kind kind);
/* puts the sequence's private pages, which stay on lease, into the session's stock */
void seq_take_own(struct skv_seq *q);
/* gives the sequence's private pages back to the daemon, with a message sent after a DROP that was not answered yet */
void seq_put_own(struct skv_seq *q);

#endif
