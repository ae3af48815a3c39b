/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step.h - the open step of a session: its data, and the scratch memory of its kernels. */
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

/* The attention scores and the selection of one layer of a policy batch, in the open step. */
struct selection {
	bool has_scores;   /* the scores were made in this step */
	uint32_t made;     /* kind of the selection that was made: 0, SKV_ATTEND_PAGES or SKV_ATTEND_TOKENS */
	bool retained;     /* the hooks of a layer that evicts have said which tokens or pages stay */
	struct skv_select select; /* the hook's request, if the layer selects while it attends */
	struct skv_scores scores;
	struct skv_index_list list;
	struct { /* compress/attend.c */
		const struct skv_codec *codec; /* codec of the layer's compressed tokens, or NULL */
		/* number of sequences that are decompressed at a time; maximum number of tokens of each */
		uint32_t seqs, tokens;
	} compress;
};

/* Sequences of the open step that run one policy. One call of a hook or kernel serves all that decode. */
struct policy_batch {
	struct policy *policy;
	/* whether compressing layers compress for these sequences; the same for all sequences of the batch */
	bool compresses;
	uint32_t first, n;                /* range in step.seqs of the sequences that decode */
	uint32_t first_prompt, n_prompts; /* range in step.seqs of the sequences with rows of prompts */
	/* position of the decoding sequences in a class's kseq; their number including padding */
	uint32_t at_kseq, n_padded;
	uint32_t rows;                    /* number of rows of each decoding sequence: the same for all */
	uint32_t rows_at;                 /* if rows > 1: position of the single rows in a class's kseq, [rows][n] */
	struct selection *selection;      /* [n_layers] */
	/* memory for one layer at a time, for decoding sequences: slots of new tokens; ranks of tokens or pages */
	uint32_t *slot;
	float *rank;
	uint32_t branch; /* index of the branch that the batch's work is queued on: see workspace.h */
	size_t lists_at; /* offset in step.prefill.lists of the lists that the batch's prompts keep for later layers */
};

/*
 * A class: layers for which kernels get the same arguments, because in each sequence these layers have and retain equal
 * numbers of slots. All layers are one class unless a layer evicts single tokens or compresses, or did so before.
 */
struct layer_class {
	uint32_t layer; /* index of the first layer of the class */
	/* ranges of kseq (on a device: of the device's copy of kseq) */
	struct skv_batch all, decoding, prompts;
};

/* Decompressed rows of one layer: see compress/attend.c. */
struct decompressed {
	void *mem; /* memory of the session; pool, seq and table point into it */
	size_t bytes;
	uint8_t *pool;
	struct skv_kseq *seq;
	skv_pte *table;
};

#define RECALL_SEQS 8u /* maximum number of sequences of a step whose recall is measured */

/* Measurement of attention recall: see recall.c. */
struct recall {
	uint32_t n;     /* number of sequences whose recall is measured in the open step */
	uint64_t steps; /* number of decode steps, of which one in recall_every is measured */
	struct skv_layer_set layers[RECALL_SEQS]; /* [sequence]: the layers that were measured */
	void *mem;      /* memory of the session; scores and share point into it */
	size_t bytes;
	struct skv_scores scores; /* scores of one layer at a time */
	float *share;                 /* [n_layers][RECALL_SEQS] measured recall */
};

struct step {
	bool open;
	uint32_t next_layer;
	uint32_t rows; /* number of rows of all items */

	/* ---- layout.c: the items as the kernels see them ---- */

	uint32_t cap, cap_kseq;
	uint32_t n, n_decode; /* number of sequences; of sequences that decode, which come first */
	uint32_t n_padded; /* number of decoding sequences and padding in a class's kseq, where they come first */
	/* entries in a class's kseq: n_padded, then prompts, then single rows of sequences that decode several */
	uint32_t n_kseq;
	/* [cap]: decoding sequences first, then prompts; in both parts, sequences of a policy batch are adjacent */
	struct skv_seq **seqs;
	struct skv_step_item *items; /* [cap]: copies of the caller's items */
	uint32_t *item;        /* [cap]: index of the caller's item of seqs[i] */
	uint32_t *index;       /* [cap]: index in seqs of the sequence of the caller's item i */
	uint32_t *at_kseq;     /* [cap]: position of seqs[i] in a class's kseq */
	struct skv_kseq *kseq; /* [n_classes][n_kseq]: sequences as the kernels see them */
	struct layer_class *class; /* [n_layers] allocated, n_classes used */
	uint32_t n_classes;
	uint16_t class_of[SKV_MAX_LAYERS];
	struct policy_batch *batch; /* [cap] allocated, n_batches used; in the order of the batches' first items */
	uint32_t n_batches;

	/* ---- what features add ---- */

	/* workspace of the kernels (workspace.c, also n_branches: how many branches the layers use) */
	struct skv_workspace work;
	uint32_t n_branches;
	struct { /* padding.c */
		uint32_t n_seqs, max_tokens; /* what the engine pads decode steps to; n_seqs 0: nothing */
		bool on;                     /* this step is padded */
		struct padding_memory {
			void *scratch, *arena;
			size_t scratch_bytes, arena_bytes;
			struct skv_kseq *kseq;
			uint64_t *attended;
			uint32_t cap_kseq, cap;
		} apart; /* memory of the other steps: of those without padding if `on`, else of those with it */
	} padding;
	struct { /* layout.c */
		/* follows: the next step can be laid out from this one; on: this step was laid out so */
		bool follows, on;
		uint32_t *due; /* [cap]: if `on`, indices of the caller's items whose sequences need more than a row */
		uint32_t n_due;
	} steady;
	struct { /* pages.c */
		uint64_t demand, aside_change; /* results of pages_count() */
		struct supplied {
			struct skv_seq *seq;
			uint32_t table, page;
		} *supplied; /* table entries that got a page for this step */
		uint32_t n_supplied, cap_supplied;
	} pages;
	struct { /* attn.c: rows of one layer, as the host's kernels take them */
		void *mem;
		size_t bytes;
	} attn;
	struct { /* selection.c */
		struct selection *all; /* [cap][n_layers]: selections of all batches */
		uint32_t cap;
		uint32_t *slot; /* slots of new prompt tokens, for one layer at a time */
		void *arena;    /* memory of the lists and buffers that selections and policy batches point to */
		size_t arena_bytes;
	} select;
	struct { /* compress/ */
		struct decompressed decompressed;
		void *exchanged; /* keys and values gathered from all ranks: exchange.c */
		size_t exchanged_bytes;
	} compress;
	struct { /* prefill/attend.c: lists of tokens that rows of prompts attend to */
		void *lists;
		size_t bytes;
	} prefill;
	struct recall recall;
	bool recording;  /* replay.c is recording layers into a CUDA graph, outside of the step's own work */
	int ranks_error; /* ranks.c: error that all_reduce_max() returned, or 0 */
};

#endif
