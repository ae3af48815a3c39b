/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/evict/schedule.h - how many tokens or pages a layer retains after a step, from lengths alone. */
#ifndef SKV_CLIENT_EVICT_SCHEDULE_H
#define SKV_CLIENT_EVICT_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/seqmem.h"
#include "kernels/evict.h"
#include "kernels/kernels.h"

/*
 * What a step does to the slots of a layer, of which it has ks->len: sets n_retained, accumulate, pinned and n_active
 * of `ks`, and *ret, what the commit will say. `about`: of the last commit; `active`: active slots with the new ones.
 */
void evict_schedule(const struct skv_evict *k, uint32_t about, bool decodes, uint32_t active, struct skv_kseq *ks,
                    struct skv_layer_slots *ret);

#endif
