/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/keep.h - descriptors that have to outlive the process with the state that refers to them.
 *
 * Memory goes with its last descriptor; so each is given to a keeper, by name, before the change is committed that refers to it, and
 * taken back after the commit of that which does so no more. Whenever the process dies, the keeper has all that the state refers
 * to, and at most what one change made or left; the latter nobody claims (resume.c).
 */
#ifndef SKV_CORE_KEEP_H
#define SKV_CORE_KEEP_H

#include "daemon/core/core-priv.h"

/* Names of a pool's memfd, a sequence's and a session's memory, a client's process, of rows that live; never used twice, as ids are not. */
void skv_keep_name(const struct skv_core *, enum skv_table, uint32_t row, char ret[SKV_KEEP_NAME]);
void skv_keep_segment_name(const struct skv_core *, uint32_t pool, uint32_t segment, char ret[SKV_KEEP_NAME]);

/* `fd` is borrowed until the commit. Nothing happens where there is no keeper. */
void skv_keep_add(struct skv_core *, const char *name, int fd);
void skv_keep_remove(struct skv_core *, const char *name);

/* The two halves of a commit: before and after. */
void skv_keep_give(struct skv_core *);
void skv_keep_take_back(struct skv_core *);

#endif
