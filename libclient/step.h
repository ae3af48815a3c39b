/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step.h - the open step of a session: attend.c, layout.c, recall.c, step.c. See internal.h. */
#ifndef SKV_CLIENT_STEP_H
#define SKV_CLIENT_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/client.h>
#include <sparsekv/policy.h>

#include "kernels/compress.h"
#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/select.h"

struct pages;
struct policy;

/* Evidence and selection of one layer in the open step. */
struct selection {
	bool has_evidence; /* made in this step */
	uint32_t made;     /* 0, SKV_ATTEND_PAGES or SKV_ATTEND_TOKENS */
	bool chosen;       /* the hooks of a layer that keeps units have said who stays */
	struct skv_select select; /* by which the layer itself chooses, if it does */
	struct skv_evidence evidence;
	struct skv_list list;
};

/*
 * Sequences of the open step that run one policy. Its hooks run, and its plans are carried out, for those that decode,
 * once for all of them.
 */
struct group {
	struct policy *policy;
	bool packs; /* its layers that pack do so of all of these sequences; else of none */
	uint32_t first, n;                /* in step.seqs: that decode ... */
	uint32_t first_prompt, n_prompts; /* ... and those with rows of prompts */
	struct selection *selection;      /* [n_layers] */
	size_t tiles_at; /* in step.tiles: where lists are that its prompts take from one layer to the next */
};

/*
 * Layers that have as many slots of each sequence, and keep as many of them, so that the kernels are told the
 * same. Where no layer keeps units, nor ever has, they all are of one class.
 */
struct layer_class {
	uint32_t layer; /* the first of them */
	/* parts of kseq, or of the device's copy of it */
	struct skv_batch all, decoding, prompts;
};

/* Rows of one layer, rebuilt: see packed.c. */
struct rebuilt {
	void *mem; /* the session's; what the others point into */
	size_t bytes;
	uint8_t *pool;
	struct skv_kseq *seq;
	skv_pte *table;
};

#define RECALL_SEQS 8u /* of a step, of which recall is measured */

/* Measuring recall; see recall.c. */
struct recall {
	uint32_t n;     /* sequences of which it is measured in the open step, or 0 */
	uint64_t steps; /* that could have been measured */
	struct skv_layer_set layers[RECALL_SEQS]; /* of these sequences, that were measured */
	void *mem;      /* the session's; what the next two point into */
	size_t bytes;
	struct skv_evidence evidence; /* of one layer after the other */
	float *share;                 /* [n_layers][RECALL_SEQS] */
};

struct step {
	bool open;
	uint32_t cap, cap_kseq;
	uint32_t n, n_decode; /* sequences, and those that decode: they come first */
	uint32_t rows; /* of all items */
	uint32_t next_layer;
	const void *q; /* of the layer that attends */
	struct skv_seq **seqs; /* [cap]: those that decode come first, of either kind those of a group together */
	uint32_t *item;        /* [cap]: the caller's index of seqs[i] ... */
	uint32_t *place;       /* [cap]: ... and where the caller's item is in seqs */
	struct skv_kseq *kseq; /* [n_classes][n]: seqs[i] for the kernels */
	struct layer_class *class; /* [n_layers] of room */
	uint32_t n_classes;
	uint16_t class_of[SKV_MAX_LAYERS];
	struct supplied {
		struct skv_seq *seq;
		uint32_t table, page;
	} *supplied; /* entries that got a page for this step */
	uint32_t n_supplied, cap_supplied;
	struct skv_work work;  /* with room for the kernels */
	struct group *group;   /* [n_groups] of room for cap, in the order of their first items */
	uint32_t n_groups;
	struct selection *selection; /* the groups' */
	uint32_t cap_selection;
	/* of a layer at a time: slots of new tokens, ranks of units */
	uint32_t *slot;
	float *rank;
	void *arena;           /* what the selections point into */
	size_t arena_bytes;
	struct rebuilt rebuilt;
	struct recall recall;
	void *tiles; /* lists of what rows of prompts see; see prompt.c */
	size_t tiles_bytes;
};

/* ---- recall.c --------------------------------------------------------------------------------- */

/* Is this a step to measure recall in? Then there is room for it. 0, or a negative errno. */
int recall_begin(struct skv_session *s);
/* Of a layer that attends to a window or to these lists: before it does, which may overwrite q, and when it has. */
void recall_weigh(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_list *list,
                  const void *q);
void recall_measure(struct skv_session *s, const struct group *g, uint32_t layer, const struct skv_list *list);
/* The figures of a step, of its first n sequences. */
void recall_take(struct skv_session *s, struct skv_seq *const *seqs, const float *share, uint32_t n,
                 const struct skv_layer_set *layers);

/* ---- layout.c --------------------------------------------------------------------------------- */

/* Lay the items out for the kernels, those that decode first. Marks the sequences, adds up pages. */
int step_lay_out(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret);

/* ---- attend.c --------------------------------------------------------------------------------- */

/* Append and attend, as planned. The arguments have been looked at. */
void attend_layer(struct skv_session *s, uint32_t layer, const struct skv_attn *a);
/* Of a batch's sequences: evidence of tokens, and ranks, have so many elements a row. */
static inline uint32_t selection_tokens(const struct skv_batch *b)
{
	return (b->max_len + 255) / 256 * 256;
}
/* Evidence and lists for the decoding sequences of the step. */
int selections_prepare(struct skv_session *s);

/* ---- step.c ----------------------------------------------------------------------------------- */

void step_abort(struct skv_session *s);
/* Scratch that grows: `need` bytes of the session's memory at least. The contents are lost. */
int step_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
#define SCRATCH_ROUND 1024u /* tokens: growing sequences must not mean growing scratch at each page */

/* Admit the items, which were looked at, supply their pages, and tell the kernels. On failure nothing has changed. */
int step_enter(struct skv_session *s, const struct skv_step_item *items, uint32_t n, uint32_t *ret_demand);
void step_leave(struct skv_session *s); /* what was entered will not be */
/* Commit what was entered, in host memory; and what a commit means to the host's own. */
void step_commit(struct skv_seq *q, int32_t next);
void step_committed(struct skv_seq *q);
/*
 * Carry out the committed journal: entries become holes, their pages are free for the next step. `stale`: the tables
 * of the device show nothing of it so far.
 */
void seq_carry_out(struct skv_seq *q, bool stale);
/* A decoding row at this length looked at so many tokens, each counted once for each kv head. */
void seq_attended(struct skv_seq *q, uint32_t len, uint64_t tokens);
void step_deinit(struct skv_session *s);

#endif
