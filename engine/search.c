/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/search.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Every set that was judged, in that order, and those that are about to be. */
struct known {
	struct skv_layer_set *sets;
	double *loss;
	uint32_t n;
};

static void toggle(struct skv_layer_set *set, uint32_t layer)
{
	set->bits[layer / 64] ^= (uint64_t)1 << (layer % 64);
}

static bool is_known(const struct known *k, const struct skv_layer_set *set)
{
	for (uint32_t i = 0; i < k->n; i++)
		if (!memcmp(&k->sets[i], set, sizeof(*set)))
			return true;
	return false;
}

static int make_room(struct known *k, uint32_t more)
{
	struct skv_layer_set *sets = reallocarray(k->sets, k->n + more, sizeof(*sets));
	double *loss;

	if (!sets)
		return -ENOMEM;
	k->sets = sets;
	loss = reallocarray(k->loss, k->n + more, sizeof(*loss));
	if (!loss)
		return -ENOMEM;
	k->loss = loss;
	return 0;
}

/* All sets with one layer of `set` exchanged for another. There is room for them. */
static void add_neighbours(struct known *k, const struct eng_choice *c, struct skv_layer_set set)
{
	for (uint32_t out = c->first + 1; out < c->n_layers; out++) {
		if (!skv_layer_in(&set, out))
			continue;
		for (uint32_t in = c->first + 1; in < c->n_layers; in++) {
			struct skv_layer_set next = set;

			if (skv_layer_in(&set, in))
				continue;
			toggle(&next, out);
			toggle(&next, in);
			if (!is_known(k, &next))
				k->sets[k->n++] = next;
		}
	}
}

static uint32_t best_of(const struct known *k)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < k->n; i++)
		if (k->loss[i] < k->loss[best])
			best = i;
	return best;
}

/* From the sets[0] on; *ret_best is the index of the one that no other exchange makes better. */
static int climb(struct known *k, const struct eng_choice *c, eng_judge *judge, void *arg, uint32_t *ret_best,
                 struct eng_error *err)
{
	uint32_t exchanges = (c->n - 1) * (c->n_layers - c->first - c->n), judged = 0;
	int r;

	while (judged < k->n) {
		r = judge(arg, k->sets + judged, k->n - judged, k->loss + judged, err);
		if (r)
			return r;
		judged = k->n;
		if (make_room(k, exchanges))
			return eng_fail(err, -ENOMEM, "no memory for %u sets of layers", judged + exchanges);
		*ret_best = best_of(k);
		add_neighbours(k, c, k->sets[*ret_best]);
	}
	return 0;
}

int eng_search(const struct eng_choice *c, eng_judge *judge, void *arg, uint32_t *layers, struct eng_found *ret,
               struct eng_error *err)
{
	struct known k = {.n = 0};
	uint32_t best = 0;
	int r = make_room(&k, 1) ? eng_fail(err, -ENOMEM, "no memory for a set of layers") : 0;

	if (!r) {
		memset(&k.sets[0], 0, sizeof(k.sets[0]));
		for (uint32_t i = 0; i < c->n; i++)
			toggle(&k.sets[0], layers[i]);
		k.n = 1;
		r = climb(&k, c, judge, arg, &best, err);
	}
	if (!r) {
		for (uint32_t l = c->first, i = 0; l < c->n_layers; l++)
			if (skv_layer_in(&k.sets[best], l))
				layers[i++] = l;
		*ret = (struct eng_found){.loss = k.loss[best], .first_loss = k.loss[0], .judged = k.n};
	}
	free(k.sets);
	free(k.loss);
	return r;
}
