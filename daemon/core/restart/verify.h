/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/restart/verify.h - verifies a state that another process left, before any of its rows is used.
 *
 * Only the daemon writes to its state. But a bug, a flipped bit, or a wrong file under the state's name may damage it.
 * A daemon whose state is damaged gives up that state and starts with an empty one. A daemon that aborted because of
 * its state would be restarted with the same state again and again.
 */
#ifndef SKV_CORE_VERIFY_H
#define SKV_CORE_VERIFY_H

#include "daemon/core/state/state.h"

/*
 * Checks that every number in the state is in range, that every row refers to live rows, and that unused memory is
 * zero. Returns NULL, or a text that names the table, the row and the error (static, overwritten by the next call).
 * Counts are checked by skv_balance_rows().
 */
const char *skv_verify(const struct skv_state *);
/*
 * Checks the tables that consist mostly of holes: members, segments, announcements, owner words, references.
 * skv_verify() calls it last.
 */
const char *skv_verify_sparse(const struct skv_state *);
/*
 * Checks the model, name and length in the row of a sequence of a verified state. Returns NULL, or a text on what is
 * wrong: then only that sequence has to be dropped, not the whole state.
 */
const char *skv_verify_seq(const struct skv_state *, uint32_t seq);

/* Formats and returns the text of an error, for skv_verify() and its parts. */
const char *skv_verify_off(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
