/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/search.h - searches for the best set of selecting layers, by computing the loss of sets.
 *
 * A callback, the judge, computes the loss of sets. The search goes over the layers of the best set so far, and
 * evaluates all sets in which that one layer is replaced by another. The search ends when no such exchange has a
 * smaller loss, so the result is a local optimum. Every set has choice->n layers, and one of them is choice->first.
 */
#ifndef ENG_SEARCH_H
#define ENG_SEARCH_H

#include <sparsekv/policy.h>
#include "engine/choose-layers.h"
#include "engine/error.h"

/* Computes the loss of each of n sets of layers; a smaller loss is better. Returns 0 or a negative errno. */
typedef int eng_judge(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret_loss,
                      struct eng_error *err);

struct eng_found {
	double loss, first_loss; /* loss of the result; loss of the first set */
	uint32_t judged;         /* number of sets whose loss was computed */
};

/*
 * Starts the search with the best of the sets `starts`. ret_layers gets the layers of the best set, ascending; of sets
 * with equal loss, the one evaluated first. Returns 0, -ENOMEM, or the judge's error. After an error the results are
 * the best of the sets evaluated so far; they are unchanged if no set was evaluated.
 */
int eng_search(const struct eng_choice *c, eng_judge *judge, void *arg, const struct skv_layer_set *starts,
               uint32_t n_starts, uint32_t *ret_layers, struct eng_found *ret, struct eng_error *err);

/*
 * Returns an estimate of how many sets a search evaluates: each layer of a set is exchanged twice for every layer
 * outside of it.
 */
uint32_t eng_search_sets(const struct eng_choice *c);

#endif
