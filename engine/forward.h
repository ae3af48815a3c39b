/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/forward.h - runs one step of a model over a batch, with the KV cache in the client library.
 *
 * A step has rows of several sequences, chunks of prompts and decode rows mixed. Only decode rows produce logits. The
 * last token of a prompt is the first decode row, because its output decides the first new token. A sequence may have
 * several decode rows, to verify a draft; each produces logits.
 *
 * eng_forward() leaves the library's step open: the caller first chooses tokens, then passes them to skv_step_end()
 * with the commit. If the process dies, the step and its tokens are both published or both lost.
 *
 * On a device all work is queued, and no call waits until the caller asks for ids or logits. The chosen ids stay on
 * the device, where the next step embeds them, so the caller need not read them. A step of decode rows only is
 * recorded as a CUDA graph, and launched again as long as the library's key (skv_step_key) stays the same.
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

/* The host's copy of a step's rows, for the backend; [max_rows] each. */
struct eng_rows {
	int32_t *id;
	uint32_t *position;
	uint32_t *from;      /* row numbers of decode items */
	uint32_t *expected;  /* positions that the last step left in the backend's memory ... */
	uint32_t n_expected; /* ... and their number */
};

#define ENG_CHUNK 512u /* default for the prompt rows of a step */

/* An observer of all rows of a step, layer by layer. Only for the host backend. */
struct eng_tap {
	/* Inputs of attention; q and k include rotary positions. */
	void (*attends)(void *arg, uint32_t layer, const float *q, const float *k, const float *v, uint32_t rows);
	/* Output of attention, before it is added to the residual stream: x += y, rows of `hidden`. */
	void (*adds)(void *arg, uint32_t layer, const float *x, const float *y, uint32_t rows);
	void *arg;
};

struct eng_forward {
	const struct eng_model *model;
	uint32_t max_rows;
	bool one_by_one;    /* no recordings; may be set after eng_forward_init() */
	const struct eng_tap *tap; /* the same; NULL: none */
	struct eng_ranks *ranks;   /* the same; NULL: this process has all heads */
	void *block;        /* holds the buffers below, in the backend's memory */
	float *x;           /* [max_rows][hidden]: residual stream */
	void *h;            /* [max_rows][hidden]: normalised rows */
	float *wide;        /* [max_rows][the widest product] */
	void *q;            /* [max_rows][n_heads][head_dim], also attention's output; or [max_rows][ffn] */
	void *k, *v;        /* [max_rows][n_kv_heads][head_dim] */
	float *logits;      /* [decode rows][vocab] */
	int32_t *id;        /* [max_rows]: input tokens; after the step, the tokens that its decode rows chose */
	uint32_t *position; /* [max_rows] */
	uint32_t *from;     /* [max_rows] */
	float *rope;        /* eng_rope_table of rope_positions rows; grows with the longest sequence */
	uint32_t rope_positions;
	struct eng_rows rows;
	struct eng_recordings recordings;
	uint32_t n_chosen;   /* ids in `id` that the next step may use */
	uint32_t n_decoding; /* decode rows of the last step */
	int32_t *seen_id;    /* the host's copies, for eng_forward_fetched() and eng_forward_logits() */
	float *seen_logits;
};
#define ENG_FORWARD_NULL ((struct eng_forward){.block = NULL})

/*
 * Allocates buffers for steps of up to `max_rows` rows. The model must outlive them. On a device, close the sessions
 * only after eng_forward_deinit(), or after the last step of all sessions: keys of recordings are unique only among
 * open sessions. -ENOMEM.
 */
int eng_forward_init(struct eng_forward *f, const struct eng_model *model, uint32_t max_rows,
                     struct eng_error *err);
void eng_forward_deinit(struct eng_forward *f);

/*
 * Begins a step with these items and runs it through all layers. The items have at most max_rows rows in all. Either
 * all items have token ids, or none has; without ids the items are the decode rows of the last step in the same
 * order, and their tokens are f->id.
 *
 * Afterwards f->id holds the tokens with the largest logit of each decode row, in the items' order (prompt items have
 * none), for skv_step_end(). The step is open: call skv_step_end() or skv_step_abort(). On error no step is open.
 * Returns a negative errno with the library's text; -EINVAL: a token id is beyond the vocabulary.
 */
int eng_forward(struct eng_forward *f, struct skv_session *session, const struct skv_step_item *items,
                uint32_t n, struct eng_error *err);

/*
 * Overwrites the beginning of f->id, for instance with a prompt's last token, which is published and is the next
 * input.
 */
int eng_forward_choose(struct eng_forward *f, const int32_t *ids, uint32_t n, struct eng_error *err);

/*
 * Read f->id in two parts, so that a device can be given more work in between: fetch queues a copy; fetched waits for
 * it and for all work queued before it, such as a commit. The ids stay valid until the next of these calls.
 */
int eng_forward_fetch(struct eng_forward *f, struct eng_error *err);
int eng_forward_fetched(struct eng_forward *f, const int32_t **ret_ids, struct eng_error *err);

/* Waits for the logits of the last step's decode rows, in the items' order. They stay valid until the next call. */
int eng_forward_logits(struct eng_forward *f, const float **ret_logits, struct eng_error *err);

#endif
