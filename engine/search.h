/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/search.h - which layers select, by trying sets of them.
 *
 * A judge says what a set loses. The search takes one layer of the best set that it knows after the other, and asks for
 * all sets with another one in its place, until no such set is better, whichever layer is exchanged. There may be better
 * ones further away. Sets are of choice->n layers, choice->first among them.
 */
#ifndef ENG_SEARCH_H
#define ENG_SEARCH_H

#include <sparsekv/policy.h>
#include "engine/choose.h"
#include "engine/error.h"

/* What each of n sets loses; the less the better. Negative errno. */
typedef int eng_judge(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret_loss,
                      struct eng_error *err);

struct eng_found {
	double loss, first_loss; /* of what was found, and of what was begun with */
	uint32_t judged;         /* sets */
};

/*
 * `layers`, ascending: what to begin with, and what was found. Of equals the earlier judged. -ENOMEM, or the judge's:
 * then they are the best so far, unless nothing was judged.
 */
int eng_search(const struct eng_choice *c, eng_judge *judge, void *arg, uint32_t *layers, struct eng_found *ret,
               struct eng_error *err);

/* About how many sets it asks for: each layer is exchanged twice for all others. */
static inline uint32_t eng_search_sets(const struct eng_choice *c)
{
	return 1 + 2 * (c->n - 1) * (c->n_layers - c->first - c->n);
}

#endif
