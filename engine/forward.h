/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/forward.h - one step of a model over a batch, its KV in the client library.
 *
 * A step takes rows of several sequences at once, chunks of prompts and decoding ones mixed. Only
 * decode rows give logits: the last token of a prompt is the first decode row, since what it
 * attends to decides the first new token. A sequence may have several decode rows, to verify a draft; each gives logits.
 *
 * eng_forward() leaves the library's step open, so that the caller samples first and hands what it
 * sampled to skv_step_end() with the commit: an engine that dies has published either both or none.
 *
 * On a device everything is queued, and nothing waits until the caller asks for ids or logits. The id that a
 * decode row chooses stays there and is what the next step embeds, so a caller that need not read it does
 * not have to. A step of decode rows alone is recorded as one graph, and launched again while the library
 * says (skv_step_key) that the next one is of the same kind.
 *
 *     eng_forward(&f, session, items, n, &err);           // .tokens: the last one of each prompt
 *     skv_step_end(session, f.id, NULL);
 *     while (...) {
 *             eng_forward(&f, session, items, n, &err);   // .tokens = NULL: what was chosen
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

/* What the host knows of a step's rows, on their way to the backend; [max_rows] each. */
struct eng_rows {
	int32_t *id;
	uint32_t *position;
	uint32_t *from;      /* the rows of decode items */
	uint32_t *expected;  /* positions, as the last step left them at the backend ... */
	uint32_t n_expected; /* ... of so many rows */
};

#define ENG_CHUNK 512u /* rows of a prompt in a step, where nobody says another number */

/* An observer, on the host alone: at all rows of a step, layer by layer. */
struct eng_tap {
	/* What attention is about to take; positions are in it. */
	void (*attends)(void *arg, uint32_t layer, const float *q, const float *k, const float *v, uint32_t rows);
	/* What attention is about to add to the residual stream: x += y, rows of `hidden`. */
	void (*adds)(void *arg, uint32_t layer, const float *x, const float *y, uint32_t rows);
	void *arg;
};

struct eng_forward {
	const struct eng_model *model;
	uint32_t max_rows;
	bool one_by_one;    /* no recordings; may be set after eng_forward_init() */
	const struct eng_tap *tap; /* the same; NULL: nobody */
	struct eng_ranks *ranks;   /* the same; NULL: this process has all heads */
	void *block;        /* the buffers below, in memory of the model's backend */
	float *x;           /* [max_rows][hidden]: residual stream */
	void *h;            /* [max_rows][hidden]: normalised rows */
	float *wide;        /* [max_rows][the widest product] */
	void *q;            /* [max_rows][n_heads][head_dim], attention's output too; or [max_rows][ffn] */
	void *k, *v;        /* [max_rows][n_kv_heads][head_dim] */
	float *logits;      /* [decode rows][vocab] */
	int32_t *id;        /* [max_rows]: what comes in; after the step, what its decode rows chose */
	uint32_t *position; /* [max_rows] */
	uint32_t *from;     /* [max_rows] */
	float *rope;        /* eng_rope_table of rope_positions rows; grows with the longest sequence */
	uint32_t rope_positions;
	struct eng_rows rows;
	struct eng_recordings recordings;
	uint32_t n_chosen;   /* ids in `id` that can be the next step's */
	uint32_t n_decoding; /* decode rows of the last step */
	int32_t *seen_id;    /* the host's copies, for the two functions below */
	float *seen_logits;
};
#define ENG_FORWARD_NULL ((struct eng_forward){.block = NULL})

/*
 * Buffers for steps of up to `max_rows` rows of this model, which must outlive them. On a device the sessions
 * that it steps are closed after eng_forward_deinit(), or after the last step of all of them: recordings are
 * known by what a session that is open has for itself. -ENOMEM.
 */
int eng_forward_init(struct eng_forward *f, const struct eng_model *model, uint32_t max_rows,
                     struct eng_error *err);
void eng_forward_deinit(struct eng_forward *f);

/*
 * Begin a step with these items (together at most max_rows rows, more sequences than that never) and run it
 * through all layers. Token ids are given for all items, or for none: then the items are decode rows in the
 * order of the last step's, and go on with f->id. Afterwards f->id has the id that each decode row chooses,
 * the largest logit's, in the items' order (with prompt items among them: of the others), for skv_step_end();
 * and the step is open: call that or skv_step_abort(). On error no step is open. Negative errno with the
 * library's text; -EINVAL a token id beyond the vocabulary.
 */
int eng_forward(struct eng_forward *f, struct skv_session *session, const struct skv_step_item *items,
                uint32_t n, struct eng_error *err);

/* Have f->id begin with these ids instead: a prompt's last token, to be published and to go in next. */
int eng_forward_choose(struct eng_forward *f, const int32_t *ids, uint32_t n, struct eng_error *err);

/*
 * Read f->id in two parts, between which a device can be given more work: queue a copy; and wait for it,
 * and with it for all that was queued before, as a commit is. The ids stay until the next of these calls.
 */
int eng_forward_fetch(struct eng_forward *f, struct eng_error *err);
int eng_forward_fetched(struct eng_forward *f, const int32_t **ret_ids, struct eng_error *err);

/* Wait for the logits of the last step's decode rows, in the items' order. They stay until the next call. */
int eng_forward_logits(struct eng_forward *f, const float **ret_logits, struct eng_error *err);

#endif
