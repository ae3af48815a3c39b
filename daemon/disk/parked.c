/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/disk/parked.c - creates and checks the header of a parked sequence's file, see parked.h. */
#include "daemon/disk/parked.h"

#include <stdio.h>
#include <string.h>

/* The header is written and compared as raw memory, so it must not contain padding. */
_Static_assert(sizeof(struct skv_parked_header) == 312, "the header has no gaps");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian");

static uint64_t align_up(uint64_t x)
{
	return (x + SKV_PARKED_ALIGN - 1) / SKV_PARKED_ALIGN * SKV_PARKED_ALIGN;
}

void skv_parked_lay_out(struct skv_parked_header *h)
{
	uint64_t last; /* number of pages in the last chunk if that is not full, otherwise 0 */

	h->magic = SKV_PARKED_MAGIC;
	h->version = SKV_PARKED_VERSION;
	h->header_bytes = SKV_PARKED_ALIGN;
	h->seqmem_bytes = sizeof(struct skv_seqmem);
	h->n_ids = skv_commit_len(h->commit) + UINT64_C(1);
	h->memory_at = align_up(SKV_PARKED_ALIGN + skv_parked_keys_bytes(h->n_keys));
	h->memory_bytes = h->seqmem_bytes + h->n_ids * sizeof(int32_t) + h->state_bytes + h->n_entries * sizeof(skv_pte);
	h->sums_at = align_up(h->memory_at + h->memory_bytes);
	h->pages_at = align_up(h->sums_at + h->n_pages * sizeof(uint32_t));
	h->chunk_pages = h->page_bytes < SKV_PARKED_CHUNK ? (uint32_t)(SKV_PARKED_CHUNK / h->page_bytes) : 1;
	h->chunk_bytes = (uint32_t)align_up(h->chunk_pages * h->page_bytes);
	last = h->n_pages % h->chunk_pages;
	h->file_bytes = h->pages_at + h->n_pages / h->chunk_pages * h->chunk_bytes + align_up(last * h->page_bytes);
}

uint64_t skv_parked_piece(const struct skv_parked_header *h, uint64_t at)
{
	uint64_t end = at < h->memory_at ? h->memory_at : at < h->sums_at ? h->sums_at : at < h->pages_at ? h->pages_at : h->file_bytes;

	return end - at < h->chunk_bytes ? end - at : h->chunk_bytes;
}

static uint32_t sum_of(const struct skv_parked_header *h)
{
	return skv_crc32c(0, h, offsetof(struct skv_parked_header, header_sum));
}

void skv_parked_seal(struct skv_parked_header *h)
{
	h->header_sum = sum_of(h);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Checks the model, and that names of model and sequence are valid and padded with zeros, as by skv_wire_string(). */
static const char *check_names(const struct skv_parked_header *h)
{
	char name[SKV_NAME_MAX];
	struct skv_model m;

	skv_wire_to_model(&m, &h->model);
	if (memcmp(m.name, h->model.name, sizeof(m.name)) != 0)
		return "the file's model has no valid name";
	skv_wire_string(name, sizeof(name), h->name);
	if (memcmp(name, h->name, sizeof(name)) != 0 || !(h->n_keys ? skv_prefix_name_valid : skv_name_valid)(name))
		return "the file's sequence has no valid name";
	return skv_model_check(&m);
}

/* Checks all counts and sizes. */
static const char *check_counts(const struct skv_parked_header *h)
{
	struct skv_seqmem_layout layout;
	struct skv_model m;
	uint64_t n_entries = 0;
	uint32_t len = skv_commit_len(h->commit);

	skv_wire_to_model(&m, &h->model);
	if (h->max_tokens < 1 || h->max_tokens > SKV_MAX_TOKENS)
		return "the file's sequence may have more tokens than a daemon allows, or none";
	if ((uint64_t)m.n_layers * skv_pages_of(h->max_tokens) > SKV_SEQ_MAX_ENTRIES)
		return "the file's sequence may have more pages than a daemon allows";
	if (len > h->max_tokens)
		return "the file's committed length is beyond the sequence's maximum";
	if (h->n_keys && (len % SKV_BLOCK_TOKENS || h->n_keys != len / SKV_BLOCK_TOKENS))
		return "the file has another number of block keys than its prefix has blocks";
	if (h->seqmem_bytes != sizeof(struct skv_seqmem))
		return "the file's sequence memory has a header of another size: another version of the daemon wrote it";
	if (h->state_bytes > SKV_SEQ_STATE_MAX || h->state_bytes % sizeof(uint32_t))
		return "the policy state in the file has a size that is not possible";
	if (h->page_bytes != skv_page_bytes(&m))
		return "the file's pages have another size than its model's";
	skv_seqmem_layout(&m, h->max_tokens, &layout);
	for (uint32_t table = 0; table < layout.n_tables; table++)
		n_entries += skv_seqmem_entries(&layout, table, len);
	if (h->n_entries != n_entries)
		return "the file has another number of page table entries than a sequence of its length";
	if (h->n_pages > h->n_entries)
		return "the file has more pages than page table entries";
	return NULL;
}

const char *skv_parked_check(const struct skv_parked_header *h, uint64_t file_bytes)
{
	struct skv_parked_header laid_out = *h;
	const char *wrong;

	if (h->magic != SKV_PARKED_MAGIC)
		return "this is not the file of a parked sequence";
	if (h->version != SKV_PARKED_VERSION)
		return "the file is of another version of the format, expected 1";
	if (h->header_sum != sum_of(h))
		return "the header of the file has another checksum than when it was written";
	wrong = check_names(h);
	if (!wrong)
		wrong = check_counts(h);
	if (wrong)
		return wrong;
	skv_parked_lay_out(&laid_out);
	if (memcmp(&laid_out, h, sizeof(laid_out)) != 0)
		return "the parts of the file are not at the offsets that the format requires";
	if (file_bytes != UINT64_MAX && file_bytes != h->file_bytes)
		return "the file has another size than its header says";
	return NULL;
}

/* ---- file name ------------------------------------------------------------------------------- */

/* Returns the FNV-1a hash of all bytes up to the end of `data`; `before` is the hash of those before it. */
static uint64_t hash(uint64_t before, const void *data, size_t n)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < n; i++)
		before = (before ^ p[i]) * UINT64_C(0x100000001b3);
	return before;
}

void skv_parked_file(const char *model, uint32_t rank, uint32_t n_ranks, const char *name, char ret[SKV_PARKED_FILE])
{
	const uint32_t ranks[2] = {rank, n_ranks};
	uint64_t h = hash(UINT64_C(0xcbf29ce484222325), model, strlen(model) + 1);

	snprintf(ret, SKV_PARKED_FILE, "%016llx-%s%s", (unsigned long long)hash(h, ranks, sizeof(ranks)), name + (*name == '/'),
	         *name == '/' ? SKV_PARKED_PREFIX_END : SKV_PARKED_END);
}
