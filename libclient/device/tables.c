/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device/tables.c - copies the page tables of sequences to the device, and maps the other memory of a
 * sequence that the device accesses.
 *
 * Kernels read a copy of a sequence's page tables in the device's memory; its entries have page numbers from
 * pool_kernel_page(). A step's changes reach the copy with the step (steps.c); this file copies whole tables.
 *
 * A copy has room for the sequence's present length, and grows with it. In host memory, tables for the longest possible
 * sequence cost nothing, because their unused part is a hole in a file; on a device they would take 6 MB for 128k
 * tokens and 32 layers. The memory of the copies comes from the session's slab (slab.c).
 *
 * The copy is made when a step is about to begin, and is written in the order of the step's stream. So a new sequence
 * does not wait for the device: zeroing its tables is queued on the stream. Their block was free, so no queued step
 * uses it.
 */
#include "libclient/device/tables.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/device/device.h"
#include "libclient/device/slab.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/seq.h"

#define SPARE_ENTRIES 64u

/* Entries that each table needs for steps up to this length; a captured graph may access a quarter more. */
static uint32_t entries_needed(const struct skv_seq *q, uint32_t len)
{
	uint32_t pages = skv_pages_of(len), kept = q->layout.kept, n;

	n = pages + pages / 4 + SPARE_ENTRIES;
	n = n > kept ? n : kept;
	return n < q->layout.max_pages ? n : q->layout.max_pages;
}

/*
 * Copy the tables as kernels see them before a step: committed entries, and the one that pages_unpark() has restored.
 */
static int copy_tables(struct skv_seq *q, size_t entries)
{
	const struct skv_backend *b = q->session->device->backend;
	void *stream = q->session->step.work.stream;
	skv_pte *all = calloc(entries, sizeof(*all));
	int e;

	if (!all)
		return error_set(-ENOMEM, "out of memory");
	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		for (uint32_t page = 0; page < seq_entries(q, table) + seq_by_layer(q) &&
		     page < q->on_device.capacity; page++)
			all[(size_t)table * q->on_device.capacity + page] =
				device_pte(q, seq_table(q, table)[page]);
	e = b->copy(q->on_device.table, all, entries * sizeof(*all), stream);
	if (e == 0)
		e = b->wait(stream);
	free(all);
	return e;
}

/* Upload all tables. Entries beyond the sequence's end are empty: some kernels read entries without a page. */
static int upload_tables(struct skv_seq *q)
{
	struct skv_session *s = q->session;
	size_t entries = (size_t)q->layout.n_tables * q->on_device.capacity;
	int e;

	if (q->len > 0)
		e = copy_tables(q, entries);
	else
		e = s->device->backend->zero(q->on_device.table, entries * sizeof(skv_pte), s->step.work.stream);
	q->on_device.old = e < 0;
	return e < 0 ? device_failed(s->device, e, "page tables") : 0;
}

/* Make room for the entries that the step needs, up to twice as many: a sequence that doubles is copied once. */
static int grow_entered(struct skv_seq *q)
{
	const size_t one = q->layout.n_tables * sizeof(skv_pte);
	size_t bytes = q->on_device.wanted * one;
	void *table;
	int e = slab_take(q->session->device, &bytes, &table);

	if (e < 0)
		return e;
	slab_give(q->session->device, q->on_device.table, q->on_device.bytes);
	q->on_device.table = table;
	q->on_device.bytes = bytes;
	q->on_device.capacity = bytes / one < q->layout.max_pages ? (uint32_t)(bytes / one) : q->layout.max_pages;
	return upload_tables(q);
}

static int open_entered(struct skv_seq *q)
{
	struct device *d = q->session->device;
	const struct skv_backend *b = d->backend;
	const struct skv_seqmem_layout *l = &q->layout;
	void *mem, *tokens;
	int e = b->register_host(q->mem, l->table, &mem);
	if (e < 0)
		return device_failed(d, e, "the sequence's memory");
	q->on_device.mem = mem;
	e = b->register_host((char *)q->mem + l->tokens, l->journal - l->tokens, &tokens);
	if (e < 0)
		return device_failed(d, e, "the sequence's token ids");
	q->on_device.tokens = tokens;
	return 0;
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
	int e = device_settle(q->session); /* queued work may still write to the copy */

	return e < 0 ? e : entered(q, upload_tables);
}

/* Before a step: bring the sequence's copy up to date, with room for the step's entries. */
static int device_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	int e;

	(void)prompt;
	if (!q->session->device)
		return 0;
	q->on_device.wanted = entries_needed(q, q->len + n_tokens + q->on_device.expected);
	if (q->on_device.wanted <= q->on_device.capacity)
		return q->on_device.old ? device_seq_refresh(q) : 0;
	/* queued work may still read and write the present copy */
	e = q->on_device.table ? device_settle(q->session) : 0;
	return e < 0 ? e : entered(q, grow_entered);
}

void device_expect(struct skv_seq *q, uint32_t n_tokens)
{
	q->on_device.expected = n_tokens;
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
	if (q->on_device.mem) {
		device_keep_closed(d, (struct device_closed){
			.mem = q->mem,
			.bytes = q->layout.total,
			.tokens = q->on_device.tokens ? (char *)q->mem + q->layout.tokens : NULL,
		});
		q->mem = NULL;
	}
	if (!device_queued(d))
		device_free_closed(d);
	slab_give(d, q->on_device.table, q->on_device.bytes);
	device_leave(q->session, was);
}

const struct feature device_feature = {.close = device_close, .ready = device_ready};
