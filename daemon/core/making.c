/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that are made outside of the books: the memory of devices.
 *
 * NONE → WANTED (a lease needs it) → MAKING (whoever makes segments was told) → LIVE, or NONE again when
 * it cannot be had. From WANTED on it counts as memory, so that ceilings hold for what is under way. A
 * pool that ends lets go of both at once; what then arrives is known by its serial to be nobody's.
 *
 * Leases wait until nothing that they want is in the making; while something is, no empty segment of
 * the pool is given up.
 */
#include "daemon/core/books.h"

void skv_segment_want(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	skv_segment_row(&c->state, pool, segment)->state = SKV_SEGMENT_WANTED;
	p->making++;
	p->wanted++;
}

/* It leaves WANTED or MAKING. */
static void leave(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_segment_row *row = skv_segment_row(&c->state, pool, segment);

	p->wanted -= row->state == SKV_SEGMENT_WANTED;
	p->making--;
	row->state = SKV_SEGMENT_NONE;
}

void skv_segment_unwant(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	leave(c, pool, segment);
	skv_segment_uncharge(c, pool);
}

void skv_pool_unwant_all(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	for (uint32_t s = 0; p->making && s < p->high; s++) {
		uint32_t state = skv_segment_row(&c->state, pool, s)->state;

		if (state == SKV_SEGMENT_WANTED || state == SKV_SEGMENT_MAKING)
			skv_segment_unwant(c, pool, s);
	}
}

bool skv_core_next_making(struct skv_core *c, struct skv_core_making *ret)
{
	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		struct skv_pool_row *p = skv_pool_row(&c->state, pool);

		for (uint32_t s = 0; p->wanted && s < p->high; s++) {
			struct skv_segment_row *row = skv_segment_row(&c->state, pool, s);

			if (row->state != SKV_SEGMENT_WANTED)
				continue;
			row->state = SKV_SEGMENT_MAKING;
			p->wanted--;
			*ret = (struct skv_core_making){
				.device = p->device,
				.pool = pool,
				.segment = s,
				.serial = row->serial,
				.bytes = p->segment_bytes,
			};
			return true;
		}
	}
	return false;
}

/* Is it still waited for? Serials are never used twice, so a number that was used again is not it. */
static bool awaited(const struct skv_core *c, const struct skv_core_making *m)
{
	const struct skv_segment_row *row;

	if (!skv_pool_row(&c->state, m->pool)->row.live)
		return false;
	row = skv_segment_row(&c->state, m->pool, m->segment);
	return row->state == SKV_SEGMENT_MAKING && row->serial == m->serial;
}

void skv_core_segment_made(struct skv_core *c, const struct skv_core_making *m, struct skv_mem_handle *handle)
{
	const struct skv_mem_ops *mem = c->places[m->device].mem;

	if (awaited(c, m)) {
		leave(c, m->pool, m->segment);
		skv_segment_arrive(c, m->pool, m->segment, handle);
		*handle = (struct skv_mem_handle)SKV_MEM_HANDLE_NULL;
	} else {
		mem->destroy(mem, handle, m->bytes);
	}
}

void skv_core_segment_failed(struct skv_core *c, const struct skv_core_making *m)
{
	if (awaited(c, m))
		skv_segment_unwant(c, m->pool, m->segment);
}

void skv_core_segments_served(struct skv_core *c, uint32_t pool)
{
	if (skv_pool_row(&c->state, pool)->row.live)
		skv_pool_settle_down(c, pool);
}
