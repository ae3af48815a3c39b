/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device.c - sessions whose pages are on a device.
 *
 * The host plans steps, the device runs them later, in the order of the stream. So there are two times, and
 * what belongs to which is the whole art:
 *
 *   planned   skv_seq.len and epoch, the tables as the next step wants them: known at once, never read back
 *   run       the commit word, token ids, the eviction journal's length: stored by the last kernel of the step,
 *             straight into the sequence's shared memory. Death between the two loses what was only planned.
 *
 * Tables. Kernels read a copy of a sequence's tables in the device's memory, with page numbers that pool_place()
 * made. A step's changes to it and the lengths of its sequences wait in pinned memory, in a slot, and one small
 * kernel brings them over. A slot is free again when its step has run; with all of them taken the host waits.
 *
 * Pages. A page goes into the stock when the device can have nothing more to do with it: evicted ones when the
 * commit that evicted them is seen, others after waiting for the stream. So it does not matter who uses it next.
 * What a kernel sees of an eviction does not depend on when the host looks: the next step brings the holes to the
 * device, as it does in host memory. Before a sequence evicts again, the journal's last commit is waited for.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The device said no. */
int device_failed(const struct device *d, int error, const char *what)
{
	return fail(error, "%s: %s", what, d->backend->error());
}

/* ---- a session ------------------------------------------------------------------------------- */

int device_open(struct skv_session *s)
{
	const struct skv_backend *b;
	char why[SKV_TEXT_MAX];
	struct device *d;
	int e;

	b = skv_backend_cuda(why, sizeof(why));
	if (!b)
		return fail(-ENODEV, "model: device is cuda:%u, but %s", s->model.device - SKV_DEVICE_CUDA(0), why);
	d = calloc(1, sizeof(*d));
	if (!d)
		return fail(-ENOMEM, "out of memory");
	d->backend = b;
	d->number = s->model.device - SKV_DEVICE_CUDA(0);
	e = b->info(d->number, &d->info);
	if (e < 0)
		fail(e, "model: device is cuda:%u: %s", s->model.device - SKV_DEVICE_CUDA(0), b->error());
	else
		e = replay_init(d, s->model.n_layers);
	if (e < 0) {
		free(d);
		return e;
	}
	s->device = d;
	s->kernels = b->kernels;
	return 0;
}

int device_enter(struct skv_session *s, void **ret_was)
{
	int e = s->device ? s->device->backend->enter(s->device->number, ret_was) : 0;

	return e < 0 ? device_failed(s->device, e, "the device") : 0;
}

void device_leave(struct skv_session *s, void *was)
{
	if (s->device)
		s->device->backend->leave(was);
}

int device_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need)
{
	const struct skv_backend *b = s->device->backend;
	void *stream = s->step.work.stream, *more = NULL;
	int e;

	b->free(*mem); /* which waits for all that was queued */
	*mem = NULL;
	*bytes = 0;
	e = b->alloc(need, &more);
	if (e == 0)
		e = b->zero(more, need, stream);
	if (e < 0) {
		b->free(more);
		return device_failed(s->device, e, "scratch memory of the step");
	}
	*mem = more;
	*bytes = need;
	return 0;
}

int device_check(struct skv_session *s)
{
	int e = s->device->backend->check();

	return e < 0 ? device_failed(s->device, e, "attention") : 0;
}

int device_wait(struct skv_session *s)
{
	int e = s->device->backend->wait(s->step.work.stream);

	return e < 0 ? device_failed(s->device, e, "the step") : 0;
}

static void slot_free(struct device *d, struct device_slot *x)
{
	if (x->event)
		d->backend->event_free(x->event);
	if (x->mem)
		d->backend->free_host(x->mem);
	free(x->seqs);
}

void device_close(struct skv_session *s)
{
	struct device *d = s->device;
	void *was;

	if (!d)
		return;
	if (device_enter(s, &was) == 0) {
		replay_free(d, s->model.n_layers);
		for (uint32_t i = 0; i < DEVICE_SLOTS; i++)
			slot_free(d, &d->slot[i]);
		d->backend->free(d->kseq);
		d->backend->free(d->attended);
		d->backend->free(s->step.work.mem);
		d->backend->free(s->step.arena);
		d->backend->free(s->step.rebuilt.mem);
		d->backend->free(s->step.recall.mem);
		d->backend->free(s->step.tiles);
		device_leave(s, was);
	}
	s->step.work.mem = s->step.arena = s->step.rebuilt.mem = s->step.recall.mem = s->step.tiles = NULL;
	free(d->stale);
	free(d);
	s->device = NULL;
}

/* ---- a sequence ------------------------------------------------------------------------------ */

/* The entry as kernels are to see it. */
static skv_pte entry_for_kernels(const struct skv_seq *q, skv_pte e)
{
	enum skv_pte_kind kind = skv_pte_kind(e);

	if (!skv_pte_resident(e))
		return e;
	return skv_pte_make(kind, pool_place(q->session->pool, skv_pte_id(e), kind == SKV_PTE_SHARED));
}

/* What kernels see of the tables before a step: what is committed, and what pages_unpark() has looked at beyond. */
static int copy_tables(struct skv_seq *q, size_t entries)
{
	const struct skv_backend *b = q->session->device->backend;
	skv_pte *all = calloc(entries, sizeof(*all));
	int e;

	if (!all)
		return fail(-ENOMEM, "out of memory");
	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		for (uint32_t page = 0; page < seq_entries(q, table) + seq_by_layer(q) && page < q->layout.max_pages; page++)
			all[(size_t)table * q->layout.max_pages + page] =
				entry_for_kernels(q, seq_table(q, table)[page]);
	e = b->copy(q->on_device.table, all, entries * sizeof(*all), NULL);
	if (e == 0)
		e = b->wait(NULL);
	free(all);
	return e < 0 ? device_failed(q->session->device, e, "page tables") : 0;
}

/* All of them, empty behind that: some kernels look at entries that nobody has supplied. */
static int upload_tables(struct skv_seq *q)
{
	const struct skv_backend *b = q->session->device->backend;
	size_t entries = (size_t)q->layout.n_tables * q->layout.max_pages;
	int e;

	if (q->len > 0) {
		e = copy_tables(q, entries);
	} else {
		e = b->zero(q->on_device.table, entries * sizeof(skv_pte), NULL);
		if (e == 0)
			e = b->wait(NULL);
		if (e < 0)
			device_failed(q->session->device, e, "page tables");
	}
	q->on_device.old = e < 0;
	return e;
}

static int open_entered(struct skv_seq *q)
{
	struct device *d = q->session->device;
	const struct skv_backend *b = d->backend;
	const struct skv_seqmem_layout *l = &q->layout;
	void *table, *mem, *tokens;
	int e = b->alloc((size_t)l->n_tables * l->max_pages * sizeof(skv_pte), &table);

	if (e < 0)
		return device_failed(d, e, "page tables");
	q->on_device.table = table;
	e = b->register_host(q->mem, l->table, &mem);
	if (e < 0)
		return device_failed(d, e, "the sequence's memory");
	q->on_device.mem = mem;
	e = b->register_host((char *)q->mem + l->tokens, l->journal - l->tokens, &tokens);
	if (e < 0)
		return device_failed(d, e, "the sequence's token ids");
	q->on_device.tokens = tokens;
	return upload_tables(q);
}

static int entered(struct skv_seq *q, int (*work)(struct skv_seq *))
{
	void *was;
	int e;

	if (!q->session->device)
		return 0;
	e = device_enter(q->session, &was);
	if (e == 0) {
		e = work(q);
		device_leave(q->session, was);
	}
	return e;
}

int device_seq_open(struct skv_seq *q)
{
	return entered(q, open_entered);
}

int device_seq_refresh(struct skv_seq *q)
{
	int e = device_settle(q->session); /* what is queued writes to the copy */

	return e < 0 ? e : entered(q, upload_tables);
}

void device_seq_close(struct skv_seq *q)
{
	struct device *d = q->session->device;
	uint32_t kept = 0;
	void *was;

	if (!d || device_enter(q->session, &was) < 0)
		return;
	for (uint32_t i = 0; i < d->n_stale; i++)
		if (d->stale[i].seq != q)
			d->stale[kept++] = d->stale[i];
	d->n_stale = kept;
	if (q->on_device.tokens)
		d->backend->unregister_host((char *)q->mem + q->layout.tokens);
	if (q->on_device.mem)
		d->backend->unregister_host(q->mem);
	d->backend->free(q->on_device.table);
	device_leave(q->session, was);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Room to note down so many entries more that the device's tables do not show. */
static int grow_stale(struct device *d, uint64_t n)
{
	struct device_stale *more;

	if (d->n_stale + n <= d->cap_stale)
		return 0;
	more = realloc(d->stale, (d->n_stale + n) * sizeof(*more));
	if (!more)
		return fail(-ENOMEM, "out of memory");
	d->stale = more;
	d->cap_stale = d->n_stale + n;
	return 0;
}

int device_room_stale(struct skv_session *s, uint64_t n)
{
	return s->device ? grow_stale(s->device, n) : 0;
}

/* The step has run: what its commits evicted is free, what was attended is counted. */
static int harvest(struct skv_session *s, struct device_slot *x)
{
	int e = grow_stale(s->device, x->n_evict);

	if (e < 0)
		return e;
	for (uint32_t i = 0; i < x->n; i++) {
		if (i < x->n_decode)
			seq_attended(x->seqs[i], skv_commit_len(x->publish[i].word), x->sum[i]);
		if (x->publish[i].n_evict > 0) {
			seq_carry_out(x->seqs[i], !x->staged);
			x->seqs[i]->evicting = false;
		}
	}
	recall_take(s, x->seqs, x->share, x->n_recall, x->recall_layers);
	x->busy = false;
	return 0;
}

/* Oldest first: of the steps that have run, and with `wait` of all. */
static int look_at_slots(struct skv_session *s, bool wait)
{
	struct device *d = s->device;

	for (uint32_t i = 0; i < DEVICE_SLOTS; i++) {
		struct device_slot *x = &d->slot[(d->next + i) % DEVICE_SLOTS];
		bool done = true;
		int e = 0;

		if (!x->busy)
			continue;
		/* the oldest one is the slot that a step is about to use, if all are taken */
		if (wait || i == 0)
			e = d->backend->event_wait(x->event);
		else
			e = d->backend->event_done(x->event, &done);
		if (e < 0)
			return device_failed(d, e, "an earlier step");
		if (!done)
			break;
		e = harvest(s, x);
		if (e < 0)
			return e;
	}
	return 0;
}

int device_settle(struct skv_session *s)
{
	void *was;
	int e;

	if (!s->device)
		return 0;
	e = device_enter(s, &was);
	if (e == 0) {
		e = look_at_slots(s, true);
		device_leave(s, was);
	}
	return e;
}

/* What begins and ends a step belongs to this one alone: a recording must not have it. */
int device_not_recording(struct skv_session *s)
{
	bool recording = false;
	int e = s->device ? s->device->backend->recording(s->step.work.stream, &recording) : 0;

	if (e < 0)
		return device_failed(s->device, e, "the step");
	return recording ? fail(-EBUSY, "the stream is being recorded: record between skv_step_begin and skv_step_end")
	                 : 0;
}

int device_turn(struct skv_session *s)
{
	int e = device_not_recording(s);

	return e == 0 && s->device ? look_at_slots(s, false) : e;
}

static size_t carve(size_t *at, size_t bytes)
{
	size_t here = *at;

	*at = (here + bytes + 63) / 64 * 64;
	return here;
}

/* Room for the step, which changes so many entries. */
static int slot_prepare(const struct skv_session *s, struct device_slot *x, uint64_t entries)
{
	const struct device *d = s->device;
	uint32_t n = s->step.n;
	size_t at = 0, kseq = carve(&at, (size_t)n * s->step.n_classes * sizeof(*x->kseq));
	size_t entry = carve(&at, entries * sizeof(*x->entry));
	size_t publish = carve(&at, n * sizeof(*x->publish)), sum = carve(&at, n * sizeof(*x->sum));
	size_t lay = carve(&at, n * sizeof(*x->lay));
	size_t share = carve(&at, (size_t)s->model.n_layers * RECALL_SEQS * sizeof(*x->share));
	int e = x->event ? 0 : d->backend->event_new(&x->event);

	if (e == 0 && at > x->bytes) {
		d->backend->free_host(x->mem);
		x->mem = NULL;
		x->bytes = 0;
		e = d->backend->alloc_host(at + at / 2, &x->mem);
		x->bytes = e == 0 ? at + at / 2 : 0;
	}
	if (e < 0)
		return device_failed(d, e, "memory for a step");
	if (n > x->cap) {
		free(x->seqs);
		x->seqs = calloc(n, sizeof(struct skv_seq *));
		x->cap = x->seqs ? n : 0;
		if (!x->seqs)
			return fail(-ENOMEM, "out of memory for a step of %u sequences", n);
	}
	x->kseq = (void *)((char *)x->mem + kseq);
	x->entry = (void *)((char *)x->mem + entry);
	x->publish = (void *)((char *)x->mem + publish);
	x->sum = (void *)((char *)x->mem + sum);
	x->lay = (void *)((char *)x->mem + lay);
	x->share = (void *)((char *)x->mem + share);
	x->n_entries = 0;
	return 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

int device_grow_batch(struct skv_session *s, uint32_t n, uint32_t n_classes)
{
	struct device *d = s->device;
	size_t bytes = 0;
	void *kseq = d->kseq, *attended = d->attended;
	uint32_t cap_kseq = n * n_classes + n * n_classes / 2, cap = n + n / 2;
	int e = 0;

	if (n * n_classes > d->cap_kseq) {
		d->cap_kseq = 0;
		e = device_grow(s, &kseq, &bytes, cap_kseq * sizeof(*d->kseq));
		d->kseq = kseq;
		d->cap_kseq = e == 0 ? cap_kseq : 0;
	}
	if (n > d->cap && e == 0) {
		d->cap = 0;
		e = device_grow(s, &attended, &bytes, cap * sizeof(*d->attended));
		d->attended = attended;
		d->cap = e == 0 ? cap : 0;
	}
	return e;
}

bool device_evicts(const struct skv_session *s)
{
	for (uint32_t i = 0; s->device && i < DEVICE_SLOTS; i++)
		if (s->device->slot[i].busy && s->device->slot[i].n_evict > 0)
			return true;
	return false;
}

/* The step before this one, if the device's tables still show what it evicted. Of earlier ones they show nothing. */
static struct device_slot *to_stage(struct device *d)
{
	struct device_slot *x = &d->slot[(d->next + DEVICE_SLOTS - 1) % DEVICE_SLOTS];

	return x->busy && x->n_evict > 0 && !x->staged ? x : NULL;
}

int device_prepare(struct skv_session *s, uint32_t entries)
{
	struct device *d = s->device;
	const struct device_slot *before = to_stage(d);
	uint64_t room = (uint64_t)d->n_stale + entries + (before ? before->n_evict : 0);
	int e = grow_stale(d, entries); /* all of them may be copies of shared pages */

	return e < 0 ? e : slot_prepare(s, &d->slot[d->next], room);
}

static void put_entry(struct skv_seq *q, uint32_t table, uint32_t page, skv_pte entry)
{
	struct device *d = q->session->device;
	struct device_slot *x = &d->slot[d->next];

	x->entry[x->n_entries++] = (struct skv_entry){
		.at = q->on_device.table + (size_t)table * q->layout.max_pages + page,
		.entry = entry_for_kernels(q, entry),
	};
}

void device_entry(struct skv_seq *q, uint32_t table, uint32_t page)
{
	if (q->session->device)
		put_entry(q, table, page, seq_table(q, table)[page]);
}

/* What the sequence's last step evicted, ahead of the host's own tables. */
static void put_holes(struct skv_seq *q)
{
	const struct skv_eviction *journal = skv_seqmem_journal(q->mem, &q->layout);

	for (uint32_t i = 0; i < q->n_evict; i++) {
		struct skv_eviction j = journal[i];

		if (j.table < q->layout.n_tables && j.page < q->layout.max_pages) /* it was in shared memory */
			put_entry(q, j.table, j.page, skv_seqmem_evicted(&q->layout, j.table));
	}
}

void device_stale(struct skv_seq *q, uint32_t table, uint32_t page)
{
	struct device *d = q->session->device;

	if (d) /* harvest() or device_prepare() made room */
		d->stale[d->n_stale++] = (struct device_stale){.seq = q, .table = table, .page = page};
}

int device_stage(struct skv_session *s)
{
	struct device *d = s->device;
	struct device_slot *x = &d->slot[d->next];
	struct device_slot *before = to_stage(d);
	struct step *st = &s->step;
	struct skv_stage c = {.from = x->kseq, .to = d->kseq, .n = st->n * st->n_classes, .entry = x->entry};
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

/* What of it counts, from the first byte on that does: pinned memory, and as many words. */
static const uint32_t *lay_of(const struct skv_seq *q, struct skv_lay *lay, uint32_t *ret_n)
{
	const bool prompt = q->next_about & SKV_ABOUT_READING, slots = q->next_about & SKV_ABOUT_SLOTS;
	const size_t bytes = slots ? q->layout.n_layers * sizeof(*q->next_slots) : 0;

	lay->prompt = q->next_prompt;
	memcpy(lay->slots, q->next_slots, bytes);
	*ret_n = (uint32_t)((bytes + (prompt ? sizeof(lay->prompt) : 0)) / sizeof(uint32_t));
	return prompt ? (const uint32_t *)lay : (const uint32_t *)lay->slots;
}

/* `lay`: pinned memory for what the commit says of its prompt and layers. */
static struct skv_publish publish_of(struct skv_seq *q, uint32_t item, struct skv_lay *lay)
{
	struct skv_seqmem *m = q->on_device.mem;
	uint32_t epoch = q->epoch + 1, len = q->len + q->n_new, n;
	const uint32_t *words = lay_of(q, lay, &n);

	return (struct skv_publish){
		.commit = (uint64_t *)&m->commit,
		.word = (uint64_t)epoch << 32 | len,
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

int device_publish(struct skv_session *s, const int32_t *next)
{
	struct device *d = s->device;
	struct device_slot *x = &d->slot[d->next];
	struct step *st = &s->step;
	int e = 0;

	x->n = st->n;
	x->n_decode = st->n_decode;
	x->n_evict = 0;
	x->staged = false;
	for (uint32_t i = 0; i < x->n; i++) {
		x->seqs[i] = st->seqs[i];
		x->publish[i] = publish_of(st->seqs[i], st->item[i], &x->lay[i]);
		x->publish[i].attended = st->kseq[i].attended;
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
	if (e == 0)
		e = d->backend->event_record(x->event, st->work.stream);
	if (e < 0)
		return device_failed(d, e, "the end of the step");
	for (uint32_t i = 0; i < x->n; i++) {
		struct skv_seq *q = x->seqs[i];

		q->evicting |= q->n_evict > 0;
		step_committed(q);
	}
	x->busy = true;
	d->next = (d->next + 1) % DEVICE_SLOTS;
	return 0;
}
