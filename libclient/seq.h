/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/seq.h - a sequence: what was committed of it, and what the open step is about to. */
#ifndef SKV_CLIENT_SEQ_H
#define SKV_CLIENT_SEQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/seqmem.h"
#include "libclient/policy.h"
#include "libclient/session.h"

/* Maintenance transactions, as maintenance.c runs them. */
enum maintenance {
	MAINTENANCE_NONE,
	MAINTENANCE_COMPACT,       /* tokens move down, until no slot below is free */
	MAINTENANCE_MOVE_PARTIAL,  /* the partial page is taken out from among the others, the next compaction puts it last */
	MAINTENANCE_SLOT_METADATA, /* slot metadata as the policy wants them */
	MAINTENANCE_BUILD_STATE,   /* bounds of all pages, or sketches of all keys */
	MAINTENANCE_COMPRESS,      /* older tokens are compressed */
	MAINTENANCE_DECOMPRESS,    /* all that are compressed become rows again */
	MAINTENANCE_TRUNCATE,      /* the last tokens go: transaction_truncate() */
};

/* Pages [from, to). */
struct span {
	uint32_t from, to;
};

/* By cache lines: of a steady step the begin needs the first one, the end the first three. */
struct skv_seq {
	_Alignas(64) struct skv_session *session;
	struct skv_seqmem *mem;
	/* committed, on a device as soon as it is queued; kept here so that shared memory is not believed twice */
	uint32_t len, epoch;
	uint32_t quiet_len; /* if it is steady: below this length the next step needs nothing but its row; see steady.c */
	/* id of the first token of the open step: tokens[len] still shows the last commit's next, which it is without has_first */
	int32_t first;
	uint32_t n_evict;      /* entries in the journal, not yet counted there */
	uint32_t n_rows;       /* of the open step: tokens */
	uint32_t n_new;        /* of them, that count: all until skv_step_end says otherwise; 0: none, it is cancelled */
	enum maintenance maintenance; /* a step without tokens, of this kind */
	uint32_t about, next_about;  /* as in seqmem.h, with SKV_ABOUT_SLOTS ...; what the open step's commit will say */
	bool steady;           /* its last step was a plain one */
	bool in_step;          /* the open one */
	bool has_first;
	bool takes;            /* pages: some table has not all that the step needs */
	bool evicting; /* a device has the journal's commit before it: no other journal until that is seen */
	bool state_torn;       /* the policy's state was touched in a step that was given up */
	/*
	 * It has the state pages that its policy wants, with the bounds or sketches of all that is committed. Without it, it has
	 * none: the next step supplies them.
	 */
	bool has_state;
	bool gaps;             /* pages are missing below slots of a layer that evicts: it is about to be compacted */

	uint64_t step_attended; /* of the open step: tokens, once for each q head */
	struct policy *own; /* NULL: it runs the session's */
	uint64_t attended, causal;
	uint64_t set_aside, next_set_aside; /* pages for what is still to come of its prompt */
	struct skv_layer_slots *slots, *next_slots; /* ... [n_layers]; slot_end of the next ones: the slots that the step has */

	struct skv_seqmem_layout layout;
	uint32_t n_prompt_remaining; /* tokens of the open step's prompt that are still to come */
	struct skv_prompt prompt; /* with SKV_ABOUT_PREFILL, which is there only if it attends as the policy says */
	struct skv_prompt next_prompt; /* where a prompt's rows are of one that began there */
	/* do the policy's layers that compress do so with this sequence? Asked when another policy takes it */
	bool compresses, compresses_known;
	bool named;
	uint32_t id;
	uint64_t n_shared;   /* entries, of all layers */
	/* addresses there of the tables' copy, of the header and of the token ids */
	struct {
		skv_pte *table; /* NULL: none so far; else of so many bytes */
		size_t bytes;
		uint32_t capacity, wanted; /* entries of each table there, and that the next step needs */
		struct skv_seqmem *mem;
		int32_t *tokens;
		bool old; /* the copy shows pages that the tables do not name any more: made anew before the next step */
	} on_device;
	struct skv_layer_set sparse; /* layers in which its rows of a prompt attend sparsely */

	struct skv_seq *next, **prev;
	struct span *evicted; /* [n_layers]: pages that are holes, or will be with this commit: no need to look again */
	uint32_t *release; /* shared pages given up, to be told; room for all that the tables have */
	uint32_t n_release, cap_release;
	struct request *fork; /* a fork without an answer so far: the table may change under us */
	uint32_t sealing; /* not 0: tokens that MAINTENANCE_COMPRESS is to compress, whatever the policy says */
	struct compressor *decompressing; /* in MAINTENANCE_DECOMPRESS: how it was compressed */
	uint64_t recall_layers; /* times that it was measured, and the sum of the figures */
	double recall_sum;
};

static inline struct policy *seq_policy(const struct skv_seq *q)
{
	return q->own ? q->own : q->session->policy;
}

static inline skv_pte *seq_table(const struct skv_seq *q, uint32_t table)
{
	return skv_seqmem_table(q->mem, &q->layout, table);
}

/* Entries of a table that count as of the last commit. */
static inline uint32_t seq_entries(const struct skv_seq *q, uint32_t table)
{
	return skv_seqmem_entries(&q->layout, table, q->len);
}

/* Does each layer have slots of its own number? */
static inline bool seq_by_layer(const struct skv_seq *q)
{
	return q->about & SKV_ABOUT_SLOTS || q->maintenance;
}

/* As of the last commit the layer has no token in slots from here on. */
static inline uint32_t seq_slot_end(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->slots[layer].slot_end : q->len;
}

/* And the slots that the open step has. */
static inline uint32_t seq_next_slot_end(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->next_slots[layer].slot_end : q->len + q->n_new;
}

/* As of the last commit: tokens of the layer below are compressed, but for the first ones; 0: none is. */
static inline uint32_t seq_compressed(const struct skv_seq *q, uint32_t layer)
{
	return q->about & SKV_ABOUT_SLOTS ? q->slots[layer].n_compressed : 0;
}

/* And as of the open step's. */
static inline uint32_t seq_next_compressed(const struct skv_seq *q, uint32_t layer)
{
	return q->next_about & SKV_ABOUT_SLOTS ? q->next_slots[layer].n_compressed : 0;
}

/* It no longer refers to a page that it shared; stock_release() tells. */
static inline void seq_give_up(struct skv_seq *q, uint32_t page)
{
	q->release[q->n_release++] = page;
	q->n_shared--;
	q->session->stock.n_release++;
}

#endif
