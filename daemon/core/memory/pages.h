/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/pages.h - reads and changes the owner words of pages, and updates counts of pages by owner. */
#ifndef SKV_CORE_PAGES_H
#define SKV_CORE_PAGES_H

#include "daemon/core/state/core-priv.h"

bool skv_page_exists(const struct skv_core *, uint32_t pool, uint32_t page);
/* Length of the run of pages with this owner word that begins at `page`; at most `most`, and within one segment. */
uint32_t skv_pages_run(const struct skv_core *, uint32_t pool, uint32_t page, uint32_t most, skv_owner);
/*
 * Changes the owner word of n adjacent pages of one segment to `to`. All n pages must have the same owner word before.
 */
void skv_pages_set(struct skv_core *, uint32_t pool, uint32_t page, uint32_t n, skv_owner to);
static inline void skv_page_set(struct skv_core *c, uint32_t pool, uint32_t page, skv_owner to)
{
	skv_pages_set(c, pool, page, 1, to);
}
/* Changes the owner word of the pool's n pages with owner word `from` to `to` (FREE = 0). */
void skv_pages_hand_over(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n);
/* skv_pages_hand_over() in turns: continues at page *at (0 at first) until *units are used up. True: it is complete. */
bool skv_pages_hand_over_some(struct skv_core *, uint32_t pool, skv_owner from, skv_owner to, uint64_t n, uint32_t *at,
                              uint32_t *units);

#endif
