/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/looked.c - skv_selection: what a layer of the open step looked at.
 *
 * For whoever checks or draws what a policy does. The lists of a step are in its arena until the next step
 * begins, on a device in its memory. What is evicted is known from the host's tables, which show the step as it
 * is while it is open: its own evictions come with its commit, those of earlier ones are waited for.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Where the caller's item is in the step, or -1. */
static int64_t find_item(const struct step *st, uint32_t item)
{
	for (uint32_t at = 0; at < st->n; at++)
		if (st->item[at] == item)
			return at;
	return -1;
}

/* Bring memory of the session to the host. */
static int fetch(struct skv_session *s, void *to, const void *from, size_t bytes)
{
	const struct skv_backend *b = s->device ? s->device->backend : NULL;
	int e;

	if (!b) {
		memcpy(to, from, bytes);
		return 0;
	}
	e = b->copy(to, from, bytes, s->step.work.stream);
	if (e == 0)
		e = b->wait(s->step.work.stream);
	return e < 0 ? device_failed(s->device, e, "a selection") : 0;
}

/* Where ids go: as many as there is room for, the others only counted. */
struct sink {
	uint32_t *ids, room, n;
};

static void put(struct sink *to, uint32_t id)
{
	if (to->n < to->room)
		to->ids[to->n] = id;
	to->n++;
}

static void put_window(struct sink *to, const struct skv_window *w, uint32_t len, const skv_pte *table)
{
	uint32_t start = skv_window_start(w, len);

	for (uint32_t t = 0; t < len; t++)
		if ((t < w->sinks || t >= start) && skv_pte_resident(table[t / SKV_PAGE_TOKENS]))
			put(to, t);
}

/* What of the list is there in this layer: another one's may name what this one has evicted. */
static int put_list(struct skv_session *s, struct sink *to, const struct skv_list *list, uint32_t at, uint32_t row,
                    uint32_t per_page, const skv_pte *table)
{
	size_t number = (size_t)at * list->rows + row;
	uint32_t n = 0, *ids;
	int e = fetch(s, &n, list->count + number, sizeof(n));

	if (e < 0)
		return e;
	if (n > list->stride)
		return fail(-EIO, "a selection of %u units, expected at most %u", n, list->stride);
	ids = malloc((n + 1u) * sizeof(*ids));
	if (!ids)
		return fail(-ENOMEM, "out of memory");
	e = fetch(s, ids, list->ids + number * list->stride, n * sizeof(*ids));
	for (uint32_t i = 0; i < n && e == 0; i++)
		if (skv_pte_resident(table[ids[i] / per_page]))
			put(to, ids[i]);
	free(ids);
	return e;
}

static int look(struct skv_session *s, uint32_t layer, uint32_t item, uint32_t row, struct skv_looked *ret,
                uint32_t *ids, uint32_t room)
{
	const struct skv_plan *plan = &s->policy->plan[layer];
	const struct step *st = &s->step;
	struct skv_list list = st->selection[plan->source].list;
	int64_t at = find_item(st, item);
	struct sink to = {.ids = ids, .room = room};
	struct skv_looked looked = {.size = ret->size, .rows = 1};
	const skv_pte *table;
	int e = 0;

	if (at < 0)
		return fail(-EINVAL, "item %u of %u", item, st->n);
	if (s->policy->unites[plan->source])
		list.rows = 1; /* where a replay has made it, nobody has said so in this step */
	looked.how = at < st->n_decode ? plan->attend : SKV_LOOKED_DENSE;
	looked.len = st->kseq[at].len;
	if (looked.how == SKV_LOOKED_PAGES || looked.how == SKV_LOOKED_TOKENS)
		looked.rows = list.rows;
	if (row >= looked.rows)
		return fail(-EINVAL, "row %u of %u", row, looked.rows);
	table = seq_table(st->seqs[at], layer);
	switch (looked.how) {
	case SKV_LOOKED_DENSE:
		for (uint32_t page = 0; page < skv_pages_of(looked.len); page++)
			if (skv_pte_resident(table[page]))
				put(&to, page);
		break;
	case SKV_LOOKED_WINDOW:
		put_window(&to, &plan->window, looked.len, table);
		break;
	default:
		e = put_list(s, &to, &list, (uint32_t)at, plan->mapped ? plan->map[row] : row,
		             looked.how == SKV_LOOKED_TOKENS ? SKV_PAGE_TOKENS : 1, table);
	}
	if (e < 0)
		return e;
	looked.n = to.n;
	memcpy(ret, &looked, ret->size);
	return 0;
}

static int ready(struct skv_session *s, uint32_t layer, const struct skv_looked *ret)
{
	int e;

	if (ret->size == 0 || ret->size > sizeof(*ret))
		return fail(-EINVAL, "looked: size is %u, expected sizeof(struct skv_looked), at most %zu", ret->size,
		            sizeof(*ret));
	if (!s->step.open)
		return fail(-EINVAL, "no step is open");
	if (layer >= s->step.next_layer)
		return fail(-EINVAL, "layer %u has not attended in this step, %u have", layer, s->step.next_layer);
	if (s->misused)
		return fail(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->policy->block->name, s->misuse);
	e = device_not_recording(s);
	return e < 0 ? e : device_settle(s);
}

int skv_selection(struct skv_session *s, uint32_t layer, uint32_t item, uint32_t row, struct skv_looked *ret,
                  uint32_t *ids, uint32_t room)
{
	void *was;
	int e;

	pthread_mutex_lock(&s->lock);
	e = device_enter(s, &was);
	if (e == 0) {
		e = ready(s, layer, ret);
		if (e == 0)
			e = look(s, layer, item, row, ret, ids, room);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}
