/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/sequences/idle.h"

#include <errno.h>
#include <stdlib.h>

/* A sequence with its sort key, because the comparison function of qsort() gets no context. */
struct entry {
	uint64_t used;
	uint32_t seq;
};

static int by_use(const void *a, const void *b)
{
	const uint64_t x = ((const struct entry *)a)->used, y = ((const struct entry *)b)->used;

	return (x > y) - (x < y);
}

static int enter_all(struct skv_core *c)
{
	struct entry *all = calloc(c->state.header->live[SKV_TABLE_SEQUENCES] + 1, sizeof(*all));
	uint32_t n = 0;

	if (!all)
		return -ENOMEM;
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		all[n++] = (struct entry){skv_seq_row(&c->state, i)->used, i};
	qsort(all, n, sizeof(*all), by_use);
	for (uint32_t i = 0; i < n; i++)
		skv_idle_update(c, all[i].seq);
	free(all);
	return 0;
}

int skv_idle_init(struct skv_core *c)
{
	const struct skv_state_header *h = c->state.header;
	struct skv_idle *idle = &c->idle;

	idle->of = calloc(h->elements[SKV_TABLE_ACCOUNTS], sizeof(*idle->of));
	idle->at = calloc(h->elements[SKV_TABLE_SEQUENCES], sizeof(*idle->at));
	if (!idle->of || !idle->at)
		return -ENOMEM;
	for (uint64_t i = 0; i < h->elements[SKV_TABLE_ACCOUNTS]; i++)
		idle->of[i].first = idle->of[i].last = SKV_NO_INDEX;
	for (uint64_t i = 0; i < h->elements[SKV_TABLE_SEQUENCES]; i++)
		idle->at[i].account = SKV_NO_INDEX;
	return enter_all(c);
}

void skv_idle_deinit(struct skv_idle *idle)
{
	free(idle->of);
	free(idle->at);
}

void skv_idle_remove(struct skv_core *c, uint32_t seq)
{
	struct skv_idle_at *at = &c->idle.at[seq];

	if (at->account == SKV_NO_INDEX)
		return;
	*(at->prev == SKV_NO_INDEX ? &c->idle.of[at->account].first : &c->idle.at[at->prev].next) = at->next;
	*(at->next == SKV_NO_INDEX ? &c->idle.of[at->account].last : &c->idle.at[at->next].prev) = at->prev;
	at->account = SKV_NO_INDEX;
}

void skv_idle_update(struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	struct skv_idle_of *of = &c->idle.of[q->account];
	struct skv_idle_at *at = &c->idle.at[seq];

	skv_idle_remove(c, seq);
	if (q->session != SKV_NO_INDEX || !q->name[0])
		return;
	*at = (struct skv_idle_at){.account = q->account, .prev = of->last, .next = SKV_NO_INDEX};
	*(of->last == SKV_NO_INDEX ? &of->first : &c->idle.at[of->last].next) = seq;
	of->last = seq;
}

uint32_t skv_idle_first(const struct skv_core *c, uint32_t account)
{
	return c->idle.of[account].first;
}

uint32_t skv_idle_after(const struct skv_core *c, uint32_t seq)
{
	return c->idle.at[seq].next;
}
