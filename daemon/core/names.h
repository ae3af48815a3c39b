/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/names.h - sequences by user, model and name: those of a tensor-parallel group's ranks have one name.
 *
 * A table of lists, in this process. A sequence is entered when it gets its name. It is not removed: a row whose name is another
 * one by now, or that is free, is passed over, and leaves its list when it is entered anew. So a change that is taken back (undo.h)
 * needs nothing here.
 */
#ifndef SKV_CORE_NAMES_H
#define SKV_CORE_NAMES_H

#include "daemon/core/core-priv.h"

/* -ENOMEM. */
int skv_names_init(struct skv_names *, uint32_t max_sequences);
void skv_names_deinit(struct skv_names *);

/* The sequence has the name, model and account of its row. */
void skv_names_add(struct skv_core *, uint32_t seq);

/* The next sequence of that name behind `seq`; SKV_NO_INDEX: the first, and where there is none. */
uint32_t skv_names_next(const struct skv_core *, uint32_t seq, uint32_t account, const char *model, const char *name);

#endif
