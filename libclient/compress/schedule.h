/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/schedule.h - what is compressed of a sequence, and what a step compresses. */
#ifndef SKV_CLIENT_COMPRESS_SCHEDULE_H
#define SKV_CLIENT_COMPRESS_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/compress.h"
#include "kernels/kernels.h"

struct skv_layer_slots;
struct skv_seq;

/* Is a token of the sequence compressed? */
bool compress_any(const struct skv_seq *q);
/* Is this page of K and V one whose tokens are compressed, now or with the step's commit? */
bool compress_has_page(const struct skv_seq *q, uint32_t layer, uint32_t page);
/* How the layer's tokens are compressed, those of the open step too; NULL: none is. */
const struct skv_codec *compress_code(const struct skv_seq *q, uint32_t layer);
/* Is what the sequence has compressed as its policy compresses? */
bool compress_as_planned(const struct skv_seq *q);
/* Can the layers that would compress do so? They need all of their tokens. */
bool compress_possible(const struct skv_seq *q);
/* A sequence is another holder's, or policy's: if it is compressed as its policy wants, that is known from here on. */
void compress_take_over(struct skv_seq *q);
/* What the commit of the open step will say of a layer's compressed tokens. */
void compress_next(const struct skv_seq *q, uint32_t layer, bool decodes, struct skv_layer_slots *next);
/* What a step does to a layer: `ks` for the kernels, and what the commit will say. */
void compress_schedule(struct skv_seq *q, uint32_t layer, bool decodes, struct skv_kseq *ks,
                       struct skv_layer_slots *next);
/* And where a maintenance transaction leads. */
void compress_schedule_maintenance(const struct skv_seq *q, uint32_t layer, struct skv_layer_slots *next);

#endif
