/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/search.h - searches for layers that select, by trying sets of layers.
 *
 * A judge computes the loss of sets. The search takes one layer after the other of the best set so far, and evaluates
 * all sets with another layer in its place, until no exchange of any layer is better. The result is a local optimum.
 * Sets have choice->n layers, among them choice->first.
 */
#ifndef ENG_SEARCH_H
#define ENG_SEARCH_H

#include <sparsekv/policy.h>
#include "engine/choose.h"
#include "engine/error.h"

/* Computes the loss of each of n sets; smaller is better. Returns a negative errno. */
typedef int eng_judge(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret_loss,
                      struct eng_error *err);

struct eng_found {
	double loss, first_loss; /* of the result, and of the first set */
	uint32_t judged;         /* number of sets */
};

/*
 * Searches from the best of some sets on. *ret_layers, ascending: of equals the set evaluated first. -ENOMEM, or the
 * judge's error: the results are then those of the sets so far, and unchanged if no set was evaluated.
 */
int eng_search(const struct eng_choice *c, eng_judge *judge, void *arg, const struct skv_layer_set *starts,
               uint32_t n_starts, uint32_t *ret_layers, struct eng_found *ret, struct eng_error *err);

/* About how many sets a search evaluates: each layer is exchanged twice for all others. */
uint32_t eng_search_sets(const struct eng_choice *c);

#endif
