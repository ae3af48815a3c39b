/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/geometry.h - for models that are only a shape: makes compressors, and computes pages from lengths.
 */
#ifndef SKV_BENCH_GEOMETRY_H
#define SKV_BENCH_GEOMETRY_H

#include <sparsekv/client.h>
#include "common/seqmem.h"

/*
 * Makes compressors for deltakv and palu in a new folder, and sets model->files to it. They are linear, all zeros,
 * with `width` numbers in a code; 0: a quarter of K and V for deltakv, half for palu. Ends the program on failure.
 */
void geometry_begin(struct skv_model *model, uint32_t width);
void geometry_end(void); /* may be called after a session is opened, which reads the files */

/*
 * Computes the pages, by kind, that a sequence of `tokens` tokens has in this session after a decode step, by the
 * library's rules of lengths. False: the policy evicts tokens or stores additional state, so lengths alone do not
 * determine the pages.
 */
bool geometry_pages(const struct skv_session *session, uint32_t tokens, uint64_t pages[SKV_PAGE_KINDS]);

#endif
