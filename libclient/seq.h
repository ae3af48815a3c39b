/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/seq.h - a sequence: what is committed of it, and what the open step will commit. */
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
	MAINTENANCE_COMPACT,       /* tokens move to lower slots, until no slot below slot_end is free */
	MAINTENANCE_MOVE_PARTIAL,  /* the partial page leaves the full ones; the next compaction puts it last */
	MAINTENANCE_SLOT_METADATA, /* slot metadata gets the granularity that the policy wants */
	MAINTENANCE_BUILD_STATE,   /* page bounds of all pages, or sketches of all keys, are made */
	MAINTENANCE_COMPRESS,      /* older tokens are compressed */
	MAINTENANCE_DECOMPRESS,    /* all compressed tokens become rows again */
	MAINTENANCE_TRUNCATE,      /* the last tokens are removed: transaction_truncate() */
};

/* Pages [from, to). */
struct span {
	uint32_t from, to;
};

/* Ordered by cache lines: a steady step's begin needs the first one, its end the first three. */
struct skv_seq {
	_Alignas(64) struct skv_session *session;
	struct skv_seqmem *mem;
	/* committed, or on a device queued; copied here so that shared memory is read and checked only once */
	uint32_t len, epoch;
	uint32_t quiet_len; /* if steady: below this length the next step needs nothing but its row; see layout.c */
	/*
	 * id of the open step's first token; without has_first it is the last commit's next id, which tokens[len] shows
	 */
	int32_t first;
	uint32_t n_evict;      /* entries written to the journal that journal_n does not count yet */
	uint32_t n_rows;       /* rows of the open step */
	/* rows of them that count: all until skv_step_end says otherwise; 0: the sequence is cancelled */
	uint32_t n_new;
	enum maintenance maintenance; /* a step without tokens, of this kind */
	uint32_t about, next_about;  /* as in seqmem.h (SKV_ABOUT_SLOTS ...): of the last commit; of the open step's */
	bool steady;           /* its last step was a plain one: see layout.c */
	bool in_step;          /* it is in the open step */
	bool has_first;
	bool takes;            /* the open step needs pages: some table lacks entries */
	bool evicting; /* a queued commit uses the journal; no other journal before that commit has run */
	bool state_torn;       /* a step that was aborted has written to the policy's state */
	/*
	 * It has the state pages that its policy wants, with page bounds or sketches of all committed tokens. If not,
	 * it has none, and the next step supplies them.
	 */
	bool has_state;
	bool gaps;             /* a layer that evicts lacks pages below its slot_end: it will be compacted */

	uint64_t step_attended; /* of the open step: tokens attended to, counted once for each q head */
	struct policy *own; /* its own policy; NULL: the session's */
	uint64_t attended, causal;
	uint64_t set_aside, next_set_aside; /* for the rest of its prompt: committed; with the open step */
	/* [n_layers]: of the last commit; of the open step's, slot_end including the slots of its rows */
	struct skv_layer_slots *slots, *next_slots;

	struct skv_seqmem_layout layout;
	struct { /* prefill/ */
		uint32_t n_remaining;        /* as in the open step's item */
		/* counts with SKV_ABOUT_PREFILL, which is set only while the prompt attends as the policy says */
		struct skv_prompt now;
		struct skv_prompt next;      /* where the prompt of the open step's rows began */
		struct skv_layer_set sparse; /* layers in which its rows attend sparsely */
	} prompt;
	struct { /* compress/ */
		/* do the layers whose plan compresses do so for this sequence? Decided anew under another policy */
		bool on, known;
		uint32_t sealing; /* not 0: tokens that MAINTENANCE_COMPRESS compresses, whatever the policy says */
		struct compressor *from; /* in MAINTENANCE_DECOMPRESS: how its tokens are compressed */
	} compress;
	bool named;
	uint32_t id;
	uint64_t n_shared;   /* shared entries of all tables */
	struct { /* device/tables.c: device addresses of the tables' copy, the header and the token ids */
		skv_pte *table; /* NULL: there is none yet */
		size_t bytes;
		uint32_t capacity, wanted; /* entries of each table: in the copy; that the next step needs */
		struct skv_seqmem *mem;
		int32_t *tokens;
		bool old; /* the copy names pages that the tables do not: it is made anew before the next step */
	} on_device;

	struct skv_seq *next, **prev;
	struct span *evicted; /* [n_layers]: pages that are holes, or will be with this commit: not checked again */
	struct { /* shared pages that were given up, not reported yet; has room for all that the tables have */
		uint32_t *pages, n, cap;
	} release;
	struct request *fork; /* a fork or seal without an answer yet: the daemon may change the tables meanwhile */
	struct { /* recall.c */
		uint64_t layers; /* number of measurements, and the sum of the figures */
		double sum;
	} recall;
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

/* Does each layer have its own number of slots? */
static inline bool seq_by_layer(const struct skv_seq *q)
{
	return q->about & SKV_ABOUT_SLOTS || q->maintenance;
}

/* As of the last commit all slots of the layer from here on are free. */
static inline uint32_t seq_slot_end(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->slots[layer].slot_end : q->len;
}

/* The same, with the slots of the open step. */
static inline uint32_t seq_next_slot_end(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->next_slots[layer].slot_end : q->len + q->n_new;
}

/* As of the last commit the layer's tokens below this one are compressed, except the first ones; 0: none are. */
static inline uint32_t seq_compressed(const struct skv_seq *q, uint32_t layer)
{
	return q->about & SKV_ABOUT_SLOTS ? q->slots[layer].n_compressed : 0;
}

/* The same, as of the open step's commit. */
static inline uint32_t seq_next_compressed(const struct skv_seq *q, uint32_t layer)
{
	return q->next_about & SKV_ABOUT_SLOTS ? q->next_slots[layer].n_compressed : 0;
}

/* Record that the sequence no longer refers to a shared page; stock_release() tells the daemon. */
static inline void seq_give_up(struct skv_seq *q, uint32_t page)
{
	q->release.pages[q->release.n++] = page;
	q->n_shared--;
	q->session->stock.n_release++;
}

#endif
