/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/sequences/park-queue.h"

#include <errno.h>
#include <stdlib.h>

#define AT_ONCE 2u /* number of a user's sequences that are parked at once: one is written, the next one is listed */

int skv_park_queue_init(struct skv_park_queue *q, uint32_t max_accounts)
{
	int r;

	q->of = calloc(max_accounts, sizeof(*q->of));
	r = q->of ? skv_bitset_init(&q->ready, max_accounts) : -ENOMEM;
	for (uint32_t i = 0; r == 0 && i < max_accounts; i++)
		for (unsigned k = 0; k < SKV_PARK_LISTS; k++)
			q->of[i].list[k] = (struct skv_park_list){.first = SKV_NO_INDEX, .last = SKV_NO_INDEX};
	return r;
}

void skv_park_queue_deinit(struct skv_park_queue *q)
{
	free(q->of);
	skv_bitset_deinit(&q->ready);
}

/* The list in which a sequence waits, is being parked, or is being read; NULL: the sequence is in no list. */
static struct skv_park_list *list_of(const struct skv_core *c, uint32_t seq)
{
	const enum skv_park_state p = c->seqs[seq].parking;
	struct skv_park_account *a = &c->park_queue.of[skv_seq_row(&c->state, seq)->account];

	switch (p) {
	case SKV_PARK_WANTED: return &a->list[SKV_PARK_WAIT];
	case SKV_PARK_STARTED: return &a->list[SKV_PARK_RUN];
	case SKV_PARK_READ: return &a->list[SKV_PARK_READERS];
	case SKV_PARK_NOT:
	case SKV_PARK_FAILED: break;
	}
	return NULL;
}

static void leave(struct skv_core *c, struct skv_park_list *list, uint32_t seq)
{
	const struct skv_seq_local *l = &c->seqs[seq];

	*(l->park_prev == SKV_NO_INDEX ? &list->first : &c->seqs[l->park_prev].park_next) = l->park_next;
	*(l->park_next == SKV_NO_INDEX ? &list->last : &c->seqs[l->park_next].park_prev) = l->park_prev;
	list->n--;
}

static void enter(struct skv_core *c, struct skv_park_list *list, uint32_t seq)
{
	c->seqs[seq].park_prev = list->last;
	c->seqs[seq].park_next = SKV_NO_INDEX;
	*(list->last == SKV_NO_INDEX ? &list->first : &c->seqs[list->last].park_next) = seq;
	list->last = seq;
	list->n++;
}

void skv_park_set(struct skv_core *c, uint32_t seq, enum skv_park_state parking)
{
	const uint32_t account = skv_seq_row(&c->state, seq)->account;
	struct skv_park_list *list = list_of(c, seq);

	if (c->seqs[seq].parking == parking)
		return;
	if (list)
		leave(c, list, seq);
	c->seqs[seq].parking = parking;
	list = list_of(c, seq);
	if (list)
		enter(c, list, seq);
	skv_bitset_put(&c->park_queue.ready, account,
	               c->park_queue.of[account].list[SKV_PARK_WAIT].n && skv_park_has_room(c, account));
}

bool skv_park_has_room(const struct skv_core *c, uint32_t account)
{
	return c->park_queue.of[account].list[SKV_PARK_RUN].n < AT_ONCE;
}

uint32_t skv_park_next(struct skv_core *c)
{
	struct skv_park_queue *q = &c->park_queue;
	uint32_t account = skv_bitset_next(&q->ready, q->turn);

	if (account == SKV_BITSET_NONE)
		account = skv_bitset_next(&q->ready, 0);
	if (account == SKV_BITSET_NONE)
		return SKV_NO_INDEX;
	q->turn = account + 1;
	return q->of[account].list[SKV_PARK_WAIT].first;
}

uint32_t skv_park_first(const struct skv_core *c, uint32_t account)
{
	const struct skv_park_account *a = &c->park_queue.of[account];

	return a->list[SKV_PARK_WAIT].n ? a->list[SKV_PARK_WAIT].first : a->list[SKV_PARK_RUN].first;
}

uint32_t skv_park_first_read(const struct skv_core *c, uint32_t account)
{
	return c->park_queue.of[account].list[SKV_PARK_READERS].first;
}

uint32_t skv_park_after(const struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_local *l = &c->seqs[seq];

	if (l->park_next != SKV_NO_INDEX || l->parking == SKV_PARK_STARTED)
		return l->park_next;
	return c->park_queue.of[skv_seq_row(&c->state, seq)->account].list[SKV_PARK_RUN].first;
}
