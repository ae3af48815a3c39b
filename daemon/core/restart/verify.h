/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/restart/verify.h - verifies a state that another process left, before a row of it is used.
 *
 * Only the daemon writes to its state. But a bug, a flipped bit or another file under its name must cost no more than
 * what was in the state: a daemon that aborts because of the state would be restarted with the same state again and
 * again.
 */
#ifndef SKV_CORE_VERIFY_H
#define SKV_CORE_VERIFY_H

#include "daemon/core/state/state.h"

/*
 * Is every number in range, does every row refer to live rows, and is everything else zero? NULL, or what is wrong, by
 * table and row (static, overwritten by the next call). Counts are checked by skv_balance_rows().
 */
const char *skv_verify(const struct skv_state *);
/*
 * Checks tables that consist mostly of holes: members, announcements, owner words, references. Called last by
 * skv_verify().
 */
const char *skv_verify_sparse(const struct skv_state *);
/*
 * What is wrong with a sequence's own model, name or length, in a verified state: then only that sequence has to be
 * dropped.
 */
const char *skv_verify_seq(const struct skv_state *, uint32_t seq);

/* Formats the text of skv_verify(). */
const char *skv_verify_off(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
