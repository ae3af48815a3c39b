/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/profile.h - what a calibration measured and chose: as the file that policies read (profile=FILE), as a
 * table, and drawn.
 */
#ifndef ENG_PROFILE_H
#define ENG_PROFILE_H

#include <sparsekv/types.h>
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
	uint64_t tokens;
	struct eng_choice choice[ENG_KINDS];
	uint32_t papers[ENG_KINDS][SKV_MAX_LAYERS]; /* by the papers' criteria */
	uint32_t chosen[ENG_KINDS][SKV_MAX_LAYERS]; /* what policies get: the same, or what loses less */
	const struct eng_loss *loss;                /* NULL: nothing was searched, and the rest says nothing */
	double budget;                              /* share of the sequence that was selected */
	struct eng_found found[ENG_KINDS];
};

/*
 * Choose, of each kind as many as its struct says: Δ-layers by shift; anchors by the paper's program, similarity
 * times the layer's weight; filters, which papers choose by hand, by the same program without weights. -ENOMEM.
 */
int eng_profile_choose(struct eng_profile *p, struct eng_error *err);

/*
 * From there on search for layers that lose less, each kind under its own policy. `l` outlives the profile. Negative
 * errno.
 */
int eng_profile_search(struct eng_profile *p, struct eng_loss *l, struct eng_error *err);

/* Errors of writing are left in the stream. -ENOMEM. */
int eng_profile_write(const struct eng_profile *p, FILE *to, struct eng_error *err);
void eng_profile_print(const struct eng_profile *p, FILE *to);
void eng_profile_draw_shift(const struct eng_profile *p, FILE *to);
void eng_profile_draw_similarity(const struct eng_profile *p, FILE *to);
void eng_profile_draw_alike(const struct eng_profile *p, FILE *to);

#endif
