/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/pages/copy-on-write.c - copies shared pages before a step writes to them.
 *
 * Kernels write only to pages that no other sequence uses: to new pages, or to copies of pages that the sequence shares
 * with a fork. A copy has the same contents as the original, and replaces it in the page table with one store.
 */
#include "libclient/conn/pool.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/pages/pages.h"
#include "libclient/pages/stock.h"
#include "libclient/seq.h"

#define COPIES_AT_ONCE 256u

struct copies {
	uint32_t n, table[COPIES_AT_ONCE], page[COPIES_AT_ONCE];
	uint32_t own[COPIES_AT_ONCE], dst[COPIES_AT_ONCE], src[COPIES_AT_ONCE];
};

static void record_copy(struct skv_seq *q, struct copies *c, uint32_t table, uint32_t page)
{
	struct skv_session *s = q->session;
	uint32_t i = c->n++;

	c->table[i] = table;
	c->page[i] = page;
	c->src[i] = pool_kernel_page(s->pool, skv_pte_id(seq_table(q, table)[page]), true);
	c->own[i] = stock_pop(&s->stock);
	c->dst[i] = pool_kernel_page(s->pool, c->own[i], false);
}

/* Copy the recorded pages, then let their table entries name the copies. */
static int copy(struct skv_seq *q, struct copies *c)
{
	struct skv_session *s = q->session;
	int e = 0;

	if (c->n == 0)
		return 0;
	s->kernels->copy_pages(&s->shape, c->dst, c->src, c->n, &s->step.work);
	if (s->device)
		e = device_wait(s);
	atomic_thread_fence(memory_order_release); /* a copy is complete before a table entry names it */
	for (uint32_t i = c->n; i-- > 0 && e < 0;)
		stock_push(&s->stock, c->own[i]);
	for (uint32_t i = 0; i < c->n && e == 0; i++) {
		skv_pte *entry = &seq_table(q, c->table[i])[c->page[i]];

		seq_give_up(q, skv_pte_id(*entry));
		*entry = skv_pte_make(SKV_PTE_PRIVATE, c->own[i]);
		device_stale(q, c->table[i], c->page[i]);
	}
	c->n = 0;
	return e;
}

static int make_own(struct skv_seq *q)
{
	struct copies c = {0};
	int e = 0;

	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		struct span x = pages_written(q, table);

		for (uint32_t page = x.from; page < x.to && e == 0; page++) {
			if (!pages_shares(q, table, page))
				continue;
			record_copy(q, &c, table, page);
			if (c.n == COPIES_AT_ONCE)
				e = copy(q, &c);
		}
	}
	return e == 0 ? copy(q, &c) : e;
}

int pages_unshare(struct skv_session *s)
{
	int e = 0;

	for (uint32_t i = 0; i < s->step.n && e == 0; i++)
		if (s->step.seqs[i]->n_shared > 0)
			e = make_own(s->step.seqs[i]);
	return e;
}
