/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/transaction.h - begin, commit and abort of a step. */
#ifndef SKV_CLIENT_STEP_TRANSACTION_H
#define SKV_CLIENT_STEP_TRANSACTION_H

#include <stdint.h>

struct device_step;
struct skv_seq;
struct skv_session;
struct skv_step_item;

/*
 * Lay the items out, which must be checked, make room for what the step computes, supply pages, and inform the kernels.
 * On failure nothing has changed.
 */
int transaction_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/* Discard what was begun. */
void transaction_abort(struct skv_session *s);
/* The next commit changes the policy's state: mark the state, so that death before that commit is detected. */
void transaction_state_changes(struct skv_seq *q);
/*
 * Commit the first n tokens alone, and the journal. Nothing of the sequence may be queued. On failure nothing has
 * changed. The caller drops the entries beyond.
 */
int transaction_truncate(struct skv_seq *q, uint32_t n, int32_t next);
/* Commit one sequence, in host memory. */
void transaction_commit(struct skv_seq *q, int32_t next);
/* Commit the step: at once, or on a device with its last kernel. `next`: the caller's ids, [items]. */
int transaction_commit_all(struct skv_session *s, const int32_t *next);
/* A device has run this step: free what its commits evicted, and count what was attended. */
int transaction_finished(struct skv_session *s, struct device_step *x);

#endif
