/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/forward.h - runs one step of a model over a batch, with the KV cache in the client library.
 *
 * A step has rows of several sequences: chunks of prompts, and decode rows. Only decode rows produce logits. The last
 * token of a prompt is the input of the first decode row, because the logits of that row determine the first new token.
 * A sequence may have several decode rows in a step, to verify a draft; each of them produces logits.
 *
 * eng_forward() does not end the client library's step: the caller first chooses tokens, then passes them to
 * skv_step_end(), which commits the step. If the process dies, the daemon has either both the step's K and V and its
 * tokens, or neither.
 *
 * On a device all work is queued, and no call waits unless the caller asks for ids or logits. The chosen token ids stay
 * in the device's memory, where the next step reads them, so the caller need not fetch them. A step that has only
 * decode rows is recorded as a CUDA graph; later steps with the same key (skv_step_key()) launch the graph.
 *
 *     eng_forward(&f, session, items, n, &err);           // .tokens: the last one of each prompt
 *     skv_step_end(session, f.id, NULL);
 *     while (...) {
 *             eng_forward(&f, session, items, n, &err);   // .tokens = NULL: the chosen tokens
 *             skv_step_end(session, f.id, NULL);
 *     }
 */
#ifndef ENG_FORWARD_H
#define ENG_FORWARD_H

#include <sparsekv/client.h>
#include <stdbool.h>
#include "engine/model.h"
#include "engine/ranks.h"
#include "engine/replay.h"

/* Host memory in which a step's rows are prepared for the backend; the arrays are [max_rows]. */
struct eng_rows {
	int32_t *id;
	uint32_t *position;
	uint32_t *from;      /* row numbers of the decode rows */
	uint32_t *expected;  /* positions that are now in the backend's memory, as the last step left them */
	uint32_t n_expected; /* number of elements of `expected` */
};

#define ENG_CHUNK 512u /* default of the most prompt rows in a step */

/* Callbacks that get all rows of a step, layer by layer. Only for the host backend. */
struct eng_tap {
	/* Called with the inputs of a layer's attention; q and k include the rotary embedding. */
	void (*attends)(void *arg, uint32_t layer, const float *q, const float *k, const float *v, uint32_t rows);
	/*
	 * Called with the output y of a layer's attention before it is added to the residual stream x; rows have
	 * `hidden` elements.
	 */
	void (*adds)(void *arg, uint32_t layer, const float *x, const float *y, uint32_t rows);
	void *arg;
};

struct eng_forward {
	const struct eng_model *model;
	uint32_t max_rows;
	bool one_by_one;    /* records no CUDA graphs; may be set after eng_forward_init() */
	const struct eng_tap *tap; /* NULL: no callbacks; may be set after eng_forward_init() */
	struct eng_ranks *ranks;   /* NULL: this process has all heads; may be set after eng_forward_init() */
	void *block;        /* memory of the backend that the buffers below are in */
	float *x;           /* [max_rows][hidden]: residual stream */
	void *h;            /* [max_rows][hidden]: normalised rows */
	float *wide;        /* [max_rows][widest product]: outputs of matrix products */
	void *q;            /* [max_rows][n_heads][head_dim]: q, then the output of attention; or [max_rows][ffn] */
	void *k, *v;        /* [max_rows][n_kv_heads][head_dim]: k and v of one layer */
	float *logits;      /* [decode rows][vocab]: logits of the last step */
	int32_t *id; /* [max_rows]: input tokens of the step; after the step, the tokens chosen for its decode rows */
	uint32_t *position; /* [max_rows]: positions of the rows */
	uint32_t *from;     /* [max_rows]: row numbers of the decode rows */
	float *rope;        /* from eng_rope_table(), with rope_positions rows; grows with the longest sequence */
	uint32_t rope_positions;
	struct eng_rows rows;
	struct eng_recordings recordings;
	uint32_t n_chosen;   /* number of tokens in `id` that the next step may use as input */
	uint32_t n_decoding; /* number of decode rows in the last step */
	int32_t *seen_id;    /* copies in host memory for eng_forward_fetched() and eng_forward_logits() */
	float *seen_logits;
};
#define ENG_FORWARD_NULL ((struct eng_forward){.block = NULL})

/*
 * Allocates buffers for steps of up to `max_rows` rows. The model must outlive *f. On a device, close a session only
 * after eng_forward_deinit(), or when no session will run another step: the keys of recordings (skv_step_key()) are
 * unique only among open sessions. Returns 0 or -ENOMEM.
 */
int eng_forward_init(struct eng_forward *f, const struct eng_model *model, uint32_t max_rows,
                     struct eng_error *err);
void eng_forward_deinit(struct eng_forward *f);

/*
 * Begins a step with n items and runs its rows through all layers. The items have at most max_rows rows in total.
 * Either all items have token ids (.tokens), or none has them. Without token ids the items must be the decode rows of
 * the last step in the same order, and their input tokens are f->id.
 *
 * Afterwards f->id contains for each decode row, in the items' order, the token with the largest logit, for
 * skv_step_end(). Prompt items have no element in f->id. After success the step is open: the caller must call
 * skv_step_end() or skv_step_abort(). After an error no step is open. Returns 0, or a negative errno with the library's
 * text; -EINVAL if a token id is not in the vocabulary.
 */
int eng_forward(struct eng_forward *f, struct skv_session *session, const struct skv_step_item *items,
                uint32_t n, struct eng_error *err);

/*
 * Overwrites the first n elements of f->id, for instance with the last token of a prompt, which is then published by
 * skv_step_end() and is the input of the next step.
 */
int eng_forward_choose(struct eng_forward *f, const int32_t *ids, uint32_t n, struct eng_error *err);

/*
 * eng_forward_fetch() queues a copy of f->id to the host. eng_forward_fetched() waits for this copy and for all work
 * queued before it, such as a commit, and returns the copied ids. There are two functions, so that the caller can queue
 * more work between the two calls. The ids stay valid until the next call of either function.
 */
int eng_forward_fetch(struct eng_forward *f, struct eng_error *err);
int eng_forward_fetched(struct eng_forward *f, const int32_t **ret_ids, struct eng_error *err);

/*
 * Waits for the logits [decode rows][vocab] of the last step, in the items' order. The logits stay valid until the next
 * call of this function.
 */
int eng_forward_logits(struct eng_forward *f, const float **ret_logits, struct eng_error *err);

#endif
