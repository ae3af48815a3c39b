/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How work grows with the number of sequences: compares the processor time with few sequences and with four times as
 * many, each the minimum of several runs. Linear work takes four times as long, quadratic work sixteen times.
 */
#include <stdio.h>
#include <time.h>
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

#define FEW 400u
#define RUNS 5
#define SHARED_PAGES 8192u

static struct peer p[2];

static void setup(void)
{
	struct skv_core_config k = books_config();

	k.pool_bytes = 64 << 20;
	k.account_bytes = 1 << 30;
	k.account_sequences = 4 * FEW + 8;
	k.max_sequences = 2 * k.account_sequences + 2; /* no user has more than half of what is left */
	books_open(&k);
}

static double cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The minimum time of several runs of `work`. */
static double least_ms(void (*work)(void))
{
	double least = 1e9;

	for (int i = 0; i < RUNS; i++) {
		const double begin = cpu_ms(), took = (work(), cpu_ms() - begin);

		least = took < least ? took : least;
	}
	return least;
}

static void expect_factor(const char *what, double few, double many, double most)
{
	printf("%s: %.3f ms, with four times as many sequences %.3f ms\n", what, few, many);
	ck_assert_msg(many < most * few + 0.2, "%s: %.3f ms, with four times as many sequences %.3f ms", what, few, many);
}

/* ---- a client that reconnects ---------------------------------------------------------------- */

static struct skv_wire_run shared[SHARED_PAGES];
static uint32_t n_shared;

static void name_pages(void)
{
	ck_assert_int_eq(skv_core_reconnect_pages(core, p[0].client, p[0].session.session, shared, n_shared), 0);
}

/* The pages are shared by the last of n_sequences sequences. */
static double time_of_named_pages(uint32_t n_sequences)
{
	struct skv_model model = test_model("m", 4, 16);
	struct held one, parent, child;
	double took;

	model.max_tokens = SHARED_PAGES / 4 * SKV_PAGE_TOKENS;
	setup();
	peer_join(&p[0], 1000, &model);
	for (uint32_t i = 0; i < n_sequences; i++) {
		held_new(&one, &p[0], "", 16);
		held_close(&one);
	}
	held_new(&parent, &p[0], "", 0);
	held_append(&parent, &p[0], model.max_tokens - 1);
	ck_assert_int_eq(held_fork(&child, &parent, &p[0], ""), 0);
	n_shared = 0;
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		for (uint32_t i = 0; i < SHARED_PAGES / 4; i++)
			shared[n_shared++] = (struct skv_wire_run){skv_pte_id(held_entry(&child, layer, i)), 1};
	ck_assert(skv_core_client_fence(core, p[0].client));
	ck_assert_int_eq(skv_core_reconnect(core, p[0].client), 0);
	ck_assert_int_eq(skv_core_reconnect_session(core, p[0].client, p[0].session.session), 0);
	took = least_ms(name_pages);
	held_close(&parent);
	held_close(&child);
	peer_die(&p[0]);
	books_close();
	return took;
}

START_TEST(named_pages_cost_what_they_are)
{
	const double few = time_of_named_pages(FEW);

	expect_factor("named pages", few, time_of_named_pages(4 * FEW), 2);
}
END_TEST

/* ---- ranks that commit together ---------------------------------------------------------------- */

static void look_for_old_ones(void)
{
	ck_assert(!skv_core_age(core, 1, 0, UINT64_MAX, UINT32_MAX));
}

/* n_sequences named sequences without a holder, of two ranks. */
static double time_of_ranks(uint32_t n_sequences)
{
	struct skv_model model = test_model("m", 1, 16);
	double took;

	setup();
	model.n_ranks = 2;
	for (model.rank = 0; model.rank < 2; model.rank++)
		peer_join(&p[model.rank], 1000, &model);
	for (uint32_t i = 0; i < n_sequences; i++) {
		struct peer *one = &p[i % 2];
		char name[SKV_NAME_MAX];
		struct held h;

		snprintf(name, sizeof(name), "a-name-that-has-much-in-common-with-the-others-%u", i / 2);
		held_new(&h, one, name, 16);
		atomic_store(&h.mem->joint, 1);
		ck_assert_int_eq(held_detach(&h, one), 0);
	}
	took = least_ms(look_for_old_ones);
	for (int i = 0; i < 2; i++)
		peer_die(&p[i]);
	skv_core_drop_all(core);
	books_close();
	return took;
}

START_TEST(ranks_are_found_by_name)
{
	const double few = time_of_ranks(FEW);

	expect_factor("ranks", few, time_of_ranks(4 * FEW), 8);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-cost");

	add_case(s, "cost", 60, NULL, NULL, named_pages_cost_what_they_are, ranks_are_found_by_name, NULL);
	return run_suite(s);
}
