/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/search.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The evaluated sets of layers in the order of evaluation, followed by the sets to evaluate next. */
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

/*
 * Adds all sets in which layer `out` of `set` is replaced by another layer, except for sets that are known. The caller
 * has made room.
 */
static void add_neighbours(struct known *k, const struct eng_choice *c, struct skv_layer_set set, uint32_t out)
{
	toggle(&set, out);
	for (uint32_t in = c->first + 1; in < c->n_layers; in++) {
		struct skv_layer_set next = set;

		if (in == out || skv_layer_in(&set, in))
			continue;
		toggle(&next, in);
		if (!is_known(k, &next))
			k->sets[k->n++] = next;
	}
}

/*
 * Returns the layer of the set at `place`, counted from 0 after the set's first layer; a place beyond the end wraps
 * around.
 */
static uint32_t layer_at(const struct eng_choice *c, const struct skv_layer_set *set, uint32_t place)
{
	uint32_t layer = c->first;

	for (uint32_t left = place % (c->n - 1) + 1; left > 0; left--)
		do
			layer++;
		while (!skv_layer_in(set, layer));
	return layer;
}

static uint32_t best_of(const struct known *k)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < k->n; i++)
		if (k->loss[i] < k->loss[best])
			best = i;
	return best;
}

/*
 * Evaluates the sets from index `judged` on. After an error, removes these sets, so that k->n is always the number of
 * evaluated sets.
 */
static int judge_new(struct known *k, uint32_t judged, eng_judge *judge, void *arg, struct eng_error *err)
{
	int r = k->n > judged ? judge(arg, k->sets + judged, k->n - judged, k->loss + judged, err) : 0;

	if (r)
		k->n = judged;
	return r;
}

/*
 * Starts from the best of the given sets. At one place of the set after the other, tries all exchanges of the layer
 * there, and continues with the best set. Ends when no exchange at any place has a smaller loss. An exchange may change
 * the places of layers, which affects only the order in which they are tried.
 */
static int climb(struct known *k, const struct eng_choice *c, eng_judge *judge, void *arg, struct eng_error *err)
{
	int r = judge_new(k, 0, judge, arg, err);
	uint32_t best = r ? 0 : best_of(k), in_vain = 0;

	for (uint32_t place = 0; !r && in_vain + 1 < c->n; place++) {
		uint32_t judged = k->n, before = best;

		if (make_room(k, c->n_layers))
			return eng_fail(err, -ENOMEM, "no memory for %u sets of layers", k->n + c->n_layers);
		add_neighbours(k, c, k->sets[best], layer_at(c, &k->sets[best], place));
		r = judge_new(k, judged, judge, arg, err);
		best = best_of(k);
		in_vain = best == before ? in_vain + 1 : 0;
	}
	return r;
}

int eng_search(const struct eng_choice *c, eng_judge *judge, void *arg, const struct skv_layer_set *starts,
               uint32_t n_starts, uint32_t *ret_layers, struct eng_found *ret, struct eng_error *err)
{
	struct known k = {.n = 0};
	int r = make_room(&k, n_starts) ? eng_fail(err, -ENOMEM, "no memory for %u sets of layers", n_starts) : 0;

	for (uint32_t i = 0; !r && i < n_starts; i++)
		if (!is_known(&k, &starts[i]))
			k.sets[k.n++] = starts[i];
	r = r ? r : climb(&k, c, judge, arg, err);
	if (k.n > 0) {
		uint32_t best = best_of(&k);

		for (uint32_t l = c->first, i = 0; l < c->n_layers; l++)
			if (skv_layer_in(&k.sets[best], l))
				ret_layers[i++] = l;
		*ret = (struct eng_found){.loss = k.loss[best], .first_loss = k.loss[0], .judged = k.n};
	}
	free(k.sets);
	free(k.loss);
	return r;
}

uint32_t eng_search_sets(const struct eng_choice *c)
{
	return 1 + 2 * (c->n - 1) * (c->n_layers - c->first - c->n);
}
