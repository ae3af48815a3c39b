/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in the core: names, ids, quotas, hand-over, and death at any point. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

static struct skv_model model; /* 2 layers, pages of 1 KiB */

static void setup(void)
{
	struct skv_core_config config = books_config();

	model = test_model("m", 2, 16);
	books_open(&config);
}

static int seq_new(struct peer *p, const char *name, uint32_t max_tokens)
{
	struct skv_core_seq_info info;

	return skv_core_seq_new(core, p->client, p->session.session, name, max_tokens, &info);
}

/* ---- names, ids, quotas ---- */

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
	ck_assert_uint_eq(books_seq("chat").client, a.client);
	ck_assert_int_eq(held_detach(&h, &a), 0);
	pool_is(&a, 12, 8, 0);
	ck_assert_uint_eq(books_seq("chat").client, 0);
	ck_assert_uint_eq(books_seq("chat").pages[SKV_PAGES_KV], 8);
	ck_assert_uint_eq(books_seq("chat").tokens, 50);
	peer_join(&b, 1000, &model);
	ck_assert_int_eq(held_attach(&g, &b, "chat"), 0);
	pool_is(&b, 20, 0, 0);
	for (uint32_t layer = 0; layer < 2; layer++)
		for (uint32_t i = 0; i < 4; i++)
			ck_assert_uint_eq(held_entry(&g, layer, i), before[layer][i]);
	ck_assert_uint_eq(held_len(&g), 50);
	ck_refused(skv_core_seq_detach(core, a.client, a.session.session, old), SKV_CORE_E_NOENT);
	/* the new holder may free the sequence's pages */
	held_drop(&g, &b);
	ck_assert_uint_eq(b.n_stock, 8);
	for (uint32_t i = 0; i < b.n_stock; i++)
		ck_assert_int_eq(skv_core_lease_put(core, b.client, b.session.session,
		                                    &(struct skv_wire_run){b.stock[i], 1}, 1),
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
	ck_refused(seq_new(&d, "x", 16), SKV_CORE_E_EXIST); /* the name of the model counts, not its shape */
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

START_TEST(lengths_and_numbers_have_quotas)
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
	for (uint32_t i = 0; i < config.account_sequences; i++)
		ck_assert_int_eq(seq_new(&b, "", 16), 0);
	ck_refused(seq_new(&b, "", 16), SKV_CORE_E_QUOTA);
	peer_join(&c, 1002, &model);
	for (uint32_t i = 0; i < (config.max_sequences - 2 * config.account_sequences) / 2; i++)
		ck_assert_int_eq(seq_new(&c, "", 16), 0);
	ck_refused(seq_new(&c, "", 16), SKV_CORE_E_NOSPC); /* as many are left for others */
	peer_die(&a);
	peer_die(&b);
	peer_die(&c);
	deep.max_tokens = SKV_MAX_TOKENS;
	peer_join(&c, 1000, &deep);
	ck_refused(seq_new(&c, "", SKV_MAX_TOKENS), SKV_CORE_E_INVALID); /* 2^28 entries */
	ck_assert_int_eq(seq_new(&c, "", SKV_SEQ_MAX_ENTRIES / SKV_MAX_LAYERS * SKV_PAGE_TOKENS), 0);
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
	pool_is(&a, 60, 4, 0); /* leases belong to the client as long as it has a session on the pool */
	ck_assert_uint_eq(books_seq("h").client, 0);
	ck_assert_uint_eq(books_seq("other").client, a.client);
	ck_assert_int_eq(skv_core_session_close(core, a.client, second.session), 0);
	pool_is(&a, 0, 4, 0);
	/* the sequence's segment; without a session there is no spare one */
	ck_assert_uint_eq(mem_bytes(SKV_DEVICE_HOST), 65536);
	held_close(&h);
	peer_die(&a);
	pool_is(&a, 0, 4, 0);
	ck_assert_int_eq(drop_name(1000, "m", "h"), 0);
	ck_assert_int_eq(drop_name(1000, "m", "other"), 0);
	ck_assert_uint_eq(mem_bytes(SKV_DEVICE_HOST), 0);
}
END_TEST

/*
 * A client whose connection ended while its process lives: its pages and sequences are given to no other client, and it
 * is told nothing.
 */
START_TEST(a_fenced_client_keeps_what_it_has)
{
	uint32_t cursor = 0, client, bare;
	struct skv_core_pool_view before;
	struct peer a, b;
	struct held h;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
	held_new(&h, &a, "h", 200);
	held_append(&h, &a, 100);
	before = books_pool(a.session.pool);
	ck_assert(skv_core_client_fence(core, a.client));
	ck_refused(held_attach(&h, &b, "h"), SKV_CORE_E_FENCED);
	ck_assert_int_eq(peer_lease(&b, (uint32_t)before.free + 1, (uint32_t)before.free + 1), 0); /* a new segment */
	ck_assert_uint_eq(books_pool(a.session.pool).lease, before.lease + before.free + 1);
	while (skv_core_next_waiting(core, &cursor, &client))
		ck_assert_uint_ne(client, a.client);
	books_even();

	held_close(&h);
	client_gone(a.client);
	ck_assert_int_eq(held_attach(&h, &b, "h"), 0);
	ck_assert_uint_eq(held_len(&h), 100);
	held_drop(&h, &b);
	peer_die(&b);
	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "bare", &bare), 0);
	ck_assert(!skv_core_client_fence(core, bare)); /* without a session it has no memory to write to */
	client_gone(bare);
	free(a.stock);
}
END_TEST

/*
 * What dead clients had is reclaimed in small turns, the clients by turns, while others work; the state balances after
 * each turn.
 */
START_TEST(the_dead_take_turns)
{
	enum { DEAD = 3, SEQS = 2, TOKENS = 150 };
	uint32_t turns = 0, gone = 0, first_gone = 0;
	struct skv_core_done g;
	struct peer a[DEAD], b;
	struct held h;

	peer_join(&b, 1000, &model);
	for (uint32_t i = 0; i < DEAD; i++) {
		peer_join(&a[i], 1000, &model);
		for (uint32_t k = 0; k < SEQS; k++) {
			char name[8];

			snprintf(name, sizeof(name), "%u-%u", i, k);
			held_new(&h, &a[i], k ? name : "", 200);
			held_append(&h, &a[i], TOKENS);
			held_close(&h);
		}
		ck_assert_int_eq(skv_core_client_gone(core, a[i].client, i + 1), 0);
		ck_assert_int_eq(skv_core_client_gone(core, a[i].client, 99), 0); /* a second call has no effect */
	}
	do {
		skv_core_work(core, 100, &g);
		books_even();
		turns++;
		if (g.client) {
			ck_assert(g.gone);
			ck_assert_uint_le(g.since_ns, DEAD);
			first_gone = first_gone ? first_gone : turns;
			gone++;
		} else if (turns % 3 == 0) {
			held_new(&h, &b, "busy", 100);
			held_append(&h, &b, 20);
			held_drop(&h, &b);
		}
	} while (g.more);
	ck_assert_uint_eq(gone, DEAD);
	ck_assert_uint_gt(turns, 20);
	ck_assert_uint_gt(first_gone, turns * 2 / 3); /* the clients were reclaimed side by side */
	for (uint32_t i = 0; i < DEAD; i++) {
		char name[8];

		snprintf(name, sizeof(name), "%u-1", i);
		ck_assert_int_eq(held_attach(&h, &b, name), 0);
		ck_assert_uint_eq(held_len(&h), TOKENS);
		held_drop(&h, &b);
		free(a[i].stock);
	}
	peer_die(&b);
}
END_TEST

START_TEST(a_detached_sequence_is_dropped_by_name)
{
	struct peer a;
	struct held h;

	peer_join(&a, 1000, &model);
	held_new(&h, &a, "h", 256);
	held_append(&h, &a, 32);
	ck_refused(drop_name(1000, "m", "h"), SKV_CORE_E_BUSY);
	ck_refused(drop_name(1001, "m", "h"), SKV_CORE_E_NOENT);
	ck_refused(drop_name(1000, "n", "h"), SKV_CORE_E_NOENT);
	ck_refused(drop_name(1000, "m", ""), SKV_CORE_E_NOENT);
	ck_assert_int_eq(held_detach(&h, &a), 0);
	ck_assert_int_eq(drop_name(1000, "m", "h"), 0);
	pool_is(&a, 60, 0, 0);
	ck_refused(drop_name(1000, "m", "h"), SKV_CORE_E_NOENT);
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
	held_write(&h, &a, 100, cow, &n); /* without a commit */
	peer_die(&a);
	ck_assert_uint_eq(books_account(1000).page_bytes[0], 6 * 1024);
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

START_TEST(an_eviction_is_whole_or_not_at_all)
{
	struct peer a, b;
	struct held h, g;

	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
	held_new(&h, &a, "h", 1024);
	held_append(&h, &a, 64);
	held_evict(&h, 1, 2, (enum journal_point)_i);
	peer_die(&a);
	pool_is(&b, 0, _i == JOURNAL_WRITTEN ? 8 : 6, 0);
	ck_assert_uint_eq(books_seq("h").pages[SKV_PAGES_KV], _i == JOURNAL_WRITTEN ? 8 : 6);
	ck_assert_uint_eq(books_seq("h").pages_total, 8);
	held_close(&h);
	ck_assert_int_eq(held_attach(&g, &b, "h"), 0);
	ck_assert_uint_eq(skv_pte_kind(held_entry(&g, 1, 1)),
	                  _i == JOURNAL_WRITTEN ? SKV_PTE_PRIVATE : SKV_PTE_HOLE);
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
	char name[16];
	double start, took;

	books_close();
	config.pool_bytes = 512 << 20;
	config.account_bytes = 512 << 20;
	config.segment_bytes = 1 << 20;
	books_open(&config);
	peer_join(&a, 1000, &big);
	peer_join(&b, 1000, &big);
	ck_assert_int_eq(peer_lease(&a, 65536, 65536), 0);
	ck_assert_int_eq(peer_lease(&a, 34464, 34464), 0);
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		held_new(&h[i], &a, name, 65536);
		held_append(&h[i], &a, 625 * SKV_PAGE_TOKENS);
		if (i < 2)
			ck_assert_int_eq(held_fork(&f[i], &h[i], &a, ""), 0);
	}
	pool_is(&a, 60000, 0, 40000);
	start = milliseconds();
	peer_die(&a);
	took = milliseconds() - start;
	printf("death of a client with 100,000 pages: %.2f ms\n", took);
	pool_is(&b, 0, 40000, 40000);
	ck_assert_double_lt(took, patience(100));
	for (int i = 0; i < 4; i++)
		held_close(&h[i]);
	held_close(&f[0]);
	held_close(&f[1]);
	peer_die(&b);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-sequences");
	TCase *t = add_case(s, "sequences", 60, setup, books_close, a_named_sequence_is_handed_over,
	                    an_anonymous_sequence_goes_with_its_holder,
	                    names_are_of_a_user_a_model_and_a_rank, lengths_and_numbers_have_quotas,
	                    a_session_lets_go_of_its_own, a_detached_sequence_is_dropped_by_name,
	                    a_fenced_client_keeps_what_it_has, the_dead_take_turns,
	                    death_leaves_the_last_commit, death_is_fast, NULL);

	tcase_add_loop_test(t, an_eviction_is_whole_or_not_at_all, 0, JOURNAL_POINTS);
	return run_suite(s);
}
