/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/profile.h - what a calibration measured and chose: as the file that policies read (profile=FILE), as a
 * table, and drawn.
 */
#ifndef ENG_PROFILE_H
#define ENG_PROFILE_H

#include <sparsekv/types.h>
#include <stdbool.h>
#include <stdio.h>
#include "engine/choose.h"
#include "engine/delta-error.h"
#include "engine/error.h"
#include "engine/loss.h"
#include "engine/measure.h"
#include "engine/model.h"
#include "engine/search.h"

/* Layers that select, each kind for other policies. */
enum eng_kind { ENG_DELTA, ENG_ANCHORS, ENG_FILTERS, ENG_KINDS };

struct eng_profile {
	const struct eng_model *model;
	const struct eng_measure *measure;
	const struct eng_delta_error *differ;
	const char *source; /* the file's name */
	uint32_t source_hash;
	uint64_t tokens;    /* that were read */
	uint32_t texts;     /* that were to be read */
	bool partial;       /* it was interrupted: by less than was asked for, or not searched to the end */
	uint32_t n_ranks;   /* that the head map is for */
	struct eng_choice choice[ENG_KINDS];
	uint32_t papers[ENG_KINDS][SKV_MAX_LAYERS]; /* by the papers' criteria */
	uint32_t chosen[ENG_KINDS][SKV_MAX_LAYERS]; /* what policies get: the same, or what loses less */
	size_t loss_rows;                           /* 0: nothing was searched, and the rest says nothing */
	double budget;                              /* share of the sequence that was selected */
	struct eng_found found[ENG_KINDS]; /* judged 0: was not searched, and is as the papers' criteria chose */
	uint32_t searched;                 /* how many kinds were, to the end */
};

/*
 * Choose, of each kind as many as its struct says: Δ-layers by shift; anchors by the paper's program, similarity
 * times the layer's weight; filters, which papers choose by hand, by the same program without weights. -ENOMEM.
 */
int eng_profile_choose(struct eng_profile *p, struct eng_error *err);

/*
 * From there on search for layers that lose less, each kind under its own policy. Negative errno; after -EINTR the profile has the best so far.
 */
int eng_profile_search(struct eng_profile *p, struct eng_loss *l, struct eng_error *err);

/* About how many sets that judges. */
uint32_t eng_profile_search_sets(const struct eng_profile *p);

/* What a partial profile rests on, for its reader: "3 of 8 texts, 384 rows; …". */
void eng_profile_partial(const struct eng_profile *p, char *to, size_t room);

/* Errors of writing are left in the stream. -ENOMEM. */
int eng_profile_write(const struct eng_profile *p, FILE *to, struct eng_error *err);
void eng_profile_print(const struct eng_profile *p, FILE *to);
void eng_profile_draw_shift(const struct eng_profile *p, FILE *to);
void eng_profile_draw_similarity(const struct eng_profile *p, FILE *to);
void eng_profile_draw_alike(const struct eng_profile *p, FILE *to);

#endif
