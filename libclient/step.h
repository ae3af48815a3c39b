/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step.h - the open step of a session: what is in it, and the scratch memory of its kernels. */
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

struct policy;

/* Attention scores and selection of one layer in the open step. */
struct selection {
	bool has_scores;   /* made in this step */
	uint32_t made;     /* 0, SKV_ATTEND_PAGES or SKV_ATTEND_TOKENS */
	bool retained;     /* the hooks of a layer that evicts have said which tokens or pages stay */
	uint32_t decompress_seqs, decompress_tokens; /* at a time, of each at most: compress/attend.c */
	struct skv_select select; /* by which the layer itself chooses, if it does */
	struct skv_scores scores;
	struct skv_index_list list;
};

/*
 * Sequences of the open step that run one policy. Its hooks run, and its plans are carried out, for those that decode,
 * once for all of them.
 */
struct policy_batch {
	struct policy *policy;
	bool compresses; /* its layers that compress do so for all of these sequences; else for none */
	uint32_t first, n;                /* in step.seqs: that decode ... */
	uint32_t first_prompt, n_prompts; /* ... and those with rows of prompts */
	uint32_t at_kseq, n_padded; /* where in a class's kseq those that decode are, and how many with padding behind them */
	uint32_t rows;                    /* of each that decodes: all of them have as many */
	uint32_t rows_at;                 /* if there are several: where these are in a class's kseq, [rows][n] */
	struct selection *selection;      /* [n_layers] */
	/* of a layer at a time, of those that decode: slots of new tokens, ranks of tokens or pages */
	uint32_t *slot;
	float *rank;
	uint32_t branch; /* where its layers' work is queued: see branches.h */
	size_t tiles_at; /* in step.tiles: where lists are that its prompts take from one layer to the next */
};

/*
 * Layers that have as many slots of each sequence, and keep as many of them, so that the kernels are told the
 * same. Where no layer evicts single tokens, nor ever has, they all are of one class.
 */
struct layer_class {
	uint32_t layer; /* the first of them */
	/* parts of kseq, or of the device's copy of it */
	struct skv_batch all, decoding, prompts;
};

/* Rows of one layer, decompressed: see compress/attend.c. */
struct decompressed {
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
	struct skv_scores scores; /* of one layer after the other */
	float *share;                 /* [n_layers][RECALL_SEQS] */
};

struct step {
	bool open;
	uint32_t cap, cap_kseq;
	uint32_t n, n_decode; /* sequences, and those that decode: they come first */
	uint32_t n_padded; /* in a class's kseq: those that decode and all padding; they come first */
	uint32_t n_kseq; /* of a class: these, then sequences with prompts, then single rows of those that decode several */
	uint32_t rows; /* of all items */
	uint32_t next_layer;
	bool recording; /* the library records layers, which are not part of the step */
	int ranks_error; /* what other ranks were asked, and how it failed; 0 */
	const void *q; /* of the layer that attends */
	struct skv_seq **seqs; /* [cap]: those that decode come first, of either kind those of a policy batch together */
	struct skv_step_item *items; /* [cap]: the caller's ... */
	uint32_t *item;        /* [cap]: the caller's index of seqs[i] ... */
	uint32_t *index;       /* [cap]: ... and where the caller's item is in seqs */
	uint32_t *at_kseq;     /* [cap]: where seqs[i] is in a class's kseq */
	bool follows, steady;  /* may a step like this one be laid out from it, and was this one? See steady.c */
	uint32_t *due;         /* [cap]: the caller's indices of those that need a look in a steady step */
	uint32_t n_due;
	uint64_t demand, aside_change; /* as pages_count() counts them */
	struct skv_kseq *kseq; /* [n_classes][n_kseq]: what the kernels are told */
	struct layer_class *class; /* [n_layers] of room */
	uint32_t n_classes;
	uint16_t class_of[SKV_MAX_LAYERS];
	struct supplied {
		struct skv_seq *seq;
		uint32_t table, page;
	} *supplied; /* entries that got a page for this step */
	uint32_t n_supplied, cap_supplied;
	struct skv_workspace work;  /* with room for the kernels */
	struct policy_batch *batch; /* [n_batches] of room for cap, in the order of their first items */
	uint32_t n_batches;
	uint32_t n_branches; /* that their layers take: see branches.h */
	struct selection *selection; /* the batches' */
	uint32_t cap_selection;
	uint32_t *slot;        /* of a layer at a time: slots of new tokens of prompts */
	void *arena;           /* what it and the policy batches point into */
	size_t arena_bytes;
	struct decompressed decompressed;
	void *exchanged; /* keys and values of all ranks: compress/exchange.c */
	size_t exchanged_bytes;
	struct recall recall;
	void *gathered; /* rows of one layer as the host's kernels take them: attn.c */
	size_t gathered_bytes;
	void *tiles; /* lists of what rows of prompts see; see prefill/attend.c */
	size_t tiles_bytes;
};

#endif
