/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/transaction.h - begin, commit and abort of a step. */
#ifndef SKV_CLIENT_TRANSACTION_H
#define SKV_CLIENT_TRANSACTION_H

#include <stdint.h>

struct device_step;
struct skv_seq;
struct skv_session;
struct skv_step_item;

/*
 * Lay the items out, which were checked, supply their pages, and tell the kernels. `prepare` makes room for what the
 * step computes, before anything is changed. On failure nothing has changed.
 */
int transaction_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n,
                      int (*prepare)(struct skv_session *), uint32_t *ret_demand);
/* What was begun will not be. */
void transaction_abort(struct skv_session *s);
/* The commit to come has what was written to the policy's state; death before it must show that it has not. */
void transaction_state_changes(struct skv_seq *q);
/*
 * Commit the first n tokens alone, and the journal; nothing of the sequence is under way. On failure nothing has changed.
 * Entries beyond are left for the caller.
 */
int transaction_truncate(struct skv_seq *q, uint32_t n, int32_t next);
/* Commit one sequence, in host memory. */
void transaction_commit(struct skv_seq *q, int32_t next);
/* Commit the step: now, or on a device with its last kernel. `next`: the engine's, [items]. */
int transaction_commit_all(struct skv_session *s, const int32_t *next);
/* A device has run this step: what its commits evicted is free, what was attended is counted. */
int transaction_finished(struct skv_session *s, struct device_step *x);

#endif
