/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/profile.h - the results of a calibration: layers that are chosen from what was measured, as the file that
 * policies read (profile=FILE), as a table, and as charts.
 *
 * It does not depend on how the figures were measured: sparsekv-calibrate and the Python package (`python -m
 * sparsekv.calibrate`) fill the same struct.
 */
#ifndef ENG_PROFILE_H
#define ENG_PROFILE_H

#include <sparsekv/types.h>
#include <stdbool.h>
#include "engine/choose.h"
#include "engine/error.h"
#include "engine/search.h"

/* Kinds of selecting layers, each for different policies. */
enum eng_kind { ENG_DELTA, ENG_ANCHORS, ENG_FILTERS, ENG_KINDS };

/* The error of corrected sparse prefill (engine/delta-similarity.h), [layer]; NAN: no rows. */
struct eng_profile_correction {
	uint32_t sinks, window, gamma;
	bool any; /* a row missed tokens; otherwise the other figures have no meaning */
	double cosine[SKV_MAX_LAYERS], missed[SKV_MAX_LAYERS], left[SKV_MAX_LAYERS];
	double all_left;
};

struct eng_profile {
	const struct skv_model *model; /* its name and shape */
	const char *source;            /* names of the texts' files */
	uint32_t source_hash;
	uint32_t texts;                        /* to read */
	uint64_t texts_measured, tokens, rows; /* that were read */
	uint32_t top;                          /* tokens that the similarity compares */
	bool partial;                          /* interrupted: fewer rows than requested, or an incomplete search */

	/* Layers without a sliding window, ascending: the others are not measured. Choices are indices of this list. */
	uint32_t full[SKV_MAX_LAYERS], n_full;
	double shift[SKV_MAX_LAYERS], weight[SKV_MAX_LAYERS]; /* [layer]; NAN: not measured */
	const double *similarity; /* [layer][layer]: of the best heads; NAN: not measured */
	const double *heads;      /* [n_full][n_full][kv head][kv head]: eng_measure_similarity() */
	struct eng_profile_correction correction;

	uint32_t dense;   /* first layers that stay dense before delta's and filter layers */
	uint32_t n_ranks; /* number of ranks that the head map is for */
	struct eng_choice choice[ENG_KINDS];        /* n_layers: n_full */
	uint32_t papers[ENG_KINDS][SKV_MAX_LAYERS]; /* by the papers' criteria */
	uint32_t chosen[ENG_KINDS][SKV_MAX_LAYERS]; /* that policies get: the same, or layers with a smaller loss */

	uint64_t loss_rows;                /* 0: no search was done, and the fields below have no meaning */
	double budget;                     /* share of the sequence that was selected */
	struct eng_found found[ENG_KINDS]; /* judged 0: not searched; the papers' choice stands */
	uint32_t searched;                 /* number of kinds whose search is complete */
};

/*
 * Chooses layers, of each kind as many as its struct says: delta layers by shift; anchors by the paper's algorithm,
 * similarity times the layer's importance; filter layers, which papers choose by hand, by the same algorithm without
 * importance. -ENOMEM.
 */
int eng_profile_choose(struct eng_profile *p, struct eng_error *err);

/* Computes the losses of n policy specs. `label` is for the progress line. Returns a negative errno. */
typedef int eng_losses(void *arg, const char *const *specs, uint32_t n, const char *label, double *ret,
                       struct eng_error *err);

/*
 * Searches from there for layers of a kind with a smaller loss, under that kind's policy; the kinds in their order.
 * Returns a negative errno; after -EINTR the profile has the best layers so far.
 */
int eng_profile_search(struct eng_profile *p, enum eng_kind kind, eng_losses *losses, void *arg, struct eng_error *err);

/* Describes the basis of a partial profile for the user: "3 of 8 texts, 384 rows; …". */
void eng_profile_partial(const struct eng_profile *p, char *to, size_t room);

/* Return the file and the table, which the caller frees. NULL: no memory, or the source is not UTF-8. */
char *eng_profile_json(const struct eng_profile *p);
char *eng_profile_text(const struct eng_profile *p);

/* Draws PREFIX-shift.svg, PREFIX-similarity.svg and PREFIX-alike.svg. Returns a negative errno. */
int eng_profile_draw(const struct eng_profile *p, const char *prefix, struct eng_error *err);

#endif
