/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/refs.h - references of sequences to shared pages. See refs.c. */
#ifndef SKV_CORE_REFS_H
#define SKV_CORE_REFS_H

#include "daemon/core/core-priv.h"

/* Does the sequence refer to the page? Any page number. */
bool skv_ref_held(const struct skv_core *, uint32_t seq, uint32_t page);
void skv_ref_add(struct skv_core *, uint32_t seq, uint32_t page);  /* that it does not refer to yet */
void skv_ref_drop(struct skv_core *, uint32_t seq, uint32_t page); /* that it refers to */
/* To which of 64 pages from `page` on, a multiple of 64 below the end of its pool, it refers: a bit each. */
#define SKV_REF_BITS 64u
uint64_t skv_ref_bits(const struct skv_core *, uint32_t seq, uint32_t page);

/*
 * Drop the references to pages that are not marked `kept`; NULL: all. From page *at on, first 0. True when it is through.
 */
bool skv_refs_drop_some(struct skv_core *, uint32_t seq, const uint8_t *marks, uint8_t kept, uint32_t *at, uint32_t *units);
/* The memory of the references of a sequence that has none any more goes. */
void skv_refs_free(struct skv_core *, uint32_t seq);

#endif
