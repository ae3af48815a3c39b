/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/bpe.h - byte-level byte-pair encoding (Sennrich et al. 2016; over bytes: Radford et al. 2019).
 *
 * A piece of text begins as one token a byte. Of all neighbours that a merge names, those of the lowest rank become one
 * token, the leftmost first, until no merge applies. A heap of candidates makes that O(n log n) in the piece's bytes.
 */
#ifndef SKV_TOKENIZER_BPE_H
#define SKV_TOKENIZER_BPE_H

#include <stdbool.h>
#include "formats/tokenizer/ids.h"

#define SKV_TOKENIZER_IDS_MAX (1u << 22) /* ids are below; more is no vocabulary */

/* A token: its bytes, as the decoder gives them. */
struct skv_token {
	char *bytes; /* NULL: there is no such id */
	uint32_t len;
	bool spelled; /* text can become it: it is of the model's vocabulary, and its name stands for bytes */
	bool special;
};

struct skv_merge {
	uint64_t pair; /* left << 32 | right */
	uint32_t rank;
	int32_t id; /* what they become; -1: the entry is free */
};

struct skv_bpe {
	struct skv_token *tokens; /* [n_ids] */
	uint32_t n_ids;
	struct skv_merge *merges; /* open addressing, [merge_mask + 1] */
	uint32_t merge_mask, n_merges;
	int32_t *by_bytes; /* ids by their bytes, the same; with ignore_merges only */
	uint32_t bytes_mask;
	int32_t byte[256]; /* the token of each byte, -1: none */
	int32_t unknown;   /* stands for a byte that has no token; -1: such bytes are left out */
	bool fuse_unknown; /* one for a run of them */
	bool ignore_merges; /* a piece that is a token is that token, whatever the merges say */
};
#define SKV_BPE_NULL ((struct skv_bpe){.unknown = -1})

/* Define a token; `bytes` is copied. -EEXIST the id has one already, -ERANGE the id is too large, -ENOMEM. */
int skv_bpe_define(struct skv_bpe *b, int64_t id, const char *bytes, size_t len, bool spelled);

/* Room for n merges, once, before the first. -ENOMEM. */
int skv_bpe_reserve_merges(struct skv_bpe *b, size_t n);
/* A merge, which replaces an earlier one of the same pair. The three are defined. */
void skv_bpe_merge(struct skv_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* All is defined: make what encoding needs. -ENOMEM. */
int skv_bpe_ready(struct skv_bpe *b);

void skv_bpe_deinit(struct skv_bpe *b);

/* Memory of encoding, kept from piece to piece; of one thread. */
struct skv_bpe_work {
	struct skv_bpe_symbol *symbols;
	struct skv_bpe_candidate *heap;
	size_t room;
};
#define SKV_BPE_WORK_NULL ((struct skv_bpe_work){.symbols = NULL})
void skv_bpe_work_deinit(struct skv_bpe_work *w);

/* Append the tokens of a piece of n < 2^30 bytes. -ENOMEM. */
int skv_bpe_encode(const struct skv_bpe *b, const char *bytes, size_t n, struct skv_bpe_work *w, struct skv_ids *to);

#endif
