/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/evict/evict.h - the kernels of eviction, for one instruction set; kernels.h says what each does. */
#ifndef SKV_HOST_EVICT_H
#define SKV_HOST_EVICT_H

#include "kernels/evict.h"
#include "kernels/host/runtime/host.h"
#include "kernels/select.h"

void ISA(alloc_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                      const struct skv_workspace *);
void ISA(move_partial_page)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);
void ISA(alloc_prompt_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                             const struct skv_workspace *);
void ISA(init_slot_meta)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                         const struct skv_workspace *);
void ISA(accumulate_scores)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                            const struct skv_workspace *);
void ISA(accumulate_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_index_list *,
                          const struct skv_workspace *);
void ISA(accumulate_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
                            const struct skv_workspace *);
void ISA(rank_tokens)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
                      uint32_t stride, const struct skv_workspace *);
void ISA(evict)(const struct skv_shape *, const struct skv_batch *, const struct skv_evict_rule *, const float *rank,
                uint32_t stride, const struct skv_workspace *);
void ISA(allocate_head_budgets)(const struct skv_shape *, const struct skv_batch *, const struct skv_head_budget_rule *,
                                const float *rank, uint32_t stride, const struct skv_workspace *);
void ISA(list_active)(const struct skv_shape *, const struct skv_batch *, struct skv_index_list *,
                      const struct skv_workspace *);
void ISA(touch_pages)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                      const struct skv_touch_rule *, struct skv_index_list *, const struct skv_workspace *);

/* Return upper bounds of the bytes of workspace that these kernels need. */
size_t ISA(accumulate_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, int threads);
size_t ISA(rank_bytes)(uint32_t max_len, int threads);
size_t ISA(evict_bytes)(uint32_t max_len, int threads);
size_t ISA(touch_bytes)(uint32_t max_len, int threads);
size_t ISA(head_budgets_bytes)(const struct skv_shape *, uint32_t max_len, int threads);
#endif
