/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/undo.h - changes of the state that are complete or absent, whenever the process dies.
 *
 * The state is constant, but for what its undo log knows: skv_undo_save() writes what is about to be changed into the log, as
 * it is, and only then is it changed (state.h has a function for each kind of row). skv_undo_commit() empties the log: the change is
 * made. A process that dies before that leaves the log in the memfd, and the process that maps the state next puts back what is in it, the
 * last one first: skv_undo(). So a change is what happens between two commits; the daemon commits before anything leaves
 * it (loop.h: submissions), so that nobody knows of a change that is undone later.
 *
 * Page tables of sequences are clients' memory, and a fork rewrites some: what they were goes into the log, too.
 */
#ifndef SKV_CORE_UNDO_H
#define SKV_CORE_UNDO_H

#include <stddef.h>
#include <stdint.h>

struct skv_state;

/*
 * Rows that were saved in this change: a row that counts pages changes with each page. Sets of some, the last of each, for to save one
 * again costs memory and nothing else; what is as small as a word is saved each time, and not remembered.
 */
#define SKV_UNDO_SETS 64u
#define SKV_UNDO_WAYS 4u
struct skv_undo_seen {
	struct {
		uint64_t change, offset, bytes;
	} row[SKV_UNDO_WAYS];
	uint32_t next;
};

/* `what` is in the state, and may be changed until the next commit. Returns it. */
void *skv_undo_save(struct skv_state *, const void *what, size_t bytes);
/* `bytes` of a sequence's memory, from `offset` on, are about to be changed: so they are now. */
void skv_undo_save_file(struct skv_state *, uint32_t seq, uint64_t offset, const void *was, size_t bytes);
void skv_undo_commit(struct skv_state *);

/*
 * All that is in the log becomes what it was. `put_back` writes to a sequence's memory; what it says does not matter: a sequence without
 * memory is lost in any case. It checks what it is given: rows and offset are the log's word.
 * -EBADMSG and a static text: what is in the log cannot be one; nothing was changed.
 */
typedef int (*skv_undo_file_fn)(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes);
int skv_undo(struct skv_state *, skv_undo_file_fn put_back, void *ctx, const char **ret_why);

#endif
