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

/* Of one layer of a policy batch in the open step: attention scores and selection. */
struct selection {
	bool has_scores;   /* made in this step */
	uint32_t made;     /* 0, SKV_ATTEND_PAGES or SKV_ATTEND_TOKENS */
	bool retained;     /* the hooks of a layer that evicts have said which tokens or pages stay */
	struct skv_select select; /* the request, if the layer selects while it attends */
	struct skv_scores scores;
	struct skv_index_list list;
	struct { /* compress/attend.c */
		const struct skv_codec *codec; /* of its tokens, or NULL */
		uint32_t seqs, tokens; /* decompressed at a time; of each at most */
	} compress;
};

/* Sequences of the open step that run one policy. Hooks run, and plans are carried out, once for all that decode. */
struct policy_batch {
	struct policy *policy;
	bool compresses; /* its layers that compress do so for all of these sequences; else for none */
	uint32_t first, n;                /* in step.seqs: that decode ... */
	uint32_t first_prompt, n_prompts; /* ... and those with rows of prompts */
	uint32_t at_kseq, n_padded; /* where the decoding ones are in a class's kseq, and how many with padding */
	uint32_t rows;                    /* of each decoding sequence: the same for all */
	uint32_t rows_at;                 /* if rows > 1: where single rows are in a class's kseq, [rows][n] */
	struct selection *selection;      /* [n_layers] */
	/* of one layer at a time, for decoding sequences: slots of new tokens; ranks of tokens or pages */
	uint32_t *slot;
	float *rank;
	uint32_t branch; /* that its layers' work is queued on: see workspace.h */
	size_t lists_at; /* in step.prefill: lists that its prompts keep for later layers */
};

/*
 * Layers that have as many slots in each sequence, and retain as many, so that kernels get the same arguments. All
 * layers are one class unless a layer evicts single tokens or compresses, or did so before.
 */
struct layer_class {
	uint32_t layer; /* the first of them */
	/* ranges of kseq, or of the device's copy of it */
	struct skv_batch all, decoding, prompts;
};

/* Rows of one layer, decompressed: see compress/attend.c. */
struct decompressed {
	void *mem; /* the session's; the other fields point into it */
	size_t bytes;
	uint8_t *pool;
	struct skv_kseq *seq;
	skv_pte *table;
};

#define RECALL_SEQS 8u /* sequences of a step that are measured at most */

/* Measurement of recall: see recall.c. */
struct recall {
	uint32_t n;     /* sequences that are measured in the open step, or 0 */
	uint64_t steps; /* decode steps, of which one in recall_every is measured */
	struct skv_layer_set layers[RECALL_SEQS]; /* [sequence]: layers that were measured */
	void *mem;      /* the session's; the next two point into it */
	size_t bytes;
	struct skv_scores scores; /* of one layer at a time */
	float *share;                 /* [n_layers][RECALL_SEQS] */
};

struct step {
	bool open;
	uint32_t next_layer;
	uint32_t rows; /* of all items */

	/* ---- layout.c: the items as the kernels see them ---- */

	uint32_t cap, cap_kseq;
	uint32_t n, n_decode; /* sequences; those that decode, which come first */
	uint32_t n_padded; /* in a class's kseq: decoding sequences and all padding, which come first */
	/* of a class: n_padded, then sequences with prompts, then single rows of sequences that decode several */
	uint32_t n_kseq;
	/* [cap]: decoding ones first, then prompts; in both, sequences of a policy batch are adjacent */
	struct skv_seq **seqs;
	struct skv_step_item *items; /* [cap]: copies of the caller's */
	uint32_t *item;        /* [cap]: the caller's index of seqs[i] ... */
	uint32_t *index;       /* [cap]: ... and where the caller's item is in seqs */
	uint32_t *at_kseq;     /* [cap]: the place of seqs[i] in a class's kseq */
	struct skv_kseq *kseq; /* [n_classes][n_kseq]: sequences as kernels see them */
	struct layer_class *class; /* [n_layers] allocated */
	uint32_t n_classes;
	uint16_t class_of[SKV_MAX_LAYERS];
	struct policy_batch *batch; /* [n_batches], cap allocated; in the order of their first items */
	uint32_t n_batches;

	/* ---- what features add ---- */

	struct skv_workspace work; /* of the kernels: workspace.c, as is the number of branches that the layers use */
	uint32_t n_branches;
	struct { /* layout.c */
		bool follows, on; /* can the next step be laid out from this one, and was this one? */
		uint32_t *due; /* [cap]: if on: the caller's indices of sequences that need more than a row */
		uint32_t n_due;
	} steady;
	struct { /* pages.c */
		uint64_t demand, aside_change; /* as pages_count() computes them */
		struct supplied {
			struct skv_seq *seq;
			uint32_t table, page;
		} *supplied; /* entries that got a page for this step */
		uint32_t n_supplied, cap_supplied;
	} pages;
	struct { /* attn.c: rows of one layer as the host's kernels take them */
		void *mem;
		size_t bytes;
	} attn;
	struct { /* selection.c */
		struct selection *all; /* [cap][n_layers]: of all batches */
		uint32_t cap;
		uint32_t *slot; /* slots of new prompt tokens, one layer at a time */
		void *arena;    /* selections and policy batches point into it */
		size_t arena_bytes;
	} select;
	struct { /* compress/ */
		struct decompressed decompressed;
		void *exchanged; /* keys and values of all ranks: exchange.c */
		size_t exchanged_bytes;
	} compress;
	struct { /* prefill/attend.c: lists of tokens that prompt rows attend to */
		void *lists;
		size_t bytes;
	} prefill;
	struct recall recall;
	bool recording;  /* replay.c: the library records layers, which is not part of the step */
	int ranks_error; /* ranks.c: error of all_reduce_max(), or 0 */
};

#endif
