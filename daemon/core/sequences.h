/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sequences.h - sequences between their holders. */
#ifndef SKV_CORE_SEQUENCES_H
#define SKV_CORE_SEQUENCES_H

#include "daemon/core/core-priv.h"
#include "daemon/core/validate.h"

void skv_seq_remove(struct skv_core *, uint32_t seq);
/* Remove it as far as *units go, from *at on, which begins with 0. SKV_DONE or SKV_GOES_ON. */
enum skv_progress skv_seq_remove_some(struct skv_core *, uint32_t seq, uint32_t *at, uint32_t *units);
void skv_seq_unhold(struct skv_core *, uint32_t seq);

#endif
