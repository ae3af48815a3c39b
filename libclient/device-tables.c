/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/device-tables.c - a device's copies of page tables, and of what else it reads and writes of a sequence.
 *
 * Kernels read a copy of a sequence's tables in the device's memory, with page numbers that pool_kernel_page() made. A
 * step's changes to it come with the step (device-step.c); here they are copied as a whole.
 */
#include "libclient/device-tables.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/device.h"
#include "libclient/device-step.h"
#include "libclient/error.h"
#include "libclient/seq.h"

/* What kernels see of the tables before a step: what is committed, and what pages_unpark() has restored beyond. */
static int copy_tables(struct skv_seq *q, size_t entries)
{
	const struct skv_backend *b = q->session->device->backend;
	skv_pte *all = calloc(entries, sizeof(*all));
	int e;

	if (!all)
		return error_set(-ENOMEM, "out of memory");
	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		for (uint32_t page = 0; page < seq_entries(q, table) + seq_by_layer(q) &&
		     page < q->layout.max_pages; page++)
			all[(size_t)table * q->layout.max_pages + page] =
				device_pte(q, seq_table(q, table)[page]);
	e = b->copy(q->on_device.table, all, entries * sizeof(*all), NULL);
	if (e == 0)
		e = b->wait(NULL);
	free(all);
	return e < 0 ? device_failed(q->session->device, e, "page tables") : 0;
}

/* All of them, empty behind that: some kernels read entries that were not supplied. */
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
