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
 * Compute how a step changes the slots of a layer, in which ks->len slots are in use during the step. Sets n_retained,
 * accumulate, pinned and n_active of `ks`, and *ret to the slots that the step's commit will record. `about`: flags of
 * the last commit; `active`: number of active slots, with those of the step's rows.
 */
void evict_schedule(const struct skv_evict *k, uint32_t about, bool decodes, uint32_t active, struct skv_kseq *ks,
                    struct skv_layer_slots *ret);

#endif
