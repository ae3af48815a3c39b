/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/names.h - finds sequences by user, model and name. The ranks of a tensor-parallel group have
 * sequences of the same name.
 *
 * The names are in a hash table of lists in process memory. A sequence is entered when it gets its name, and is not
 * removed when its name changes or its row becomes free: lookups skip such a row, and the row leaves its old list when
 * it is entered again. So a change of the state that is undone (undo.h) need not be undone in this table.
 */
#ifndef SKV_CORE_NAMES_H
#define SKV_CORE_NAMES_H

#include "daemon/core/state/core-priv.h"

/* Makes an empty table. 0, -ENOMEM. */
int skv_names_init(struct skv_names *, uint32_t max_sequences);
void skv_names_deinit(struct skv_names *);

/* Enters the sequence under the name, model and account that its row has. */
void skv_names_add(struct skv_core *, uint32_t seq);

/*
 * Returns the next sequence of this account, model and name after `seq` (SKV_NO_INDEX at first); SKV_NO_INDEX: there is
 * none.
 */
uint32_t skv_names_next(const struct skv_core *, uint32_t seq, uint32_t account, const char *model, const char *name);

#endif
