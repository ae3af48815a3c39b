/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/refs.h - references of sequences to shared pages. See refs.c. */
#ifndef SKV_CORE_REFS_H
#define SKV_CORE_REFS_H

#include "daemon/core/state/core-priv.h"

/* Does the sequence refer to the page? `page` may be any number. */
bool skv_ref_held(const struct skv_core *, uint32_t seq, uint32_t page);
void skv_ref_add(struct skv_core *, uint32_t seq, uint32_t page);  /* the sequence must not refer to the page yet */
void skv_ref_drop(struct skv_core *, uint32_t seq, uint32_t page); /* the sequence must refer to the page */
/* A bit for each of 64 pages: does the sequence refer to it? `page`, the first, exists and is a multiple of 64. */
#define SKV_REF_BITS 64u
uint64_t skv_ref_bits(const struct skv_core *, uint32_t seq, uint32_t page);

/*
 * Drops the sequence's references to pages whose mark is not `kept` (marks NULL: all references), from page *at on (0
 * at first) until *units are used up. True: all pages are done.
 */
bool skv_refs_drop_some(struct skv_core *, uint32_t seq, const uint8_t *marks, uint8_t kept, uint32_t *at,
                        uint32_t *units);
/* Frees the memory of the reference bits of a sequence that has no references left. */
void skv_refs_free(struct skv_core *, uint32_t seq);

#endif
