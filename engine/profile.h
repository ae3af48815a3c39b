/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/profile.h - chooses layers for policies from the measurements of a calibration, and writes the results: as the
 * file that policies read (profile=FILE), as a table, and as charts.
 *
 * The code here does not depend on how the figures were measured: sparsekv-calibrate and the Python package (`python -m
 * sparsekv.calibrate`) both fill struct eng_profile.
 */
#ifndef ENG_PROFILE_H
#define ENG_PROFILE_H

#include <sparsekv/types.h>
#include <stdbool.h>
#include "engine/choose-layers.h"
#include "engine/error.h"
#include "engine/search.h"

/* Kinds of layers that select tokens for other layers; each kind is for one policy: delta, kascade, omnikv. */
enum eng_kind { ENG_DELTA, ENG_ANCHORS, ENG_FILTERS, ENG_KINDS };

/*
 * The error of sparse prefill with and without correction (engine/error-similarity.h); arrays are [layer]. NAN: no row
 * was measured.
 */
struct eng_profile_correction {
	uint32_t sinks, window, gamma;
	bool any; /* a measured row missed tokens; if false, the figures below have no meaning */
	double cosine[SKV_MAX_LAYERS], missed[SKV_MAX_LAYERS], left[SKV_MAX_LAYERS];
	double all_left;
};

struct eng_profile {
	const struct skv_model *model; /* its name and shape */
	const char *source;            /* names of the files that the texts come from */
	uint32_t source_hash;
	uint32_t texts;                        /* number of texts that the calibration was asked to read */
	uint64_t texts_measured, tokens, rows; /* number of texts, tokens and rows that it did read */
	uint32_t top;                          /* number of best tokens that the similarity of two layers compares */
	bool partial; /* the calibration was interrupted: it has fewer rows than requested, or an incomplete search */

	/*
	 * Layers without a sliding window, ascending; only these are measured. `papers` and `chosen` contain indices
	 * into `full`.
	 */
	uint32_t full[SKV_MAX_LAYERS], n_full;
	double shift[SKV_MAX_LAYERS], weight[SKV_MAX_LAYERS]; /* [layer]; NAN: not measured */
	const double *similarity; /* [layer][layer]: similarity of the best heads; NAN: not measured */
	const double *heads;      /* [n_full][n_full][kv head][kv head]: from eng_measure_similarity() */
	struct eng_profile_correction correction;

	uint32_t dense;   /* number of first layers that stay dense under the policies delta and omnikv */
	uint32_t n_ranks; /* number of tensor-parallel ranks that the head map is for */
	/* for eng_choose…(): how many layers to choose of each kind; choice[].n_layers equals n_full */
	struct eng_choice choice[ENG_KINDS];
	uint32_t papers[ENG_KINDS][SKV_MAX_LAYERS]; /* layers chosen by the papers' criteria */
	/* layers that policies get: those in `papers`, or layers with a smaller loss */
	uint32_t chosen[ENG_KINDS][SKV_MAX_LAYERS];

	/* number of rows of the loss; 0: no search was done, and the fields below have no meaning */
	uint64_t loss_rows;
	double budget;                     /* share of a sequence's tokens that the policies selected in the search */
	struct eng_found found[ENG_KINDS]; /* `judged` is 0: this kind was not searched, and `chosen` equals `papers` */
	uint32_t searched;                 /* number of kinds whose search was completed */
};

/*
 * Chooses choice[kind].n layers of each kind. Delta layers are chosen by shift. Anchor layers are chosen by Kascade's
 * algorithm, from the similarity of layers times the importance of a layer. Filter layers, which papers choose by hand,
 * are chosen by the same algorithm without the importance. Returns 0; -EDOM if a figure that is needed is not finite; or
 * -ENOMEM.
 */
int eng_profile_choose(struct eng_profile *p, struct eng_error *err);

/* Computes the losses of n policy specs. `label` is the text of the progress line. Returns 0 or a negative errno. */
typedef int eng_losses(void *arg, const char *const *specs, uint32_t n, const char *label, double *ret,
                       struct eng_error *err);

/*
 * Searches, from the layers that eng_profile_choose() chose, for layers of one kind with a smaller loss under that
 * kind's policy. The kinds must be searched in the order of enum eng_kind. Returns 0 or a negative errno; after -EINTR
 * the profile contains the best layers found so far.
 */
int eng_profile_search(struct eng_profile *p, enum eng_kind kind, eng_losses *losses, void *arg, struct eng_error *err);

/* Writes how much of a partial profile was measured, for the user: "3 of 8 texts, 384 rows; …". */
void eng_profile_partial(const struct eng_profile *p, char *to, size_t room);

/*
 * Return the text of the profile file and of the table, which the caller frees. NULL: no memory, or the source's name
 * is not UTF-8.
 */
char *eng_profile_json(const struct eng_profile *p);
char *eng_profile_text(const struct eng_profile *p);

/* Draws PREFIX-shift.svg, PREFIX-similarity.svg and PREFIX-alike.svg. Returns a negative errno. */
int eng_profile_draw(const struct eng_profile *p, const char *prefix, struct eng_error *err);

#endif
