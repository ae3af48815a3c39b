/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/undo.h - changes of the state that are complete or absent, whenever the process dies.
 *
 * The state is constant except where the undo log allows a change: skv_undo_save() copies the bytes into the log before
 * they are changed (state.h has a function for each kind of row). skv_undo_commit() empties the log and thereby
 * completes the change. A process that dies before that leaves the log in the memfd, and the process that maps the
 * state next restores the logged bytes, the last entry first: skv_undo(). So a change is what happens between two
 * commits. The daemon commits before any output leaves it (loop.h: submissions), so that no peer learns of a change
 * that is undone later.
 *
 * Page tables of sequences are clients' memory, and a fork rewrites some entries: their old values go into the log,
 * too.
 */
#ifndef SKV_CORE_UNDO_H
#define SKV_CORE_UNDO_H

#include <stddef.h>
#include <stdint.h>

struct skv_state;

/*
 * Rows saved in this change, because a row that counts pages changes with each page. The cache has several sets and
 * keeps the last few rows of each: saving a row twice is harmless and only takes log space. Values of one word or less
 * are saved each time and not remembered.
 */
#define SKV_UNDO_SETS 64u
#define SKV_UNDO_WAYS 4u
struct skv_undo_seen {
	struct {
		uint64_t change, offset, bytes;
	} row[SKV_UNDO_WAYS];
	uint32_t next;
};

/* Saves `bytes` of the state at `what`, which may then be changed until the next commit. Returns `what`. */
void *skv_undo_save(struct skv_state *, const void *what, size_t bytes);
/* Saves `was`: bytes of a sequence's memory from `offset` on that the caller is about to change. */
void skv_undo_save_file(struct skv_state *, uint32_t seq, uint64_t offset, const void *was, size_t bytes);
void skv_undo_commit(struct skv_state *);

/*
 * Restores everything in the log. `put_back` writes to a sequence's memory and must check its arguments, because row
 * and offset come from the log. -EBADMSG with a static text: the log is invalid, and nothing was changed. A negative
 * errno of `put_back` ends the restoration and is returned.
 */
typedef int (*skv_undo_file_fn)(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes);
int skv_undo(struct skv_state *, skv_undo_file_fn put_back, void *ctx, const char **ret_why);

#endif
