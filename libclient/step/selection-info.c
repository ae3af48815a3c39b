/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/selection-info.c - skv_selection(): to which pages or tokens a layer of the open step attended.
 *
 * skv_selection() is for programs that check or display what a policy does. It reads the lists of selected pages or
 * tokens, which stay in the step's arena until the next step begins, and the slot metadata of layers that evict, from
 * the device's memory if there is a device. The host's page tables tell which pages are evicted. They are right for the
 * open step, because its own evictions come only with its commit, and skv_selection() waits for those of earlier steps.
 * A compressed token has no page in the tables, but attention includes it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/sort.h"
#include "libclient/compress/schedule.h"
#include "libclient/conn/pool.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/layer/layer.h"
#include "libclient/seq.h"

/* The index in step.seqs of the caller's item, or -1. */
static int64_t find_item(const struct step *st, uint32_t item)
{
	for (uint32_t at = 0; at < st->n; at++)
		if (st->item[at] == item)
			return at;
	return -1;
}

/* The policy batch of sequence number `at` of the step; NULL if it does not decode. */
static const struct policy_batch *batch_at(const struct step *st, uint32_t at)
{
	for (uint32_t i = 0; i < st->n_batches; i++)
		if (at >= st->batch[i].first && at - st->batch[i].first < st->batch[i].n)
			return &st->batch[i];
	return NULL;
}

/* Receives ids: the first `room` ids are stored, and all are counted in n. */
struct sink {
	uint32_t *ids, room, n;
};

static void put(struct sink *to, uint32_t id)
{
	if (to->n < to->room)
		to->ids[to->n] = id;
	to->n++;
}

/* Does the layer have the tokens of this page, as rows or compressed? */
static bool has(const struct skv_seq *q, uint32_t layer, uint32_t page)
{
	return skv_pte_resident(seq_table(q, skv_model_kv_layer(&q->session->model, layer))[page]) ||
	       compress_has_page(q, layer, page);
}

static void put_window(struct sink *to, const struct skv_window *w, uint32_t len, const struct skv_seq *q,
                       uint32_t layer)
{
	uint32_t start = skv_window_start(w, len);

	for (uint32_t t = 0; t < len; t++)
		if ((t < w->sinks || t >= start) && has(q, layer, t / SKV_PAGE_TOKENS))
			put(to, t);
}

/*
 * Put those entries of list `number` whose pages this layer still has. A list that another layer selected may name
 * pages that are evicted here.
 */
static int put_list(struct skv_session *s, struct sink *to, const struct skv_index_list *list, size_t number,
                    uint32_t per_page, const struct skv_seq *q, uint32_t layer)
{
	uint32_t n = 0, *ids;
	int e = device_fetch(s, &n, list->count + number, sizeof(n));

	if (e < 0)
		return e;
	if (n > list->stride)
		return error_set(-EIO, "a selection of %u entries, expected at most %u", n, list->stride);
	ids = malloc((n + 1u) * sizeof(*ids));
	if (!ids)
		return error_set(-ENOMEM, "out of memory");
	e = device_fetch(s, ids, list->ids + number * list->stride, n * sizeof(*ids));
	for (uint32_t i = 0; i < n && e == 0; i++)
		if (has(q, layer, ids[i] / per_page))
			put(to, ids[i]);
	free(ids);
	return e;
}

/*
 * Read the token positions (or page numbers) of n entries of a kv head from the open step's slot metadata, entries
 * marked evicted included.
 */
static int fetch_positions(struct skv_session *s, uint32_t layer, const struct skv_seq *q, const struct skv_kseq *ks,
                           uint32_t head, uint32_t n, uint32_t *pos)
{
	const skv_pte *table = seq_table(q, skv_table(s->model.n_layers, SKV_PAGES_SLOT_META, layer));
	uint32_t each = skv_slot_meta_per_page(&s->shape);
	size_t offset = head * skv_head_room(&s->shape);
	struct skv_slot_meta *meta = malloc(each * sizeof(*meta));
	int e = meta ? 0 : error_set(-ENOMEM, "out of memory");

	for (uint32_t i = 0; i < n && e == 0; i += each) {
		uint32_t page = skv_pte_id(table[i / each]);
		uint32_t some = n - i < each ? n - i : each;
		const uint8_t *at = s->shape.pool + pool_kernel_page(s->pool, page, false) * s->shape.page_bytes + offset;

		e = device_fetch(s, meta, (const struct skv_slot_meta *)at + ks->set * each, some * sizeof(*meta));
		for (uint32_t j = 0; j < some && e == 0; j++)
			pos[i + j] = meta[j].pos & ~SKV_SLOT_EVICTED;
	}
	free(meta);
	return e;
}

/*
 * Put the positions to which a kv head attended in a layer that evicts: those of all its entries, or of the entries on
 * its list if the layer attends to a list.
 */
static int put_retained(struct skv_session *s, const struct policy_batch *pb, struct sink *to, uint32_t layer, uint32_t at,
                    uint32_t head)
{
	const struct skv_kseq *ks = layer_kseq(s, layer, at);
	const struct skv_index_list *list = &pb->selection[layer].list;
	uint32_t granularity = pb->policy->plan[layer].evict.granularity;
	uint32_t entries = (ks->len + granularity - 1) / granularity, n = entries;
	bool listed = granularity > 1 || pb->policy->plan[layer].evict.max_head_ratio > 0;
	size_t number = (size_t)(at - pb->first) * list->rows + head;
	uint32_t *pos = malloc(2 * (entries + 1u) * sizeof(*pos)), *ids = pos + entries;
	int e = pos ? fetch_positions(s, layer, s->step.seqs[at], ks, head, entries, pos) : error_set(-ENOMEM,
			"out of memory");

	if (listed && e == 0)
		e = device_fetch(s, &n, list->count + number, sizeof(n));
	if (n > entries && e == 0)
		e = error_set(-EIO, "a selection of %u entries, expected at most %u", n, entries);
	if (listed && e == 0)
		e = device_fetch(s, ids, list->ids + number * list->stride, n * sizeof(*ids));
	for (uint32_t i = 0; i < n && e == 0; i++) {
		uint32_t u = listed ? ids[i] : i;

		if (u >= entries)
			e = error_set(-EIO, "a selection of entry %u of %u", u, entries);
		else
			ids[i] = pos[u];
	}
	if (e == 0)
		skv_sort_u32(ids, n);
	for (uint32_t i = 0; i < n && e == 0; i++)
		put(to, ids[i]);
	free(pos);
	return e;
}

/*
 * The number of lists that the layer's source selects for a sequence. A replayed layer runs no hook, so the number
 * recorded when a hook last ran is used.
 */
static uint32_t list_rows(const struct policy_batch *pb, const struct skv_plan *plan)
{
	const uint32_t said = pb->policy->list_rows[plan->source];

	return said ? said : pb->selection[plan->source].list.rows;
}

/*
 * Put the pages or tokens to which a layer attended whose plan evicts nothing, so that its slots hold the tokens in
 * order.
 */
static int put_planned(struct skv_session *s, const struct policy_batch *pb, struct sink *to, uint32_t layer, uint32_t at,
                       uint32_t row, uint32_t how)
{
	/* no policy batch: rows of prompts, which attend to all tokens and need no plan */
	const struct skv_plan *plan = pb ? &pb->policy->plan[layer] : NULL;
	const struct skv_seq *q = s->step.seqs[at];
	uint32_t slots = layer_kseq(s, layer, at)->len;

	switch (how) {
	case SKV_ATTEND_DENSE:
		for (uint32_t page = 0; page < skv_pages_of(slots); page++)
			if (has(q, layer, page))
				put(to, page);
		return 0;
	case SKV_ATTEND_WINDOW:
		put_window(to, &plan->window, slots, q, layer);
		return 0;
	default:
		row = plan->mapped ? plan->map[row] : row;
		at += (pb->rows - 1) * pb->n - pb->first; /* the sequence's last row */
		return put_list(s, to, &pb->selection[plan->source].list, (size_t)at * list_rows(pb, plan) + row,
		                how == SKV_ATTEND_TOKENS ? SKV_PAGE_TOKENS : 1, q, layer);
	}
}

static int describe(struct skv_session *s, uint32_t layer, uint32_t item, uint32_t row, struct skv_selection_info *ret,
                uint32_t *ids, uint32_t room)
{
	const struct step *st = &s->step;
	int64_t at = find_item(st, item);
	const struct policy_batch *pb = at < 0 ? NULL : batch_at(st, (uint32_t)at);
	const struct skv_plan *plan = pb ? &pb->policy->plan[layer] : NULL;
	struct sink to = {.ids = ids, .room = room};
	struct skv_selection_info info = {
	        .size = ret->size,
	        .rows = 1,
	        .attend = pb ? plan->attend : SKV_ATTEND_DENSE,
	        .value_bits = pb ? plan->value_bits : 0,
	};
	bool evicts = pb && plan->evict.granularity;
	int e;

	if (at < 0)
		return error_set(-EINVAL, "item %u of %u", item, st->n);
	if (evicts && plan->evict.granularity == 1)
		info.attend = SKV_ATTEND_TOKENS;
	info.len = st->seqs[at]->len + st->seqs[at]->n_new;
	if (evicts)
		info.rows = s->model.n_kv_heads;
	else if (info.attend == SKV_ATTEND_PAGES || info.attend == SKV_ATTEND_TOKENS)
		info.rows = list_rows(pb, plan);
	if (row >= info.rows)
		return error_set(-EINVAL, "row %u of %u", row, info.rows);
	if (st->padding.on && (info.attend == SKV_ATTEND_PAGES || info.attend == SKV_ATTEND_TOKENS))
		return error_set(-ENOTSUP, "the step is padded (skv_pad_steps): its layers' lists share memory");
	e = evicts ? put_retained(s, pb, &to, layer, (uint32_t)at, row)
	          : put_planned(s, pb, &to, layer, (uint32_t)at, row, info.attend);
	if (e < 0)
		return e;
	info.n = to.n;
	memcpy(ret, &info, ret->size);
	return 0;
}

static int ready(struct skv_session *s, uint32_t layer, const struct skv_selection_info *ret)
{
	int e;

	if (ret->size == 0 || ret->size > sizeof(*ret))
		return error_set(-EINVAL, "looked: size is %u, expected sizeof(struct skv_selection_info), at most %zu", ret->size,
		            sizeof(*ret));
	if (!s->step.open)
		return error_set(-EINVAL, "no step is open");
	if (layer >= s->step.next_layer)
		return error_set(-EINVAL, "layer %u has not attended in this step, %u have", layer, s->step.next_layer);
	if (s->hook.misused)
		return error_set(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->hook.misuser,
		                 s->hook.misuse);
	e = device_not_recording(s);
	return e < 0 ? e : device_settle(s);
}

int skv_selection(struct skv_session *s, uint32_t layer, uint32_t item, uint32_t row, struct skv_selection_info *ret,
                  uint32_t *ids, uint32_t room)
{
	void *was;
	int e = device_lock(s, &was);

	if (e == 0) {
		e = ready(s, layer, ret);
		if (e == 0)
			e = describe(s, layer, item, row, ret, ids, room);
		device_unlock(s, was);
	}
	return e;
}
