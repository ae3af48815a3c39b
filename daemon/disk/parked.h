/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/disk/parked.h - the file of a parked sequence; sparsekv-parked(5) is its prose.
 *
 *   header   SKV_PARKED_ALIGN bytes
 *   keys     of a sealed prefix alone: struct skv_parked_keys, with a key for each block
 *   memory   of the sequence: struct skv_seqmem, token ids, the policy's state, entries of all tables
 *   sums     crc32c of each page, uint32_t[n_pages]
 *   pages    in chunks of whole pages
 *
 * Each part, and each chunk, begins at a multiple of SKV_PARKED_ALIGN and is padded with zeros: it is written and read with
 * O_DIRECT. Little-endian. Nothing in the file is believed before its checksum was compared, and nothing that has the right
 * checksum is used before it was checked against the rest: files come from other machines, too.
 */
#ifndef SKV_PARKED_H
#define SKV_PARKED_H

#include "common/seqmem.h"
#include "common/wire.h"

#define SKV_PARKED_MAGIC 0x314b524150564b53ull /* "SKVPARK1" */
#define SKV_PARKED_VERSION 1u
#define SKV_PARKED_ALIGN 4096u
#define SKV_PARKED_CHUNK (1u << 20) /* bytes of a chunk, about; a page that is larger is a chunk by itself */
#define SKV_PARKED_FILE 160u /* bytes of a file's name, NUL included */

struct skv_parked_header {
	uint64_t magic;
	uint32_t version, header_bytes; /* SKV_PARKED_ALIGN */
	uint64_t file_bytes;
	struct skv_wire_model model; /* its name and shape; `device` is where the pages were */
	char name[SKV_NAME_MAX];     /* of the sequence; of a sealed prefix '/' and its last block's key in hexadecimal digits */
	uint32_t uid;                /* whose it was */
	uint32_t max_tokens;
	uint64_t commit;    /* struct skv_seqmem's: epoch and length */
	uint64_t parked_ns; /* CLOCK_REALTIME */
	/* memory: these parts one after the other, without gaps; `memory_bytes` in all */
	uint32_t seqmem_bytes; /* sizeof(struct skv_seqmem) */
	uint32_t state_bytes;  /* of the policy's state, without the zeros at its end; a multiple of 4 */
	uint64_t n_ids;        /* int32_t: length + 1, the last one is the next token's */
	uint64_t n_entries;    /* skv_pte: those that count, of each table in order; the k-th PRIVATE one has the id k */
	uint64_t memory_at, memory_bytes;
	uint64_t sums_at;
	uint64_t pages_at;
	uint64_t n_pages, page_bytes;
	uint32_t chunk_pages; /* page k is in chunk k / chunk_pages, of which it is number k % chunk_pages */
	uint32_t chunk_bytes; /* from one chunk to the next: chunk_pages * page_bytes, rounded up */
	uint32_t memory_sum, sums_sum; /* crc32c of memory_bytes, and of n_pages sums */
	uint32_t n_keys; /* blocks of a sealed prefix, at header_bytes; 0: another sequence */
	uint32_t header_sum; /* crc32c of all before */
};

#define SKV_PARKED_TAG 32u /* bytes */

/* By these a daemon that starts finds a sealed prefix, without its token ids. */
struct skv_parked_keys {
	uint8_t tag[SKV_PARKED_TAG]; /* of the keys, by the tenant's key: daemon/prefix-keys.h */
	struct skv_block_key key[];  /* [n_keys] */
};

static inline uint64_t skv_parked_keys_bytes(uint32_t n_keys)
{
	return n_keys ? sizeof(struct skv_parked_keys) + n_keys * sizeof(struct skv_block_key) : 0;
}

/*
 * Where everything is, and the sums' places, of a header in which model, name, max_tokens, commit, state_bytes, n_entries,
 * n_pages, page_bytes and n_keys are filled in.
 */
void skv_parked_lay_out(struct skv_parked_header *);
void skv_parked_seal(struct skv_parked_header *); /* header_sum */
/*
 * Is it the header of a file of this size (UINT64_MAX: not known) that can be read here? NULL, or a static text: what is wrong.
 * Sizes and offsets can be used after that: the layout of model and max_tokens allows them, and no sum of them overflows.
 */
const char *skv_parked_check(const struct skv_parked_header *, uint64_t file_bytes);

/*
 * It is written and read in pieces, of which none is larger than a chunk: parts begin new ones, and a chunk is one. Bytes of
 * the piece that begins at this multiple of SKV_PARKED_ALIGN; 0 at the end of the file.
 */
uint64_t skv_parked_piece(const struct skv_parked_header *, uint64_t at);

/* The file's name follows from model, rank, ranks and name: printable, without '/', not beginning with '.'; a sealed prefix' has another end. */
#define SKV_PARKED_END ".parked"
#define SKV_PARKED_PREFIX_END ".prefix"
void skv_parked_file(const char *model, uint32_t rank, uint32_t n_ranks, const char *name, char ret[SKV_PARKED_FILE]);

/* Of `bytes` bytes after those with the sum `before` (0: there are none). */
uint32_t skv_crc32c(uint32_t before, const void *data, size_t bytes);

#endif
