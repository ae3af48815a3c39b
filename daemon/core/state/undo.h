/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/undo.h - the undo log, which makes changes of the state atomic: whenever the process dies, the next
 * process finds a change complete or absent.
 *
 * skv_undo_save() copies bytes of the state into the undo log before they are changed (state.h has a function for each
 * kind of row); the state is not written in any other way. skv_undo_commit() empties the log and thereby completes the
 * change. A process that dies before the commit leaves the log in the state memfd. The process that maps the state next
 * restores the logged bytes, the last entry first: skv_undo(). So a change consists of everything that is written
 * between two commits. The daemon commits before any output leaves it (loop.h: submissions), so that no client learns
 * of a change that is undone later.
 *
 * A fork rewrites entries of the parent's page tables, which are in sequence memory and not in the state. The old
 * values of these entries go into the log, too.
 */
#ifndef SKV_CORE_UNDO_H
#define SKV_CORE_UNDO_H

#include <stddef.h>
#include <stdint.h>

struct skv_state;

/*
 * A cache of the rows that were saved in the current change, so that a row that counts pages is not saved again with
 * each page. The cache has several sets and keeps the last few rows of each set. A row that has left the cache is saved
 * again, which is harmless and only takes space in the log. Values of at most 8 bytes are saved each time and are not
 * in the cache.
 */
#define SKV_UNDO_SETS 64u
#define SKV_UNDO_WAYS 4u
struct skv_undo_seen {
	struct {
		uint64_t change, offset, bytes;
	} row[SKV_UNDO_WAYS];
	uint32_t next;
};

/* Saves `bytes` bytes of the state at `what`. Returns `what`: the caller may change the bytes until the next commit. */
void *skv_undo_save(struct skv_state *, const void *what, size_t bytes);
/* Saves bytes of a sequence's memory, from `offset` on, that the caller is about to change. `was`: their old values. */
void skv_undo_save_file(struct skv_state *, uint32_t seq, uint64_t offset, const void *was, size_t bytes);
void skv_undo_commit(struct skv_state *);

/*
 * Restores the state from the log of a process that has died, and empties the log. `put_back` writes to a sequence's
 * memory; it must check its arguments, because row and offset come from the log. -EBADMSG with a static text: the log
 * is invalid, and nothing was changed. A negative errno of `put_back` ends the restoration and is returned.
 */
typedef int (*skv_undo_file_fn)(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes);
int skv_undo(struct skv_state *, skv_undo_file_fn put_back, void *ctx, const char **ret_why);

#endif
