/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/geometry.h - shapes of models that are not there: compressors for them, and what lengths alone say.
 */
#ifndef SKV_BENCH_GEOMETRY_H
#define SKV_BENCH_GEOMETRY_H

#include <sparsekv/client.h>
#include "common/seqmem.h"

/*
 * Compressors for deltakv and palu beside the model, that is in a folder of their own which model->files names from
 * here on: linear ones, all of zeros, of so many numbers a code; 0: a quarter of K and V, and half. Ends the program
 * on failure.
 */
void geometry_begin(struct skv_model *model, uint32_t width);
void geometry_end(void); /* they are read when a session is opened */

/*
 * Pages of each group of tables that a sequence of so many tokens has in this session after a decode step, by the
 * library's rules of lengths. False: its policy lets tokens go or keeps more of them, which lengths alone do not say.
 */
bool geometry_pages(const struct skv_session *session, uint32_t tokens, uint64_t pages[SKV_PAGE_KINDS]);

#endif
