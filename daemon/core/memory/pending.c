/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/pending.c - pending segments: device memory that is requested or being created outside the core.
 *
 * A segment goes from NONE to WANTED (a lease needs it), to STARTED (daemon/server/device.c creates it), to LIVE, or
 * back to NONE if creating it failed. A segment counts as memory as soon as it is WANTED, so that limits hold for
 * pending segments, too. A pool that ends cancels its pending segments at once; if the memory of a cancelled segment
 * arrives later, the segment's serial does not match, and the memory is destroyed.
 *
 * Leases wait until no segment that they need is pending; meanwhile no empty segment of the pool is withdrawn.
 */
#include "daemon/core/memory/announce.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/memory/pending.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/memory/segments.h"
#include "daemon/core/state/fdstore.h"

void skv_segment_request(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);

	skv_write_segment(&c->state, pool, segment)->state = SKV_SEGMENT_WANTED;
	skv_segment_file(c, pool, segment);
	p->pending++;
	p->wanted++;
}

/* Ends the pending state of a segment; its number can be used again. */
static void leave(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	const struct skv_segment_row *row = skv_segment_row(&c->state, pool, segment);

	p->wanted -= row->state == SKV_SEGMENT_WANTED;
	p->pending--;
	skv_segment_vacate(c, pool, segment);
}

void skv_segment_cancel(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	leave(c, pool, segment);
	skv_segment_uncharge(c, pool);
}

void skv_pool_cancel_all(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

	for (uint32_t s = 0; p->pending && s < p->high; s++) {
		uint32_t state = skv_segment_row(&c->state, pool, s)->state;

		if (state == SKV_SEGMENT_WANTED || state == SKV_SEGMENT_STARTED)
			skv_segment_cancel(c, pool, s);
	}
}

bool skv_core_next_pending(struct skv_core *c, struct skv_core_pending *ret)
{
	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, pool);

		for (uint32_t s = 0; p->wanted && s < p->high; s++) {
			const struct skv_segment_row *row = skv_segment_row(&c->state, pool, s);

			if (row->state != SKV_SEGMENT_WANTED)
				continue;
			skv_write_segment(&c->state, pool, s)->state = SKV_SEGMENT_STARTED;
			skv_write_pool(&c->state, pool)->wanted--;
			*ret = (struct skv_core_pending){
				.uid = skv_account_row(&c->state, p->account)->uid,
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

/* Is the segment still pending? A later segment of the same number has another serial, since serials are not reused. */
static bool awaited(const struct skv_core *c, const struct skv_core_pending *m)
{
	const struct skv_segment_row *row;

	if (!skv_pool_row(&c->state, m->pool)->row.live)
		return false;
	row = skv_segment_row(&c->state, m->pool, m->segment);
	return row->state == SKV_SEGMENT_STARTED && row->serial == m->serial;
}

void skv_core_segment_made(struct skv_core *c, const struct skv_core_pending *m, struct skv_mem_handle *handle)
{
	const struct skv_mem_ops *mem = c->memory[m->device].mem;
	char kept[SKV_FDSTORE_NAME];

	if (awaited(c, m)) {
		leave(c, m->pool, m->segment);
		c->pools[m->pool].handles[m->segment] = *handle;
		if (handle->fd >= 0) {
			skv_fdstore_segment_name(&c->state, m->pool, m->segment, kept);
			skv_fdstore_add(c, kept, handle->fd);
		}
		skv_segment_arrive(c, m->pool, m->segment);
		skv_announce_arrival(c, m->pool, m->segment);
		c->memory[m->device].full = false;
		*handle = (struct skv_mem_handle)SKV_MEM_HANDLE_NULL;
	} else {
		mem->destroy(mem, handle, m->bytes);
	}
}

void skv_core_segment_failed(struct skv_core *c, const struct skv_core_pending *m)
{
	if (!awaited(c, m))
		return;
	skv_segment_cancel(c, m->pool, m->segment);
	/* other programs use the device, too, so the limits do not say how much of it is left */
	c->memory[m->device].full = true;
	skv_segments_give_up(c, m->pool);
}

void skv_core_segments_served(struct skv_core *c, uint32_t pool)
{
	if (skv_pool_row(&c->state, pool)->row.live)
		skv_pool_shrink(c, pool);
}
