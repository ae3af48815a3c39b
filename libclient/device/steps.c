/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device/steps.c - stages a step's data for the device, queues its commits, and reports steps that have run.
 */
#include "libclient/device/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/conn/pool.h"
#include "libclient/device/device.h"
#include "libclient/device/scratch.h"
#include "libclient/error.h"
#include "libclient/seq.h"

int device_room_stale(struct skv_session *s, uint64_t n)
{
	struct device *d = s->device;
	struct device_stale *more;

	if (!d || d->n_stale + n <= d->cap_stale)
		return 0;
	more = realloc(d->stale, (d->n_stale + n) * sizeof(*more));
	if (!more)
		return error_set(-ENOMEM, "out of memory");
	d->stale = more;
	d->cap_stale = d->n_stale + n;
	return 0;
}

/* Returns the i-th buffer of queued steps, counted from the oldest. The step in it may not be queued any more. */
static struct device_step *step_at(struct device *d, uint32_t i)
{
	return &d->step[(d->next + i) % DEVICE_STEPS];
}

/* Report the steps that have run, the oldest first. Waits for the steps in the oldest `n_wait` buffers. */
static int poll_steps(struct skv_session *s, uint32_t n_wait)
{
	struct device *d = s->device;

	for (uint32_t i = 0; i < DEVICE_STEPS; i++) {
		struct device_step *x = step_at(d, i);
		bool done = true;
		int e = 0;

		if (!x->busy)
			continue;
		if (i < n_wait)
			e = d->backend->event_wait(x->event);
		else
			e = d->backend->event_done(x->event, &done);
		if (e < 0)
			return device_failed(d, e, "an earlier step");
		if (!done)
			break;
		e = d->finished(s, x);
		if (e < 0)
			return e;
	}
	return 0;
}

static int settle(struct skv_session *s, uint32_t n_wait)
{
	void *was;
	int e;

	if (!s->device)
		return 0;
	e = device_enter(s, &was);
	if (e == 0) {
		e = poll_steps(s, n_wait);
		device_leave(s, was);
	}
	return e;
}

int device_settle(struct skv_session *s)
{
	return settle(s, DEVICE_STEPS);
}

int device_poll(struct skv_session *s)
{
	return settle(s, 0);
}

int device_settle_seq(struct skv_seq *q)
{
	struct device *d = q->session->device;
	uint32_t n_wait = 0;

	for (uint32_t i = 0; d && i < DEVICE_STEPS; i++) {
		const struct device_step *x = step_at(d, i);

		for (uint32_t k = 0; x->busy && k < x->n && n_wait <= i; k++)
			n_wait = x->seqs[k] == q ? i + 1 : n_wait;
	}
	return settle(q->session, n_wait);
}

bool device_queued(const struct device *d)
{
	for (uint32_t i = 0; i < DEVICE_STEPS; i++)
		if (d->step[i].busy)
			return true;
	return false;
}

static bool evicts(const struct skv_session *s)
{
	for (uint32_t i = 0; s->device && i < DEVICE_STEPS; i++)
		if (s->device->step[i].busy && s->device->step[i].n_evict > 0)
			return true;
	return false;
}

int device_settle_evictions(struct skv_session *s)
{
	return evicts(s) ? device_settle(s) : 0;
}

/* A graph must not repeat the work that begins or ends a step: -EBUSY if the stream is being captured. */
int device_not_recording(struct skv_session *s)
{
	bool recording = false;
	int e = s->device ? s->device->backend->recording(s->step.work.stream, &recording) : 0;

	if (e < 0)
		return device_failed(s->device, e, "the step");
	return recording ? error_set(-EBUSY, "the stream is being recorded: record between skv_step_begin and skv_step_end")
	                 : 0;
}

int device_turn(struct skv_session *s)
{
	int e = device_not_recording(s);

	/* the next step uses the oldest buffer: wait for it, if all buffers are in use */
	return e == 0 && s->device ? poll_steps(s, 1) : e;
}

static void lay_out(const struct skv_session *s, struct device_step *x, uint64_t entries, struct carver *c)
{
	const uint32_t n = s->step.n;

	x->kseq = carve(c, (size_t)s->step.n_kseq * s->step.n_classes * sizeof(*x->kseq));
	x->entry = carve(c, entries * sizeof(*x->entry));
	x->publish = carve(c, n * sizeof(*x->publish));
	x->sum = carve(c, n * sizeof(*x->sum));
	x->lay = carve(c, n * sizeof(*x->lay));
	x->rows = carve(c, n * sizeof(*x->rows));
	x->told = carve(c, 2 * JOINT_WORDS * sizeof(*x->told));
	x->share = carve(c, (size_t)s->model.n_layers * RECALL_SEQS * sizeof(*x->share));
}

/* Make room in the staging buffer for the step, which changes `entries` entries of page tables. */
static int step_buffer_prepare(const struct skv_session *s, struct device_step *x, uint64_t entries)
{
	const struct device *d = s->device;
	const uint32_t n = s->step.n;
	struct carver c = {0};
	int e = x->event ? 0 : d->backend->event_new(&x->event);

	lay_out(s, x, entries, &c);
	if (e == 0 && c.at > x->bytes) {
		const size_t bytes = c.at + c.at / 2;

		d->backend->free_host(x->mem);
		x->mem = NULL;
		x->bytes = 0;
		e = d->backend->alloc_host(bytes, &x->mem);
		x->bytes = e == 0 ? bytes : 0;
	}
	if (e < 0)
		return device_failed(d, e, "memory for a step");
	if (n > x->cap) {
		free(x->seqs);
		x->seqs = calloc(n, sizeof(struct skv_seq *));
		x->cap = x->seqs ? n : 0;
		if (!x->seqs)
			return error_set(-ENOMEM, "out of memory for a step of %u sequences", n);
	}
	c = (struct carver){.base = x->mem};
	lay_out(s, x, entries, &c);
	x->n_entries = 0;
	return 0;
}

/* The previous step, if the device's tables do not have its holes yet. Those of older steps are staged. */
static struct device_step *to_stage(struct device *d)
{
	struct device_step *x = &d->step[(d->next + DEVICE_STEPS - 1) % DEVICE_STEPS];

	return x->busy && x->n_evict > 0 && !x->staged ? x : NULL;
}

int device_prepare(struct skv_session *s, uint32_t entries)
{
	struct device *d = s->device;
	const struct device_step *before = to_stage(d);
	uint64_t room = (uint64_t)d->n_stale + entries + (before ? before->n_evict : 0);
	int e = device_room_stale(s, entries); /* each entry may become stale, as the copy of a shared page */

	return e < 0 ? e : step_buffer_prepare(s, &d->step[d->next], room);
}

skv_pte device_pte(const struct skv_seq *q, skv_pte e)
{
	enum skv_pte_kind kind = skv_pte_kind(e);

	if (!skv_pte_resident(e))
		return e;
	return skv_pte_make(kind, pool_kernel_page(q->session->pool, skv_pte_id(e), kind == SKV_PTE_SHARED));
}

static void put_entry(struct skv_seq *q, uint32_t table, uint32_t page, skv_pte entry)
{
	struct device *d = q->session->device;
	struct device_step *x = &d->step[d->next];

	x->entry[x->n_entries++] = (struct skv_pte_update){
		.at = q->on_device.table + (size_t)table * q->on_device.capacity + page,
		.entry = device_pte(q, entry),
	};
}

void device_entry(struct skv_seq *q, uint32_t table, uint32_t page)
{
	/* steps of this process never wrote to entries beyond the copy */
	if (q->session->device && page < q->on_device.capacity)
		put_entry(q, table, page, seq_table(q, table)[page]);
}

/* Stage the holes that the sequence's last step makes, before the host's own tables have them. */
static void put_holes(struct skv_seq *q)
{
	const struct skv_eviction *journal = skv_seqmem_journal(q->mem, &q->layout);

	for (uint32_t i = 0; i < q->n_evict; i++) {
		struct skv_eviction j = journal[i];

		/* the journal is in shared memory: check it */
		if (j.table < q->layout.n_tables && j.page < q->on_device.capacity)
			put_entry(q, j.table, j.page, skv_seqmem_evicted(&q->layout, j.table));
	}
}

void device_stale(struct skv_seq *q, uint32_t table, uint32_t page)
{
	struct device *d = q->session->device;

	if (d) /* transaction_finished() or device_prepare() has made room */
		d->stale[d->n_stale++] = (struct device_stale){.seq = q, .table = table, .page = page};
}

int device_stage(struct skv_session *s)
{
	struct device *d = s->device;
	struct device_step *x = &d->step[d->next];
	struct device_step *before = to_stage(d);
	struct step *st = &s->step;
	struct skv_stage c = {.from = x->kseq, .to = d->kseq, .n = st->n_kseq * st->n_classes, .entry = x->entry};
	int e;

	memcpy(x->kseq, st->kseq, c.n * sizeof(*x->kseq));
	for (uint32_t i = 0; i < d->n_stale; i++)
		device_entry(d->stale[i].seq, d->stale[i].table, d->stale[i].page);
	for (uint32_t i = 0; before && i < before->n; i++)
		if (before->publish[i].n_evict > 0)
			put_holes(before->seqs[i]);
	c.n_entries = x->n_entries;
	e = d->backend->stage(&c, st->work.stream);
	if (e < 0)
		return device_failed(d, e, "the step");
	d->n_stale = 0;
	if (before)
		before->staged = true;
	return 0;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

/* Copy to pinned memory the part of the commit about prompt and layers. Returns the first word, and their number. */
static const uint32_t *lay_of(const struct skv_seq *q, struct skv_lay *lay, uint32_t *ret_n)
{
	const bool prompt = q->next_about & SKV_ABOUT_PREFILL, slots = q->next_about & SKV_ABOUT_SLOTS;
	const size_t bytes = slots ? q->layout.n_layers * sizeof(*q->next_slots) : 0;

	if (prompt)
		lay->prompt = q->prompt.next;
	memcpy(lay->slots, q->next_slots, bytes);
	*ret_n = (uint32_t)((bytes + (prompt ? sizeof(lay->prompt) : 0)) / sizeof(uint32_t));
	return prompt ? (const uint32_t *)lay : (const uint32_t *)lay->slots;
}

/* The stores of the sequence's commit. `lay`: pinned memory for what the commit records of prompt and layers. */
static struct skv_publish publish_of(struct skv_seq *q, uint32_t item, struct skv_lay *lay)
{
	struct skv_seqmem *m = q->on_device.mem;
	uint32_t epoch = q->epoch + 1, len = q->len + q->n_new, n;
	const uint32_t *words = lay_of(q, lay, &n);

	return (struct skv_publish){
		.commit = (uint64_t *)&m->commit,
		.word = (uint64_t)epoch << 32 | len,
		.len = &m->len[epoch & 1],
		.next = {&m->next[epoch & 1], q->on_device.tokens + len},
		.token = q->has_first ? q->on_device.tokens + q->len : NULL,
		.id = q->first,
		.journal_n = (uint32_t *)&m->journal_n,
		.n_evict = q->evicting ? 0 : q->n_evict,
		.about = &m->about[epoch & 1],
		.about_is = q->next_about,
		.words = (uint32_t *)&m->lay[epoch & 1] + (words - (const uint32_t *)lay),
		.words_are = words,
		.n_words = n,
		.item = item,
	};
}

int device_publish_begin(struct skv_session *s, const int32_t *next)
{
	struct device *d = s->device;
	struct device_step *x = &d->step[d->next];
	struct step *st = &s->step;
	int e = 0;

	x->n = st->n;
	x->n_decode = st->n_decode;
	x->n_evict = 0;
	x->staged = false;
	for (uint32_t i = 0; i < x->n; i++) {
		x->seqs[i] = st->seqs[i];
		x->publish[i] = (struct skv_publish){.commit = NULL};
		if (st->seqs[i]->n_new == 0)
			continue;
		x->publish[i] = publish_of(st->seqs[i], st->item[i], &x->lay[i]);
		x->rows[i] = (struct device_rows){.first = st->seqs[i]->len, .n = st->seqs[i]->n_rows};
		x->publish[i].attended = st->kseq[st->at_kseq[i]].attended;
		x->publish[i].sum = &x->sum[i];
		x->n_evict += x->publish[i].n_evict;
	}
	x->n_recall = st->recall.n;
	memcpy(x->recall_layers, st->recall.layers, sizeof(x->recall_layers));
	if (x->n_recall > 0)
		e = d->backend->copy(x->share, st->recall.share, s->model.n_layers * RECALL_SEQS * sizeof(*x->share),
		                     st->work.stream);
	if (e == 0)
		e = d->backend->publish(x->publish, x->n, next, st->work.stream);
	return e < 0 ? device_failed(d, e, "the end of the step") : 0;
}

int device_publish_end(struct skv_session *s)
{
	struct device *d = s->device;
	struct device_step *x = &d->step[d->next];
	int e = d->backend->event_record(x->event, s->step.work.stream);

	if (e < 0)
		return device_failed(d, e, "the end of the step");
	x->busy = true;
	d->next = (d->next + 1) % DEVICE_STEPS;
	return 0;
}
