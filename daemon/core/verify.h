/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/verify.h - a state that another process left, before a row of it is used.
 *
 * Only the daemon writes to its state. But a bug, a flipped bit or another's memfd under its name must cost no more than what was in it:
 * a daemon that the state aborts is started with the same state again, and again.
 */
#ifndef SKV_CORE_VERIFY_H
#define SKV_CORE_VERIFY_H

#include "daemon/core/state.h"

/*
 * Is every number in range, does every row refer to rows that live, and is nothing where nothing lives? NULL, or what is wrong, by
 * table and row (static, overwritten by the next call). Counts are skv_balance_rows()'s to check.
 */
const char *skv_verify(const struct skv_state *);
/* Of tables that are holes for the most part: members, what clients were told, owner words, references. skv_verify() calls it, last. */
const char *skv_verify_sparse(const struct skv_state *);
/* What is wrong with a sequence itself, its model, name or length: it can be dropped alone. Of a state that is verified. */
const char *skv_verify_seq(const struct skv_state *, uint32_t seq);

/* The text of skv_verify(). */
const char *skv_verify_off(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
