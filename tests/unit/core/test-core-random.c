/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of three users do random things, and the core must agree with the model (core-model.h) after each of them,
 * including refusals, incomplete steps, deaths and invalid memory.
 *
 * Clients also write their UID into their pages, also through mappings of segments that are gone; no client may ever
 * find another UID in a page.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/memory/pages.h"
#include "tests/support/core-actor.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define STEPS 1500
#define ROUNDS 12

static void setup(void)
{
	actor_config = books_config();
	actor_config.pool_bytes = M_SEGMENTS / 4 * 65536;
	actor_config.account_bytes = 800 << 10;
	actor_config.account_clients = 3;
	actor_config.account_sequences = 7;
	actor_config.max_clients = 3 * M_CLIENTS;
	actor_config.max_sequences = M_SEQS - 1;
	actor_config.max_pools = 6;
	actor_config.account_pools = actor_config.client_sessions = 0; /* the defaults */
	books_open(&actor_config);
	device_add(SKV_DEVICE_CUDA(0), &actor_config);
}

static bool chance(uint32_t percent)
{
	return rnd_below(100) < percent;
}

/* A client writes where it has no pages; discarded memory reads as zeros once the discard is complete. */
static void scribble(struct actor *a, uint32_t i)
{
	uint32_t page = rnd_below(a->peer.session.max_segments) * a->peer.session.pages_per_segment;

	if (a->maps[0] && !skv_page_exists(core, a->peer.session.pool, page))
		memset(a->maps[0] + page * a->peer.session.page_bytes, (int)M_UID(m_clients[i].uid) & 0xff, 4096);
	while (mem.n_discards && chance(80))
		mem_discarded(rnd_below(mem.n_discards));
}

/* Acknowledges some ends of segments; writes through the mappings of the others. */
static void acknowledge(uint32_t i)
{
	struct actor *a = &actors[i];

	if (a->whole) {
		scribble(a, i);
		return;
	}
	for (uint32_t s = 0; s < M_SEGMENTS; s++) {
		if (!a->gone[s])
			continue;
		memset(a->maps[s], (int)M_UID(m_clients[i].uid) & 0xff, 4096);
		if (chance(50))
			continue;
		actor_unmap(a, s);
		ck_assert_int_eq(skv_core_segment_ack(core, a->peer.client, a->peer.session.pool, s), 0);
	}
}

/* ---- leases ---- */

static void put_some(uint32_t i)
{
	struct peer *p = &actors[i].peer;
	struct skv_wire_run runs[64];
	uint32_t n = 0;

	while (n < 64 && p->n_stock && chance(97)) {
		uint32_t k = rnd_below(p->n_stock);

		runs[n++] = (struct skv_wire_run){p->stock[k], 1};
		p->stock[k] = p->stock[--p->n_stock];
	}
	ck_assert_int_eq(skv_core_lease_put(core, p->client, p->session.session, runs, n), 0);
	for (uint32_t k = 0; k < n; k++)
		m_unlease(i, runs[k].first);
}

/* Gives back pages that are not on lease to this client. */
static void put_wrong(uint32_t i)
{
	struct peer *p = &actors[i].peer;
	struct skv_wire_run runs[3] = {{rnd_below(M_PAGES), 1}, {rnd_below(M_PAGES), 1 + rnd_below(100)}};

	if (p->n_stock)
		runs[0].first = p->stock[0];
	runs[2] = runs[0]; /* twice, if nothing else is wrong */
	ck_assert_int_eq(skv_core_lease_put(core, p->client, p->session.session, runs, 3),
	                 SKV_CORE_E_INVALID);
}

/* ---- sequences ---- */

static struct m_seq *free_row(void)
{
	for (uint32_t i = 0; i < M_SEQS; i++)
		if (!m_seqs[i].used)
			return &m_seqs[i];
	return NULL;
}

/* A sequence that the client holds, or NULL. */
static struct m_seq *some_held(uint32_t i)
{
	uint32_t from = rnd_below(M_SEQS);

	for (uint32_t n = 0; n < M_SEQS; n++) {
		struct m_seq *q = &m_seqs[(from + n) % M_SEQS];

		if (q->used && q->holder == (int)i)
			return q;
	}
	return NULL;
}

static const char *some_name(void)
{
	static const char *const names[] = {"", "", "a", "b", "c", "d", "e"};

	return names[rnd_below(7)];
}

/* May a user that has `own` of `all` rows have one more? Its first, or as many as are left for others. */
static bool is_share(uint32_t own, uint32_t all, uint32_t most)
{
	return all < most && (own == 0 || own + 1 <= most - all - 1);
}

/* Does the user's quota have no room for `bytes` beside its pages? Includes what was measured. */
static bool is_full(uint32_t uid, uint64_t bytes)
{
	struct skv_core_account_view v = books_account(M_UID(uid));

	return v.page_bytes[SKV_DEVICE_HOST] + v.other_bytes + bytes > actor_config.account_bytes;
}

/* The expected result of making one more sequence. */
static int expect_make(uint32_t i, const char *name)
{
	const uint32_t uid = m_clients[i].uid, kind = m_clients[i].kind;

	actor_measure(i);
	if (m_find(uid, kind, name))
		return SKV_CORE_E_EXIST;
	if (is_full(uid, 4096) || m_n_seqs(uid) >= actor_config.account_sequences)
		return SKV_CORE_E_QUOTA;
	return is_share(m_n_seqs(uid), m_n_seqs(UINT32_MAX), actor_config.max_sequences) ? 0 : SKV_CORE_E_NOSPC;
}

static void seq_new(uint32_t i)
{
	const char *name = some_name();
	struct peer *p = &actors[i].peer;
	struct skv_core_seq_info info;
	int want = expect_make(i, name);
	int r = skv_core_seq_new(core, p->client, p->session.session, name, 0, &info);

	ck_assert_int_eq(r, want);
	if (r == 0)
		actor_made(free_row(), i, name, &info);
}

/* Writes entries of a step without a commit; the copied last pages count from now on. Returns later pages in torn[]. */
static uint32_t write_step(struct m_seq *q, uint32_t n_tokens, uint32_t *torn)
{
	struct grip *g = grip_of(q);
	struct peer *p = &actors[q->holder].peer;
	uint32_t have = skv_pages_of(q->len), want = skv_pages_of(q->len + n_tokens), n_cow, n_torn = 0;
	uint32_t cow[M_LAYERS];

	held_write(&g->held, p, n_tokens, cow, &n_cow);
	for (uint32_t k = 0; k < n_cow; k++)
		g->pending[g->n_pending++] = cow[k];
	for (uint32_t t = 0; t < m_tables(q->kind); t++) {
		skv_pte *table = skv_seqmem_table(g->held.mem, &g->held.layout, t);

		if (t / m_layers(q->kind) == SKV_PAGES_SAVED)
			continue; /* independent of the length: change_state() */
		if (have)
			q->table[t][have - 1] = table[have - 1];
		for (uint32_t k = have; k < want; k++) {
			if (t >= m_layers(q->kind)) /* some state pages exist from now on */
				table[k] = chance(50) ? skv_pte_make(SKV_PTE_PRIVATE, peer_take(p)) : 0;
			if (skv_pte_resident(table[k]))
				torn[n_torn++] = skv_pte_id(table[k]);
		}
	}
	return n_torn;
}

/* Adds and removes state pages, whatever the length; a shared one is removed or copied. */
static void change_state(struct m_seq *q)
{
	struct grip *g = grip_of(q);
	struct peer *p = &actors[q->holder].peer;

	actor_release(q, g);
	for (uint32_t t = m_layers(q->kind); t < m_tables(q->kind); t++)
		for (uint32_t k = 0; k < m_entries(q, t); k++) {
			skv_pte was = q->table[t][k], now = 0;

			if (chance(70))
				continue;
			if (skv_pte_kind(was) != SKV_PTE_PRIVATE && p->n_stock && chance(70))
				now = skv_pte_make(SKV_PTE_PRIVATE, peer_take(p));
			if (skv_pte_kind(was) == SKV_PTE_PRIVATE)
				peer_stock(p, skv_pte_id(was));
			else if (skv_pte_kind(was) == SKV_PTE_SHARED)
				g->pending[g->n_pending++] = skv_pte_id(was);
			q->table[t][k] = skv_seqmem_table(g->held.mem, &g->held.layout, t)[k] = now;
		}
}

static void append(struct m_seq *q, bool commit)
{
	struct grip *g = grip_of(q);
	struct peer *p = &actors[q->holder].peer;
	uint32_t n_tokens = 1 + rnd_below(chance(50) ? 4 : 80), torn[M_TABLE * M_TABLES], n;
	uint32_t have = skv_pages_of(q->len), need;

	if (q->len + n_tokens > M_TABLE * SKV_PAGE_TOKENS)
		return;
	need = m_tables(q->kind) * (skv_pages_of(q->len + n_tokens) - have + 1);
	if (p->n_stock < need && !actor_lease((uint32_t)q->holder, need - p->n_stock, need + 20))
		return;
	if (g->n_pending && chance(80))
		actor_release(q, g);
	if (g->n_pending > M_TABLE) /* no room for more pending releases */
		return;
	n = write_step(q, n_tokens, torn);
	if (!commit) { /* the entries stay, and their pages go back to the stock */
		for (uint32_t k = 0; k < n && chance(90); k++)
			peer_stock(p, torn[k]);
		return;
	}
	held_commit(&g->held, n_tokens);
	q->len += n_tokens;
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t k = have; k < skv_pages_of(q->len); k++)
			q->table[t][k] = held_entry(&g->held, t, k);
}

/* An eviction through the journal, up to a point: 0 written, 1 committed, 2 some holes made, 3 complete. */
static void evict(struct m_seq *q, int point)
{
	struct grip *g = grip_of(q);
	struct skv_seqmem *m = g->held.mem;
	struct skv_eviction *j = skv_seqmem_journal(m, &g->held.layout);
	uint32_t n = 0;

	atomic_store(&m->journal_epoch, skv_commit_epoch(m->commit) + 1);
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t k = 0; k + 1 < skv_pages_of(q->len); k++)
			if (skv_pte_resident(q->table[t][k]) && chance(30))
				j[n++] = (struct skv_eviction){t, k};
	atomic_store(&m->journal_n, n);
	if (point == 0)
		return;
	held_commit(&g->held, 0);
	for (uint32_t k = 0; k < n; k++) {
		skv_pte *e = &q->table[j[k].table][j[k].page];

		if (skv_pte_kind(*e) == SKV_PTE_PRIVATE)
			peer_stock(&actors[q->holder].peer, skv_pte_id(*e));
		else
			g->pending[g->n_pending++] = skv_pte_id(*e);
		*e = skv_seqmem_evicted(&g->held.layout, j[k].table);
		if (point == 3 || (point == 2 && chance(50)))
			skv_seqmem_table(m, &g->held.layout, j[k].table)[j[k].page] = *e;
	}
	if (point == 3)
		atomic_store(&m->journal_n, 0);
}

static void drop(struct m_seq *q)
{
	struct peer *p = &actors[q->holder].peer;

	ck_assert_int_eq(in_turns(skv_core_seq_drop(core, p->client, p->session.session, seq_ids[q - m_seqs]), NULL), 0);
	actor_take_back(q, p);
	held_close(&grip_of(q)->held);
	m_drop(q);
}

static void detach(struct m_seq *q, bool lied)
{
	struct peer *p = &actors[q->holder].peer;

	ck_assert_int_eq(in_turns(skv_core_seq_detach(core, p->client, p->session.session, seq_ids[q - m_seqs]), NULL),
	                 lied && q->name[0] ? SKV_CORE_E_CORRUPT : 0);
	held_close(&grip_of(q)->held);
	if (lied || !q->name[0]) {
		actor_take_back(q, p);
		m_drop(q);
	} else {
		m_let_go(q);
	}
}

static void fork_seq(struct m_seq *q, bool lied)
{
	uint32_t i = (uint32_t)q->holder;
	const char *name = some_name();
	struct skv_core_seq_info info;
	struct m_seq *child = free_row();
	int want = expect_make(i, name), r;

	r = in_turns(skv_core_seq_fork(core, actors[i].peer.client, actors[i].peer.session.session, seq_ids[q - m_seqs],
	                               name, SKV_ALL, &info),
	             &info);
	if (lied) {
		ck_assert_int_eq(r, SKV_CORE_E_CORRUPT);
		actor_take_back(q, &actors[i].peer);
		held_close(&grip_of(q)->held);
		m_drop(q);
		return;
	}
	/* the child would be as large as its parent, which was measured just now */
	if (r == SKV_CORE_E_QUOTA && want != r)
		ck_assert(is_full(q->uid, skv_seq_row(&core->state, skv_state_find(&core->state, SKV_TABLE_SEQUENCES,
		                                                                   seq_ids[q - m_seqs]))->bytes));
	else
		ck_assert_int_eq(r, want);
	if (r)
		return;
	actor_made(child, i, name, &info);
	m_fork(q, child);
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t k = 0; k < m_entries(q, t); k++) {
			ck_assert_uint_eq(held_entry(&grip_of(q)->held, t, k), q->table[t][k]);
			ck_assert_uint_eq(held_entry(&grip_of(child)->held, t, k), child->table[t][k]);
		}
}

static void attach(uint32_t i)
{
	const char *name = some_name();
	struct peer *p = &actors[i].peer;
	struct m_seq *q = m_find(m_clients[i].uid, m_clients[i].kind, name);
	struct skv_core_seq_info info;
	int r = in_turns(skv_core_seq_attach(core, p->client, p->session.session, name, &info), &info);

	ck_assert_int_eq(r, !q ? SKV_CORE_E_NOENT : q->holder >= 0 ? SKV_CORE_E_BUSY : 0);
	if (r)
		return;
	m_attach(q, i);
	ck_assert_uint_eq(info.seq, seq_ids[q - m_seqs]);
	held_open(&grip_of(q)->held, p, &info);
	grip_of(q)->n_pending = 0;
	actor_hear(i);
	ck_assert_uint_eq(held_len(&grip_of(q)->held), q->len);
	for (uint32_t t = 0; t < m_tables(q->kind); t++)
		for (uint32_t k = 0; k < m_entries(q, t); k++) {
			ck_assert_uint_eq(held_entry(&grip_of(q)->held, t, k), q->table[t][k]);
			if (skv_pte_resident(q->table[t][k]))
				actor_sign(i, skv_pte_id(q->table[t][k]));
		}
}

static void drop_some_name(void)
{
	uint32_t uid = rnd_below(M_UIDS), kind = rnd_below(M_KINDS);
	const char *name = some_name();
	struct m_seq *q = m_find(uid, kind, name);
	int r = drop_name(M_UID(uid), m_model(kind).name, name);

	ck_assert_int_eq(r, !q ? SKV_CORE_E_NOENT : q->holder >= 0 ? SKV_CORE_E_BUSY : 0);
	if (r == 0)
		m_drop(q);
}

/* Writes something into the committed tables that no validation may accept. */
static bool lie(struct m_seq *q)
{
	struct grip *g = grip_of(q);
	const struct m_pool *p = &m_pools[q->uid][q->kind];
	uint32_t t = rnd_below(m_tables(q->kind));
	uint32_t pages = m_entries(q, t), page = rnd_below(512); /* mostly an existing page */
	skv_pte *e;

	if (!pages)
		return false;
	e = &skv_seqmem_table(g->held.mem, &g->held.layout, t)[rnd_below(pages)];
	switch (rnd_below(5)) {
	case 0:
		if (t >= m_layers(q->kind))
			return false; /* state pages may be missing */
		*e = 0;
		return true;
	case 1:
		*e = (4 + rnd_below(12)) << SKV_PTE_KIND_SHIFT | page;
		if (t >= m_layers(q->kind) && chance(50))
			*e = skv_pte_make(SKV_PTE_HOLE, 0); /* tables of state have no holes */
		return true;
	case 2: /* not on lease to its holder */
		if (p->has[page] == M_LEASE && p->who[page] == q->holder)
			return false;
		*e = skv_pte_make(SKV_PTE_PRIVATE, page);
		return true;
	case 3: /* not shared by the sequence */
		if (q->refers[page])
			return false;
		*e = skv_pte_make(SKV_PTE_SHARED, page);
		return true;
	default: atomic_store(&g->held.mem->commit, rnd64() | UINT32_MAX / 2); return true;
	}
}

/* ---- clients ---- */

static void join(uint32_t i)
{
	uint32_t uid = rnd_below(M_UIDS), kind = rnd_below(M_KINDS), pools = 0, own = 0;
	struct actor *a = &actors[i];
	struct skv_model m = m_model(kind);
	int r, want;

	*a = (struct actor){.peer.model = m};
	r = skv_core_client_add(core, M_UID(uid), 1, "random", &client_ids[i]);
	ck_assert_int_eq(r, m_n_clients(uid) >= actor_config.account_clients ? SKV_CORE_E_QUOTA : 0);
	if (r)
		return;
	a->peer.client = client_ids[i];
	for (uint32_t u = 0; u < M_UIDS; u++)
		for (uint32_t k = 0; k < M_KINDS; k++)
			pools += m_pool_used(u, k);
	for (uint32_t k = 0; k < M_KINDS; k++)
		own += m_pool_used(uid, k);
	want = is_full(uid, 4096)                                                                   ? SKV_CORE_E_QUOTA
	       : m_pool_used(uid, kind) || is_share(own, pools, actor_config.max_pools) ? 0
	                                                                                : SKV_CORE_E_NOSPC;
	ck_assert_int_eq(skv_core_session_open(core, client_ids[i], &m, "full", 1, &a->peer.session), want);
	r = want;
	if (r) {
		client_gone(client_ids[i]);
		return;
	}
	m_clients[i] = (struct m_client){.used = true, .uid = uid, .kind = kind};
}

/* `liar`: a held sequence with invalid memory, or NULL. */
static void die(uint32_t i, struct m_seq *liar)
{
	struct actor *a = &actors[i];
	bool close_first = chance(30);

	if (close_first)
		ck_assert_int_eq(in_turns(skv_core_session_close(core, a->peer.client, a->peer.session.session), NULL), 0);
	client_gone(a->peer.client);
	for (uint32_t k = 0; k < M_SEQS; k++)
		if (m_seqs[k].used && m_seqs[k].holder == (int)i)
			held_close(&grips[k].held);
	if (liar)
		m_drop(liar);
	m_leave(i);
	actor_unmap_all(a);
	free(a->peer.stock);
}

/* Dies in the middle of something. */
static void die_somehow(uint32_t i)
{
	struct m_seq *q = some_held(i);

	if (q)
		switch (rnd_below(5)) {
		case 0: append(q, false); break;
		case 1: evict(q, (int)rnd_below(4)); break;
		case 2: change_state(q); break;
		case 3:
			if (lie(q)) {
				die(i, q->name[0] ? q : NULL);
				return;
			}
			break;
		}
	die(i, NULL);
}

static void do_something(uint32_t i)
{
	struct m_seq *q = some_held(i);
	uint32_t what = rnd_below(100);

	if (what < 4)
		die_somehow(i);
	else if (what < 14)
		actor_lease(i, rnd_below(60), 60 + rnd_below(60));
	else if (what < 24)
		put_some(i);
	else if (what < 28)
		put_wrong(i);
	else if (what < 34)
		acknowledge(i);
	else if (what < 44)
		attach(i);
	else if (what < 48)
		drop_some_name();
	else if (what < 56 || !q)
		seq_new(i);
	else if (what < 72)
		append(q, chance(90));
	else if (what < 75)
		change_state(q);
	else if (what < 82)
		evict(q, 3);
	else if (what < 86)
		actor_release(q, grip_of(q));
	else if (what < 91)
		fork_seq(q, false);
	else if (what < 95)
		detach(q, false);
	else if (what < 97)
		drop(q);
	else if (lie(q))
		(!q->name[0] || chance(50) ? fork_seq : detach)(q, true);
}

START_TEST(the_books_agree_with_the_model)
{
	rnd_begin((uint64_t)_i);
	m_device = _i % 2 ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
	mem.slow = true;
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t i = rnd_below(M_CLIENTS);

		if (!m_clients[i].used)
			join(i);
		else
			do_something(i);
		for (uint32_t k = 0; k < M_CLIENTS; k++)
			if (m_clients[k].used && chance(50))
				actor_hear(k);
		m_compare(client_ids, seq_ids, actor_config.pool_bytes);
	}
	for (uint32_t i = 0; i < M_CLIENTS; i++)
		if (m_clients[i].used)
			die(i, NULL);
	m_compare(client_ids, seq_ids, actor_config.pool_bytes);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-random");
	TCase *t = add_case(s, "random", 60, setup, books_close, NULL);

	tcase_add_loop_test(t, the_books_agree_with_the_model, 0, getenv("SKV_VALGRIND") ? 2 : ROUNDS);
	return run_suite(s);
}
