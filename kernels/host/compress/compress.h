/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/compress.h - the kernels of compression, for one instruction set; kernels.h says what each
 * does.
 */
#ifndef SKV_HOST_COMPRESS_H
#define SKV_HOST_COMPRESS_H

#include "kernels/compress.h"
#include "kernels/host/runtime/host.h"

void ISA(gather_tokens)(const struct skv_shape *, const struct skv_batch *, float *x, const struct skv_workspace *);
void ISA(compress)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const float *x, const struct skv_workspace *);
void ISA(decompress)(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
                     const struct skv_decompressed *, const struct skv_workspace *);

/* Does the work of compress() for layers with KV quantization. */
void ISA(quantize)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const struct skv_workspace *);

/* Return upper bounds of the bytes of workspace that these kernels need. */
size_t ISA(compress_bytes)(const struct skv_shape *, uint32_t n_seqs, int threads);
size_t ISA(decompress_bytes)(const struct skv_shape *, uint32_t n_seqs, int threads);
#endif
