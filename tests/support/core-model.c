/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core-model.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

struct m_pool m_pools[M_UIDS][M_KINDS];
struct m_client m_clients[M_CLIENTS];
struct m_seq m_seqs[M_SEQS];

uint32_t m_layers(uint32_t kind)
{
	return kind ? 3 : 2;
}

uint32_t m_tables(uint32_t kind)
{
	return SKV_PAGE_KINDS * m_layers(kind);
}

uint32_t m_entries(const struct m_seq *q, uint32_t table)
{
	return table / m_layers(q->kind) == SKV_PAGES_SAVED ? M_KEPT : skv_pages_of(q->len);
}

uint32_t m_device;

struct skv_model m_model(uint32_t kind)
{
	struct skv_model m = test_model(kind ? "three" : "two", m_layers(kind), kind ? 32 : 16);

	m.max_tokens = M_TABLE * SKV_PAGE_TOKENS;
	m.device = m_device;
	return m;
}

uint64_t m_page_bytes(uint32_t kind)
{
	return kind ? 2048 : 1024;
}

static struct m_pool *pool_of(const struct m_seq *q)
{
	return &m_pools[q->uid][q->kind];
}

void m_lease(uint32_t client, uint32_t page)
{
	struct m_pool *p = &m_pools[m_clients[client].uid][m_clients[client].kind];

	ck_assert_uint_lt(page, M_PAGES);
	ck_assert_msg(p->has[page] == M_FREE, "page %u was leased and is not free", page);
	p->has[page] = M_LEASE;
	p->who[page] = (uint8_t)client;
}

void m_unlease(uint32_t client, uint32_t page)
{
	struct m_pool *p = &m_pools[m_clients[client].uid][m_clients[client].kind];

	ck_assert(p->has[page] == M_LEASE && p->who[page] == client);
	p->has[page] = M_FREE;
}

void m_release(struct m_seq *q, uint32_t page)
{
	ck_assert(q->refers[page]);
	q->refers[page] = 0;
	for (uint32_t i = 0; i < M_SEQS; i++)
		if (m_seqs[i].used && pool_of(&m_seqs[i]) == pool_of(q) && m_seqs[i].refers[page])
			return;
	pool_of(q)->has[page] = M_FREE;
}

void m_drop(struct m_seq *q)
{
	struct m_pool *p = pool_of(q);

	for (uint32_t page = 0; page < M_PAGES; page++) {
		if (q->refers[page])
			m_release(q, page);
		if (p->has[page] == M_OWN && p->who[page] == q - m_seqs)
			p->has[page] = M_FREE;
	}
	q->used = false;
}

void m_let_go(struct m_seq *q)
{
	struct m_pool *p = pool_of(q);
	uint8_t named[M_PAGES] = {0};

	if (!q->name[0]) {
		m_drop(q);
		return;
	}
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t i = 0; i < m_entries(q, t); i++) {
			uint32_t page = skv_pte_id(q->table[t][i]);

			if (skv_pte_kind(q->table[t][i]) == SKV_PTE_PRIVATE) {
				p->has[page] = M_OWN;
				p->who[page] = (uint8_t)(q - m_seqs);
			} else if (skv_pte_kind(q->table[t][i]) == SKV_PTE_SHARED) {
				named[page] = 1;
			}
		}
	for (uint32_t page = 0; page < M_PAGES; page++)
		if (q->refers[page] && !named[page])
			m_release(q, page);
	q->holder = -1;
}

void m_attach(struct m_seq *q, uint32_t client)
{
	struct m_pool *p = pool_of(q);

	q->holder = (int)client;
	for (uint32_t page = 0; page < M_PAGES; page++)
		if (p->has[page] == M_OWN && p->who[page] == q - m_seqs) {
			p->has[page] = M_LEASE;
			p->who[page] = (uint8_t)client;
		}
}

void m_fork(struct m_seq *parent, struct m_seq *child)
{
	child->len = parent->len;
	for (uint32_t t = 0; t < m_tables(parent->kind); t++)
		for (uint32_t i = 0; i < m_entries(parent, t); i++) {
			skv_pte *e = &parent->table[t][i];
			uint32_t page = skv_pte_id(*e);

			if (skv_pte_kind(*e) == SKV_PTE_PRIVATE) {
				pool_of(parent)->has[page] = M_SHARED;
				*e = skv_pte_make(SKV_PTE_SHARED, page);
			}
			if (skv_pte_kind(*e) == SKV_PTE_SHARED)
				parent->refers[page] = child->refers[page] = 1;
			child->table[t][i] = *e;
		}
}

void m_leave(uint32_t client)
{
	struct m_pool *p = &m_pools[m_clients[client].uid][m_clients[client].kind];

	for (uint32_t i = 0; i < M_SEQS; i++)
		if (m_seqs[i].used && m_seqs[i].holder == (int)client)
			m_let_go(&m_seqs[i]);
	for (uint32_t page = 0; page < M_PAGES; page++)
		if (p->has[page] == M_LEASE && p->who[page] == client)
			p->has[page] = M_FREE;
	m_clients[client].used = false;
}

struct m_seq *m_find(uint32_t uid, uint32_t kind, const char *name)
{
	for (uint32_t i = 0; i < M_SEQS; i++)
		if (m_seqs[i].used && m_seqs[i].uid == uid && m_seqs[i].kind == kind && m_seqs[i].name[0] &&
		    !strcmp(m_seqs[i].name, name))
			return &m_seqs[i];
	return NULL;
}

uint32_t m_count(uint32_t uid, uint32_t kind, enum m_has has)
{
	uint32_t n = 0;

	for (uint32_t page = 0; page < M_PAGES; page++)
		n += m_pools[uid][kind].has[page] == has;
	return n;
}

uint64_t m_charged(uint32_t uid)
{
	uint64_t bytes = 0;

	for (uint32_t kind = 0; kind < M_KINDS; kind++)
		bytes += (M_PAGES - m_count(uid, kind, M_FREE)) * m_page_bytes(kind);
	return bytes;
}

uint32_t m_n_seqs(uint32_t uid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < M_SEQS; i++)
		n += m_seqs[i].used && (uid == UINT32_MAX || m_seqs[i].uid == uid);
	return n;
}

uint32_t m_n_clients(uint32_t uid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < M_CLIENTS; i++)
		n += m_clients[i].used && m_clients[i].uid == uid;
	return n;
}

bool m_pool_used(uint32_t uid, uint32_t kind)
{
	for (uint32_t i = 0; i < M_CLIENTS; i++)
		if (m_clients[i].used && m_clients[i].uid == uid && m_clients[i].kind == kind)
			return true;
	for (uint32_t i = 0; i < M_SEQS; i++)
		if (m_seqs[i].used && m_seqs[i].uid == uid && m_seqs[i].kind == kind)
			return true;
	return false;
}

/* ---- compared with the core ---- */

struct comparison {
	const uint32_t *client_ids, *seq_ids;
	uint32_t clients, seqs, pools;
	uint64_t segment_bytes;
};

static void compare_pool(void *data, const struct skv_core_pool_view *v)
{
	struct comparison *c = data;
	uint32_t uid = v->uid - M_UID(0), kind = v->page_bytes == m_page_bytes(1);

	ck_assert(m_pool_used(uid, kind));
	ck_assert_uint_eq(v->lease, m_count(uid, kind, M_LEASE));
	ck_assert_uint_eq(v->seq, m_count(uid, kind, M_OWN));
	ck_assert_uint_eq(v->shared, m_count(uid, kind, M_SHARED));
	ck_assert_uint_eq(v->free, v->pages - v->lease - v->seq - v->shared);
	c->segment_bytes += v->segments * v->segment_bytes;
	c->pools++;
}

static void compare_client(void *data, const struct skv_core_client_view *v)
{
	struct comparison *c = data;
	uint32_t i = 0, n = 0;

	while (i < M_CLIENTS && !(m_clients[i].used && c->client_ids[i] == v->client))
		i++;
	ck_assert_uint_lt(i, M_CLIENTS);
	ck_assert_uint_eq(v->uid, M_UID(m_clients[i].uid));
	for (uint32_t page = 0; page < M_PAGES; page++) {
		const struct m_pool *p = &m_pools[m_clients[i].uid][m_clients[i].kind];

		n += p->has[page] == M_LEASE && p->who[page] == i;
	}
	ck_assert_uint_eq(v->lease_pages, n);
	c->clients++;
}

static void compare_seq(void *data, const struct skv_core_seq_view *v)
{
	struct comparison *c = data;
	const struct m_seq *q = m_seqs;
	uint32_t resident[SKV_PAGE_KINDS] = {0}, shared = 0;

	while (q < m_seqs + M_SEQS && !(q->used && c->seq_ids[q - m_seqs] == v->seq))
		q++;
	ck_assert_ptr_ne(q, m_seqs + M_SEQS);
	ck_assert_str_eq(v->name, q->name);
	ck_assert_uint_eq(v->uid, M_UID(q->uid));
	ck_assert_uint_eq(v->client, q->holder < 0 ? 0 : c->client_ids[q->holder]);
	ck_assert_uint_eq(v->tokens, q->len);
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t i = 0; i < m_entries(q, t); i++) {
			resident[t / m_layers(q->kind)] += skv_pte_resident(q->table[t][i]);
			shared += skv_pte_kind(q->table[t][i]) == SKV_PTE_SHARED;
		}
	for (uint32_t group = 0; group < SKV_PAGE_KINDS; group++)
		ck_assert_uint_eq(v->pages[group], resident[group]);
	ck_assert_uint_eq(v->pages_shared, shared);
	ck_assert_uint_eq(v->page_bytes, m_page_bytes(q->kind));
	c->seqs++;
}

void m_compare(const uint32_t client_ids[M_CLIENTS], const uint32_t seq_ids[M_SEQS], uint64_t pool_bytes)
{
	struct comparison c = {.client_ids = client_ids, .seq_ids = seq_ids};
	uint32_t clients = 0, pools = 0;

	books_walk(skv_core_pools_some, compare_pool, &c);
	books_walk(skv_core_clients_some, compare_client, &c);
	books_seqs(compare_seq, &c);
	for (uint32_t uid = 0; uid < M_UIDS; uid++) {
		struct skv_core_account_view v = books_account(M_UID(uid));

		ck_assert_uint_eq(v.page_bytes[m_device], m_charged(uid));
		ck_assert_uint_eq(v.clients, m_n_clients(uid));
		ck_assert_uint_eq(v.sequences, m_n_seqs(uid));
		clients += m_n_clients(uid);
		for (uint32_t kind = 0; kind < M_KINDS; kind++)
			pools += m_pool_used(uid, kind);
	}
	ck_assert_uint_eq(c.clients, clients);
	ck_assert_uint_eq(c.pools, pools);
	ck_assert_uint_eq(c.seqs, m_n_seqs(UINT32_MAX));
	ck_assert_uint_eq(c.segment_bytes, mem_bytes(m_device));
	ck_assert_uint_le(mem_bytes(m_device), pool_bytes);
	books_even();
}
