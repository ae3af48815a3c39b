/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/pages.h - which owner a page has, and the counts that follow from it. */
#ifndef SKV_CORE_PAGES_H
#define SKV_CORE_PAGES_H

#include "daemon/core/state/core-priv.h"

bool skv_page_exists(const struct skv_core *, uint32_t pool, uint32_t page);
/* Number of pages, at most `most`, from this page on and within its segment, that have this owner word. */
uint32_t skv_pages_run(const struct skv_core *, uint32_t pool, uint32_t page, uint32_t most, skv_owner);
/* Sets n adjacent pages of a segment, which all have one owner word; and one page. */
void skv_pages_set(struct skv_core *, uint32_t pool, uint32_t page, uint32_t n, skv_owner to);
static inline void skv_page_set(struct skv_core *c, uint32_t pool, uint32_t page, skv_owner to)
{
	skv_pages_set(c, pool, page, 1, to);
}
/* Changes the owner word of the n pages that have `from` to `to` (FREE = 0). */
void skv_pages_hand_over(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n);
/* The same as far as *units go, from page *at on (0 at first). True when it is complete. */
bool skv_pages_hand_over_some(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n, uint32_t *at,
                              uint32_t *units);

#endif
