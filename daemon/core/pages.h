/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/pages.h - which owner a page has, and the counts that follow from it. */
#ifndef SKV_CORE_PAGES_H
#define SKV_CORE_PAGES_H

#include "daemon/core/core-priv.h"

bool skv_page_exists(const struct skv_core *, uint32_t pool, uint32_t page);
/* How many pages, `most` at most, from this one on, in its segment, have this owner word. */
uint32_t skv_pages_run(const struct skv_core *, uint32_t pool, uint32_t page, uint32_t most, skv_owner);
/* n pages of a segment, side by side, that have one owner word; and one page. */
void skv_pages_set(struct skv_core *, uint32_t pool, uint32_t page, uint32_t n, skv_owner to);
static inline void skv_page_set(struct skv_core *c, uint32_t pool, uint32_t page, skv_owner to)
{
	skv_pages_set(c, pool, page, 1, to);
}
/* The n pages with owner word `from` become `to` (FREE = 0). */
void skv_pages_hand_over(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n);
/* The same as far as *units go, from page *at on, which begins with 0. True when it is done. */
bool skv_pages_hand_over_some(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n, uint32_t *at,
                              uint32_t *units);

#endif
