/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/append.h - the kernels that write rows and copy pages, for one instruction set; see kernels.h.
 */
#ifndef SKV_HOST_APPEND_H
#define SKV_HOST_APPEND_H

#include "kernels/host/runtime/host.h"

void ISA(append)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *, const void *k,
                 const void *v, const struct skv_workspace *);
void ISA(copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
                     const struct skv_workspace *);
#endif
