/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/age.c - sequences that nobody holds make room, the least recently used first; one that is held never does.
 *
 * With age: after sequence-ttl. Under pressure: when a memory is used up, and a user who has less than its part of it asks
 * for more, the sequences of users with more than theirs. A part is the memory divided by the users that have pages there,
 * the one who asks included. So a user alone, or within its part, loses nothing to another.
 */
#include "daemon/core/age.h"
#include "daemon/core/task.h"

static uint64_t part_of(const struct skv_core *c, uint32_t device, uint32_t asking)
{
	uint32_t users = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS)
		users += i == asking || skv_account_row(&c->state, i)->page_bytes[device] > 0;
	return c->memory[device].limits.pool_bytes / (users ? users : 1);
}

/* The sequence that has been without a holder for longest, of users who have more than `part` of the memory. */
static uint32_t oldest(const struct skv_core *c, uint32_t device, uint64_t part)
{
	uint32_t found = SKV_NO_INDEX;

	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);

		if (q->session == SKV_NO_INDEX && q->name[0] && skv_pool_row(&c->state, q->pool)->device == device &&
		    skv_account_row(&c->state, q->account)->page_bytes[device] > part &&
		    (found == SKV_NO_INDEX || q->used < skv_seq_row(&c->state, found)->used))
			found = i;
	}
	return found;
}

bool skv_age_make_room(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	uint64_t part = part_of(c, p->device, p->account);
	uint32_t seq;

	if (c->state.header->segment_bytes[p->device] + p->segment_bytes <= c->memory[p->device].limits.pool_bytes ||
	    skv_account_row(&c->state, p->account)->page_bytes[p->device] >= part)
		return false; /* it is refused for another reason, or has its part */
	if (skv_task_frees(c, p->device))
		return true;
	seq = oldest(c, p->device, part);
	if (seq == SKV_NO_INDEX || skv_task_drop(c, seq, SKV_NO_INDEX, 0) < 0)
		return false;
	skv_write_header(&c->state)->dropped_for_room++;
	return true;
}

void skv_core_dropped(const struct skv_core *c, uint64_t *ret_age, uint64_t *ret_room)
{
	*ret_age = c->state.header->dropped_for_age;
	*ret_room = c->state.header->dropped_for_room;
}

unsigned skv_core_age(struct skv_core *c, uint64_t now_ns, uint64_t ttl_ns)
{
	unsigned n = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);

		if (q->session != SKV_NO_INDEX || !q->name[0])
			continue;
		if (q->idle_since_ns == 0) {
			skv_write_seq(&c->state, i)->idle_since_ns = now_ns;
		} else if (ttl_ns && now_ns - q->idle_since_ns >= ttl_ns) {
			if (skv_task_drop(c, i, SKV_NO_INDEX, 0) < 0)
				break;
			n++;
		}
	}
	if (n)
		skv_write_header(&c->state)->dropped_for_age += n;
	return n;
}
