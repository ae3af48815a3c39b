/* SPDX-License-Identifier: Apache-2.0 */
/* Forks in the core: what is shared, which sequences refer to it, what it costs, when it is freed. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

static struct skv_model model; /* 2 layers, pages of 1 KiB */

static void setup(void)
{
	struct skv_core_config config = books_config();

	model = test_model("m", 2, 16);
	books_open(&config);
}

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
	ck_assert_uint_eq(books_account(1000).page_bytes[0], 32 * 1024);
	ck_assert_uint_eq(held_len(&f), 40);
	ck_assert_int_eq(skv_seqmem_tokens(f.mem, &f.layout)[7], 4711);
	ck_assert_int_eq(((char *)f.mem)[f.layout.state + 12345], 'x');
	ck_assert_ptr_null(skv_seqmem_check(f.mem, &f.layout));
	for (uint32_t layer = 0; layer < 2; layer++)
		for (uint32_t i = 0; i < 3; i++) {
			ck_assert_uint_eq(skv_pte_kind(held_entry(&h, layer, i)), SKV_PTE_SHARED);
			ck_assert_uint_eq(held_entry(&h, layer, i), held_entry(&f, layer, i));
		}
	ck_assert_uint_eq(books_seq("child").pages_shared, 6);
	/* both continue on their own: the last page is copied, the one before is still shared */
	held_append(&h, &a, 1);
	pool_is(&a, 26, 0, 6); /* the child still refers to the page that the parent replaced */
	held_append(&f, &a, 20);
	ck_assert_uint_eq(held_entry(&h, 1, 1), held_entry(&f, 1, 1));
	ck_assert_uint_ne(held_entry(&h, 1, 2), held_entry(&f, 1, 2));
	pool_is(&a, 26, 0, 4);
	ck_assert_int_eq(held_detach(&f, &a), 0);
	pool_is(&a, 22, 4, 4);
	held_drop(&h, &a);
	pool_is(&a, 22, 4, 4);
	ck_assert_int_eq(drop_name(1000, "m", "child"), 0);
	pool_is(&a, 22, 0, 0);
	peer_die(&a);
}
END_TEST

/* Pages of later tokens are not shared, and the fork's memory equals that of a sequence with that many tokens. */
START_TEST(a_fork_of_the_first_tokens)
{
	struct held h, f, g;
	struct peer a;

	peer_join(&a, 1000, &model);
	ck_assert_int_eq(peer_lease(&a, 32, 32), 0);
	held_new(&h, &a, "parent", 1024);
	held_append(&h, &a, 40);
	for (int i = 0; i < 2; i++) {
		h.mem->next[i] = 4711;
		h.mem->about[i] = 30 | SKV_ABOUT_PREFILL;
	}
	ck_refused(held_fork_at(&f, &h, &a, "child", 41), SKV_CORE_E_INVALID);
	ck_assert_int_eq(held_fork_at(&f, &h, &a, "child", 20), 0);
	pool_is(&a, 28, 0, 4);
	ck_assert_uint_eq(held_len(&f), 20);
	ck_assert_uint_eq(held_len(&h), 40);
	ck_assert_int_eq(skv_seqmem_tokens(f.mem, &f.layout)[20], -1);
	ck_assert_uint_eq(f.mem->about[skv_commit_epoch(f.mem->commit) & 1], 20 | SKV_ABOUT_PROMPTED);
	ck_assert_ptr_null(skv_seqmem_check(f.mem, &f.layout));
	for (uint32_t layer = 0; layer < 2; layer++)
		for (uint32_t i = 0; i < 3; i++) {
			ck_assert_uint_eq(skv_pte_kind(held_entry(&h, layer, i)), i < 2 ? SKV_PTE_SHARED : SKV_PTE_PRIVATE);
			ck_assert_uint_eq(held_entry(&f, layer, i), i < 2 ? held_entry(&h, layer, i) : 0);
		}
	ck_assert_int_eq(held_fork_at(&g, &h, &a, "none", 0), 0);
	ck_assert_uint_eq(held_len(&g), 0);
	ck_assert_uint_eq(books_seq("none").pages_shared, 0);
	held_append(&f, &a, 20);
	ck_assert_int_eq(held_detach(&f, &a), 0);
	ck_assert_int_eq(held_detach(&g, &a), 0);
	ck_assert_int_eq(drop_name(1000, "m", "child"), 0);
	ck_assert_int_eq(drop_name(1000, "m", "none"), 0);
	held_drop(&h, &a);
	pool_is(&a, 24, 0, 0); /* four pages were the child's own */
	peer_die(&a);
}
END_TEST

/* A chain of forks; sequences are released in every order of 4, by drop, detach or death. */
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
	/*
	 * 4 pages are shared by all, 2 more by b, c and d, 2 more by c and d; a has none of its own, d has 2 on lease
	 */
	for (uint32_t n = 0; n < 3; n++) {
		if (n % 2)
			ck_assert_int_eq(
				skv_core_seq_detach(core, p.client, p.session.session, h[order[n]].seq), 0);
		else
			ck_assert_int_eq(
				skv_core_seq_drop(core, p.client, p.session.session, h[order[n]].seq), 0);
		if (n % 2)
			ck_assert_int_eq(drop_name(1000, "m", names[order[n]]), 0);
		books_even();
	}
	peer_die(&p);
	/* only the last one is left */
	pool_is(&witness, 0, order[3] == 3 ? 2 : 0, order[3] == 0 ? 4 : order[3] == 1 ? 6 : 8);
	ck_assert_int_eq(drop_name(1000, "m", names[order[3]]), 0);
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
	held_commit(&h, 1); /* the pages in cow[] are not released yet */
	skv_seqmem_table(h.mem, &h.layout, 0)[5] = loose = skv_pte_make(SKV_PTE_PRIVATE, peer_take(&a));
	ck_assert_int_eq(held_fork(&g, &h, &a, ""), 0);
	ck_assert_uint_eq(held_entry(&h, 0, 5), loose);
	ck_assert_uint_eq(held_entry(&g, 0, 5), 0);
	pool_is(&a, 56, 0, 8);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(skv_core_seq_release(core, a.client, a.session.session, h.seq,
		                                      &(struct skv_wire_run){cow[i], 1}, 1),
		                 0);
	pool_is(&a, 56, 0, 8);
	held_drop(&f, &a); /* the fork had the other references to these pages */
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
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0); /* a parent without tokens */
	ck_assert_uint_eq(held_len(&f), 0);
	ck_refused(held_fork(&g, &h, &a, "f"), SKV_CORE_E_EXIST);
	held_append(&h, &a, 16);
	ck_assert_int_eq(held_fork(&g, &h, &a, "g"), 0);
	held_close(&g);
	ck_assert_int_eq(held_fork(&g, &h, &a, "again"), 0); /* the parent has no page of its own any more */
	ck_refused(
		skv_core_seq_fork(core, a.client, a.session.session, 0, "x", SKV_ALL, &(struct skv_core_seq_info){0}),
		SKV_CORE_E_NOENT);
	held_close(&f);
	held_close(&g);
	held_close(&h);
	peer_die(&a);
}
END_TEST

/* The child gets what was written to the parent up to its length; what was written beyond costs the child nothing. */
START_TEST(a_fork_copies_what_was_written)
{
	struct skv_core_config k = books_config();
	struct skv_core_seq_info info;
	struct skv_model wide = test_model("wide", 1, 256);
	const uint32_t len = 2 << 20; /* of a maximum of 4 M tokens */
	struct stat parent, child;
	struct peer a;
	struct held h, f;
	int fd;

	k.account_bytes = 1 << 30;
	ck_assert(skv_core_reconfigure(core, &k));
	wide.max_tokens = 2 * len;
	peer_join(&a, 1000, &wide);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, a.session.session, "w", 0, &info), 0);
	fd = info.fd;
	held_open(&h, &a, &info);
	/* more than one copied piece, bytes far apart, and bytes that are never read */
	memset((char *)h.mem + h.layout.tokens, 7, 3 << 20);
	((char *)h.mem)[h.layout.tokens + (7 << 20)] = 9;
	memset((char *)h.mem + h.layout.tokens + (9 << 20), 5, 1 << 20);
	((char *)h.mem)[h.layout.total - 1] = 8;
	for (uint32_t i = 0; i < skv_pages_of(len); i++)
		skv_seqmem_table(h.mem, &h.layout, 0)[i] = skv_pte_make(SKV_PTE_HOLE, 0);
	atomic_store(&h.mem->commit, (uint64_t)2 << 32 | len);
	ck_assert_int_eq(in_turns(skv_core_seq_fork(core, a.client, a.session.session, h.seq, "", SKV_ALL, &info), &info), 0);
	held_open(&f, &a, &info);
	ck_assert_int_eq(fstat(fd, &parent), 0);
	ck_assert_int_eq(fstat(info.fd, &child), 0);
	ck_assert_int_le(child.st_blocks, parent.st_blocks - (1 << 20) / 512 + 8); /* and the page of the next token */
	ck_assert_mem_eq((char *)f.mem + f.layout.tokens, (char *)h.mem + h.layout.tokens, 3 << 20);
	ck_assert_int_eq(((char *)f.mem)[h.layout.tokens + (7 << 20)], 9);
	ck_assert_int_eq(((char *)f.mem)[h.layout.tokens + (9 << 20)], 0);
	ck_assert_int_eq(((char *)f.mem)[h.layout.total - 1], 8);
	held_close(&f);
	held_close(&h);
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
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, h.seq, twice, 2),
	           SKV_CORE_E_INVALID);
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, f.seq, own, 2),
	           SKV_CORE_E_INVALID);
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, h.seq, far, 2),
	           SKV_CORE_E_INVALID);
	pool_is(&a, 56, 0, 8);
	ck_assert_int_eq(skv_core_seq_release(core, a.client, a.session.session, h.seq, &run, 1), 0);
	ck_refused(skv_core_seq_release(core, a.client, a.session.session, h.seq, &run, 1),
	           SKV_CORE_E_INVALID);
	pool_is(&a, 56, 0, 8);
	ck_assert_int_eq(skv_core_seq_release(core, a.client, a.session.session, f.seq, &run, 1), 0);
	pool_is(&a, 56, 0, 7);
	held_close(&h);
	held_close(&f);
	peer_die(&a);
	ck_assert_uint_eq(n_corrupt, 2); /* both sequences still named the page */
}
END_TEST

#define CLIENTS 6 /* of one user */

static void setup_large(void)
{
	struct skv_core_config config = books_config();

	config.pool_bytes = config.account_bytes = 128 << 20;
	config.account_clients = CLIENTS;
	config.max_clients = 8 * CLIENTS;
	books_open(&config);
}

/* A client forks a long sequence of its own, which takes several turns. */
static void fork_long(struct peer *p, uid_t uid)
{
	struct skv_model deep = test_model("deep", 16, 16);
	struct skv_core_seq_info info;
	struct held h;

	deep.max_tokens = 8192;
	peer_join(p, uid, &deep);
	held_new(&h, p, NULL, 8192);
	held_append(&h, p, 7680);
	ck_assert_int_eq(skv_core_seq_fork(core, p->client, p->session.session, h.seq, NULL, SKV_ALL, &info), SKV_CORE_E_TURNS);
	held_close(&h);
}

/*
 * A user with one client gets half of the turns, although another user has many clients with as much work each, started
 * before.
 */
START_TEST(users_take_turns)
{
	struct skv_core_done done = {0};
	struct peer many[CLIENTS], one;

	for (int i = 0; i < CLIENTS; i++)
		fork_long(&many[i], 1000);
	fork_long(&one, 1001);
	while (!done.client)
		skv_core_work(core, 1000, &done);
	ck_assert_uint_eq(done.client, one.client);
	skv_core_work_all(core);
	for (int i = 0; i < CLIENTS; i++)
		peer_die(&many[i]);
	peer_die(&one);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-fork");
	TCase *t = add_case(s, "forks", 60, setup, books_close, a_fork_leaves_the_parents_loose_ends,
	                    a_fork_of_nothing_much, a_fork_copies_what_was_written,
	                    bad_releases_are_refused_whole, a_fork_shares_and_is_charged_once, a_fork_of_the_first_tokens, NULL);

	tcase_add_loop_test(t, shared_pages_go_with_their_last_sequence, 0, 24);
	add_case(s, "turns", 60, setup_large, books_close, users_take_turns, NULL);
	return run_suite(s);
}
