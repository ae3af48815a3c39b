/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/schedule.h - which tokens of a sequence are compressed, and which of them a step compresses. */
#ifndef SKV_CLIENT_COMPRESS_SCHEDULE_H
#define SKV_CLIENT_COMPRESS_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/compress.h"
#include "kernels/kernels.h"
#include "libclient/compress/lengths.h"

struct skv_layer_slots;
struct skv_seq;

/* Is any token of the sequence compressed? */
bool compress_any(const struct skv_seq *q);
/* Is this a page of K and V whose tokens are compressed, as of the last commit or of the open step's? */
bool compress_has_page(const struct skv_seq *q, uint32_t layer, uint32_t page);
/* How the layer's tokens are compressed, those of the open step included; NULL: none are. */
const struct skv_codec *compress_code(const struct skv_seq *q, uint32_t layer);
/* The layer's codes or references with so many compressed tokens. */
struct records compress_records_of(const struct skv_seq *q, enum skv_page_kind group, uint32_t layer, uint32_t coded);
/* Do the compressed tokens of the sequence have the form of its policy? */
bool compress_as_planned(const struct skv_seq *q);
/* Can all layers whose plan compresses do so? They need all of their tokens. */
bool compress_possible(const struct skv_seq *q);
/*
 * The sequence has a new holder or policy: decide anew whether it compresses. If it has tokens compressed in the
 * policy's form, it does, from here on.
 */
void compress_take_over(struct skv_seq *q);
/* What the open step's commit will say of a layer's compressed tokens, into *next. */
void compress_next(const struct skv_seq *q, uint32_t layer, bool decodes, struct skv_layer_slots *next);
/* The same for a step, and what the kernels are told, into *ks. */
void compress_schedule(struct skv_seq *q, uint32_t layer, bool decodes, struct skv_kseq *ks,
                       struct skv_layer_slots *next);
/* The same for a maintenance transaction. */
void compress_schedule_maintenance(const struct skv_seq *q, uint32_t layer, struct skv_layer_slots *next);

#endif
