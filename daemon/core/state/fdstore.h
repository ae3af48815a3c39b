/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/fdstore.h - gives descriptors of memory to the fd store, so that they outlive the process together
 * with the state that refers to them.
 *
 * A memfd is freed with its last descriptor. So each descriptor is given to the store, under a name, before the change
 * that refers to the descriptor is committed, and removed from the store after the commit of the change that drops the
 * reference. When the process dies, the store has all descriptors that the state refers to. The store may also have
 * descriptors that the last change added or dropped; these are never claimed (resume.c).
 */
#ifndef SKV_CORE_FDSTORE_H
#define SKV_CORE_FDSTORE_H

#include "daemon/core/state/core-priv.h"

/*
 * The name of a live row's descriptor: of a pool's memfd, a sequence's memory, a session's page or a client's process.
 * A name is not used again within one change.
 */
void skv_fdstore_name(const struct skv_state *, enum skv_table, uint32_t row, char ret[SKV_FDSTORE_NAME]);
void skv_fdstore_segment_name(const struct skv_state *, uint32_t pool, uint32_t segment, char ret[SKV_FDSTORE_NAME]);

/* Identity of the file `fd` (borrowed), for a row of the state, {0} for fd -1; and does `fd` have this identity? */
struct skv_file_id skv_fdstore_file(int fd);
bool skv_fdstore_is_file(int fd, const struct skv_file_id *);

/*
 * Has the store room for the descriptor of one more client, session or sequence? 0, or E_NOSPC: the names of all
 * descriptors would be too long for the next daemon's environment.
 */
int skv_fdstore_allows(struct skv_core *);

/* Give a descriptor (borrowed until the commit) to the store, or remove one. Without a store these do nothing. */
void skv_fdstore_add(struct skv_core *, const char *name, int fd);
void skv_fdstore_remove(struct skv_core *, const char *name);

/* Tell the store of added descriptors, before the state's commit, and of removed ones, after it. */
void skv_fdstore_before_commit(struct skv_core *);
void skv_fdstore_after_commit(struct skv_core *);

#endif
