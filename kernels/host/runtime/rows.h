/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/rows.h - the kernels that convert rows to contiguous fp32 and back, for one instruction set; see
 * kernels.h.
 */
#ifndef SKV_HOST_ROWS_H
#define SKV_HOST_ROWS_H

#include "kernels/host/runtime/host.h"

void ISA(load_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const void *from, float *to,
                    const struct skv_workspace *);
void ISA(store_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const float *from, void *to,
                     const struct skv_workspace *);
#endif
