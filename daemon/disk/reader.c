/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int skv_disk_reader_check(struct skv_disk_work *work, const struct skv_parked_header *h, uint64_t file_bytes)
{
	const char *wrong = skv_parked_check(h, UINT64_MAX);

	if (wrong)
		return skv_disk_refuse(work, -EBADMSG, "%s", wrong);
	if (file_bytes != UINT64_MAX && file_bytes != h->file_bytes)
		return skv_disk_refuse(work, -EBADMSG, "the file has %llu bytes, its header says %llu", (unsigned long long)file_bytes,
		                       (unsigned long long)h->file_bytes);
	return 0;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int take_memory(struct skv_disk_reader *r, uint64_t at, size_t bytes, const char *piece)
{
	const struct skv_parked_header *h = &r->header;
	uint64_t left = h->memory_at + h->memory_bytes - at;
	size_t n = left < bytes ? (size_t)left : bytes;
	int e = skv_disk_memory_take(&r->memory, piece, n);

	return e < 0 || !r->memory_piece ? e : r->memory_piece(r, at, n);
}

static int take_sums(struct skv_disk_reader *r, uint64_t at, size_t bytes, const char *piece)
{
	const struct skv_parked_header *h = &r->header;
	uint64_t done = at - h->sums_at, left = h->n_pages * sizeof(*r->sums) - done;

	memcpy((char *)r->sums + done, piece, left < bytes ? (size_t)left : bytes);
	return 0;
}

int skv_disk_reader_compare(const struct skv_disk_reader *r, struct skv_disk_work *work, uint64_t first, uint32_t n, const void *pages)
{
	const struct skv_parked_header *h = &r->header;

	for (uint32_t i = 0; i < n; i++)
		if (skv_crc32c(0, (const char *)pages + i * h->page_bytes, h->page_bytes) != r->sums[first + i])
			return skv_disk_refuse(work, -EBADMSG,
			                       "page %llu of %llu has another checksum than when the sequence was "
			                       "parked",
			                       (unsigned long long)(first + i), (unsigned long long)h->n_pages);
	return 0;
}

static int take_chunk(struct skv_disk_reader *r, uint64_t at, size_t bytes, const char *piece)
{
	const struct skv_parked_header *h = &r->header;
	uint64_t first = (at - h->pages_at) / h->chunk_bytes * h->chunk_pages, left = h->n_pages - first;

	(void)bytes;
	return r->chunk(r, first, left < h->chunk_pages ? (uint32_t)left : h->chunk_pages, piece);
}

static int each_piece(struct skv_disk_reader *r, uint64_t at, uint64_t end,
                      int (*take)(struct skv_disk_reader *, uint64_t at, size_t bytes, const char *piece))
{
	int e = 0;

	for (size_t bytes; e == 0 && at < end; at += bytes) {
		void *piece;

		bytes = skv_parked_piece(&r->header, at);
		e = r->next(r, bytes, &piece);
		if (e == 0)
			e = take(r, at, bytes, piece);
	}
	return e;
}

static int read_sums(struct skv_disk_reader *r)
{
	const struct skv_parked_header *h = &r->header;
	uint32_t sum;
	int e;

	r->sums = malloc((h->n_pages + 1) * sizeof(*r->sums));
	if (!r->sums)
		return skv_disk_refuse(r->work, -ENOMEM, "the disk worker has no memory for checksums of %llu pages",
		                       (unsigned long long)h->n_pages);
	e = each_piece(r, h->sums_at, h->pages_at, take_sums);
	if (e < 0)
		return e;
	sum = skv_crc32c(0, r->sums, h->n_pages * sizeof(*r->sums));
	if (sum == h->sums_sum)
		return 0;
	return skv_disk_refuse(r->work, -EBADMSG, "the checksums of the pages have another checksum than when the "
	                                          "sequence was parked: %#x, expected %#x",
	                       sum, h->sums_sum);
}

int skv_disk_reader_run(struct skv_disk_reader *r)
{
	const struct skv_parked_header *h = &r->header;
	int e = each_piece(r, h->memory_at, h->sums_at, take_memory);

	if (e == 0)
		e = skv_disk_memory_check(&r->memory);
	if (e == 0)
		e = read_sums(r);
	return e < 0 ? e : each_piece(r, h->pages_at, h->file_bytes, take_chunk);
}
