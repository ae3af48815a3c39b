/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/fdstore.h - descriptors that have to outlive the process together with the state that refers to
 * them.
 *
 * Memory is freed with its last descriptor. So each descriptor is given to a store, by name, before the change that
 * refers to it is committed, and removed from the store after the commit of the change that drops the reference. When
 * the process dies, the store has everything that the state refers to, and at most what one change added or dropped
 * besides; those descriptors are never claimed (resume.c).
 */
#ifndef SKV_CORE_FDSTORE_H
#define SKV_CORE_FDSTORE_H

#include "daemon/core/state/core-priv.h"

/*
 * Names of the descriptors of live rows: a pool's memfd, a sequence's and a session's memory, a client's process. A
 * name is not reused soon.
 */
void skv_fdstore_name(const struct skv_state *, enum skv_table, uint32_t row, char ret[SKV_FDSTORE_NAME]);
void skv_fdstore_segment_name(const struct skv_state *, uint32_t pool, uint32_t segment, char ret[SKV_FDSTORE_NAME]);

/* Identity of file `fd` (borrowed), for a row of the state; and does `fd` have that identity? fd -1: {0}. */
struct skv_file_id skv_fdstore_file(int fd);
bool skv_fdstore_is_file(int fd, const struct skv_file_id *);

/*
 * Can one more client, session or sequence be stored? E_NOSPC: all names would be too long for the next daemon's
 * environment.
 */
int skv_fdstore_allows(struct skv_core *);

/* `fd` is borrowed until the commit. Without a store nothing happens. */
void skv_fdstore_add(struct skv_core *, const char *name, int fd);
void skv_fdstore_remove(struct skv_core *, const char *name);

/* To be called before and after the state's own commit. */
void skv_fdstore_before_commit(struct skv_core *);
void skv_fdstore_after_commit(struct skv_core *);

#endif
