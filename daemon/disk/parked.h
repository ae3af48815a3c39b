/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/parked.h - format of a parked sequence's file; sparsekv-parked(5) describes it in full.
 *
 *   header   SKV_PARKED_ALIGN bytes
 *   keys     only of a sealed prefix: struct skv_parked_keys, with a key for each block
 *   memory   of the sequence: struct skv_seqmem, token ids, the policy's state, entries of all tables
 *   sums     crc32c of each page, uint32_t[n_pages]
 *   pages    K and V, in chunks of whole pages
 *
 * Each part, and each chunk, begins at a multiple of SKV_PARKED_ALIGN and is padded with zeros, because O_DIRECT is
 * used. Integers are little-endian. Files may come from other machines: readers verify checksums before they use any
 * data, and check that the values are possible even if the checksum is right.
 */
#ifndef SKV_PARKED_H
#define SKV_PARKED_H

#include "common/seqmem.h"
#include "common/wire.h"

#define SKV_PARKED_MAGIC 0x314b524150564b53ull /* "SKVPARK1" */
#define SKV_PARKED_VERSION 1u
#define SKV_PARKED_ALIGN 4096u
#define SKV_PARKED_CHUNK (1u << 20) /* maximum bytes of pages in a chunk; a larger page is a chunk by itself */
#define SKV_PARKED_FILE 160u /* bytes of a file's name, including NUL */

struct skv_parked_header {
	uint64_t magic;
	uint32_t version, header_bytes; /* header_bytes is SKV_PARKED_ALIGN */
	uint64_t file_bytes;
	struct skv_wire_model model; /* name and shape; `device`: the device that had the pages */
	/* name of the sequence; of a sealed prefix: '/' and the key of its last block in hexadecimal */
	char name[SKV_NAME_MAX];
	uint32_t uid;                /* owner at the time of parking */
	uint32_t max_tokens;
	uint64_t commit;    /* commit word: epoch and length, as in struct skv_seqmem */
	uint64_t parked_ns; /* time of parking, CLOCK_REALTIME */
	/* sizes of the sections of the memory part, which follow each other without gaps, `memory_bytes` in total */
	uint32_t seqmem_bytes; /* sizeof(struct skv_seqmem) */
	uint32_t state_bytes;  /* policy state without trailing zeros; a multiple of 4 */
	uint64_t n_ids;        /* number of token ids (int32_t): length + 1; the last is the next input token */
	/*
	 * number of page table entries (skv_pte) below the length, table by table; the k-th PRIVATE entry has page id k
	 */
	uint64_t n_entries;
	uint64_t memory_at, memory_bytes;
	uint64_t sums_at;
	uint64_t pages_at;
	uint64_t n_pages, page_bytes;
	uint32_t chunk_pages; /* page k of the file is page k % chunk_pages of chunk k / chunk_pages */
	uint32_t chunk_bytes; /* distance of chunks: chunk_pages * page_bytes, rounded up to SKV_PARKED_ALIGN */
	uint32_t memory_sum, sums_sum; /* crc32c of the memory part, and of the checksums of pages */
	uint32_t n_keys; /* number of block keys of a sealed prefix, at byte header_bytes; 0: not a sealed prefix */
	uint32_t header_sum; /* crc32c of all header fields before this one */
};

#define SKV_PARKED_TAG 32u /* bytes of the tag of a sealed prefix's keys */

/* Keys of a sealed prefix's blocks. A daemon that starts finds the prefix by them, without reading its token ids. */
struct skv_parked_keys {
	uint8_t tag[SKV_PARKED_TAG]; /* HMAC of the block keys with the tenant's key, see daemon/prefix/prefix-keys.h */
	struct skv_block_key key[];  /* [n_keys] */
};

static inline uint64_t skv_parked_keys_bytes(uint32_t n_keys)
{
	return n_keys ? sizeof(struct skv_parked_keys) + n_keys * sizeof(struct skv_block_key) : 0;
}

/*
 * Computes the header's other counts, offsets and sizes from commit, state_bytes, n_entries, n_pages, page_bytes and
 * n_keys, which the caller has filled in.
 */
void skv_parked_lay_out(struct skv_parked_header *);
void skv_parked_seal(struct skv_parked_header *); /* computes and sets header_sum */
/*
 * Checks the header of a file of file_bytes (UINT64_MAX: unknown). Returns NULL if this daemon can read the file, or a
 * static error text. The sizes and offsets of a header that passed the check can be used without further checks: the
 * layout of model and max_tokens allows them, and no sum of them overflows.
 */
const char *skv_parked_check(const struct skv_parked_header *, uint64_t file_bytes);

/*
 * Files are written and read in pieces of at most one chunk: each part begins a new piece, and each chunk is a piece.
 * Returns the number of bytes of the piece that begins at byte `at`, a multiple of SKV_PARKED_ALIGN; 0 at the end.
 */
uint64_t skv_parked_piece(const struct skv_parked_header *, uint64_t at);

/*
 * The name of a parked file is derived from model, rank, n_ranks and name of its sequence: printable, without '/', not
 * beginning with '.'. Files of sealed prefixes end in SKV_PARKED_PREFIX_END, files of sequences in SKV_PARKED_END.
 */
#define SKV_PARKED_END ".parked"
#define SKV_PARKED_PREFIX_END ".prefix"
void skv_parked_file(const char *model, uint32_t rank, uint32_t n_ranks, const char *name, char ret[SKV_PARKED_FILE]);

/* Returns the crc32c of all bytes up to the end of `data`; `before` is the crc32c of those before it, 0: none. */
uint32_t skv_crc32c(uint32_t before, const void *data, size_t bytes);

#endif
