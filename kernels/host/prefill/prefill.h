/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/prefill/prefill.h - the kernels of prefill, for one instruction set; kernels.h says what each does. */
#ifndef SKV_HOST_PREFILL_H
#define SKV_HOST_PREFILL_H

#include "kernels/host/runtime/host.h"
#include "kernels/prefill.h"

void ISA(prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_workspace *);
void ISA(prefill_sparse)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                         const struct skv_sparse *, const struct skv_workspace *);
void ISA(save_queries)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                       const struct skv_workspace *);
void ISA(kascade_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                        struct skv_budget, uint32_t floor, const struct skv_tile_lists *, const struct skv_workspace *);
void ISA(hip_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                    const uint32_t keep[SKV_HIP_STAGES], const struct skv_tile_lists *, const struct skv_workspace *);
void ISA(minference_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                           uint32_t vertical, uint32_t slash, const struct skv_tile_lists *blocks,
                           const struct skv_tile_lists *tokens, const struct skv_workspace *);

/* Return upper bounds of the bytes of workspace that these kernels need. */
size_t ISA(prefill_bytes)(const struct skv_shape *, uint32_t n_seqs, int threads);
size_t ISA(prefill_sparse_bytes)(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *,
                                 int threads);
size_t ISA(kascade_bytes)(const struct skv_shape *, const struct skv_batch *bounds, int threads);
size_t ISA(hip_bytes)(const struct skv_batch *bounds, int threads);
size_t ISA(minference_bytes)(const struct skv_shape *, const struct skv_batch *bounds, int threads);
#endif
