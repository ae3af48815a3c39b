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
 * Begin a step: lay out the items, which must be checked; allocate memory for the step's computations; put pages into
 * the tables; bring the tables to the device. On failure nothing has changed.
 */
int transaction_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/* Abort the step that was begun: its pages go back to the stock, and nothing of it is committed. */
void transaction_abort(struct skv_session *s);
/* Mark the policy's state as changed by the next commit, so that death before that commit is detected. */
void transaction_state_changes(struct skv_seq *q);
/*
 * Truncate the sequence: commit only its first n tokens, and the journal's evictions. No work on the sequence may be
 * queued. On failure nothing has changed. The caller drops the table entries beyond the new length.
 */
int transaction_truncate(struct skv_seq *q, uint32_t n, int32_t next);
/* Commit one sequence at once, with stores of the host. */
void transaction_commit(struct skv_seq *q, int32_t next);
/* Replace the token ids of an item of the open step, except its first id. */
int transaction_tokens(struct skv_session *s, uint32_t item, const int32_t *tokens);
/*
 * Commit the step: at once, or, on a device, with the step's last kernel. `next`: the engine's next input tokens,
 * [items].
 */
int transaction_commit_all(struct skv_session *s, const int32_t *next);
/*
 * Called when a device has run this step: frees the pages that its commits evicted, and counts the tokens attended to.
 */
int transaction_finished(struct skv_session *s, struct device_step *x);

#endif
