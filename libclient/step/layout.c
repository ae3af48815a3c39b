/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/layout.c - lays out the sequences of a step in batches for the kernels.
 *
 * Kernels get the same arguments for a sequence in all layers, except in layers that evict single tokens or compress:
 * such a layer has its own number of slots. So layers that have the same slots in all sequences of the step form a
 * class, and each class has its own batch.
 *
 * On a device the decoding sequences of a policy batch are padded with empty sequences to one of a few sizes, so that a
 * recording of the batch's layers (replay.c) still fits when slightly more or fewer sequences decode. Prompts follow
 * after the decoding sequences and do not affect recordings.
 *
 * Most steps of an engine are steady: they have the same sequences as the step before, in the same order, with one row
 * each. Policy batches, classes of layers and the places of sequences in batches are then unchanged, and most sequences
 * need no page. For a sequence that needs no page, the layout reads and writes one cache line, and does nothing for
 * each layer.
 *
 *   - skv_seq.steady says that a sequence's last step was a plain one: one row, as many slots as tokens, no prompt, no
 *     compressed tokens. Any other operation on the sequence clears skv_seq.steady: a fork, a truncation, another
 *     policy, a maintenance transaction, an abort, rejected rows.
 *   - A sequence of fewer than skv_seq.quiet_len tokens needs no page. A longer sequence is due: its pages are counted
 *     and supplied as in a step that is not steady.
 *   - lay_out_steady() must leave the same state as lay_out_in_full(); test-client-steady compares the two.
 */
#include "libclient/step/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/compress/schedule.h"
#include "libclient/device/device.h"
#include "libclient/device/scratch.h"
#include "libclient/error.h"
#include "libclient/evict/schedule.h"
#include "libclient/feature.h"
#include "libclient/pages/pages.h"
#include "libclient/prefill/schedule.h"
#include "libclient/seq.h"
#include "libclient/step/padding.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static int layout_open(struct skv_session *s)
{
	s->step.class = calloc(s->model.n_layers, sizeof(*s->step.class));
	return s->step.class ? 0 : error_set(-ENOMEM, "out of memory");
}

static void free_items(struct step *st)
{
	free(st->seqs);
	free(st->items);
	free(st->item);
	free(st->index);
	free(st->at_kseq);
	free(st->steady.due);
	free(st->batch);
}

static void layout_close(struct skv_session *s)
{
	free_items(&s->step);
	free(s->step.kseq);
	free(s->step.class);
}

const struct feature layout_feature = {.open = layout_open, .close = layout_close};

int layout_grow(struct skv_session *s, uint32_t n)
{
	struct step *st = &s->step;
	uint32_t cap = n + n / 2;

	if (n <= st->cap)
		return 0;
	free_items(st);
	st->seqs = calloc(cap, sizeof(*st->seqs));
	st->items = calloc(cap, sizeof(*st->items));
	st->item = calloc(cap, sizeof(*st->item));
	st->index = calloc(cap, sizeof(*st->index));
	st->at_kseq = calloc(cap, sizeof(*st->at_kseq));
	st->steady.due = calloc(cap, sizeof(*st->steady.due));
	st->batch = calloc(cap, sizeof(*st->batch));
	st->steady.follows = false;
	if (!st->seqs || !st->items || !st->item || !st->index || !st->at_kseq || !st->steady.due || !st->batch)
		cap = 0;
	st->cap = cap;
	return cap ? 0 : error_set(-ENOMEM, "out of memory for a step of %u sequences", n);
}

static int grow_kseq(struct skv_session *s, uint32_t n)
{
	struct step *st = &s->step;

	if (n > st->cap_kseq) {
		free(st->kseq);
		st->kseq = calloc(n + n / 2, sizeof(*st->kseq));
		st->cap_kseq = st->kseq ? n + n / 2 : 0;
	}
	return st->kseq ? 0 : error_set(-ENOMEM, "out of memory for a step of %u sequences", n);
}

/* ---- a class of layers ----------------------------------------------------------------------- */

/* The arguments for kernels (struct skv_kseq) of sequence number `at` of the step, in the class of this layer. */
static struct skv_kseq kseq_of(struct skv_session *s, const struct skv_step_item *it, uint32_t at, uint32_t row,
                               uint32_t layer)
{
	const struct device *d = s->device;
	struct skv_seq *q = s->step.seqs[at];
	uint32_t len = (seq_by_layer(q) ? q->slots[layer].live : q->len) + it->n_tokens;
	bool noting = q->maintenance == MAINTENANCE_SLOT_METADATA && q->slots[layer].granularity != q->next_slots[layer].granularity;

	return (struct skv_kseq){
	        .table = d ? q->on_device.table : seq_table(q, 0),
	        .attended = at >= s->step.n_decode ? NULL : d ? d->attended + at : &q->step_attended,
	        .layer_stride = d ? q->on_device.capacity : q->layout.max_pages,
	        .len = len,
	        .n_q = it->n_tokens,
	        .row = row,
	        .n_state = q->has_state && !q->maintenance ? it->n_tokens : len,
	        .n_tokens = q->len + it->n_tokens,
	        .slot_end = seq_slot_end(q, layer),
	        .set = (q->epoch + !noting) & 1, /* init_slot_meta() writes the other set */
	        .n_retained = UINT32_MAX,
	        .n_active = UINT32_MAX,
	};
}

/*
 * An upper bound of sequence lengths, at least `len`. On a device a recording fits until sequences outgrow its bound,
 * so the bound is generous: up to a quarter more than `len`, or SCRATCH_ROUND tokens more.
 */
static uint32_t upper_bound(const struct skv_session *s, uint32_t len)
{
	uint32_t step = SCRATCH_ROUND;

	if (!s->device)
		return len;
	if (s->step.padding.on)
		return (s->step.padding.max_tokens + step - 1) / step * step;
	while (step * 8 <= len)
		step *= 2;
	return (len + step - 1) / step * step;
}

/*
 * An empty sequence for padding, which kernels may read like any other sequence. It has no rows, so kernels write
 * nothing for it.
 */
static struct skv_kseq padding_kseq(const struct device *d)
{
	return (struct skv_kseq){.table = d->holes, .n_retained = UINT32_MAX, .n_active = UINT32_MAX};
}

/* A batch of n sequences of a class, beginning with number `first`, with bounds on their lengths and rows. */
static struct skv_batch batch_of(const struct skv_session *s, uint32_t class, uint32_t first, uint32_t n)
{
	const size_t at = (size_t)class * s->step.n_kseq + first;
	const struct skv_kseq *seq = s->step.kseq + at;
	struct skv_batch b = {.seq = s->device ? s->device->kseq + at : seq, .n = n};

	for (uint32_t i = 0; i < n; i++) {
		b.max_len = seq[i].len > b.max_len ? seq[i].len : b.max_len;
		b.max_q = seq[i].n_q > b.max_q ? seq[i].n_q : b.max_q;
		b.max_state = seq[i].n_state > b.max_state ? seq[i].n_state : b.max_state;
		if (seq[i].compress_to > seq[i].n_compressed &&
		    seq[i].compress_to - seq[i].n_compressed > b.max_compress)
			b.max_compress = seq[i].compress_to - seq[i].n_compressed;
	}
	b.max_len = upper_bound(s, b.max_len);
	return b;
}

/*
 * Must layers with a sliding window be in other classes than full layers? Yes, if a policy lets the last rows of its
 * prompts attend densely: kseq.dense_from says where these rows begin, and layers with a sliding window have no such
 * rows.
 */
static bool windows_apart(const struct skv_session *s)
{
	const struct step *st = &s->step;
	bool tails = false;

	for (uint32_t i = 0; i < st->n_batches; i++)
		tails |= st->batch[i].n_prompts > 0 && prefill_has_tail(st->batch[i].policy);
	return tails && skv_full_layers(&s->model, 0, s->model.n_layers) < s->model.n_layers;
}

/* Do kernels get the same arguments in both layers, in all sequences of the step? */
static bool same_class(const struct skv_session *s, uint32_t a, uint32_t b)
{
	const struct step *st = &s->step;

	if (!skv_model_window(&s->model, a) != !skv_model_window(&s->model, b) && windows_apart(s))
		return false;
	for (uint32_t i = 0; i < st->n_batches; i++) {
		const struct skv_plan *plan = st->batch[i].policy->plan;

		if (memcmp(&plan[a].evict, &plan[b].evict, sizeof(plan[a].evict)) != 0 ||
		    memcmp(&plan[a].compress, &plan[b].compress, sizeof(plan[a].compress)) != 0)
			return false;
	}
	for (uint32_t i = 0; i < st->n; i++) {
		const struct skv_seq *q = st->seqs[i];

		if (seq_by_layer(q) && memcmp(&q->slots[a], &q->slots[b], sizeof(*q->slots)) != 0)
			return false;
	}
	return true;
}

static void find_classes(struct skv_session *s)
{
	struct step *st = &s->step;
	bool by_layer = windows_apart(s);

	for (uint32_t i = 0; i < st->n; i++)
		by_layer |= seq_by_layer(st->seqs[i]);
	st->n_classes = 1;
	st->class[0].layer = 0;
	memset(st->class_of, 0, sizeof(st->class_of));
	for (uint32_t layer = 1; by_layer && layer < s->model.n_layers; layer++) {
		uint32_t c = 0;

		while (c < st->n_classes && !same_class(s, st->class[c].layer, layer))
			c++;
		if (c == st->n_classes)
			st->class[st->n_classes++].layer = layer;
		st->class_of[layer] = (uint16_t)c;
	}
}

/*
 * Lay out each row of sequences that decode several rows as a sequence that ends with this row. Attention kernels get
 * these sequences; kernels that append get the sequences with all rows.
 */
static void lay_out_rows(struct step *st, uint32_t class)
{
	struct skv_kseq *kseq = st->kseq + (size_t)class * st->n_kseq;

	for (uint32_t i = 0; i < st->n_batches; i++) {
		const struct policy_batch *pb = &st->batch[i];

		for (uint32_t at = 0; pb->rows > 1 && at < pb->n * pb->rows; at++) {
			struct skv_kseq *one = &kseq[pb->rows_at + at];
			uint32_t row = at / pb->n, after = pb->rows - 1 - row;

			*one = kseq[pb->at_kseq + at % pb->n];
			one->row += row;
			one->len -= after;
			one->n_tokens -= after;
			one->n_q = 1;
		}
	}
}

static void lay_out_padding(struct skv_session *s, uint32_t class)
{
	const struct step *st = &s->step;

	for (uint32_t i = 0; i < st->n_batches; i++)
		for (uint32_t at = st->batch[i].n; at < st->batch[i].n_padded; at++)
			st->kseq[(size_t)class * st->n_kseq + st->batch[i].at_kseq + at] = padding_kseq(s->device);
}

/*
 * Lay out the items for the kernels in a class of layers, and the slots that their commits will record for these
 * layers.
 */
static void lay_out_class(struct skv_session *s, const struct skv_step_item *items, uint32_t class)
{
	struct step *st = &s->step;
	struct layer_class *c = &st->class[class];
	uint32_t row = 0;

	for (uint32_t i = 0; i < st->n; i++) {
		uint32_t at = st->index[i];
		struct skv_seq *q = st->seqs[at];
		struct skv_kseq *ks = &st->kseq[(size_t)class * st->n_kseq + st->at_kseq[at]];
		struct skv_layer_slots next;

		*ks = kseq_of(s, &items[i], at, row, c->layer);
		prefill_schedule(q, ks);
		if (skv_model_window(&s->model, c->layer))
			ks->dense_from = UINT32_MAX;
		row += items[i].n_tokens;
		if (q->maintenance) {
			ks->n_compressed = seq_compressed(q, c->layer);
			ks->compress_to = q->next_slots[c->layer].n_compressed;
		}
		if (!seq_by_layer(q) || q->maintenance)
			continue;
		evict_schedule(&seq_policy(q)->plan[c->layer].evict, q->about, at < st->n_decode,
		              q->slots[c->layer].n_active + items[i].n_tokens, ks, &next);
		compress_schedule(q, c->layer, at < st->n_decode, ks, &next);
		for (uint32_t layer = c->layer; layer < s->model.n_layers; layer++)
			if (st->class_of[layer] == class)
				q->next_slots[layer] = next;
	}
	lay_out_padding(s, class);
	lay_out_rows(st, class);
	c->all = batch_of(s, class, 0, st->n_padded + st->n - st->n_decode);
	c->decoding = batch_of(s, class, 0, st->n_padded);
	c->prompts = batch_of(s, class, st->n_padded, st->n - st->n_decode);
}

/* ---- policy batches -------------------------------------------------------------------------- */

/* The flags and prompt length (`about`) that the open step's commit records for the sequence. */
static uint32_t about_of(struct skv_seq *q, bool prompt)
{
	uint32_t leading = q->about & SKV_ABOUT_PROMPT, flags = q->about & (SKV_ABOUT_SLOTS | SKV_ABOUT_DECOMPRESSED);

	flags |= prefill_about(q, prompt);
	if (prompt && leading == q->len)
		leading += q->n_new;
	return leading | flags | (prompt ? SKV_ABOUT_PROMPTED : 0);
}

static bool decodes(const struct skv_step_item *it)
{
	return !(it->flags & SKV_STEP_PROMPT) && !it->seq->maintenance;
}

/*
 * Find or make the policy batch for the item's sequence. Sequences of a batch run the same policy, all compress or none
 * does, and all decode the same number of rows. So kernels see sequences with one row in the same way whether or not
 * other sequences decode several rows.
 */
static struct policy_batch *batch_of_policy(struct step *st, const struct skv_step_item *it)
{
	const struct skv_seq *q = it->seq;
	const struct policy_batch want = {
		.policy = seq_policy(q), .compresses = q->compress.on, .rows = decodes(it) ? it->n_tokens : 1,
	};

	for (uint32_t i = 0; i < st->n_batches; i++) {
		struct policy_batch *pb = &st->batch[i];

		if (pb->policy == want.policy && pb->compresses == want.compresses && pb->rows == want.rows)
			return pb;
	}
	st->batch[st->n_batches] = want;
	return &st->batch[st->n_batches++];
}

/* Mark the sequences as in the step, and count the sequences of each policy batch. */
static int find_batches(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	struct step *st = &s->step;
	uint64_t rows = 0;

	st->n = st->n_batches = st->n_decode = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct skv_step_item *it = &items[i];
		struct policy_batch *pb = batch_of_policy(st, it);

		if (it->seq->in_step)
			return error_set(-EINVAL, "item %u: its sequence is in the step twice", i);
		rows += it->n_tokens;
		if (rows > UINT32_MAX)
			return error_set(-EINVAL, "the step has more than %u rows", UINT32_MAX);
		it->seq->in_step = true;
		it->seq->n_rows = it->seq->n_new = it->n_tokens;
		it->seq->prompt.n_remaining = it->n_prompt_remaining;
		it->seq->step_attended = 0;
		if (it->seq->maintenance) /* maintenance_run() has set next_about already */
			it->seq->prompt.next = (struct skv_prompt){.begin = it->seq->len};
		else
			it->seq->next_about = about_of(it->seq, !decodes(it));
		*(decodes(it) ? &pb->n : &pb->n_prompts) += 1;
		st->n_decode += decodes(it);
	}
	st->n = n;
	st->rows = (uint32_t)rows;
	return 0;
}

/*
 * The number of a policy batch's decoding sequences with padding: at least pb->n, and a power of two or 1.5 times one,
 * so that there are few recordings and little padding. Batches that evict, compress or decode several rows have no
 * padding.
 */
static uint32_t padded_size(const struct skv_session *s, const struct policy_batch *pb)
{
	uint32_t n = 1;

	if (s->step.padding.on)
		return s->step.padding.n_seqs;
	if (!s->device || pb->n == 0 || pb->rows > 1 || pb->compresses || pb->policy->n_evicting > 0)
		return pb->n;
	while (n < pb->n)
		n += n & (n - 1) ? n / 3 : n > 1 ? n / 2 : 1; /* 1 2 3 4 6 8 12 16 24 ... */
	return n;
}

/*
 * Give each policy batch its selections, and its ranges in the step's arrays of sequences, which are filled in later.
 */
static int fill_batches(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t decode = 0, prompt = st->n_decode, layers = s->model.n_layers;

	st->n_padded = 0;
	for (uint32_t i = 0; i < st->n_batches; i++) {
		st->batch[i].at_kseq = st->n_padded;
		st->batch[i].n_padded = padded_size(s, &st->batch[i]);
		st->n_padded += st->batch[i].n_padded;
	}
	st->n_kseq = st->n_padded + st->n - st->n_decode;
	if (st->n_batches > st->select.cap) {
		free(st->select.all);
		st->select.all = calloc((size_t)st->n_batches * layers, sizeof(*st->select.all));
		st->select.cap = st->select.all ? st->n_batches : 0;
		if (!st->select.all)
			return error_set(-ENOMEM, "out of memory for a step of %u policies", st->n_batches);
	}
	for (uint32_t i = 0; i < st->n_batches; i++) {
		struct policy_batch *pb = &st->batch[i];

		pb->selection = st->select.all + (size_t)i * layers;
		pb->rows_at = st->n_kseq;
		st->n_kseq += pb->rows > 1 ? pb->n * pb->rows : 0;
		pb->first = decode;
		pb->first_prompt = prompt;
		decode += pb->n;
		prompt += pb->n_prompts;
		pb->n = pb->n_prompts = 0;
	}
	return 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/*
 * Returns the length below which the sequence needs no new page, after a step of one row that makes it n tokens long.
 */
static uint32_t quiet_len(const struct skv_seq *q, uint32_t n)
{
	uint32_t full = skv_pages_of(n) * SKV_PAGE_TOKENS;

	return full < q->layout.max_tokens ? full : q->layout.max_tokens;
}

static bool plain(const struct skv_seq *q)
{
	return q->n_rows == 1 && !seq_by_layer(q) && !(q->next_about & ~(SKV_ABOUT_PROMPT | SKV_ABOUT_DECOMPRESSED)) &&
	       q->prompt.n_remaining == 0 && q->compress.known && !q->compress.on && !q->fork &&
	       seq_policy(q)->n_evicting == 0;
}

/* Called after a step was laid out in full: record whether the next step can be laid out by updating this layout. */
static void steady_mark(struct skv_session *s)
{
	struct step *st = &s->step;
	bool all = st->n == st->n_decode && st->n_classes == 1;

	for (uint32_t i = 0; i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];

		q->steady = plain(q);
		q->quiet_len = quiet_len(q, q->len + q->n_new);
		all &= q->steady;
	}
	st->steady.follows = all;
}

static int lay_out_in_full(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret)
{
	struct step *st = &s->step;
	int e;

	st->steady.follows = false; /* set again by steady_mark(), when this step is laid out */
	e = layout_grow(s, n);
	if (e == 0)
		e = find_batches(s, items, n);
	if (e == 0)
		padding_choose(s);
	if (e == 0)
		e = fill_batches(s);
	for (uint32_t i = 0; i < n && e == 0; i++) {
		struct policy_batch *pb = batch_of_policy(st, &items[i]);
		uint32_t at = decodes(&items[i]) ? pb->first + pb->n++ : pb->first_prompt + pb->n_prompts++;

		st->at_kseq[at] = at < st->n_decode ? pb->at_kseq + at - pb->first : st->n_padded + at - st->n_decode;
		st->seqs[at] = items[i].seq;
		st->item[at] = i;
		st->index[i] = at;
	}
	if (e < 0)
		return e;
	find_classes(s);
	e = grow_kseq(s, st->n_kseq * st->n_classes);
	if (e == 0 && s->device)
		e = device_grow_batch(s, padding_seqs(s, n), st->n_kseq * st->n_classes);
	if (e < 0)
		return e;
	for (uint32_t class = 0; class < st->n_classes; class++)
		lay_out_class(s, items, class);
	for (uint32_t i = 0; i < n && e == 0; i++)
		e = pages_count(st->seqs[i], ret);
	st->pages.aside_change = ret->aside_change;
	st->pages.demand = ret->demand;
	if (e == 0)
		steady_mark(s);
	return e;
}

/* ---- a steady step --------------------------------------------------------------------------- */

bool layout_is_steady(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	struct step *st = &s->step;

	st->steady.on = false;
	if (!st->steady.follows || n != st->n)
		return false;
	st->steady.n_due = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct skv_step_item *it = &items[i];
		const struct skv_seq *q = st->seqs[st->index[i]];

		/* the last step's sequence may be closed, and its memory reused for a sequence of another session */
		if (it->seq != q || q->session != s || !q->steady || it->n_tokens != 1 || it->flags || it->n_prompt_remaining ||
		    (st->padding.on && q->len >= st->padding.max_tokens))
			return false;
		if (q->len >= q->quiet_len)
			st->steady.due[st->steady.n_due++] = i;
	}
	st->steady.on = true;
	return true;
}

/* Lay out the sequences that need a page in a steady step. Their tables on the device may have moved. */
static int lay_out_due(struct skv_session *s, struct pages *ret)
{
	struct step *st = &s->step;
	int e = 0;

	for (uint32_t i = 0; i < st->steady.n_due && e == 0; i++) {
		const uint32_t at = st->index[st->steady.due[i]];
		struct skv_seq *q = st->seqs[at];

		q->quiet_len = quiet_len(q, q->len + 1);
		if (s->device) {
			st->kseq[st->at_kseq[at]].table = q->on_device.table;
			st->kseq[st->at_kseq[at]].layer_stride = q->on_device.capacity;
		}
		e = pages_count(q, ret);
	}
	return e;
}

static void lay_out_tails(struct step *st, const struct policy_batch *pb)
{
	for (uint32_t at = pb->first; at < pb->first + pb->n; at++) {
		st->seqs[at]->prompt.next.begin = st->seqs[at]->len;
		prefill_schedule(st->seqs[at], &st->kseq[st->at_kseq[at]]);
	}
}

/* Lay out a steady step by updating the last step's layout. The result is the same as that of lay_out_in_full(). */
static int lay_out_steady(struct skv_session *s, struct pages *ret)
{
	struct step *st = &s->step;
	struct layer_class *c = &st->class[0];
	uint32_t longest = 0;
	int e;

	for (uint32_t i = 0; i < st->n; i++) {
		struct skv_seq *q = st->seqs[i];
		struct skv_kseq *ks = &st->kseq[st->at_kseq[i]];

		q->in_step = true;
		q->takes = false;
		ks->slot_end = ks->prompt_start = q->len;
		ks->len = ks->n_tokens = q->len + 1;
		ks->n_state = 1;
		ks->set = (q->epoch + 1) & 1;
		longest = ks->len > longest ? ks->len : longest;
	}
	for (uint32_t i = 0; i < st->n_batches && !skv_model_window(&s->model, c->layer); i++)
		if (prefill_has_tail(st->batch[i].policy))
			lay_out_tails(st, &st->batch[i]);
	c->all.max_len = upper_bound(s, longest);
	c->all.max_state = 1;
	c->decoding = c->all;
	st->pages.aside_change = 0;
	e = lay_out_due(s, ret);
	ret->demand = st->pages.demand;
	return e;
}

int layout_step(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret)
{
	return s->step.steady.on ? lay_out_steady(s, ret) : lay_out_in_full(s, items, n, ret);
}
