/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequence memory with invalid contents: it is detected at validation, and only the client that wrote it loses
 * anything.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/core-peer.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static struct skv_model model; /* 2 layers, pages of 1 KiB */

static void setup(void)
{
	struct skv_core_config config = books_config();

	model = test_model("m", 2, 16);
	books_open(&config);
}

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
	first(h)[0] = skv_pte_make(SKV_PTE_PRIVATE, SKV_PTE_ID_MASK);
}
static void lie_no_segment(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	(void)s, (void)t;
	first(h)[0] = skv_pte_make(SKV_PTE_PRIVATE, p->session.pages_per_segment * 20);
}
static void lie_free(struct held *h, struct peer *p, const struct held *s, const struct held *t)
{
	uint32_t page = peer_take(p);

	(void)s, (void)t;
	ck_assert_int_eq(
		skv_core_lease_put(core, p->client, p->session.session, &(struct skv_wire_run){page, 1}, 1),
		0);
	first(h)[0] = skv_pte_make(SKV_PTE_PRIVATE, page);
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
	first(h)[0] = skv_pte_make(SKV_PTE_PRIVATE, skv_pte_id(held_entry(s, 0, 0)));
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
	case BY_DETACH: r = skv_core_seq_detach(core, liar.client, liar.session.session, h.seq); break;
	case BY_FORK: r = held_fork(&f, &h, &liar, "f"); break;
	case BY_DEATH: peer_die(&liar); break;
	case BY_CLOSE:
		ck_assert_int_eq(skv_core_session_close(core, liar.client, liar.session.session), 0);
		break;
	}
	ck_assert_int_eq(r, SKV_CORE_E_CORRUPT);
	ck_assert_uint_eq(n_corrupt, 1);
	ck_assert_msg(strstr(corrupt_why, lie->what), "'%s' does not say '%s'", corrupt_why, lie->what);
	books_even();
	ck_assert(!books_has_seq("liar"));
	ck_assert(!books_has_seq("f"));
	/* all others are unchanged */
	ck_assert_uint_eq(books_seq("child").pages_shared, 4);
	ck_assert_uint_eq(books_seq("parent").pages_shared, 4);
	ck_assert_int_eq(held_detach(&theirs, &other), 0);
	ck_assert_uint_eq(books_seq("theirs").pages[SKV_PAGES_KV], 8);
	if (_i / N_LIES != BY_DEATH)
		peer_die(&liar); /* and its anonymous sequences */
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
	ck_assert(books_has_seq("h") != books_has_seq("g"));
	held_close(&h);
	held_close(&g);
	peer_die(&b);
}
END_TEST

/* The process that held the sequence before still has it mapped, and writes to it. */
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
	first(&old)[0] = skv_pte_make(SKV_PTE_PRIVATE, a.stock[0]);
	ck_assert_int_eq(held_detach(&h, &b), SKV_CORE_E_CORRUPT);
	peer_die(&b);
	pool_is(&a, 56, 0, 0);
	held_close(&old);
	/* the same while the sequence has no holder */
	held_new(&old, &a, "h", 1024);
	held_append(&old, &a, 50);
	ck_assert_int_eq(skv_core_seq_detach(core, a.client, a.session.session, old.seq), 0);
	old.mem->magic = 0;
	ck_refused(held_attach(&h, &a, "h"), SKV_CORE_E_CORRUPT);
	ck_assert(!books_has_seq("h"));
	pool_is(&a, 48, 0, 0);
	held_close(&old);
	peer_die(&a);
}
END_TEST

static struct held target;
static atomic_bool started, stop;

/* Writes entries, lengths and journals of every kind, as fast as possible. */
static void *scribble(void *data)
{
	uint32_t entries = target.layout.n_tables * target.layout.max_pages;
	struct skv_eviction *j = skv_seqmem_journal(target.mem, &target.layout);

	(void)data;
	while (!atomic_load(&stop)) {
		uint32_t i = rnd_below(entries), kind = rnd_below(20), page = rnd_below(256);

		__atomic_store_n(&first(&target)[i], skv_pte_make(kind < 18 ? kind % 4 : kind, page),
		                 __ATOMIC_RELAXED);
		__atomic_store_n(&j[rnd_below(4)].table, rnd_below(8) ? rnd_below(2) : (uint32_t)rnd64(),
		                 __ATOMIC_RELAXED);
		__atomic_store_n(&j[rnd_below(4)].page, rnd_below(8) ? rnd_below(64) : (uint32_t)rnd64(),
		                 __ATOMIC_RELAXED);
		atomic_store(&started, true);
		if (i % 16 == 0) {
			atomic_store(&target.mem->commit, rnd_below(4) ? rnd_below(1024) : rnd64());
			atomic_store(&target.mem->journal_n, rnd_below(4) ? rnd_below(4) : (uint32_t)rnd64());
		}
	}
	return NULL;
}

/* The holder writes while the daemon reads: the state balances, and the other client is not harmed. */
START_TEST(memory_may_change_while_it_is_read)
{
	uint32_t settled = 0, dropped = 0;
	struct peer liar, other;
	struct held child, theirs;
	pthread_t thread;

	peer_join(&other, 1000, &model);
	held_new(&theirs, &other, "theirs", 1024);
	held_append(&theirs, &other, 50);
	for (int round = 0; round < 400; round++) {
		peer_join(&liar, 1000, &model);
		held_new(&target, &liar, "target", 1024);
		held_append(&target, &liar, 1 + rnd_below(100));
		ck_assert_int_eq(held_fork(&child, &target, &liar, ""), 0);
		held_close(&child);
		held_append(&target, &liar, rnd_below(100));
		atomic_store(&stop, false);
		atomic_store(&started, false);
		ck_assert_int_eq(pthread_create(&thread, NULL, scribble, NULL), 0);
		while (!atomic_load(&started))
			sched_yield();
		for (int i = 0; i < 3; i++)
			if (held_fork(&child, &target, &liar, "") == 0)
				held_close(&child);
		peer_die(&liar);
		atomic_store(&stop, true);
		pthread_join(thread, NULL);
		books_even();
		held_close(&target);
		if (drop_name(1000, "m", "target") == 0)
			settled++;
		else
			dropped++;
		pool_is(&other, 64, 0, 0);
	}
	printf("memory changing under the daemon: %u settled, %u dropped\n", settled, dropped);
	ck_assert_int_eq(held_detach(&theirs, &other), 0);
	peer_die(&other);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-untrusted");
	TCase *t = add_case(s, "lies", 60, setup, books_close, a_page_is_of_one_sequence,
	                    a_stale_mapping_harms_its_own_user_alone, memory_may_change_while_it_is_read,
	                    NULL);

	tcase_add_loop_test(t, a_lie_costs_the_liar_alone, 0, N_LIES * N_BY);
	return run_suite(s);
}
