/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences without a holder make room: with age, and for users below their share of a memory that is used up. */
#include <stdio.h>
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

#define SEQS 8u
#define TOKENS 2048u /* of a sequence: 256 pages, four segments */
#define PAGES 256u
#define SEGMENT 64u /* pages */

static struct skv_model model;
static struct peer a, b;
static struct held h[SEQS];

static void setup(void)
{
	struct skv_core_config k = books_config();

	k.pool_bytes = SEQS * PAGES * 1024;
	k.account_bytes = k.pool_bytes + (1 << 20); /* sequences and sessions take memory beside their pages */
	books_open(&k);
	model = test_model("m", 2, 16);
	peer_join(&a, 1000, &model);
}

static const char *name_of(uint32_t i)
{
	static char name[8];

	snprintf(name, sizeof(name), "s%u", i);
	return name;
}

/* Fills all memory with the user's sequences, of which the first n_held stay held. */
static void fill(uint32_t n_held)
{
	for (uint32_t i = 0; i < SEQS; i++) {
		ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), 0);
		held_new(&h[i], &a, name_of(i), TOKENS);
		held_append(&h[i], &a, TOKENS);
	}
	for (uint32_t i = n_held; i < SEQS; i++)
		ck_assert_int_eq(held_detach(&h[i], &a), 0);
	pool_is(&a, n_held * PAGES, (SEQS - n_held) * PAGES, 0);
}

static void finish(uint32_t n_held)
{
	for (uint32_t i = 0; i < n_held; i++)
		held_close(&h[i]);
	for (uint32_t i = 0; i < SEQS; i++)
		(void)drop_name(1000, "m", name_of(i));
	peer_die(&a);
}

/* Asks again, making turns, until the result is not E_WAIT. */
static int lease_in_turns(struct peer *p)
{
	struct skv_core_done done = {.more = true};
	int r;

	while ((r = peer_lease(p, SEGMENT, SEGMENT)) == SKV_CORE_E_WAIT) {
		books_even();
		ck_assert(done.more);
		do
			skv_core_work(core, 1000, &done);
		while (done.more && !done.through);
		ck_assert(done.through);
		done.more = true;
	}
	return r;
}

START_TEST(a_user_below_its_part_gets_it)
{
	uint32_t got = 0;
	uint64_t aged, for_room;

	fill(1);
	ck_assert_int_eq(held_attach(&h[1], &a, "s1"), 0); /* used again, so it is the last to be dropped */
	ck_assert_int_eq(held_detach(&h[1], &a), 0);
	peer_join(&b, 2000, &model);
	while (lease_in_turns(&b) == 0) {
		got++;
		books_even();
	}
	ck_assert_uint_eq(got, SEQS * PAGES / SEGMENT / 2);
	ck_refused(peer_lease(&b, 1, 1), SKV_CORE_E_NOSPC); /* both users have their shares */
	for (uint32_t i = 0; i < SEQS; i++)
		ck_assert_int_eq(books_has_seq(name_of(i)), i < 2 || i > 5);
	skv_core_dropped(core, &aged, &for_room);
	ck_assert_uint_eq(aged, 0);
	ck_assert_uint_eq(for_room, 4);
	ck_assert_uint_eq(books_seq("s0").client, a.client);
	peer_die(&b);
	finish(1);
}
END_TEST

START_TEST(what_is_held_stays)
{
	fill(SEQS);
	peer_join(&b, 2000, &model);
	ck_refused(peer_lease(&b, 1, 1), SKV_CORE_E_NOSPC);
	peer_die(&b);
	finish(SEQS);
}
END_TEST

/*
 * The end of a dead client waits for a rank that never commits. Another user's request for memory does not wait for it.
 */
START_TEST(a_rank_that_never_follows_withholds_nothing)
{
	struct skv_model ranked = test_model("j", 2, 16);
	struct peer r[2];
	struct held x[2];

	ranked.n_ranks = 2;
	for (ranked.rank = 0; ranked.rank < 2; ranked.rank++) {
		peer_join(&r[ranked.rank], 3000, &ranked);
		held_new(&x[ranked.rank], &r[ranked.rank], "pair", 1024);
		atomic_store(&x[ranked.rank].mem->joint, 1);
	}
	fill(0);
	x[0].mem->len[1] = 16;
	atomic_store(&x[0].mem->commit, UINT64_C(1) << 32 | 16);
	client_gone(r[0].client);
	held_close(&x[0]);
	peer_join(&b, 2000, &model);
	ck_assert_int_eq(lease_in_turns(&b), 0);
	peer_die(&b);
	held_close(&x[1]);
	peer_die(&r[1]);
	(void)drop_name(3000, "j", "pair");
	(void)drop_name(3000, "j", "pair");
	finish(0);
}
END_TEST

START_TEST(a_user_alone_loses_nothing)
{
	fill(0);
	ck_refused(peer_lease(&a, 1, 1), SKV_CORE_E_NOSPC);
	for (uint32_t i = 0; i < SEQS; i++)
		ck_assert(books_has_seq(name_of(i)));
	finish(0);
}
END_TEST

START_TEST(sequences_grow_old)
{
	uint64_t aged, for_room;

	fill(1);
	ck_assert_uint_eq(age_all(10, 0, 100), 0);
	ck_assert_int_eq(held_attach(&h[1], &a, "s1"), 0);
	ck_assert_uint_eq(age_all(109, 0, 100), 0);
	ck_assert_uint_eq(age_all(1000, 0, 0), 0);
	ck_assert_int_eq(held_detach(&h[1], &a), 0);
	ck_assert_uint_eq(age_all(110, 0, 100), SEQS - 2);
	books_even();
	skv_core_work_all(core);
	for (uint32_t i = 0; i < SEQS; i++)
		ck_assert_int_eq(books_has_seq(name_of(i)), i < 2);
	ck_assert_uint_eq(age_all(209, 0, 100), 0);
	ck_assert_uint_eq(age_all(210, 0, 100), 1);
	skv_core_dropped(core, &aged, &for_room);
	ck_assert_uint_eq(aged, SEQS - 1);
	ck_assert_uint_eq(for_room, 0);
	finish(1);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-age");

	add_case(s, "age", 60, setup, books_close, a_user_below_its_part_gets_it, what_is_held_stays, a_rank_that_never_follows_withholds_nothing, a_user_alone_loses_nothing,
	         sequences_grow_old, NULL);
	return run_suite(s);
}
