/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/decode/decode.h - the decode kernels, for one instruction set; kernels.h says what each does. */
#ifndef SKV_HOST_DECODE_H
#define SKV_HOST_DECODE_H

#include "kernels/host/runtime/host.h"
#include "kernels/select.h"

void ISA(decode_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                       const struct skv_scores *, const struct skv_workspace *);
void ISA(decode_window)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_window *, const struct skv_workspace *);
void ISA(decode_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                       const struct skv_index_list *, const struct skv_workspace *);
void ISA(decode_tokens)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_index_list *, const struct skv_workspace *);
void ISA(decode_topk)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                      const struct skv_scores *, const struct skv_select *, struct skv_index_list *,
                      const struct skv_workspace *);

void ISA(decode_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_index_list *, const struct skv_workspace *);

/* Return upper bounds of the bytes of workspace that these kernels need. */
size_t ISA(decode_sketches_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len);
size_t ISA(decode_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t max_len);
#endif
