/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/refs.h - references of sequences to shared pages. See refs.c. */
#ifndef SKV_CORE_REFS_H
#define SKV_CORE_REFS_H

#include "daemon/core/core-priv.h"

/* Does the sequence refer to the page? Any page number. */
bool skv_ref_held(const struct skv_core *, uint32_t seq, uint32_t page);
void skv_ref_add(struct skv_core *, uint32_t seq, uint32_t page);  /* that it does not refer to yet */
void skv_ref_drop(struct skv_core *, uint32_t seq, uint32_t page); /* that it refers to */
/* The first page from `page` on that it refers to, or SKV_NO_INDEX. */
uint32_t skv_ref_next(const struct skv_core *, uint32_t seq, uint32_t page);
#define SKV_EACH_REF(page, c, seq) \
	for (uint32_t page = skv_ref_next(c, seq, 0); page != SKV_NO_INDEX; page = skv_ref_next(c, seq, page + 1))

/*
 * Drop the references to pages that are not marked `kept`; NULL: all. From page *at on, first 0. True when it is through.
 */
bool skv_refs_drop_some(struct skv_core *, uint32_t seq, const uint8_t *marks, uint8_t kept, uint32_t *at, uint32_t *units);
/* The memory of the references of a sequence that has none any more goes. */
void skv_refs_free(struct skv_core *, uint32_t seq);

#endif
