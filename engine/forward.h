/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/forward.h - one step of a model over a batch, its KV in the client library.
 *
 * A step takes rows of several sequences at once, chunks of prompts and decoding ones mixed. Only
 * decode rows give logits: the last token of a prompt is the first decode row, since what it
 * attends to decides the first new token.
 *
 * eng_forward() leaves the library's step open, so that the caller samples first and hands what it
 * sampled to skv_step_end() with the commit: an engine that dies has published either both or none.
 */
#ifndef ENG_FORWARD_H
#define ENG_FORWARD_H

#include <sparsekv/client.h>
#include "engine/model.h"

struct eng_forward {
	const struct eng_model *model;
	uint32_t max_rows;
	float *block;       /* the buffers below */
	float *x, *h;       /* [max_rows][hidden]: residual stream, normalised or projected rows */
	float *wide;        /* [max_rows][the widest product]: qkv, or gate and up */
	float *q;           /* [max_rows][n_heads][head_dim], attention's output too; or [max_rows][ffn] */
	float *k, *v;       /* [max_rows][n_kv_heads][head_dim] */
	float *logits;      /* [decode rows][vocab] */
	uint32_t *position; /* [max_rows] */
	float *rope;        /* eng_rope_table of rope_positions rows; grows with the longest sequence */
	uint32_t rope_positions;
};
#define ENG_FORWARD_NULL ((struct eng_forward){.block = NULL})

/* Buffers for steps of up to `max_rows` rows of this model, which must outlive them. -ENOMEM. */
int eng_forward_init(struct eng_forward *f, const struct eng_model *model, uint32_t max_rows,
                     struct eng_error *err);
void eng_forward_deinit(struct eng_forward *f);

/*
 * Begin a step with these items (with their token ids, together at most max_rows rows, more sequences
 * than that never) and run it through all layers. Then f->logits has a row for each item without
 * SKV_STEP_PROMPT, in the items' order, and the step is open: call skv_step_end() or skv_step_abort().
 * On error no step is open. Negative errno with the library's text; -EINVAL a token id beyond the vocabulary.
 */
int eng_forward(struct eng_forward *f, struct skv_session *session, const struct skv_step_item *items,
                uint32_t n, struct eng_error *err);

#endif
