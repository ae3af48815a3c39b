/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/fdstore.h - descriptors that have to outlive the process with the state that refers to them.
 *
 * Memory goes with its last descriptor; so each is given to a store, by name, before the change is committed that refers to it, and
 * removed there after the commit of the change that does so no more. When the process dies, the store has all that the state refers
 * to, and at most what one change made or left besides; that nobody claims (resume.c).
 */
#ifndef SKV_CORE_FDSTORE_H
#define SKV_CORE_FDSTORE_H

#include "daemon/core/core-priv.h"

/* Names of a pool's memfd, a sequence's and a session's memory, a client's process, of rows that live; not used again soon. */
void skv_fdstore_name(const struct skv_state *, enum skv_table, uint32_t row, char ret[SKV_FDSTORE_NAME]);
void skv_fdstore_segment_name(const struct skv_state *, uint32_t pool, uint32_t segment, char ret[SKV_FDSTORE_NAME]);

/* The file that `fd` (borrowed) is, for a row of the state; and is it that one? -1 is none, {0}. */
struct skv_file_id skv_fdstore_file(int fd);
bool skv_fdstore_is_file(int fd, const struct skv_file_id *);

/* Can one more client, session or sequence be stored? E_NOSPC: all names would be too long for the next daemon's environment. */
int skv_fdstore_allows(struct skv_core *);

/* `fd` is borrowed until the commit. Nothing happens where there is no store. */
void skv_fdstore_add(struct skv_core *, const char *name, int fd);
void skv_fdstore_remove(struct skv_core *, const char *name);

/* What a commit does before the state's own, and after it. */
void skv_fdstore_before_commit(struct skv_core *);
void skv_fdstore_after_commit(struct skv_core *);

#endif
