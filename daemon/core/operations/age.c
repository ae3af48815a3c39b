/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/age.c - parks or drops sequences without a holder to make room, the least recently used first.
 * Held sequences stay in memory.
 *
 * By age: a sequence is parked when it has had no holder for park-after, and dropped when it has had none for
 * sequence-ttl. Under pressure: when a memory is used up and a user with less than its share asks for more, sequences
 * of users with more than their share are dropped. A share is the memory divided by the number of users that have pages
 * there, including the user that asks. So a user that is alone, or within its share, loses nothing to another user.
 *
 * Where parking is on, sequences are parked under pressure instead of dropped, and a user's own sequences are parked,
 * too, when the user's quota or the memory is used up. If parking fails, sequences are dropped as where parking is off.
 *
 * Sealed prefixes make room in the same order, but they can be computed again: a prefix that cannot be parked is
 * dropped. Prefixes must leave a quarter of their user's quotas, of memory and of sequences, to the user's other work,
 * because a new sequence does not wait until a prefix is gone. If prefixes leave less than a quarter, the oldest prefix
 * is parked, one at a time. If prefixes leave less than an eighth, because the disk is too slow, the oldest prefix is
 * dropped instead. A new sequence is not refused because of the number of prefixes: prefixes beyond the quota are
 * removed at the next tick.
 */
#include "daemon/core/memory/charge.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/park-queue.h"
#include "daemon/core/sequences/prefixes.h"
#include "daemon/core/state/units.h"
#include "daemon/core/operations/age.h"
#include "daemon/core/operations/joint.h"
#include "daemon/core/operations/task.h"
#include "daemon/core/operations/turns.h"

#define PARK_AGAIN_NS UINT64_C(10000000000) /* time until sequences are retried after parking failed */
#define ROW_UNITS 30u /* cost of a row in units of work, including saving the row to the undo log */

/* A user's share of a memory: its bytes divided by the number of users that have pages there or are `asking`. */
static uint64_t part_of(const struct skv_core *c, uint32_t device, uint32_t asking)
{
	uint32_t users = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS)
		users += i == asking || skv_account_row(&c->state, i)->page_bytes[device] > 0;
	return c->memory[device].limits.pool_bytes / (users ? users : 1);
}

/*
 * Is this a named sequence without a holder that no fork of a prefix uses? A tensor-parallel rank's sequence is idle
 * only if no rank of its group is held.
 */
static bool is_idle(const struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return q->session == SKV_NO_INDEX && q->name[0] && !skv_joint_held(c, seq) &&
	       !(skv_is_prefix(q) && skv_task_forks(c, seq));
}

static bool is_there(const struct skv_core *c, const struct skv_seq_row *q, uint32_t device)
{
	return skv_pool_row(&c->state, q->pool)->device == device;
}

/* Is this a sealed prefix whose pages are being read? Such a prefix stays in memory until the reader ends. */
static bool is_read(const struct skv_core *c, uint32_t seq)
{
	return skv_is_prefix(skv_seq_row(&c->state, seq)) &&
	       (c->seqs[seq].parking == SKV_PARK_STARTED || c->seqs[seq].parking == SKV_PARK_READ);
}

/* Which users' sequences may make room: users with more than `part` bytes in the memory, or one account alone. */
struct whose {
	uint32_t device;
	uint64_t part;
	uint32_t account; /* SKV_NO_INDEX: any account */
};

static bool may_go(const struct skv_core *c, uint32_t seq, uint32_t device)
{
	return is_idle(c, seq) && !is_read(c, seq) && is_there(c, skv_seq_row(&c->state, seq), device);
}

/*
 * The least recently used of the account's idle sequences in that memory. `parkable`: considers only sequences with
 * pages that are sealed prefixes (which can be dropped), or whose parking is possible and has not failed.
 */
static uint32_t oldest_of(const struct skv_core *c, uint32_t account, uint32_t device, bool parkable)
{
	uint32_t i = skv_idle_first(c, account);

	for (; i != SKV_NO_INDEX; i = skv_idle_after(c, i)) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);

		if (may_go(c, i, device) &&
		    (!parkable || ((skv_is_prefix(q) || (c->parks && c->seqs[i].parking == SKV_PARK_NOT)) &&
		                   q->pages + q->refs > 0)))
			break;
	}
	return i;
}

/* May the account lose a sequence, so that others get room? */
static bool loses(const struct skv_core *c, uint32_t account, const struct whose *w)
{
	return (w->account == SKV_NO_INDEX || w->account == account) &&
	       skv_account_row(&c->state, account)->page_bytes[w->device] > w->part;
}

/* The least recently used sequence of all users that may lose a sequence. */
static uint32_t oldest(const struct skv_core *c, const struct whose *w, bool parkable)
{
	uint32_t found = SKV_NO_INDEX;

	SKV_EACH(a, &c->state, SKV_TABLE_ACCOUNTS) {
		const uint32_t i = loses(c, a, w) ? oldest_of(c, a, w->device, parkable) : SKV_NO_INDEX;

		if (i != SKV_NO_INDEX &&
		    (found == SKV_NO_INDEX || skv_seq_row(&c->state, i)->used < skv_seq_row(&c->state, found)->used))
			found = i;
	}
	return found;
}

/* Is one of the account's sequences in that memory already waiting to be parked or being parked? */
static bool is_parking_of(const struct skv_core *c, uint32_t account, uint32_t device)
{
	for (uint32_t i = skv_park_first(c, account); i != SKV_NO_INDEX; i = skv_park_after(c, i))
		if (is_idle(c, i) && is_there(c, skv_seq_row(&c->state, i), device))
			return true;
	return false;
}

static bool is_parking(const struct skv_core *c, const struct whose *w)
{
	if (w->account != SKV_NO_INDEX)
		return is_parking_of(c, w->account, w->device);
	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS)
		if (is_parking_of(c, i, w->device))
			return true;
	return false;
}

/* Is a prefix of one of these users being read? If so, tells the reader to end soon: then the memory can come free. */
static bool is_read_out(struct skv_core *c, const struct whose *w)
{
	bool any = false;

	SKV_EACH(a, &c->state, SKV_TABLE_ACCOUNTS)
		for (uint32_t i = skv_park_first_read(c, a); i != SKV_NO_INDEX; i = c->seqs[i].park_next)
			if (loses(c, a, w) && is_idle(c, i) && is_there(c, skv_seq_row(&c->state, i), w->device))
				c->seqs[i].wanted = any = true;
	return any;
}

/* Queues the sequence to be parked. A prefix that cannot be parked is dropped. False: out of memory for dropping it. */
static bool leave(struct skv_core *c, uint32_t seq)
{
	if (skv_is_prefix(skv_seq_row(&c->state, seq)) && (!c->parks || c->seqs[seq].parking == SKV_PARK_FAILED))
		return skv_task_drop(c, seq, SKV_NO_INDEX, 0) == 0; /* if out of memory, a later call retries */
	skv_park_set(c, seq, SKV_PARK_WANTED);
	return true;
}

/* Queues one of these users' sequences to be parked, unless one is queued already. False: there is none to park. */
static bool park(struct skv_core *c, const struct whose *w)
{
	uint32_t seq;

	if (is_parking(c, w))
		return true;
	seq = oldest(c, w, true);
	return seq != SKV_NO_INDEX && leave(c, seq);
}

bool skv_age_make_own_room(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct whose own = {.device = p->device, .account = p->account};

	return park(c, &own) || is_read_out(c, &own);
}

/* Do segments for `pages` free pages fit under the memory's limit, with the pages that are free or pending already? */
static bool has_room(const struct skv_core *c, const struct skv_pool_row *p, uint64_t pages)
{
	const uint64_t coming = p->count[SKV_OWNER_FREE] + (uint64_t)p->pending * p->pages_per_segment;
	const uint64_t segments = pages > coming ? (pages - coming + p->pages_per_segment - 1) / p->pages_per_segment
	                                         : 0;

	return c->state.header->segment_bytes[p->device] + segments * p->segment_bytes <=
	       c->memory[p->device].limits.pool_bytes;
}

/* Calls the callback for a sequence that begins to be dropped; its row still exists. */
static void tell_dropped(const struct skv_core *c, uint32_t seq, bool for_room)
{
	if (c->dropped_cb)
		c->dropped_cb(c->dropped_data, skv_account_row(&c->state, skv_seq_row(&c->state, seq)->account)->uid,
		              for_room);
}

bool skv_age_make_room(struct skv_core *c, uint32_t pool, uint64_t pages)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const struct whose others = {p->device, part_of(c, p->device, p->account), SKV_NO_INDEX};
	const struct whose own = {.device = p->device, .account = p->account};
	const bool has_part = skv_account_row(&c->state, p->account)->page_bytes[p->device] >= others.part;
	uint32_t seq;

	if (has_room(c, p, pages))
		return false; /* the memory has room: the lease is refused for another reason */
	if (skv_task_frees(c, p->device))
		return true;
	if ((!has_part && park(c, &others)) || park(c, &own))
		return true;
	seq = has_part ? SKV_NO_INDEX : oldest(c, &others, false);
	if (seq == SKV_NO_INDEX || skv_task_drop(c, seq, SKV_NO_INDEX, 0) < 0)
		return is_read_out(c, has_part ? &own : &others);
	skv_write_header(&c->state)->dropped_for_room++;
	tell_dropped(c, seq, true);
	return true;
}

/* Is this a sealed prefix that may make room? `anywhere` false: only if its pages are in host memory. */
static bool is_prefix_to_go(const struct skv_core *c, uint32_t seq, bool anywhere)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return skv_is_prefix(q) &&
	       may_go(c, seq, anywhere ? skv_pool_row(&c->state, q->pool)->device : SKV_DEVICE_HOST);
}

static bool is_parking_prefix(const struct skv_core *c, uint32_t account)
{
	for (uint32_t i = skv_park_first(c, account); i != SKV_NO_INDEX; i = skv_park_after(c, i))
		if (skv_is_prefix(skv_seq_row(&c->state, i)))
			return true;
	return false;
}

bool skv_age_trim_prefixes(struct skv_core *c, uint32_t account)
{
	const uint64_t charged = skv_charged(c, account), quota = c->memory[SKV_DEVICE_HOST].limits.account_bytes;
	const uint32_t has = skv_account_row(&c->state, account)->sequences, most = c->config.account_sequences;
	const bool too_many = has > most - most / 4, too_large = charged / 3 > quota / 4;
	const bool waits = c->parks && has <= most - most / 8 && charged / 7 <= quota / 8;
	uint32_t left = has > most ? has - most : 1;

	if ((!too_many && !too_large) || skv_task_frees(c, SKV_DEVICE_HOST) || (waits && is_parking_prefix(c, account)))
		return false;
	for (uint32_t seq = skv_idle_first(c, account), next; seq != SKV_NO_INDEX && left > 0; seq = next) {
		next = skv_idle_after(c, seq);
		if (!is_prefix_to_go(c, seq, too_many))
			continue;
		if (waits ? !leave(c, seq) : skv_task_drop(c, seq, SKV_NO_INDEX, 0) < 0)
			break;
		left--;
	}
	return true;
}

void skv_core_dropped(const struct skv_core *c, uint64_t *ret_age, uint64_t *ret_room)
{
	*ret_age = c->state.header->dropped_for_age;
	*ret_room = c->state.header->dropped_for_room;
}

void skv_core_on_dropped(struct skv_core *c, void (*cb)(void *, uid_t, bool for_room), void *userdata)
{
	c->dropped_cb = cb;
	c->dropped_data = userdata;
}

/* Parks or drops a sequence if it has had no holder for long enough. False: out of memory for dropping it. */
static bool age(struct skv_core *c, uint32_t seq, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	if (q->idle_since_ns == 0) {
		skv_write_seq(&c->state, seq)->idle_since_ns = now_ns;
	} else if (ttl_ns && now_ns - q->idle_since_ns >= ttl_ns) {
		if (skv_task_drop(c, seq, SKV_NO_INDEX, 0) < 0)
			return false;
		skv_write_header(&c->state)->dropped_for_age++;
		tell_dropped(c, seq, false);
	} else if (c->parks && park_ns && now_ns - q->idle_since_ns >= park_ns &&
	           c->seqs[seq].parking == SKV_PARK_NOT) {
		skv_park_set(c, seq, SKV_PARK_WANTED);
	}
	return true;
}

/* Continues a pass over all accounts, then over all sequences. False: *units are used up before the end. */
static bool sweep(struct skv_core *c, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns, uint32_t *units)
{
	struct skv_aging *a = &c->aging;

	for (; (a->account = skv_state_next(&c->state, SKV_TABLE_ACCOUNTS, a->account)) != SKV_NO_INDEX; a->account++) {
		if (!skv_units_take(units, ROW_UNITS))
			return false;
		if (skv_age_trim_prefixes(c, a->account))
			(void)skv_units_take(units, skv_account_row(&c->state, a->account)->sequences * ROW_UNITS);
	}
	for (; (a->seq = skv_state_next(&c->state, SKV_TABLE_SEQUENCES, a->seq)) != SKV_NO_INDEX; a->seq++) {
		if (!skv_units_take(units, ROW_UNITS))
			return false;
		if (a->forgets && c->seqs[a->seq].parking == SKV_PARK_FAILED)
			skv_park_set(c, a->seq, SKV_PARK_NOT);
		if (is_idle(c, a->seq) && !is_read(c, a->seq) && !age(c, a->seq, now_ns, park_ns, ttl_ns))
			return true; /* out of memory: ends this pass, and a later one retries the sequence */
	}
	return true;
}

bool skv_core_age(struct skv_core *c, uint64_t now_ns, uint64_t park_ns, uint64_t ttl_ns, uint32_t units)
{
	struct skv_aging *a = &c->aging;

	if (!a->begun) {
		/* this pass retries sequences whose parking failed, if the last failure is long enough ago */
		*a = (struct skv_aging){.begun = true};
		a->forgets = c->park_failed_ns && now_ns - c->park_failed_ns >= PARK_AGAIN_NS;
		if (a->forgets)
			c->park_failed_ns = 0;
	}
	a->begun = !sweep(c, now_ns, park_ns, ttl_ns, &units);
	return a->begun;
}
