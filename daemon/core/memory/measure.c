/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/measure.c - measures, a few files at a time, the memory that clients took by writing to their
 * memfds.
 */
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/memory/segments.h"
#include "daemon/core/state/units.h"

#define FSTAT_UNITS 60u /* cost of an fstat() in units of work */

/*
 * Charges memory of a pool's memfd where the pool has no segment: a client wrote there. Does nothing while a segment's
 * memory is being freed, since that memory would be charged, too.
 */
static void charge_stray(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint64_t live = p->segments * p->segment_bytes, held;

	if (!skv_pool_is_whole(c, pool) || p->leaving)
		return;
	held = skv_file_bytes(c->pools[pool].fd);
	held = held > live ? held - live : 0;
	if (held != p->stray_bytes)
		skv_charge(c, p->account, &skv_write_pool(&c->state, pool)->stray_bytes, held);
}

void skv_core_measure(struct skv_core *c, uint32_t *at, uint32_t units)
{
	if (*at == 0)
		SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
			charge_stray(c, pool);
			if (skv_pool_row(&c->state, pool)->stray_bytes && !skv_pool_row(&c->state, pool)->sessions)
				skv_segments_sweep(c, pool);
		}
	while ((*at = skv_state_next(&c->state, SKV_TABLE_SEQUENCES, *at)) != SKV_NO_INDEX &&
	       skv_units_take(&units, FSTAT_UNITS))
		skv_charge_seq(c, (*at)++);
	if (*at == SKV_NO_INDEX)
		*at = 0;
}

void skv_core_client_holds(struct skv_core *c, uint32_t client_id, uint64_t bytes)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);

	if (client != SKV_NO_INDEX && skv_client_row(&c->state, client)->bytes != bytes)
		skv_charge(c, skv_client_row(&c->state, client)->account, &skv_write_client(&c->state, client)->bytes,
		           bytes);
}
