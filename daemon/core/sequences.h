/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sequences.h - sequences between their holders. */
#ifndef SKV_CORE_SEQUENCES_H
#define SKV_CORE_SEQUENCES_H

#include "daemon/core/core-priv.h"

/* It has no holder any more: named ones are validated, anonymous and corrupt ones dropped (E_CORRUPT). */
int skv_seq_let_go(struct skv_core *, uint32_t seq, uint32_t client);
void skv_seq_remove(struct skv_core *, uint32_t seq);

#endif
