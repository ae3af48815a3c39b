/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/memory/segment-sets.h"

bool skv_pool_is_whole(const struct skv_core *c, uint32_t pool)
{
	return c->memory[skv_pool_row(&c->state, pool)->device].mem->pool_new;
}

void skv_segment_file(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct skv_segment_row *s = skv_segment_row(&c->state, pool, segment);
	struct skv_pool_local *l = &c->pools[pool];
	uint32_t free = s->state == SKV_SEGMENT_LIVE ? s->free : 0;

	for (uint32_t i = 0; i < SKV_RUN_CLASSES; i++)
		skv_bitset_put(&l->runs[i], segment, free && s->longest >> i);
	skv_bitset_put(&l->empty, segment, free == p->pages_per_segment);
	skv_bitset_put(&l->vacant, segment, s->state == SKV_SEGMENT_NONE);
}

void skv_segment_vacate(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	skv_write_segment(&c->state, pool, segment)->state = SKV_SEGMENT_NONE;
	skv_segment_file(c, pool, segment);
}
