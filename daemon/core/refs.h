/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/refs.h - references of sequences to shared pages. */
#ifndef SKV_CORE_REFS_H
#define SKV_CORE_REFS_H

#include "daemon/core/core-priv.h"
#include "daemon/core/seqfile.h"

/* Blocks that n more references take; seq may be SKV_NO_INDEX, a sequence without any. */
uint64_t skv_refs_blocks_for(const struct skv_core *, uint32_t seq, uint64_t n);
uint64_t skv_refs_blocks_left(const struct skv_core *);
void skv_refs_add(struct skv_core *, uint32_t seq, uint32_t page); /* a block must be left */
/*
 * The sequence's references, a block at a time: *at is the next one, first skv_seq_row(seq)->ref_head, 0 after the last.
 * True when they all have been marked; released where they have this mark.
 */
bool skv_refs_mark(struct skv_core *, uint32_t seq, uint8_t *marks, uint8_t mark, uint32_t *at, uint32_t *units);
bool skv_refs_drop(struct skv_core *, uint32_t seq, uint32_t *units); /* all of them */
bool skv_refs_release(struct skv_core *, uint32_t seq, uint8_t *marks, uint8_t mark, uint32_t *at, uint32_t *units);
#define SKV_EACH_REF_BLOCK(block, s, seq)                                                                   \
	for (const struct skv_ref_block *block = skv_refs_first(s, seq); block;                             \
	     block = skv_refs_next(s, block))
#define SKV_EACH_REF(block, i, s, seq)                                                                      \
	SKV_EACH_REF_BLOCK(block, s, seq)                                                                   \
		for (uint32_t i = 0; i < block->n; i++)
static inline const struct skv_ref_block *skv_refs_first(const struct skv_state *s, uint32_t seq)
{
	uint32_t head = skv_seq_row(s, seq)->ref_head;

	return head ? skv_ref_block_row(s, head - 1) : NULL;
}
static inline const struct skv_ref_block *skv_refs_next(const struct skv_state *s,
                                                        const struct skv_ref_block *b)
{
	return b->next ? skv_ref_block_row(s, b->next - 1) : NULL;
}

#endif
