/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/search.h - which layers select, by trying sets of them.
 *
 * A judge says what a set loses. The search asks for all sets that differ in one layer from the best that it knows,
 * until no such set is better. There may be better ones further away. Sets are of choice->n layers, choice->first
 * among them.
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
 * `layers`, ascending: what to begin with, and what was found. Of equals the earlier judged. -ENOMEM, or the judge's.
 */
int eng_search(const struct eng_choice *c, eng_judge *judge, void *arg, uint32_t *layers, struct eng_found *ret,
               struct eng_error *err);

#endif
