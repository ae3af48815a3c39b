/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/schedule.h - which tokens of a sequence are compressed, and which of them a step compresses. */
#ifndef SKV_CLIENT_COMPRESS_SCHEDULE_H
#define SKV_CLIENT_COMPRESS_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/compress.h"
#include "kernels/kernels.h"
#include "libclient/compress/compressed-lengths.h"

struct skv_layer_slots;
struct skv_seq;

/* Is any token of the sequence compressed? */
bool compress_any(const struct skv_seq *q);
/* Are the tokens of this page of K and V compressed, according to the last commit or to the open step's commit? */
bool compress_has_page(const struct skv_seq *q, uint32_t layer, uint32_t page);
/*
 * The codec of the layer's compressed tokens, including tokens that the open step compresses; NULL: no token is
 * compressed.
 */
const struct skv_codec *compress_code(const struct skv_seq *q, uint32_t layer);
/* The number of records (codes or references) of the layer when the tokens below `coded` are compressed. */
struct records compress_records_of(const struct skv_seq *q, enum skv_page_kind group, uint32_t layer, uint32_t coded);
/* Are the sequence's compressed tokens stored in the form in which its policy compresses? */
bool compress_as_planned(const struct skv_seq *q);
/*
 * Can the sequence compress in all layers whose plan compresses? No layer among them may lack any of the sequence's
 * tokens.
 */
bool compress_possible(const struct skv_seq *q);
/*
 * Called when the sequence has a new holder or policy: whether the sequence compresses is decided anew before its next
 * step. If the sequence has tokens compressed in the policy's form, it compresses from here on.
 */
void compress_take_over(struct skv_seq *q);
/* Fill *next with what the open step's commit will say of a layer's compressed tokens. */
void compress_next(const struct skv_seq *q, uint32_t layer, bool decodes, struct skv_layer_slots *next);
/* For a step: do what compress_next() does, and tell the kernels in *ks which of the layer's tokens are compressed. */
void compress_schedule(struct skv_seq *q, uint32_t layer, bool decodes, struct skv_kseq *ks,
                       struct skv_layer_slots *next);
/* For a maintenance transaction: fill *next with what its commit will say of a layer's compressed tokens. */
void compress_schedule_maintenance(const struct skv_seq *q, uint32_t layer, struct skv_layer_slots *next);

#endif
