/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/evict/evict.h - the kernels of eviction, one ISA's; see kernels.h. */
#ifndef SKV_HOST_EVICT_H
#define SKV_HOST_EVICT_H

#include "kernels/evict.h"
#include "kernels/host/runtime/host.h"
#include "kernels/select.h"

void ISA(alloc_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *, const struct skv_work *);
void ISA(move_partial_page)(const struct skv_shape *, const struct skv_batch *, const struct skv_work *);
void ISA(alloc_prompt_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                             const struct skv_work *);
void ISA(init_slot_meta)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                         const struct skv_work *);
void ISA(accumulate_scores)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                            const struct skv_work *);
void ISA(accumulate_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_list *,
                          const struct skv_work *);
void ISA(accumulate_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
                            const struct skv_work *);
void ISA(rank_tokens)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
                      uint32_t stride, const struct skv_work *);
void ISA(evict)(const struct skv_shape *, const struct skv_batch *, const struct skv_keep_by *, const float *rank,
                uint32_t stride, const struct skv_work *);
void ISA(allocate_head_budgets)(const struct skv_shape *, const struct skv_batch *, const struct skv_allot *,
                                const float *rank, uint32_t stride, const struct skv_work *);
void ISA(list_active)(const struct skv_shape *, const struct skv_batch *, struct skv_list *, const struct skv_work *);
void ISA(touch_pages)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                      const struct skv_stamp *, struct skv_list *, const struct skv_work *);

/* Bytes of workspace, at most. */
size_t ISA(accumulate_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, int threads);
size_t ISA(rank_bytes)(uint32_t max_len, int threads);
size_t ISA(evict_bytes)(uint32_t max_len, int threads);
size_t ISA(touch_bytes)(uint32_t max_len, int threads);
size_t ISA(head_budgets_bytes)(const struct skv_shape *, uint32_t max_len, int threads);
#endif
