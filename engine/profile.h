/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/profile.h - the results of a calibration: written as the file that policies read (profile=FILE), printed as
 * a table, and drawn as charts.
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

/* Kinds of selecting layers, each for different policies. */
enum eng_kind { ENG_DELTA, ENG_ANCHORS, ENG_FILTERS, ENG_KINDS };

struct eng_profile {
	const struct eng_model *model;
	const struct eng_measure *measure;
	const struct eng_delta_error *differ;
	const char *source; /* the file's name */
	uint32_t source_hash;
	uint64_t tokens;    /* tokens read */
	uint32_t texts;     /* number of texts to read */
	bool partial;       /* interrupted: fewer rows than requested, or an incomplete search */
	uint32_t n_ranks;   /* number of ranks that the head map is for */
	struct eng_choice choice[ENG_KINDS];
	uint32_t papers[ENG_KINDS][SKV_MAX_LAYERS]; /* by the papers' criteria */
	/* layers that policies get: the same, or layers with a smaller loss */
	uint32_t chosen[ENG_KINDS][SKV_MAX_LAYERS];
	size_t loss_rows;                           /* 0: no search was done, and the fields below have no meaning */
	double budget;                              /* share of the sequence that was selected */
	struct eng_found found[ENG_KINDS]; /* judged 0: not searched; the papers' choice stands */
	uint32_t searched;                 /* number of kinds whose search is complete */
};

/*
 * Chooses layers, of each kind as many as its struct says: delta layers by shift; anchors by the paper's algorithm,
 * similarity times the layer's importance; filter layers, which papers choose by hand, by the same algorithm without
 * importance. -ENOMEM.
 */
int eng_profile_choose(struct eng_profile *p, struct eng_error *err);

/*
 * Searches from there for layers with a smaller loss, each kind under its own policy. Returns a negative errno; after
 * -EINTR the profile has the best layers so far.
 */
int eng_profile_search(struct eng_profile *p, struct eng_loss *l, struct eng_error *err);

/* Returns about how many sets the search evaluates. */
uint32_t eng_profile_search_sets(const struct eng_profile *p);

/* Describes the basis of a partial profile for the user: "3 of 8 texts, 384 rows; …". */
void eng_profile_partial(const struct eng_profile *p, char *to, size_t room);

/* eng_profile_write() returns -EIO if it fails. Other write errors stay in the stream's error flag. */
int eng_profile_write(const struct eng_profile *p, FILE *to, struct eng_error *err);
void eng_profile_print(const struct eng_profile *p, FILE *to);
void eng_profile_draw_shift(const struct eng_profile *p, FILE *to);
void eng_profile_draw_similarity(const struct eng_profile *p, FILE *to);
void eng_profile_draw_alike(const struct eng_profile *p, FILE *to);

#endif
