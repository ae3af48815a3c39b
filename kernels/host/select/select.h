/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/select/select.h - the kernels of selection, for one instruction set; kernels.h says what each does. */
#ifndef SKV_HOST_SELECT_H
#define SKV_HOST_SELECT_H

#include "kernels/host/runtime/host.h"
#include "kernels/select.h"

void ISA(update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                        const struct skv_workspace *);
void ISA(score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t reduce,
                      const struct skv_scores *, const struct skv_workspace *);
void ISA(update_sketches)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);
void ISA(score_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_scores *,
                         const struct skv_workspace *);
void ISA(sum_pages)(const struct skv_batch *, const struct skv_scores *, const struct skv_workspace *);
void ISA(select)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *, bool tokens,
                 const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);
void ISA(select_union)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                       const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);
void ISA(recall)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                 const struct skv_attended *, float *ret, const struct skv_workspace *);

/*
 * Sets the scores of entries [from, to) that are in evicted pages to -infinity. An entry is a page or a token; per_page
 * is the number of entries of a page.
 */
void ISA(mask_holes)(const struct skv_shape *, const struct skv_kseq *, uint32_t per_page, uint32_t from, uint32_t to,
                     float *score);

/* Return upper bounds of the bytes of workspace that these kernels need. */
size_t ISA(select_bytes)(uint32_t max_len, int threads);
size_t ISA(update_sketches_bytes)(const struct skv_shape *, uint32_t n_seqs);
size_t ISA(score_sketches_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t max_len);
size_t ISA(union_bytes)(uint32_t n_seqs, uint32_t max_len, int threads); /* includes select_bytes() */
#endif
