/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/pages/seq-table.c - all page tables of a sequence at once: checking, counting and giving back their pages.
 *
 * A sequence's memory was written by its previous holder. So all table entries are checked when the memory is mapped,
 * against the pool as it is mapped here. They are checked once: later only this client writes to them, and the daemon
 * while it answers a fork.
 */
#include "libclient/pages/seq-table.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/conn/conn.h"
#include "libclient/conn/pool.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/pages/pages.h"
#include "libclient/pages/stock.h"

struct census {
	uint64_t full, shared;
};

/*
 * May this entry of a page table for K and V be a hole? Not if the layer has K and V of its own and the next token is
 * written to the entry's page.
 */
static bool may_be_hole(const struct skv_seq *q, uint32_t layer, uint32_t i)
{
	uint32_t extent = seq_slot_end(q, layer);

	return i != extent / SKV_PAGE_TOKENS || extent % SKV_PAGE_TOKENS == 0 ||
	       skv_model_kv_layer(&q->session->model, layer) != layer;
}

/* Can kernels use entry i of the table? Counts its page in *n. Needs client->lock. */
static int check_entry(struct skv_seq *q, uint32_t table, uint32_t i, struct census *n)
{
	static const char *const of[SKV_PAGE_KINDS] = {"", "bounds ", "slot metadata ", "codes ", "references ",
	                                               "saved queries "};
	enum skv_page_kind group = skv_table_page_kind(q->layout.n_layers, table);
	bool kv = group == SKV_PAGES_KV;
	uint32_t layer = skv_table_layer(q->layout.n_layers, table);
	skv_pte e = seq_table(q, table)[i];
	enum skv_pte_kind kind = skv_pte_kind(e);

	if (!kv && kind == SKV_PTE_NONE)
		return 0;
	if (kv && kind == SKV_PTE_HOLE && may_be_hole(q, layer, i))
		return 0;
	if (!skv_pte_resident(e))
		return error_set(-EBADMSG, "damaged sequence memory: %spage %u of layer %u is of kind %u", of[group], i, layer,
		            kind);
	if (!pool_has(q->session->pool, skv_pte_id(e)))
		return error_set(-EBADMSG,
		            "damaged sequence memory: %spage %u of layer %u is page %u, which the pool has not",
		            of[group], i, layer, skv_pte_id(e));
	n->full += kind == SKV_PTE_PRIVATE;
	n->shared += kind == SKV_PTE_SHARED;
	return 0;
}

/* Check all committed entries of the sequence's tables, and count private and shared pages in *ret. */
static int check_entries(struct skv_seq *q, struct census *ret)
{
	int e = 0;

	*ret = (struct census){0};
	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		for (uint32_t i = 0; i < seq_entries(q, table) && e == 0; i++)
			e = check_entry(q, table, i, ret);
	return e;
}

/* Record every page in the tables, which check_entries() has accepted, as held by this client. Needs client->lock. */
static void hold_all(struct skv_seq *q)
{
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++) {
			if (!skv_pte_resident(t[i]))
				continue;
			pool_hold(q->session->pool, skv_pte_id(t[i]));
			if (skv_pte_kind(t[i]) == SKV_PTE_PRIVATE)
				pool_lease(q->session->pool, skv_pte_id(t[i]), 1);
		}
	}
}

/* Make room to record every shared page that the sequence may give up. */
static int grow_release(struct skv_seq *q, uint64_t shared)
{
	uint64_t cap = q->release.n + shared;
	uint32_t *ids;

	if (cap <= q->release.cap)
		return 0;
	ids = realloc(q->release.pages, cap * sizeof(*ids));
	if (!ids)
		return error_set(-ENOMEM, "out of memory");
	q->release.pages = ids;
	q->release.cap = (uint32_t)cap;
	return 0;
}

int seq_claim_pages(struct skv_seq *q)
{
	struct skv_client *c = q->session->client;
	struct census n;
	int e;

	pthread_mutex_lock(&c->lock);
	e = check_entries(q, &n);
	if (e == 0)
		e = grow_release(q, n.shared);
	if (e == 0)
		e = stock_grow(q->session, n.full);
	if (e == 0) {
		q->n_shared = n.shared;
		hold_all(q);
	}
	pthread_mutex_unlock(&c->lock);
	return e;
}

/* Record that pages which a fork made shared are no longer on lease to this client. */
static void unlease_shared(struct skv_seq *q)
{
	struct skv_client *c = q->session->client;

	pthread_mutex_lock(&c->lock);
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++)
			if (skv_pte_kind(t[i]) == SKV_PTE_SHARED)
				pool_unlease(q->session->pool, skv_pte_id(t[i]));
	}
	pthread_mutex_unlock(&c->lock);
}

/*
 * The daemon has made the parent's pages shared. A shared page is copied before it is written, and never returns to the
 * stock.
 */
int seq_recount(struct skv_seq *q)
{
	struct census n;
	int e;

	pthread_mutex_lock(&q->session->client->lock);
	e = check_entries(q, &n);
	pthread_mutex_unlock(&q->session->client->lock);
	if (e == 0)
		e = grow_release(q, n.shared);
	if (e == 0) {
		/* the next step copies the tables, with the new kinds of pages, to the device */
		q->on_device.old = q->session->device;
		q->steady = false;
		q->session->stock.leased -= n.shared - q->n_shared;
		q->n_shared = n.shared;
		unlease_shared(q);
	}
	return e;
}

int seq_settle_fork(struct skv_seq *q)
{
	struct request *r = q->fork;
	int e;

	if (!r)
		return 0;
	if (!request_done(q->session->client, r))
		return error_set(-ETIMEDOUT, "a fork of the sequence still waits for the daemon's answer");
	e = seq_recount(q);
	if (e < 0)
		return e;
	q->fork = NULL;
	conn_orphan(q->session->client, r);
	return 0;
}

static int fork_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	(void)n_tokens, (void)prompt;
	return seq_settle_fork(q);
}

const struct feature fork_feature = {.ready = fork_ready};

uint64_t seq_resident(const struct skv_seq *q)
{
	uint64_t n = 0;

	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		if (!skv_page_kind_holds_tokens(skv_table_page_kind(q->layout.n_layers, table)))
			continue;
		for (uint32_t i = 0; i < skv_pages_of(q->len); i++)
			n += skv_pte_resident(seq_table(q, table)[i]);
	}
	return n;
}

void seq_unhold(struct skv_seq *q, enum skv_pte_kind kind)
{
	struct skv_session *s = q->session;

	pthread_mutex_lock(&s->client->lock);
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++) {
			if (skv_pte_kind(t[i]) != kind)
				continue;
			pool_unhold(s->pool, skv_pte_id(t[i]));
			if (kind == SKV_PTE_PRIVATE)
				pool_unlease(s->pool, skv_pte_id(t[i]));
			s->stock.leased -= kind == SKV_PTE_PRIVATE;
		}
	}
	while (kind == SKV_PTE_SHARED && q->release.n > 0) {
		pool_unhold(s->pool, q->release.pages[--q->release.n]);
		s->stock.n_release--;
	}
	pthread_mutex_unlock(&s->client->lock);
}

void seq_take_own(struct skv_seq *q)
{
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++)
			if (skv_pte_kind(t[i]) == SKV_PTE_PRIVATE)
				stock_push(&q->session->stock, skv_pte_id(t[i]));
	}
}

void seq_put_own(struct skv_seq *q)
{
	size_t most = 1;
	uint32_t *ids, n = 0;

	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		most += seq_entries(q, table);
	ids = malloc(most * sizeof(*ids));
	for (uint32_t table = 0; table < q->layout.n_tables && ids; table++)
		for (uint32_t i = 0; i < seq_entries(q, table); i++)
			if (skv_pte_kind(seq_table(q, table)[i]) == SKV_PTE_PRIVATE)
				ids[n++] = skv_pte_id(seq_table(q, table)[i]);
	if (ids)
		stock_post(q->session, SKV_MSG_LEASE_PUT, 0, ids, n);
	free(ids);
}
