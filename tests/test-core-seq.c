/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in the books: names, hand-over, death at any point, forks, and memory that lies. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include "core-peer.h"

static struct skv_model model; /* 2 layers, pages of 1 KiB */
static char corrupt_why[256];
static uint32_t n_corrupt;

static void on_corrupt(void *data, uid_t uid, const char *m, const char *name, const char *why)
{
	(void)data;
	ck_assert_uint_eq(uid, 1000);
	ck_assert_str_eq(m, model.name);
	ck_assert_str_ne(name, "");
	snprintf(corrupt_why, sizeof(corrupt_why), "%s", why);
	n_corrupt++;
}

static void setup(void)
{
	struct skv_core_config config = books_config();

	model = test_model("m", 2, 16);
	books_open(&config);
	skv_core_on_corrupt(core, on_corrupt, NULL);
}

static void pool_is(const struct peer *p, uint64_t lease, uint64_t seq, uint64_t shared)
{
	struct skv_core_pool_view v = books_pool(p->session.pool);

	ck_assert_uint_eq(v.lease, lease);
	ck_assert_uint_eq(v.seq, seq);
	ck_assert_uint_eq(v.shared, shared);
	ck_assert_uint_eq(v.free, v.pages - lease - seq - shared);
	books_even();
}

struct find_seq {
	const char *name;
	uint32_t found;
	struct skv_core_seq_view v;
};

static void find_seq(void *data, const struct skv_core_seq_view *v)
{
	struct find_seq *f = data;

	if (!strcmp(v->name, f->name)) {
		f->v = *v;
		f->found++;
	}
}

static struct skv_core_seq_view seq_view(const char *name)
{
	struct find_seq f = {.name = name};

	skv_core_seqs(core, find_seq, &f);
	ck_assert_uint_eq(f.found, 1);
	return f.v;
}

static bool seq_exists(const char *name)
{
	struct find_seq f = {.name = name};

	skv_core_seqs(core, find_seq, &f);
	return f.found;
}

static int seq_new(struct peer *p, const char *name, uint32_t max_tokens)
{
	struct skv_core_seq_info info;

	return skv_core_seq_new(core, p->client, p->session.session, name, max_tokens, &info);
}

/* ---- names, ids, ceilings ---- */

START_TEST(a_named_sequence_is_handed_over)
{
	struct peer a, b;
	struct held h, g;
	skv_pte before[2][4];
	uint32_t old;

	peer_join(&a, 1000, &model);
	ck_assert_int_eq(peer_lease(&a, 20, 20), 0);
	held_new(&h, &a, "chat", 1024);
	held_append(&h, &a, 50);
	old = h.seq;
	for (uint32_t layer = 0; layer < 2; layer++)
		for (uint32_t i = 0; i < 4; i++)
			before[layer][i] = held_entry(&h, layer, i);
	pool_is(&a, 20, 0, 0);
	ck_assert_uint_eq(seq_view("chat").client, a.client);
	ck_assert_int_eq(held_detach(&h, &a), 0);
	pool_is(&a, 12, 8, 0);
	ck_assert_uint_eq(seq_view("chat").client, 0);
	ck_assert_uint_eq(seq_view("chat").pages_resident, 8);
	ck_assert_uint_eq(seq_view("chat").tokens, 50);
	peer_join(&b, 1000, &model);
	ck_assert_int_eq(held_attach(&g, &b, "chat"), 0);
	pool_is(&b, 20, 0, 0);
	for (uint32_t layer = 0; layer < 2; layer++)
		for (uint32_t i = 0; i < 4; i++)
			ck_assert_uint_eq(held_entry(&g, layer, i), before[layer][i]);
	ck_assert_uint_eq(held_len(&g), 50);
	ck_refused(skv_core_seq_detach(core, a.client, a.session.session, old), SKV_CORE_E_NOENT);
	/* its pages are the new holder's to free */
	held_drop(&g, &b);
	ck_assert_uint_eq(b.n_stock, 8);
	for (uint32_t i = 0; i < b.n_stock; i++)
		ck_assert_int_eq(skv_core_lease_put(core, b.client, b.session.session, &(struct skv_wire_run){b.stock[i], 1}, 1),
		                 0);
	pool_is(&b, 12, 0, 0);
	ck_refused(skv_core_seq_drop(core, b.client, b.session.session, old), SKV_CORE_E_NOENT);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(an_anonymous_sequence_goes_with_its_holder)
{
	struct peer a, b;
	struct held h;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
	held_new(&h, &a, "", 256);
	held_append(&h, &a, 32);
	pool_is(&a, 64, 0, 0);
	ck_assert_int_eq(skv_core_seq_detach(core, a.client, a.session.session, h.seq), 0);
	pool_is(&a, 64, 0, 0); /* dropped; its pages stay on lease */
	ck_refused(skv_core_seq_drop(core, a.client, a.session.session, h.seq), SKV_CORE_E_NOENT);
	held_close(&h);
	held_new(&h, &a, NULL, 256);
	held_append(&h, &a, 32);
	peer_die(&a);
	pool_is(&b, 0, 0, 0);
	ck_assert_uint_eq(books_account(1000).sequences, 0);
	held_close(&h);
	peer_die(&b);
}
END_TEST

START_TEST(names_are_of_a_user_a_model_and_a_rank)
{
	struct skv_model other = test_model("other", 2, 16), shape = model, rank = model;
	struct peer a, b, c, d, e;
	struct held h;

	shape.n_layers = 3;
	rank.rank = 1;
	rank.n_ranks = 2;
	peer_join(&a, 1000, &model);
	peer_join(&b, 1001, &model);
	peer_join(&c, 1000, &other);
	peer_join(&d, 1000, &shape);
	peer_join(&e, 1000, &rank);
	ck_assert_int_eq(seq_new(&a, "x", 16), 0);
	ck_refused(seq_new(&a, "x", 16), SKV_CORE_E_EXIST);
	ck_refused(seq_new(&d, "x", 16), SKV_CORE_E_EXIST); /* the model's name counts, not its shape */
	ck_assert_int_eq(seq_new(&b, "x", 16), 0);
	ck_assert_int_eq(seq_new(&c, "x", 16), 0);
	ck_assert_int_eq(seq_new(&e, "x", 16), 0);
	ck_refused(seq_new(&a, "with space", 16), SKV_CORE_E_INVALID);
	ck_refused(seq_new(&a, "with/slash", 16), SKV_CORE_E_INVALID);
	ck_refused(held_attach(&h, &a, "x"), SKV_CORE_E_BUSY);
	ck_refused(held_attach(&h, &a, "y"), SKV_CORE_E_NOENT);
	ck_refused(held_attach(&h, &a, ""), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_session_close(core, a.client, a.session.session), 0);
	ck_refused(held_attach(&h, &d, "x"), SKV_CORE_E_INVALID);
	peer_die(&a);
	peer_join(&a, 1000, &model);
	ck_assert_int_eq(held_attach(&h, &a, "x"), 0);
	held_close(&h);
	peer_die(&a);
	peer_die(&b);
	peer_die(&c);
	peer_die(&d);
	peer_die(&e);
}
END_TEST

START_TEST(lengths_and_numbers_have_ceilings)
{
	struct skv_core_config config = books_config();
	struct skv_model deep = test_model("deep", SKV_MAX_LAYERS, 16);
	struct skv_core_seq_info info;
	struct peer a, b, c;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1001, &model);
	ck_refused(seq_new(&a, "x", model.max_tokens + 1), SKV_CORE_E_INVALID);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, a.session.session, "", 0, &info), 0);
	ck_assert_uint_eq(info.max_tokens, model.max_tokens);
	for (uint32_t i = 1; i < config.account_sequences; i++)
		ck_assert_int_eq(seq_new(&a, "", 16), 0);
	ck_refused(seq_new(&a, "", 16), SKV_CORE_E_QUOTA);
	for (uint32_t i = config.account_sequences; i < config.max_sequences; i++)
		ck_assert_int_eq(seq_new(&b, "", 16), 0);
	ck_refused(seq_new(&b, "", 16), SKV_CORE_E_NOSPC);
	peer_die(&a);
	peer_die(&b);
	deep.max_tokens = SKV_MAX_TOKENS;
	peer_join(&c, 1000, &deep);
	ck_refused(seq_new(&c, "", SKV_MAX_TOKENS), SKV_CORE_E_INVALID); /* 2^28 entries */
	ck_assert_int_eq(seq_new(&c, "", SKV_CORE_MAX_ENTRIES / SKV_MAX_LAYERS * SKV_PAGE_TOKENS), 0);
	peer_die(&c);
}
END_TEST

START_TEST(a_session_lets_go_of_its_own)
{
	struct skv_core_session_info second;
	struct skv_core_seq_info info;
	struct peer a;
	struct held h;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 256);
	held_append(&h, &a, 32);
	ck_assert_int_eq(skv_core_session_open(core, a.client, &model, "full", 1, &second), 0);
	ck_assert_uint_eq(second.pool, a.session.pool);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, second.session, "other", 64, &info), 0);
	ck_refused(skv_core_seq_drop(core, a.client, second.session, h.seq), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_session_close(core, a.client, a.session.session), 0);
	pool_is(&a, 60, 4, 0); /* leases are the client's as long as it has a session on the pool */
	ck_assert_uint_eq(seq_view("h").client, 0);
	ck_assert_uint_eq(seq_view("other").client, a.client);
	ck_assert_int_eq(skv_core_session_close(core, a.client, second.session), 0);
	pool_is(&a, 0, 4, 0);
	ck_assert_uint_eq(mem.bytes, 65536); /* the sequence's; no spare without a session */
	held_close(&h);
	peer_die(&a);
	pool_is(&a, 0, 4, 0);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", "h"), 0);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", "other"), 0);
	ck_assert_uint_eq(mem.bytes, 0);
}
END_TEST

START_TEST(a_detached_sequence_is_dropped_by_name)
{
	struct peer a;
	struct held h;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 256);
	held_append(&h, &a, 32);
	ck_refused(skv_core_seq_drop_name(core, 1000, "m", "h"), SKV_CORE_E_BUSY);
	ck_refused(skv_core_seq_drop_name(core, 1001, "m", "h"), SKV_CORE_E_NOENT);
	ck_refused(skv_core_seq_drop_name(core, 1000, "n", "h"), SKV_CORE_E_NOENT);
	ck_refused(skv_core_seq_drop_name(core, 1000, "m", ""), SKV_CORE_E_NOENT);
	ck_assert_int_eq(held_detach(&h, &a), 0);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", "h"), 0);
	pool_is(&a, 60, 0, 0);
	ck_refused(skv_core_seq_drop_name(core, 1000, "m", "h"), SKV_CORE_E_NOENT);
	peer_die(&a);
}
END_TEST

/* ---- death ---- */

START_TEST(death_leaves_the_last_commit)
{
	struct peer a, b;
	struct held h, g;
	uint32_t cow[2], n;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 1024);
	held_append(&h, &a, 40);
	held_write(&h, &a, 100, cow, &n); /* and no commit */
	peer_die(&a);
	ck_assert_uint_eq(books_account(1000).page_bytes, 6 * 1024);
	held_close(&h);
	peer_join(&b, 1000, &model);
	pool_is(&b, 0, 6, 0);
	ck_assert_int_eq(held_attach(&g, &b, "h"), 0);
	ck_assert_uint_eq(held_len(&g), 40);
	for (uint32_t i = 3; i < g.layout.max_pages; i++)
		ck_assert_uint_eq(held_entry(&g, 0, i), 0);
	held_append(&g, &b, 100);
	held_close(&g);
	peer_die(&b);
	ck_assert_uint_eq(n_corrupt, 0);
}
END_TEST

enum { JOURNAL_WRITTEN, JOURNAL_COMMITTED, JOURNAL_HALF_DONE, JOURNAL_DONE, JOURNAL_POINTS };

/* Evict pages 0 and 1 of layer 1, and stop at a point. */
static void evict(struct held *h, int stop)
{
	struct skv_evict *j = skv_seqmem_journal(h->mem, &h->layout);
	skv_pte *table = skv_seqmem_table(h->mem, &h->layout, 1);

	atomic_store(&h->mem->journal_epoch, skv_commit_epoch(h->mem->commit) + 1);
	j[0] = (struct skv_evict){1, 0};
	j[1] = (struct skv_evict){1, 1};
	atomic_store(&h->mem->journal_n, 2);
	if (stop == JOURNAL_WRITTEN)
		return;
	held_commit(h, 0);
	if (stop == JOURNAL_COMMITTED)
		return;
	table[0] = skv_pte_make(SKV_PTE_HOLE, 0);
	if (stop == JOURNAL_HALF_DONE)
		return;
	table[1] = skv_pte_make(SKV_PTE_HOLE, 0);
	atomic_store(&h->mem->journal_n, 0);
}

START_TEST(an_eviction_is_whole_or_not_at_all)
{
	struct peer a, b;
	struct held h, g;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
	held_new(&h, &a, "h", 1024);
	held_append(&h, &a, 64);
	evict(&h, _i);
	peer_die(&a);
	pool_is(&b, 0, _i == JOURNAL_WRITTEN ? 8 : 6, 0);
	ck_assert_uint_eq(seq_view("h").pages_resident, _i == JOURNAL_WRITTEN ? 8 : 6);
	ck_assert_uint_eq(seq_view("h").pages_total, 8);
	held_close(&h);
	ck_assert_int_eq(held_attach(&g, &b, "h"), 0);
	ck_assert_uint_eq(skv_pte_kind(held_entry(&g, 1, 1)), _i == JOURNAL_WRITTEN ? SKV_PTE_FULL : SKV_PTE_HOLE);
	held_close(&g);
	peer_die(&b);
	ck_assert_uint_eq(n_corrupt, 0);
}
END_TEST

static double milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* 100,000 pages: four named sequences of 20,000 and a stock of 20,000; half of the sequences forked. */
START_TEST(death_is_fast)
{
	struct skv_core_config config = books_config();
	struct skv_model big = test_model("big", 32, 16);
	struct peer a, b;
	struct held h[4], f[2];
	char name[8];
	double start, took;

	books_close();
	config.pool_bytes = 512 << 20;
	config.account_bytes = 512 << 20;
	config.segment_bytes = 1 << 20;
	books_open(&config);
	peer_join(&a, 1000, &big);
	peer_join(&b, 1000, &big);
	ck_assert_int_eq(peer_lease(&a, 100000, 100000), 0);
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		held_new(&h[i], &a, name, 65536);
		held_append(&h[i], &a, 625 * SKV_PAGE_TOKENS);
		if (i < 2)
			ck_assert_int_eq(held_fork(&f[i], &h[i], &a, ""), 0);
	}
	pool_is(&a, 60000, 0, 40000);
	start = milliseconds();
	ck_assert_int_eq(skv_core_client_gone(core, a.client), 0);
	took = milliseconds() - start;
	printf("death of a client with 100,000 pages: %.2f ms\n", took);
	pool_is(&b, 0, 40000, 40000);
	if (!getenv("SKV_VALGRIND"))
		ck_assert_double_lt(took, 100);
	for (int i = 0; i < 4; i++)
		held_close(&h[i]);
	held_close(&f[0]);
	held_close(&f[1]);
	peer_die(&b);
}
END_TEST

/* ---- forks ---- */

START_TEST(a_fork_shares_and_is_charged_once)
{
	struct peer a;
	struct held h, f;

	peer_join(&a, 1000, &model);
	ck_assert_int_eq(peer_lease(&a, 32, 32), 0);
	held_new(&h, &a, "parent", 1024);
	skv_seqmem_tokens(h.mem, &h.layout)[7] = 4711;
	((char *)h.mem)[h.layout.state + 12345] = 'x';
	held_append(&h, &a, 40);
	ck_assert_int_eq(held_fork(&f, &h, &a, "child"), 0);
	pool_is(&a, 26, 0, 6);
	ck_assert_uint_eq(books_account(1000).page_bytes, 32 * 1024);
	ck_assert_uint_eq(held_len(&f), 40);
	ck_assert_int_eq(skv_seqmem_tokens(f.mem, &f.layout)[7], 4711);
	ck_assert_int_eq(((char *)f.mem)[f.layout.state + 12345], 'x');
	ck_assert_ptr_null(skv_seqmem_check(f.mem, &f.layout));
	for (uint32_t layer = 0; layer < 2; layer++)
		for (uint32_t i = 0; i < 3; i++) {
			ck_assert_uint_eq(skv_pte_kind(held_entry(&h, layer, i)), SKV_PTE_SHARED);
			ck_assert_uint_eq(held_entry(&h, layer, i), held_entry(&f, layer, i));
		}
	ck_assert_uint_eq(seq_view("child").pages_shared, 6);
	/* each goes its own way: the last page is copied, the one before is still common */
	held_append(&h, &a, 1);
	pool_is(&a, 26, 0, 6); /* the child still refers to what the parent replaced */
	held_append(&f, &a, 20);
	ck_assert_uint_eq(held_entry(&h, 1, 1), held_entry(&f, 1, 1));
	ck_assert_uint_ne(held_entry(&h, 1, 2), held_entry(&f, 1, 2));
	pool_is(&a, 26, 0, 4);
	ck_assert_int_eq(held_detach(&f, &a), 0);
	pool_is(&a, 22, 4, 4);
	held_drop(&h, &a);
	pool_is(&a, 22, 4, 4);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", "child"), 0);
	pool_is(&a, 22, 0, 0);
	peer_die(&a);
}
END_TEST

/* A chain of forks; sequences let go in every order of 4, by drop, detach or death. */
START_TEST(shared_pages_go_with_their_last_sequence)
{
	uint32_t order[4] = {0, 1, 2, 3}, pick = (uint32_t)_i;
	static const char *const names[4] = {"a", "b", "c", "d"};
	struct peer p, witness;
	struct held h[4];

	for (uint32_t i = 4; i > 1; i--) {
		uint32_t j = pick % i, t = order[j];

		pick /= i;
		order[j] = order[i - 1];
		order[i - 1] = t;
	}
	peer_join(&p, 1000, &model);
	peer_join(&witness, 1000, &model);
	held_new(&h[0], &p, names[0], 1024);
	held_append(&h[0], &p, 32);
	for (uint32_t i = 1; i < 4; i++) {
		ck_assert_int_eq(held_fork(&h[i], &h[i - 1], &p, names[i]), 0);
		held_append(&h[i], &p, 16);
		pool_is(&p, 64 - 2 * (i + 1), 0, 2 * (i + 1));
	}
	/* 4 pages of all, 2 more each of b, c and d together; a's own: none; d's own: 2 on lease */
	for (uint32_t n = 0; n < 3; n++) {
		if (n % 2)
			ck_assert_int_eq(skv_core_seq_detach(core, p.client, p.session.session, h[order[n]].seq), 0);
		else
			ck_assert_int_eq(skv_core_seq_drop(core, p.client, p.session.session, h[order[n]].seq), 0);
		if (n % 2)
			ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", names[order[n]]), 0);
		books_even();
	}
	peer_die(&p);
	/* the last one alone */
	pool_is(&witness, 0, order[3] == 3 ? 2 : 0, order[3] == 0 ? 4 : order[3] == 1 ? 6 : 8);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", names[order[3]]), 0);
	pool_is(&witness, 0, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		held_close(&h[i]);
	peer_die(&witness);
}
END_TEST

START_TEST(a_fork_leaves_the_parents_loose_ends)
{
	struct peer a;
	struct held h, f, g;
	uint32_t cow[2], n;
	skv_pte loose;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 1024);
	held_append(&h, &a, 40);
	ck_assert_int_eq(held_fork(&f, &h, &a, ""), 0);
	held_write(&h, &a, 1, cow, &n);
	ck_assert_uint_eq(n, 2);
	held_commit(&h, 1); /* cow[] is not released yet */
	skv_seqmem_table(h.mem, &h.layout, 0)[5] = loose = skv_pte_make(SKV_PTE_FULL, peer_take(&a));
	ck_assert_int_eq(held_fork(&g, &h, &a, ""), 0);
	ck_assert_uint_eq(held_entry(&h, 0, 5), loose);
	ck_assert_uint_eq(held_entry(&g, 0, 5), 0);
	pool_is(&a, 56, 0, 8);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(skv_core_seq_release(core, a.client, a.session.session, h.seq, &(struct skv_wire_run){cow[i], 1}, 1),
		                 0);
	pool_is(&a, 56, 0, 8);
	held_drop(&f, &a); /* had the other references to them */
	pool_is(&a, 56, 0, 6);
	held_close(&h);
	held_close(&g);
	peer_die(&a);
}
END_TEST

START_TEST(a_fork_of_nothing_much)
{
	struct peer a;
	struct held h, f, g;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 0);
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0); /* of no token */
	ck_assert_uint_eq(held_len(&f), 0);
	ck_refused(held_fork(&g, &h, &a, "f"), SKV_CORE_E_EXIST);
	held_append(&h, &a, 16);
	ck_assert_int_eq(held_fork(&g, &h, &a, "g"), 0);
	held_close(&g);
	ck_assert_int_eq(held_fork(&g, &h, &a, "again"), 0); /* with no page of its own any more */
	ck_refused(skv_core_seq_fork(core, a.client, a.session.session, 0, "x", &(struct skv_core_seq_info){0}),
	           SKV_CORE_E_NOENT);
	held_close(&f);
	held_close(&g);
	held_close(&h);
	peer_die(&a);
}
END_TEST

START_TEST(a_fork_copies_what_was_written)
{
	struct skv_core_seq_info info;
	struct skv_model wide = test_model("wide", 32, 256);
	struct stat parent, child;
	struct peer a;
	struct held h, f;
	int fd;

	peer_join(&a, 1000, &wide);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, a.session.session, "w", 65536, &info), 0);
	fd = info.fd;
	held_open(&h, &a, &info);
	ck_assert_uint_gt(info.bytes, 200 << 20);
	/* a piece longer than what is copied at a time, and single bytes far apart */
	memset((char *)h.mem + h.layout.state, 7, 9 << 20);
	((char *)h.mem)[h.layout.total - 1] = 8;
	((char *)h.mem)[h.layout.state + (100 << 20)] = 9;
	ck_assert_int_eq(skv_core_seq_fork(core, a.client, a.session.session, h.seq, "", &info), 0);
	held_open(&f, &a, &info);
	ck_assert_int_eq(fstat(fd, &parent), 0);
	ck_assert_int_eq(fstat(info.fd, &child), 0);
	ck_assert_int_le(child.st_blocks, parent.st_blocks + 64 * 8);
	ck_assert_mem_eq((char *)f.mem + f.layout.state, (char *)h.mem + h.layout.state, 9 << 20);
	ck_assert_int_eq(((char *)f.mem)[h.layout.total - 1], 8);
	ck_assert_int_eq(((char *)f.mem)[h.layout.state + (100 << 20)], 9);
	held_close(&h);
	held_close(&f);
	peer_die(&a);
}
END_TEST

START_TEST(references_have_a_table)
{
	struct skv_core_config config = books_config();
	struct skv_core_pool_view before, after;
	struct peer a;
	struct held h, f, g;

	books_close();
	config.max_ref_blocks = 7;
	books_open(&config);
	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 4096);
	held_append(&h, &a, 94 * 16); /* 188 pages: 4 blocks each for parent and child */
	before = books_pool(a.session.pool);
	ck_refused(held_fork(&f, &h, &a, "f"), SKV_CORE_E_NOSPC);
	after = books_pool(a.session.pool);
	ck_same_pool(&before, &after);
	ck_assert_uint_eq(skv_pte_kind(held_entry(&h, 0, 0)), SKV_PTE_FULL);
	ck_assert(!seq_exists("f"));
	evict(&h, JOURNAL_DONE); /* 186 pages: 3 blocks each */
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0);
	ck_refused(held_fork(&g, &h, &a, "g"), SKV_CORE_E_NOSPC);
	held_drop(&f, &a);
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0);
	held_close(&h);
	held_close(&f);
	peer_die(&a);
}
END_TEST

START_TEST(bad_releases_are_refused_whole)
{
	struct skv_wire_run run, twice[2], own[2], far[2] = {{0}, {UINT32_MAX, UINT32_MAX}};
	struct peer a;
	struct held h, f;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 1024);
	held_append(&h, &a, 64);
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0);
	held_append(&f, &a, 16);
	run = (struct skv_wire_run){skv_pte_id(held_entry(&h, 0, 0)), 1};
	twice[0] = twice[1] = own[0] = far[0] = run;
	own[1] = (struct skv_wire_run){skv_pte_id(held_entry(&f, 0, 4)), 1};
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, h.seq, twice, 2), SKV_CORE_E_INVALID);
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, f.seq, own, 2), SKV_CORE_E_INVALID);
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, h.seq, far, 2), SKV_CORE_E_INVALID);
	pool_is(&a, 56, 0, 8);
	ck_assert_int_eq(skv_core_seq_release(core, a.client, a.session.session, h.seq, &run, 1), 0);
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, h.seq, &run, 1), SKV_CORE_E_INVALID);
	pool_is(&a, 56, 0, 8);
	ck_assert_int_eq(skv_core_seq_release(core, a.client, a.session.session, f.seq, &run, 1), 0);
	pool_is(&a, 56, 0, 7);
	held_close(&h);
	held_close(&f);
	peer_die(&a);
	ck_assert_uint_eq(n_corrupt, 2); /* both still named the page */
}
END_TEST

/* ---- memory that lies ---- */

struct lie {
	const char *what;
	void (*tell)(struct held *h, struct peer *p, const struct held *shared, const struct held *theirs);
};

static skv_pte *first(struct held *h)
{
	return skv_seqmem_table(h->mem, &h->layout, 0);
}
static void lie_magic(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	h->mem->magic ^= 1;
}
static void lie_shape(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	h->mem->max_pages++;
}
static void lie_length(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	atomic_store(&h->mem->commit, (uint64_t)9 << 32 | (h->layout.max_tokens + 1));
}
static void lie_longer(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	held_commit(h, SKV_PAGE_TOKENS); /* entries that were never written */
}
static void lie_journal(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	atomic_store(&h->mem->journal_n, UINT32_MAX);
}
static void lie_kind(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	first(h)[0] = 0xf0000000u | skv_pte_id(first(h)[0]);
}
static void lie_far(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	first(h)[0] = skv_pte_make(SKV_PTE_FULL, SKV_PTE_ID_MASK);
}
static void lie_no_segment(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)s, (void)t;
	first(h)[0] = skv_pte_make(SKV_PTE_FULL, p->session.pages_per_segment * 20);
}
static void lie_free(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	uint32_t page = peer_take(p);

	(void)s, (void)t;
	ck_assert_int_eq(skv_core_lease_put(core, p->client, p->session.session, &(struct skv_wire_run){page, 1}, 1), 0);
	first(h)[0] = skv_pte_make(SKV_PTE_FULL, page);
}
static void lie_theirs(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s;
	first(h)[0] = held_entry(t, 0, 0);
}
static void lie_twice(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	first(h)[0] = first(h)[1];
}
static void lie_twice_in_layers(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	first(h)[0] = held_entry(h, 1, 0);
}
static void lie_shared_as_own(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)t;
	first(h)[0] = skv_pte_make(SKV_PTE_FULL, skv_pte_id(held_entry(s, 0, 0)));
}
static void lie_shared_of_another(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)t;
	first(h)[0] = held_entry(s, 0, 0);
}
static void lie_own_as_shared(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	first(h)[0] = skv_pte_make(SKV_PTE_SHARED, skv_pte_id(first(h)[0]));
}
static void lie_shared_far(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)p, (void)s, (void)t;
	first(h)[0] = skv_pte_make(SKV_PTE_SHARED, SKV_PTE_ID_MASK);
}

static void lie_shared_twice(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	struct held f;

	(void)s, (void)t;
	ck_assert_int_eq(held_fork(&f, h, p, ""), 0);
	held_close(&f);
	first(h)[0] = held_entry(h, 1, 0);
}

static const struct lie lies[] = {
	{"valid header", lie_magic},
	{"shape", lie_shape},
	{"length", lie_length},
	{"missing", lie_longer},
	{"journal", lie_journal},
	{"kind", lie_kind},
	{"does not exist", lie_far},
	{"does not exist", lie_no_segment},
	{"not on lease", lie_free},
	{"not on lease", lie_theirs},
	{"second time", lie_twice},
	{"second time", lie_twice_in_layers},
	{"not on lease", lie_shared_as_own},
	{"no reference", lie_shared_of_another},
	{"no reference", lie_own_as_shared},
	{"does not exist", lie_shared_far},
	{"shared page for the second time", lie_shared_twice},
};
#define N_LIES (sizeof(lies) / sizeof(*lies))
enum { BY_DETACH, BY_DEATH, BY_FORK, BY_CLOSE, N_BY };

START_TEST(a_lie_costs_the_liar_alone)
{
	const struct lie *lie = &lies[_i % N_LIES];
	struct peer liar, other;
	struct held h, parent, child, theirs, f;
	int r = SKV_CORE_E_CORRUPT;

	peer_join(&liar, 1000, &model);
	peer_join(&other, 1000, &model);
	held_new(&h, &liar, "liar", 1024);
	held_append(&h, &liar, 50);
	held_new(&parent, &liar, "parent", 1024);
	held_append(&parent, &liar, 32);
	ck_assert_int_eq(held_fork(&child, &parent, &liar, "child"), 0);
	held_new(&theirs, &other, "theirs", 1024);
	held_append(&theirs, &other, 50);
	lie->tell(&h, &liar, &child, &theirs);
	switch (_i / N_LIES) {
	case BY_DETACH:
		r = skv_core_seq_detach(core, liar.client, liar.session.session, h.seq);
		break;
	case BY_FORK:
		r = held_fork(&f, &h, &liar, "f");
		break;
	case BY_DEATH:
		peer_die(&liar);
		break;
	case BY_CLOSE:
		ck_assert_int_eq(skv_core_session_close(core, liar.client, liar.session.session), 0);
		break;
	}
	ck_assert_int_eq(r, SKV_CORE_E_CORRUPT);
	ck_assert_uint_eq(n_corrupt, 1);
	ck_assert_msg(strstr(corrupt_why, lie->what), "'%s' does not say '%s'", corrupt_why, lie->what);
	books_even();
	ck_assert(!seq_exists("liar"));
	ck_assert(!seq_exists("f"));
	/* everyone else's are as they were */
	ck_assert_uint_eq(seq_view("child").pages_shared, 4);
	ck_assert_uint_eq(seq_view("parent").pages_shared, 4);
	ck_assert_int_eq(held_detach(&theirs, &other), 0);
	ck_assert_uint_eq(seq_view("theirs").pages_resident, 8);
	if (_i / N_LIES == BY_DETACH || _i / N_LIES == BY_FORK)
		peer_die(&liar); /* and its anonymous ones */
	pool_is(&other, 56, 8, 4);
	ck_assert_uint_eq(n_corrupt, 1);
	held_close(&h);
	held_close(&parent);
	held_close(&child);
	peer_die(&other);
}
END_TEST

START_TEST(a_page_is_of_one_sequence)
{
	struct peer a, b;
	struct held h, g;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
	held_new(&h, &a, "h", 64);
	held_new(&g, &a, "g", 64);
	held_append(&h, &a, 16);
	held_append(&g, &a, 16);
	first(&g)[0] = first(&h)[0];
	peer_die(&a);
	pool_is(&b, 0, 2, 0);
	ck_assert_uint_eq(n_corrupt, 1);
	ck_assert(seq_exists("h") != seq_exists("g"));
	held_close(&h);
	held_close(&g);
	peer_die(&b);
}
END_TEST

/* Whoever held it before still has it mapped, and scribbles. */
START_TEST(a_stale_mapping_harms_its_own_user_alone)
{
	struct peer a, b;
	struct held old, h;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
	held_new(&old, &a, "h", 1024);
	held_append(&old, &a, 50);
	ck_assert_int_eq(skv_core_seq_detach(core, a.client, a.session.session, old.seq), 0);
	ck_assert_int_eq(held_attach(&h, &b, "h"), 0);
	first(&old)[0] = skv_pte_make(SKV_PTE_FULL, a.stock[0]);
	ck_assert_int_eq(held_detach(&h, &b), SKV_CORE_E_CORRUPT);
	peer_die(&b);
	pool_is(&a, 56, 0, 0);
	held_close(&old);
	peer_die(&a);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("core-seq");
	TCase *t = tcase_create("sequences");
	SRunner *r;
	int failed;

	tcase_add_checked_fixture(t, setup, books_close);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, a_named_sequence_is_handed_over);
	tcase_add_test(t, an_anonymous_sequence_goes_with_its_holder);
	tcase_add_test(t, names_are_of_a_user_a_model_and_a_rank);
	tcase_add_test(t, lengths_and_numbers_have_ceilings);
	tcase_add_test(t, a_session_lets_go_of_its_own);
	tcase_add_test(t, a_detached_sequence_is_dropped_by_name);
	tcase_add_test(t, death_leaves_the_last_commit);
	tcase_add_loop_test(t, an_eviction_is_whole_or_not_at_all, 0, JOURNAL_POINTS);
	tcase_add_test(t, death_is_fast);
	tcase_add_test(t, a_fork_shares_and_is_charged_once);
	tcase_add_loop_test(t, shared_pages_go_with_their_last_sequence, 0, 24);
	tcase_add_test(t, a_fork_leaves_the_parents_loose_ends);
	tcase_add_test(t, a_fork_of_nothing_much);
	tcase_add_test(t, a_fork_copies_what_was_written);
	tcase_add_test(t, references_have_a_table);
	tcase_add_test(t, bad_releases_are_refused_whole);
	tcase_add_loop_test(t, a_lie_costs_the_liar_alone, 0, N_LIES * N_BY);
	tcase_add_test(t, a_page_is_of_one_sequence);
	tcase_add_test(t, a_stale_mapping_harms_its_own_user_alone);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
