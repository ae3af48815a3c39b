/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/slot-model.h - a plain model of layers that evict: what each kv head has in which slot, step by step,
 * and checks that a backend's pool has the same. Entries are tokens or pages, according to the layer's granularity.
 */
#ifndef SKV_SLOT_MODEL_H
#define SKV_SLOT_MODEL_H

#include "tests/support/kernel-case.h"
#include "tests/ref/evict.h"

#define SLOT_CAP (16 * SKV_PAGE_TOKENS) /* maximum slots of a sequence */
#define SLOT_ROWS 257u                  /* different rows */
#define SLOT_HEADS 8u                   /* maximum kv heads */

struct slot_head {
	struct ref_unit was[SLOT_CAP], now[SLOT_CAP]; /* as of the last commit, and of the current step */
	uint32_t slot;                                /* of the step's new token */
	bool there[SLOT_CAP];                         /* whether now[u] is an entry, live or evicted */
};

struct slot_rig {
	struct kernel_case c;
	uint32_t unit; /* tokens per entry */
	struct slot_head head[CASE_SEQS][SLOT_HEADS];
	uint32_t len[CASE_SEQS];    /* live slots as of the last commit */
	uint32_t extent[CASE_SEQS]; /* slots that may be live */
	uint32_t all[CASE_SEQS];
	uint32_t pinned[CASE_SEQS];
	uint32_t epoch[CASE_SEQS]; /* number of the last commit */
	float row[SLOT_ROWS][SKV_MAX_HEAD_DIM];
	uint8_t *stored;               /* the same, encoded as in the pool */
	float stored_unit[SLOT_ROWS];  /* and their units */
	uint8_t *was, *is;             /* the pool before and after a step */
	struct skv_kseq at[CASE_SEQS]; /* with the backend's pointers */
	/* the step's batch: */
	uint32_t n, who[CASE_SEQS];
	struct skv_kseq seq[CASE_SEQS];
	struct skv_slot_mapping slots;
};

/* Returns which row token `pos` of a sequence has. K and V differ. */
uint32_t slot_content(uint32_t i, uint32_t h, uint32_t pos, bool v);
/* Returns the number of entries in so many slots. */
uint32_t slot_units(const struct slot_rig *, uint32_t slots);
void slot_read_pool(const struct slot_rig *, uint8_t *to);

/* Apply to the model what alloc_slots() and alloc_prompt_slots() do with a step's new tokens. */
void slot_model_alloc(struct slot_rig *);
void slot_model_prompt(struct slot_rig *);
/* Checks that the step's sequences are as in the model, with `more` entries than their length needs. */
void slot_check_step(struct slot_rig *, uint32_t more);
/* The state after the step becomes the state before the next one. */
void slot_model_commit(struct slot_rig *, uint32_t more);

#endif
