/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/bpe.h - byte-level byte-pair encoding (Sennrich et al. 2016; on bytes: Radford et al. 2019).
 *
 * A piece of text begins as one token per byte. Then the adjacent pair of tokens whose merge has the lowest rank, the
 * leftmost of several such pairs, is replaced by the merged token, until no merge applies. A heap of candidates makes
 * encoding O(n log n) in the bytes of the piece.
 */
#ifndef SKV_TOKENIZER_BPE_H
#define SKV_TOKENIZER_BPE_H

#include <stdbool.h>
#include "formats/tokenizer/ids.h"

#define SKV_TOKENIZER_IDS_MAX (1u << 22) /* all ids are below this limit; no real vocabulary is larger */

/* A token, with its bytes as the decoder outputs them. */
struct skv_token {
	char *bytes; /* NULL: no such id */
	uint32_t len;
	/*
	 * the token can result from text: the model's vocabulary has it, and each character of its name represents a
	 * byte
	 */
	bool spelled;
	bool special;
};

struct skv_merge {
	uint64_t pair; /* left << 32 | right */
	uint32_t rank;
	int32_t id; /* the merged token; -1: unused entry */
};

struct skv_bpe {
	struct skv_token *tokens; /* [n_ids] */
	uint32_t n_ids;
	struct skv_merge *merges; /* [merge_mask + 1]: hash table by pair, open addressing */
	uint32_t merge_mask, n_merges;
	/* [bytes_mask + 1]: hash table of ids by the token's bytes, open addressing; NULL without ignore_merges */
	int32_t *by_bytes;
	uint32_t bytes_mask;
	int32_t byte[256]; /* id of each byte's token, or -1 */
	int32_t unknown;   /* id of the token for bytes without a token; -1: such bytes are dropped */
	bool fuse_unknown; /* a run of such bytes becomes one unknown token */
	bool ignore_merges; /* a piece whose bytes are those of a token becomes that token, regardless of merges */
};
#define SKV_BPE_NULL ((struct skv_bpe){.unknown = -1})

/*
 * Defines a token; copies `bytes`. Returns 0; -EEXIST if the id is already defined; -ERANGE if the id is too large; or
 * -ENOMEM.
 */
int skv_bpe_define(struct skv_bpe *b, int64_t id, const char *bytes, size_t len, bool spelled);

/* Allocates room for n merges; called once, before the first merge. Returns 0 or -ENOMEM. */
int skv_bpe_reserve_merges(struct skv_bpe *b, size_t n);
/* Adds a merge, which replaces an earlier one of the same pair. All three ids must be defined. */
void skv_bpe_merge(struct skv_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* Prepares encoding; called when all tokens and merges are defined. Returns 0 or -ENOMEM. */
int skv_bpe_ready(struct skv_bpe *b);

void skv_bpe_deinit(struct skv_bpe *b);

/* Working memory for encoding, reused from piece to piece; used by one thread at a time. */
struct skv_bpe_work {
	struct skv_bpe_symbol *symbols;
	struct skv_bpe_candidate *heap;
	size_t room;
};
#define SKV_BPE_WORK_NULL ((struct skv_bpe_work){.symbols = NULL})
void skv_bpe_work_deinit(struct skv_bpe_work *w);

/* Appends the ids of the tokens of a piece of n < 2^30 bytes. Returns 0 or -ENOMEM. */
int skv_bpe_encode(const struct skv_bpe *b, const char *bytes, size_t n, struct skv_bpe_work *w, struct skv_ids *to);

#endif
