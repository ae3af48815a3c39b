/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/seq.h - a sequence: its state as of the last commit, and the state that the open step will commit. */
#ifndef SKV_CLIENT_SEQ_H
#define SKV_CLIENT_SEQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/seqmem.h"
#include "libclient/policy.h"
#include "libclient/session.h"

/* Kinds of maintenance transactions (steps without tokens), which maintenance.c runs. */
enum maintenance {
	MAINTENANCE_NONE,
	MAINTENANCE_COMPACT,       /* tokens move to lower slots, until all slots below slot_end are in use */
	/* the last, partial page moves away from the full pages; the next compaction puts it last */
	MAINTENANCE_MOVE_PARTIAL,
	MAINTENANCE_SLOT_METADATA, /* slot metadata changes to the granularity that the policy needs */
	MAINTENANCE_BUILD_STATE,   /* page bounds of all pages, or sketches of all keys, are computed */
	MAINTENANCE_COMPRESS,      /* tokens older than the residual window are compressed */
	MAINTENANCE_DECOMPRESS,    /* all compressed tokens are decompressed to rows */
	MAINTENANCE_TRUNCATE,      /* the last tokens are removed; see transaction_truncate() */
};

/* The range [from, to) of a table's pages. */
struct span {
	uint32_t from, to;
};

/* Fields are ordered by cache lines: the begin of a steady step needs only the first line, its end the first three. */
struct skv_seq {
	_Alignas(64) struct skv_session *session;
	struct skv_seqmem *mem;
	/*
	 * as of the last commit (on a device: the last queued one); copies, so that shared memory is read and checked
	 * once
	 */
	uint32_t len, epoch;
	uint32_t quiet_len; /* if `steady`: below this length a step needs no new page; see layout.c */
	/* token id of the open step's first row; if !has_first, the last commit's next id, already in tokens[len] */
	int32_t first;
	uint32_t n_evict;      /* number of entries in the journal that journal_n does not count yet */
	uint32_t n_rows;       /* number of the sequence's rows in the open step */
	/* number of rows that the commit keeps: n_rows until skv_step_end() says otherwise; 0: cancelled */
	uint32_t n_new;
	enum maintenance maintenance; /* kind of the running maintenance transaction */
	uint32_t about, next_about;  /* SKV_ABOUT_ flags (seqmem.h) of the last commit; of the open step's */
	bool steady;           /* the sequence's last step was a plain one: see layout.c */
	bool in_step;          /* the sequence is in the open step */
	bool has_first;
	bool takes;            /* the open step needs pages: some tables of the sequence lack entries */
	bool evicting; /* a queued commit uses the journal; until that commit has run, no other may */
	bool state_torn;       /* an aborted step has written to the policy's state of this sequence */
	/*
	 * the sequence has the state pages of its policy, with page bounds or sketches of all committed tokens; else it
	 * has none, and the next step supplies them
	 */
	bool has_state;
	bool gaps; /* a layer that evicts lacks pages below its slot_end, so the sequence must be compacted */

	uint64_t step_attended; /* tokens attended to in the open step, once for each q head */
	struct policy *own; /* policy of this sequence alone; NULL: the session's policy */
	uint64_t attended, causal;
	/* pages set aside for the rest of its prompt: now; after the open step's commit */
	uint64_t set_aside, next_set_aside;
	/* [n_layers] slots of each layer as of the last commit; as of the open step's, with the slots of its rows */
	struct skv_layer_slots *slots, *next_slots;

	struct skv_seqmem_layout layout;
	struct { /* prefill/ */
		uint32_t n_remaining;        /* n_prompt_remaining of the open step's item */
		/*
		 * present prompt; valid with SKV_ABOUT_PREFILL, set only while the prompt attends as the policy plans
		 */
		struct skv_prompt now;
		struct skv_prompt next;      /* the prompt that the open step's rows belong to */
		struct skv_layer_set sparse; /* layers in which rows of the prompt attend sparsely */
	} prompt;
	struct { /* compress/ */
		/*
		 * on: layers whose plan compresses do so for this sequence; known: `on` is decided for the present
		 * policy
		 */
		bool on, known;
		uint32_t sealing; /* not 0: number of tokens that MAINTENANCE_COMPRESS compresses for a seal */
		struct compressor *from; /* in MAINTENANCE_DECOMPRESS: how the sequence's tokens are compressed */
	} compress;
	bool named;
	uint32_t id;
	uint64_t n_shared;   /* number of shared entries in all tables */
	struct { /* device/tables.c: device addresses of the tables' copy, the header and the token ids */
		skv_pte *table; /* NULL: there is no copy yet */
		size_t bytes;
		uint32_t capacity, wanted; /* entries of each table: in the copy; needed by the next step */
		struct skv_seqmem *mem;
		int32_t *tokens;
		uint32_t expected; /* tokens of a prompt that follow the next step */
		bool old; /* the copy has pages that the tables lack; it is made anew before the next step */
	} on_device;

	struct skv_seq *next, **prev;
	/* [n_layers]: pages that are holes, or will be with the commit, and are not checked again */
	struct span *evicted;
	struct { /* shared pages given up and not yet reported to the daemon; room for those of all tables */
		uint32_t *pages, n, cap;
	} release;
	struct request *fork; /* unanswered fork or seal: the daemon may still change the tables */
	struct { /* recall.c */
		uint64_t layers; /* number of recall measurements, and the sum of the measured recalls */
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

/* Number of entries of a table that count as of the last commit. */
static inline uint32_t seq_entries(const struct skv_seq *q, uint32_t table)
{
	return skv_seqmem_entries(&q->layout, table, q->len);
}

/* Does each layer have a number of slots of its own? */
static inline bool seq_by_layer(const struct skv_seq *q)
{
	return q->about & SKV_ABOUT_SLOTS || q->maintenance;
}

/* End of the layer's used slots as of the last commit: all slots from here on are free. */
static inline uint32_t seq_slot_end(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->slots[layer].slot_end : q->len;
}

/* End of the layer's used slots, including the slots of the open step's rows. */
static inline uint32_t seq_next_slot_end(const struct skv_seq *q, uint32_t layer)
{
	return seq_by_layer(q) ? q->next_slots[layer].slot_end : q->len + q->n_new;
}

/* As of the last commit, the layer's tokens before this one are compressed, except the first pages; 0: none. */
static inline uint32_t seq_compressed(const struct skv_seq *q, uint32_t layer)
{
	return q->about & SKV_ABOUT_SLOTS ? q->slots[layer].n_compressed : 0;
}

/* As of the open step's commit, the layer's tokens before this one are compressed, except the first pages; 0: none. */
static inline uint32_t seq_next_compressed(const struct skv_seq *q, uint32_t layer)
{
	return q->next_about & SKV_ABOUT_SLOTS ? q->next_slots[layer].n_compressed : 0;
}

/* Record that the sequence no longer refers to a shared page; stock_release() reports this to the daemon later. */
static inline void seq_give_up(struct skv_seq *q, uint32_t page)
{
	q->release.pages[q->release.n++] = page;
	q->n_shared--;
	q->session->stock.n_release++;
}

#endif
