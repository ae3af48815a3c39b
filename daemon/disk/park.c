/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/park.c - writes a sequence from memory to a file.
 *
 * The client may write to the sequence meanwhile. So checksums are computed from the copy in the staging buffer, from
 * which the file is written. And the commit word is compared before and after copying: if it has not changed, all
 * copied data belongs to that commit.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "daemon/disk/memory.h"
#include "daemon/disk/pages.h"
#include "daemon/disk/writer.h"

/* Copies the block keys of a sealed prefix from the daemon's list to the file. */
static int put_keys(struct skv_disk_writer *w)
{
	const struct skv_parked_header *h = &w->header;
	const struct skv_disk_job *job = w->work->job;
	uint64_t left = skv_parked_keys_bytes(h->n_keys), from = job->keys_at;
	int r = 0;

	for (uint64_t at = h->header_bytes, piece; r == 0 && left > 0; at += piece) {
		size_t n;
		void *buffer;

		piece = skv_parked_piece(h, at);
		n = left < piece ? (size_t)left : (size_t)piece;
		r = skv_transfer_buffer(w->transfer, &buffer);
		if (r == 0 && pread(w->work->fds[SKV_DISK_FD_LIST], buffer, n, (off_t)from) != (ssize_t)n)
			r = skv_disk_refuse(w->work, -EINVAL, "the daemon's list has no keys of %u blocks", h->n_keys);
		if (r == 0)
			r = skv_disk_writer_put(w, at, n);
		from += n;
		left -= n;
	}
	return r;
}

static int put_memory(struct skv_disk_writer *w, struct skv_disk_memory *m)
{
	const struct skv_parked_header *h = &w->header;
	int r = 0;

	for (uint64_t at = h->memory_at, piece; r == 0 && at < h->sums_at; at += piece) {
		uint64_t left = h->memory_at + h->memory_bytes - at;
		void *buffer;

		piece = skv_parked_piece(h, at);
		if (left > piece)
			left = piece;
		r = skv_transfer_buffer(w->transfer, &buffer);
		if (r == 0)
			r = skv_disk_memory_give(m, buffer, left);
		if (r == 0)
			r = skv_disk_writer_put(w, at, left);
	}
	if (r == 0 && m->n_pages != h->n_pages)
		return skv_disk_refuse(w->work, -EINVAL, "the daemon's list has %llu pages, its job says %llu", (unsigned long long)m->n_pages,
		                       (unsigned long long)h->n_pages);
	return r;
}

/* Writes the pages of one chunk. */
static int put_some(struct skv_disk_writer *w, struct skv_disk_pages *pages, const uint32_t *ids, uint64_t first, uint32_t n)
{
	const struct skv_parked_header *h = &w->header;
	char *buffer;
	int r = skv_transfer_buffer(w->transfer, (void **)&buffer);

	if (r == 0)
		r = skv_disk_pages_read(pages, ids, n, buffer);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++)
		w->sums[first + i] = skv_crc32c(0, buffer + i * h->page_bytes, h->page_bytes);
	return skv_disk_writer_put(w, h->pages_at + first / h->chunk_pages * h->chunk_bytes, n * h->page_bytes);
}

static int put_pages(struct skv_disk_writer *w, struct skv_disk_pages *pages)
{
	const struct skv_parked_header *h = &w->header;
	uint32_t *ids = malloc(h->chunk_pages * sizeof(*ids));
	struct skv_disk_list list;
	int r = ids ? 0 : -ENOMEM;

	skv_disk_list_begin(&list, w->work, 0, h->n_entries);
	for (uint64_t first = 0; r == 0 && first < h->n_pages; first += h->chunk_pages) {
		uint32_t n = h->n_pages - first < h->chunk_pages ? (uint32_t)(h->n_pages - first) : h->chunk_pages;

		r = skv_disk_list_pages(&list, n, ids);
		if (r == 0)
			r = put_some(w, pages, ids, first, n);
	}
	free(ids);
	return r;
}

static int put_all(struct skv_disk_writer *w, struct skv_disk_memory *m)
{
	struct skv_disk_pages pages;
	size_t bytes;
	void *staging = skv_transfer_staging(w->transfer, &bytes);
	int r = put_keys(w);

	if (r == 0)
		r = put_memory(w, m);
	if (r == 0)
		r = skv_disk_pages_open(&pages, w->work, staging, bytes);
	if (r < 0)
		return r;
	r = put_pages(w, &pages);
	skv_disk_pages_close(&pages);
	return r < 0 ? r : skv_disk_memory_unchanged(m);
}

int skv_disk_park(struct skv_disk_work *work)
{
	struct skv_parked_header header;
	struct skv_disk_memory m;
	struct skv_disk_writer w;
	int r = skv_disk_memory_describe(&m, work, &header);

	if (r < 0)
		return r;
	r = skv_disk_writer_begin(&w, work, &header);
	if (r == 0)
		r = put_all(&w, &m);
	if (r == 0) {
		w.header.memory_sum = m.sum;
		w.header.sums_sum = skv_crc32c(0, w.sums, w.header.n_pages * sizeof(*w.sums));
		r = skv_disk_writer_end(&w, work->job->file, true);
	}
	skv_disk_writer_free(&w);
	return r;
}
