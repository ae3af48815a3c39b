/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/maintenance.c - maintenance transactions.
 *
 * A maintenance transaction changes how the tokens of a sequence are stored, and not which tokens it has. It is a step
 * without tokens, with its own commit, between steps of the engine. Maintenance is rare (another policy takes over, or
 * a prompt follows evictions), so it waits for the device and need not be fast. After the engine's death between two
 * such transactions, the next holder runs those that are left.
 */
#include "libclient/step/maintenance.h"

#include <string.h>

#include "libclient/compress/encode.h"
#include "libclient/compress/schedule.h"
#include "libclient/conn/fence.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/layer/layer.h"
#include "libclient/pages/pages.h"
#include "libclient/ranks/exchange.h"
#include "libclient/ranks/joint.h"
#include "libclient/step/transaction.h"
#include "libclient/step/workspace.h"

/*
 * After a prompt, the partly filled page is the layer's last page, and it stays last until a page is evicted. That a
 * layer has fewer tokens than the sequence does not show that a page was evicted: single tokens may have been evicted
 * before.
 */
bool partial_page_inside(const struct skv_seq *q, uint32_t layer)
{
	const struct skv_layer_slots *x = &q->slots[layer];

	return x->granularity > 1 && x->live % x->granularity != 0 && skv_pages_of(x->live) < skv_pages_of(q->len) &&
	       !(q->about & SKV_ABOUT_PROMPTED);
}

/* The number of slots below `extent` whose page is resident. */
static uint32_t resident_tokens(const struct skv_seq *q, uint32_t layer, uint32_t extent)
{
	uint32_t n = 0;

	for (uint32_t page = 0; page < skv_pages_of(extent); page++) {
		uint32_t left = extent - page * SKV_PAGE_TOKENS;

		if (skv_pte_resident(seq_table(q, layer)[page]))
			n += left < SKV_PAGE_TOKENS ? left : SKV_PAGE_TOKENS;
	}
	return n;
}

/* The layer's slots after the transaction. */
static struct skv_layer_slots after(const struct skv_seq *q, uint32_t layer, enum maintenance kind)
{
	struct skv_layer_slots x = q->slots[layer];
	uint32_t granularity = seq_policy(q)->plan[layer].evict.granularity;

	if (kind == MAINTENANCE_COMPACT)
		x.slot_end = x.live;
	else if (kind == MAINTENANCE_MOVE_PARTIAL && partial_page_inside(q, layer))
		x.slot_end = (skv_pages_of(x.live) + 2) * SKV_PAGE_TOKENS;
	else if (kind == MAINTENANCE_SLOT_METADATA && granularity && x.granularity != granularity)
		x.live = x.n_active = resident_tokens(q, layer, x.slot_end);
	if (kind == MAINTENANCE_SLOT_METADATA)
		x.granularity = granularity;
	compress_schedule_maintenance(q, layer, &x);
	return x;
}

/* The flags (`about`) that the transaction's commit records for the sequence. */
static uint32_t about_after(const struct skv_seq *q)
{
	uint32_t prompted = q->maintenance == MAINTENANCE_SLOT_METADATA ? SKV_ABOUT_PROMPTED : 0;
	uint32_t about = (q->about & ~(SKV_ABOUT_SLOTS | SKV_ABOUT_PREFILL)) | prompted;

	if (q->maintenance == MAINTENANCE_DECOMPRESS)
		about |= SKV_ABOUT_DECOMPRESSED;
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const struct skv_layer_slots *next = &q->next_slots[layer];

		if (next->granularity || next->live != q->len || next->n_compressed > 0)
			about |= SKV_ABOUT_SLOTS;
		if (q->maintenance == MAINTENANCE_COMPACT && q->gaps && next->granularity > 1)
			/* a page has moved into another page's place: see partial_page_inside() */
			about &= ~SKV_ABOUT_PROMPTED;
	}
	return about;
}

static void compress(struct skv_session *s, const struct skv_seq *q, uint32_t layer, const struct skv_batch *b)
{
	const struct skv_decompressed in_place = {.pool = NULL};
	struct skv_shape shape = layer_shape(s, layer);

	shape.codec = compress_code(q, layer);
	if (q->maintenance == MAINTENANCE_COMPRESS)
		exchange_compress(s, &shape, 1, b);
	else
		s->kernels->decompress(&shape, b, NULL, &in_place, &s->step.work);
}

static void run(struct skv_session *s, struct skv_seq *q, uint32_t layer)
{
	const struct skv_plan *plan = &seq_policy(q)->plan[layer];
	struct skv_shape shape = layer_shape(s, layer);
	const struct skv_batch *b = &layer_class(s, layer)->all;
	const struct skv_layer_slots *was = &q->slots[layer], *next = &q->next_slots[layer];
	const struct skv_slot_mapping to = {.granularity = next->granularity, .slot = s->step.select.slot};
	struct skv_workspace *w = &s->step.work;

	shape.sketch_bits = plan->sketch_bits;
	shape.value_bits = plan->value_bits;
	if (q->maintenance == MAINTENANCE_BUILD_STATE && plan->scores & SKV_SCORES_PAGE_BOUNDS)
		s->kernels->update_bounds(&shape, b, NULL, w);
	if (q->maintenance == MAINTENANCE_BUILD_STATE && plan->scores & SKV_SCORES_SKETCHES)
		s->kernels->update_sketches(&shape, b, w);
	if (next->n_compressed != was->n_compressed)
		compress(s, q, layer, b);
	if (!next->granularity)
		return;
	if (was->granularity != next->granularity)
		s->kernels->init_slot_meta(&shape, b, &to, w);
	else if (q->maintenance == MAINTENANCE_MOVE_PARTIAL && next->slot_end > was->slot_end)
		s->kernels->move_partial_page(&shape, b, w);
	else
		s->kernels->alloc_slots(&shape, b, &to, w);
}

/* Run the kernels of a maintenance transaction that was begun, and commit it. */
static int carry(struct skv_session *s, struct skv_seq *q)
{
	bool holds = q->has_state && q->mem->state_epoch == q->epoch;
	int e = 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		run(s, q, layer);
	if (s->device)
		e = device_wait(s);
	if (e == 0)
		e = s->step.ranks_error;
	if (e < 0)
		return e;
	compress_evict_rows(q);
	pages_evict_surplus(q);
	e = device_room_stale(s, q->n_evict);
	if (e < 0)
		return e;
	if (holds || q->maintenance == MAINTENANCE_BUILD_STATE)
		transaction_state_changes(q);
	e = fence_check_held(s->client, &q, 1);
	if (e < 0)
		return e;
	atomic_thread_fence(memory_order_release);
	transaction_commit(q, q->mem->next[q->epoch & 1]);
	return joint_state(s);
}

int maintenance_run(struct skv_session *s, struct skv_seq *q, enum maintenance kind)
{
	const struct skv_step_item it = SKV_STEP_ITEM(.seq = q);
	int e = device_settle(s);

	if (e < 0)
		return e;
	step_threads(s);
	q->maintenance = kind;
	s->step.ranks_error = 0;
	s->step.steady.on = false;
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		q->next_slots[layer] = after(q, layer, kind);
	q->next_about = about_after(q);
	e = transaction_begin(s, &it, 1);
	if (e == 0) {
		e = carry(s, q);
		if (e < 0)
			transaction_abort(s);
	}
	q->in_step = false;
	q->maintenance = MAINTENANCE_NONE;
	if (kind == MAINTENANCE_COMPACT && e == 0)
		pages_unpark(q);
	if (e == 0)
		memset(q->evicted, 0, q->layout.n_layers * sizeof(*q->evicted));
	return e < 0 ? e : pages_check(q);
}
