/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that commit together lose their holders: a commit that not all ranks have made is taken back together with its
 * evictions; a commit that another rank may still make is waited for.
 */
#include <stdlib.h>
#include <sparsekv/policy.h>
#include "daemon/core/operations/parking.h"
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

#define RANKS 3u
#define LEN 96u /* six pages in each of two layers */
#define PAGES 12u

static struct peer p[RANKS];
static struct held h[RANKS];

/* The rank learns that all ranks have its last commit. */
static void know(struct held *one)
{
	atomic_store(&one->mem->joint, skv_commit_epoch(atomic_load(&one->mem->commit)) + 1);
}

static void setup(void)
{
	struct skv_core_config k = books_config();
	struct skv_model model = test_model("m", 2, 16);

	books_open(&k);
	model.n_ranks = RANKS;
	for (model.rank = 0; model.rank < RANKS; model.rank++) {
		struct peer *one = &p[model.rank];

		peer_join(one, 1000, &model);
		held_new(&h[model.rank], one, "x", 1024);
		held_append(&h[model.rank], one, LEN);
		know(&h[model.rank]);
	}
}

static void teardown(void)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		if (h[r].mem)
			held_close(&h[r]);
		(void)skv_core_client_gone(core, p[r].client, 0); /* if it is not gone yet */
		skv_core_work_all(core);
		free(p[r].stock);
	}
	ck_assert_int_eq(drop_name(1000, "m", "x"), 0);
	ck_assert_uint_eq(n_corrupt, 0);
	books_close();
}

/*
 * A commit of which the rank does not know whether the others have made it. It evicts a page of the first of two
 * layers.
 */
static void commit(uint32_t r)
{
	uint32_t cow[SKV_MAX_LAYERS], n;
	uint64_t was = atomic_load(&h[r].mem->commit);

	held_write(&h[r], &p[r], 20, cow, &n);
	held_evict(&h[r], 0, 1, JOURNAL_COMMITTED);
	atomic_store(&h[r].mem->commit, was);
	held_commit(&h[r], 20);
}

/* The rank's client is gone, and the core has done what it can. */
static void die(uint32_t r)
{
	client_gone(p[r].client);
	held_close(&h[r]);
	h[r].mem = NULL;
}

/* A client attaches the rank's sequence. Returns the core's error. */
static int attach(uint32_t r, struct peer *to, struct held *ret)
{
	struct skv_model model = test_model("m", 2, 16);

	model.n_ranks = RANKS;
	model.rank = r;
	peer_join(to, 1000, &model);
	return held_attach(ret, to, "x");
}

/* Is the rank without a holder, with its first or its second commit? */
static void is_back(uint32_t r, bool second)
{
	struct held again;
	struct peer other;

	ck_assert_int_eq(attach(r, &other, &again), 0);
	ck_assert_uint_eq(held_len(&again), second ? LEN + 20 : LEN);
	ck_assert_uint_eq(skv_pte_kind(held_entry(&again, 0, 0)), second ? SKV_PTE_HOLE : SKV_PTE_PRIVATE);
	held_close(&again);
	peer_die(&other);
}

/* The sequence cannot be attached yet: the end of its client waits. */
static void waits(uint32_t r)
{
	struct held again;
	struct peer other;

	ck_assert_int_eq(attach(r, &other, &again), SKV_CORE_E_LEAVING);
	peer_die(&other);
	books_even();
}

/* All ranks are without a holder, `second` of them with the second commit; no page has another owner. */
static void all_back(uint32_t second)
{
	struct skv_core_pool_view v;
	struct held again;
	struct peer other;

	ck_assert_int_eq(attach(0, &other, &again), 0);
	v = books_pool(other.session.pool);
	ck_assert_uint_eq(v.lease + v.seq, (RANKS - second) * PAGES + second * (PAGES + 3));
	held_close(&again);
	peer_die(&other);
}

START_TEST(all_have_it)
{
	for (uint32_t r = 0; r < RANKS; r++)
		commit(r);
	know(&h[1]);
	for (uint32_t r = 0; r < RANKS; r++) {
		die(r);
		is_back(r, true);
	}
	all_back(RANKS);
}
END_TEST

/* Each rank that has made the commit is rewound when the rank that has not is gone, in any order of deaths. */
START_TEST(one_has_not)
{
	const uint32_t behind = (uint32_t)_i / 3 % RANKS, first = (uint32_t)_i % 3;

	for (uint32_t r = 0; r < RANKS; r++)
		if (r != behind)
			commit(r);
	for (uint32_t i = 0; i < RANKS; i++) {
		const uint32_t r = (first + i) % RANKS;

		if (r != behind && h[behind].mem)
			client_gone(p[r].client); /* it waits */
		else
			die(r);
	}
	for (uint32_t r = 0; r < RANKS; r++) {
		is_back(r, false);
		if (h[r].mem)
			held_close(&h[r]);
		h[r].mem = NULL;
	}
	all_back(0);
}
END_TEST

/* While the client of the rank that is behind lives, the rank may still follow. */
START_TEST(waited_for)
{
	commit(0);
	client_gone(p[0].client);
	waits(0);
	commit(2);
	client_gone(p[2].client);
	waits(0);
	waits(2);
	skv_core_work_all(core);
	waits(0);
	commit(1);
	skv_core_work_all(core);
	is_back(0, true);
	is_back(2, true);
	die(1);
	is_back(1, true);
	all_back(RANKS);
}
END_TEST

/* A client that lives and detaches does not wait. */
START_TEST(detached)
{
	commit(0);
	ck_assert_int_eq(held_detach(&h[0], &p[0]), 0);
	h[0].mem = NULL;
	is_back(0, false);
	client_gone(p[0].client);
	die(1);
	die(2);
	all_back(0);
}
END_TEST

/* A compression of all ranks' heads that one rank alone has committed is taken back, although no token came with it. */
START_TEST(compressed_alone)
{
	struct skv_seqmem *m = h[0].mem;
	const uint32_t epoch = skv_commit_epoch(atomic_load(&m->commit)) + 1;
	struct held again;
	struct peer other;

	m->len[epoch & 1] = LEN;
	m->about[epoch & 1] = m->about[(epoch - 1) & 1] | SKV_ABOUT_SLOTS;
	for (uint32_t layer = 0; layer < 2; layer++)
		m->lay[epoch & 1].slots[layer] = (struct skv_layer_slots){
			.live = LEN, .slot_end = LEN, .n_active = LEN, .n_compressed = 32, .form = {.kind = SKV_COMPRESS_LATENT, .first = 1}};
	atomic_store(&m->commit, (uint64_t)epoch << 32 | LEN);
	for (uint32_t r = RANKS; r > 0; r--)
		die(r - 1);
	for (uint32_t r = 0; r < RANKS; r++)
		is_back(r, false);
	ck_assert_int_eq(attach(0, &other, &again), 0);
	ck_assert_uint_eq(skv_commit_epoch(atomic_load(&again.mem->commit)), epoch - 1);
	held_close(&again);
	peer_die(&other);
	all_back(0);
}
END_TEST

/* A detached rank is not idle while another rank is held: it is neither aged nor parked. */
START_TEST(as_idle_as_all)
{
	uint32_t row = UINT32_MAX, seq, held = 0;

	skv_core_set_parking(core, true);
	ck_assert_int_eq(held_detach(&h[0], &p[0]), 0);
	h[0].mem = NULL;
	ck_assert_uint_eq(age_all(10, 1, 100), 0);
	ck_assert_uint_eq(age_all(1000, 1, 100), 0);
	ck_assert(!skv_core_next_park(core, &seq));
	ck_assert(!skv_core_park_name(core, 1000, "m", "x", &row, &seq, &held));
	ck_assert_uint_eq(held, RANKS);
	die(1);
	die(2);
	ck_assert_uint_eq(age_all(1010, 1, 0), 0);
	ck_assert_uint_eq(age_all(1020, 1, 0), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert(skv_core_next_park(core, &seq));
		skv_core_park_failed(core, seq, 1);
	}
	ck_assert(!skv_core_next_park(core, &seq));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-joint");
	TCase *t = add_case(s, "joint", 60, setup, teardown, all_have_it, waited_for, detached, compressed_alone, as_idle_as_all, NULL);

	tcase_add_loop_test(t, one_has_not, 0, 9);
	return run_suite(s);
}
