/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/zero-weights.h - helps to measure models that have only a shape and no weights: makes compressors for them
 * whose weights are zero, and computes numbers of pages from lengths.
 */
#ifndef SKV_BENCH_ZERO_WEIGHTS_H
#define SKV_BENCH_ZERO_WEIGHTS_H

#include <sparsekv/client.h>
#include "common/seqmem.h"

/*
 * Makes compressors for the policies deltakv and palu in a new folder, and sets model->files to the folder. The
 * compressors are linear, and all their weights are zero. A code has `width` numbers; 0: a quarter of the numbers of K
 * and V for deltakv, half for palu. A failure ends the program.
 */
void geometry_begin(struct skv_model *model, uint32_t width);
/* removes the folder; may be called once a session is open, because opening it reads the files */
void geometry_end(void);

/*
 * Computes how many pages of each kind a sequence of `tokens` tokens has in this session after a decode step, from the
 * client library's rules. Returns false if the policy evicts tokens or stores additional state, because then the number
 * of pages does not depend only on the length.
 */
bool geometry_pages(const struct skv_session *session, uint32_t tokens, uint64_t pages[SKV_PAGE_KINDS]);

#endif
