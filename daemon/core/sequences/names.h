/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/names.h - sequences by user, model and name: the sequences of a tensor-parallel group's ranks
 * share a name.
 *
 * A hash table of lists, in process memory. A sequence is entered when it gets its name, and not removed: lookups skip
 * a row whose name has changed or that is free, and the row leaves its list when it is entered again. So a change that
 * is undone (undo.h) needs no action here.
 */
#ifndef SKV_CORE_NAMES_H
#define SKV_CORE_NAMES_H

#include "daemon/core/state/core-priv.h"

/* -ENOMEM. */
int skv_names_init(struct skv_names *, uint32_t max_sequences);
void skv_names_deinit(struct skv_names *);

/* Enters the sequence under the name, model and account of its row. */
void skv_names_add(struct skv_core *, uint32_t seq);

/* The next sequence of that name after `seq`; SKV_NO_INDEX: the first one. Returns SKV_NO_INDEX if there is none. */
uint32_t skv_names_next(const struct skv_core *, uint32_t seq, uint32_t account, const char *model, const char *name);

#endif
