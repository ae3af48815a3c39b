/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences that go to files and come back, from the core's view: which ones, what is listed, what happens meanwhile,
 * and where they are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "daemon/core/operations/parking.h"
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

#define SEQS 8u
#define TOKENS 2048u /* of a sequence: 256 pages, four segments */
#define PAGES 256u
#define SEGMENT 64u /* pages */

static struct skv_model model;
static struct peer a, b;
static struct held h[SEQS];
static struct skv_core_config config;

static void setup(void)
{
	config = books_config();
	config.pool_bytes = SEQS * PAGES * 1024;
	/* sequences and sessions take memory beside their pages */
	config.account_bytes = config.pool_bytes + (1 << 20);
	config.account_sequences = 2 * SEQS;
	config.max_sequences = 8 * SEQS;
	books_open(&config);
	skv_core_set_parking(core, true);
	model = test_model("m", 2, 16);
	peer_join(&a, 1000, &model);
}

static const char *name_of(uint32_t i)
{
	static char name[8];

	snprintf(name, sizeof(name), "s%u", i);
	return name;
}

/* Sequences without a holder that take `n` eighths of the memory. */
static void fill(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), 0);
		held_new(&h[i], &a, name_of(i), TOKENS);
		held_append(&h[i], &a, TOKENS);
	}
	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(held_detach(&h[i], &a), 0);
}

static void finish(void)
{
	for (uint32_t i = 0; i < SEQS; i++)
		(void)drop_name(1000, "m", name_of(i));
	peer_die(&a);
}

/* Reads what the daemon has written to the list; to be freed. */
static skv_pte *read_list(int fd, uint64_t n)
{
	skv_pte *list = malloc(n * sizeof(*list) + 1);

	ck_assert_int_eq(pread(fd, list, n * sizeof(*list) + 1, 0), (ssize_t)(n * sizeof(*list)));
	return list;
}

/* Lists a sequence in turns of `units` each; returns the result. *ret_fd is owned by the caller. */
static int list(uint32_t seq, uint32_t units, struct skv_core_listing *l, int *ret_fd)
{
	int r;

	*ret_fd = memfd_create("list", MFD_CLOEXEC);
	r = skv_core_list_begin(core, seq, *ret_fd, l);
	if (r)
		return r;
	do {
		uint32_t some = units;

		r = skv_core_list_some(core, l, &some);
	} while (r == SKV_CORE_E_TURNS);
	ck_assert_ptr_null(l->walk);
	return r;
}

/* Like the daemon: lists each sequence that is to be parked, and reports it parked. Returns their number. */
static unsigned park_all(void)
{
	struct skv_core_listing l;
	unsigned n = 0;
	uint32_t seq;
	int fd;

	for (; skv_core_next_park(core, &seq); n++) {
		ck_assert_int_eq(list(seq, 100, &l, &fd), 0);
		ck_assert_uint_eq(l.n_pages, PAGES);
		close(fd);
		ck_assert_int_eq(skv_core_park_done(core, &l), 0);
		skv_core_work_all(core);
		books_even();
	}
	return n;
}

START_TEST(own_ones_make_room)
{
	uint64_t aged, for_room;

	fill(SEQS);
	ck_assert_int_eq(held_attach(&h[0], &a, "s0"), 0);
	ck_assert_int_eq(held_detach(&h[0], &a), 0); /* used last */
	for (uint32_t i = 1; i < SEQS; i++) {
		ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), SKV_CORE_E_WAIT);
		/* asking again parks no other sequence */
		ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), SKV_CORE_E_WAIT);
		ck_assert_uint_eq(park_all(), 1);
		ck_assert(!books_has_seq(name_of(i)));
		ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), 0);
	}
	ck_assert(books_has_seq("s0"));
	skv_core_dropped(core, &aged, &for_room);
	ck_assert_uint_eq(aged + for_room, 0);
	finish();
}
END_TEST

START_TEST(quota_makes_room)
{
	config.account_bytes = 4 * PAGES * 1024 + (256 << 10);
	ck_assert(skv_core_reconfigure(core, &config));
	fill(4);
	ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), SKV_CORE_E_WAIT);
	ck_assert_uint_eq(park_all(), 1);
	ck_assert(!books_has_seq("s0"));
	ck_assert_int_eq(peer_lease(&a, PAGES, PAGES), 0);
	finish();
}
END_TEST

/* A sequence that cannot be parked is skipped; if none can be, sequences are dropped as without parking. */
START_TEST(failures)
{
	uint64_t aged, for_room;
	uint32_t seq;

	fill(SEQS);
	for (uint32_t i = 0; i < SEQS; i++) {
		ck_assert_int_eq(peer_lease(&a, SEGMENT, SEGMENT), SKV_CORE_E_WAIT);
		ck_assert(skv_core_next_park(core, &seq));
		ck_assert_uint_eq(books_seq(name_of(i)).seq, seq);
		ck_assert(!skv_core_next_park(core, &seq));
		skv_core_park_failed(core, seq, 1);
	}
	ck_refused(peer_lease(&a, SEGMENT, SEGMENT), SKV_CORE_E_NOSPC);
	peer_join(&b, 2000, &model);
	/* one of the other user's sequences is dropped */
	ck_assert_int_eq(peer_lease(&b, SEGMENT, SEGMENT), SKV_CORE_E_WAIT);
	skv_core_work_all(core);
	ck_assert_int_eq(peer_lease(&b, SEGMENT, SEGMENT), 0);
	ck_assert(!books_has_seq("s0"));
	skv_core_dropped(core, &aged, &for_room);
	ck_assert_uint_eq(for_room, 1);
	age_all(1, 0, 0);
	ck_assert(!skv_core_next_park(core, &seq));
	age_all(UINT64_C(20000000000), 0, 0); /* parking is tried again */
	ck_assert_int_eq(peer_lease(&b, 3 * PAGES, 3 * PAGES), SKV_CORE_E_WAIT);
	ck_assert(skv_core_next_park(core, &seq));
	ck_assert_uint_eq(books_seq("s1").seq, seq);
	peer_die(&b);
	finish();
}
END_TEST

START_TEST(with_age)
{
	uint32_t seq;

	fill(3);
	ck_assert_uint_eq(age_all(10, 100, 0), 0);
	ck_assert_int_eq(held_attach(&h[1], &a, "s1"), 0);
	ck_assert_uint_eq(age_all(109, 100, 0), 0);
	ck_assert(!skv_core_next_park(core, &seq));
	ck_assert_uint_eq(age_all(110, 100, 0), 0);
	ck_assert_uint_eq(park_all(), 2);
	ck_assert(books_has_seq("s1"));
	ck_assert_int_eq(held_detach(&h[1], &a), 0);
	finish();
}
END_TEST

/*
 * At most two sequences of a user are being parked, however many are due, and the other user's sequences get their
 * turn.
 */
START_TEST(few_at_a_time)
{
	uint32_t seqs[4], more, row = UINT32_MAX, held = 0;

	fill(4);
	peer_join(&b, 2000, &model);
	held_new(&h[4], &b, "other", TOKENS);
	ck_assert_int_eq(held_detach(&h[4], &b), 0);
	ck_assert_uint_eq(age_all(10, 100, 0), 0);
	ck_assert_uint_eq(age_all(110, 100, 0), 0);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert(skv_core_next_park(core, &seqs[i]));
	ck_assert(!skv_core_next_park(core, &more));
	ck_assert_uint_eq(seqs[0], books_seq("s0").seq);
	ck_assert_uint_eq(seqs[1], books_seq("other").seq);
	ck_assert_uint_eq(seqs[2], books_seq("s1").seq);
	ck_assert(!skv_core_may_park(core, 1000) && skv_core_may_park(core, 2000));
	skv_core_park_failed(core, seqs[0], 1);
	ck_assert(skv_core_may_park(core, 1000) && skv_core_has_park(core));
	ck_assert_int_eq(drop_name(1000, "m", "s2"), 0); /* one that waits */
	ck_assert(skv_core_next_park(core, &seqs[3]));
	ck_assert_uint_eq(seqs[3], books_seq("s3").seq);
	ck_assert_int_eq(drop_name(1000, "m", "s3"), 0); /* one that is being parked */
	ck_assert(skv_core_may_park(core, 1000) && !skv_core_has_park(core));
	/* the caller limits sequences that are parked by name */
	ck_assert(skv_core_park_name(core, 1000, "m", "s0", &row, &more, &held));
	ck_assert(!skv_core_may_park(core, 1000));
	(void)drop_name(2000, "m", "other");
	peer_die(&b);
	finish();
}
END_TEST

/* A sequence that was held after it was listed: the file is out of date. */
START_TEST(attached_meanwhile)
{
	struct skv_core_listing l;
	uint32_t row = UINT32_MAX, held = 0, seq;
	int fd;

	fill(2);
	ck_assert(skv_core_park_name(core, 1000, "m", "s0", &row, &seq, &held));
	ck_assert(!skv_core_park_name(core, 1000, "m", "s0", &row, &seq, &held));
	ck_assert_uint_eq(held, 0);
	ck_assert_int_eq(list(seq, UINT32_MAX, &l, &fd), 0);
	close(fd);
	ck_assert_int_eq(held_attach(&h[0], &a, "s0"), 0);
	ck_refused(skv_core_park_done(core, &l), SKV_CORE_E_BUSY);
	ck_assert_int_eq(held_detach(&h[0], &a), 0);
	ck_refused(skv_core_park_done(core, &l), SKV_CORE_E_BUSY); /* although the sequence has not changed */
	ck_assert(books_has_seq("s0"));
	ck_assert_int_eq(drop_name(1000, "m", "s0"), 0);
	skv_core_work_all(core);
	ck_refused(skv_core_park_done(core, &l), SKV_CORE_E_BUSY);
	ck_assert_int_eq(held_attach(&h[1], &a, "s1"), 0);
	ck_assert(!skv_core_park_name(core, 1000, "m", "s1", &row, &seq, &held));
	ck_assert_uint_eq(held, 1);
	ck_assert_int_eq(held_detach(&h[1], &a), 0);
	finish();
}
END_TEST

/* The user still writes to the tables: an entry that the sequence must not have is found. */
START_TEST(lists_what_it_may_name)
{
	struct skv_seqmem_layout layout;
	struct skv_core_location s0, s1;
	struct skv_core_listing l;
	skv_pte *was, entry;
	off_t at;
	int fd;

	fill(2);
	skv_seqmem_layout(&model, TOKENS, &layout);
	at = (off_t)(layout.table + 3 * sizeof(entry));
	ck_assert_int_eq(list(books_seq("s0").seq, 50, &l, &fd), 0);
	was = read_list(fd, l.n_entries);
	close(fd);
	ck_assert_uint_eq(l.n_pages, PAGES);
	for (uint64_t i = 0, n = 0; i < l.n_entries; i++)
		if (skv_pte_kind(was[i]) == SKV_PTE_PRIVATE)
			ck_assert_uint_lt(n++, PAGES);
	free(was);
	ck_assert_int_eq(skv_core_seq_location(core, books_seq("s0").seq, &s0), 0);
	ck_assert_int_eq(skv_core_seq_location(core, books_seq("s1").seq, &s1), 0);
	ck_assert_int_eq(pread(s1.fd, &entry, sizeof(entry), at), sizeof(entry));
	ck_assert_int_eq(pwrite(s0.fd, &entry, sizeof(entry), at), sizeof(entry));
	ck_assert_int_eq(list(books_seq("s0").seq, 50, &l, &fd), SKV_CORE_E_CORRUPT);
	close(fd);
	ck_assert_uint_eq(n_corrupt, 1);
	skv_core_work_all(core);
	ck_assert(!books_has_seq("s0"));
	ck_assert_int_eq(list(books_seq("s1").seq, 50, &l, &fd), 0);
	close(fd);
	finish();
}
END_TEST

/* A shared page counts for each sequence that refers to it; parking one sequence leaves the others unchanged. */
START_TEST(forks)
{
	struct skv_core_listing l;
	struct held child;
	int fd;

	fill(1);
	ck_assert_int_eq(held_attach(&h[0], &a, "s0"), 0);
	ck_assert_int_eq(held_fork(&child, &h[0], &a, "fork"), 0);
	ck_assert_int_eq(held_detach(&h[0], &a), 0);
	ck_assert_int_eq(held_detach(&child, &a), 0);
	ck_assert_int_eq(list(books_seq("fork").seq, 77, &l, &fd), 0);
	close(fd);
	ck_assert_uint_eq(l.n_pages, PAGES);
	ck_assert_int_eq(skv_core_park_done(core, &l), 0);
	skv_core_work_all(core);
	books_even();
	ck_assert(!books_has_seq("fork"));
	ck_assert_int_eq(list(books_seq("s0").seq, 77, &l, &fd), 0);
	close(fd);
	ck_assert_uint_eq(l.n_pages, PAGES);
	finish();
}
END_TEST

/* ---- restoring --------------------------------------------------------------------------------- */

/* Takes pages for the sequence, in as many calls as needed. */
static int take(uint32_t seq, uint32_t n)
{
	struct skv_wire_run runs[4];
	uint32_t n_runs;
	int r = 0;

	while (n && r == 0) {
		r = skv_core_restore_take(core, seq, n, runs, 4, &n_runs);
		for (uint32_t i = 0; r == 0 && i < n_runs; i++)
			n -= runs[i].count;
		books_even();
	}
	return r;
}

START_TEST(comes_back)
{
	struct skv_core_location p;
	uint32_t seq, other;

	fill(1);
	ck_refused(skv_core_restore_new(core, 1000, &model, "s0", TOKENS, &seq), SKV_CORE_E_EXIST);
	ck_refused(skv_core_restore_new(core, 1000, &model, "a/b", TOKENS, &seq), SKV_CORE_E_INVALID);
	ck_assert_int_eq(skv_core_restore_new(core, 1000, &model, "s1", TOKENS, &seq), 0);
	/* no sequence has the name yet */
	ck_assert_int_eq(skv_core_restore_new(core, 1000, &model, "s1", TOKENS, &other), 0);
	ck_assert_int_eq(take(seq, PAGES), 0);
	ck_assert_int_eq(take(other, 3), 0);
	ck_assert_int_eq(skv_core_seq_location(core, seq, &p), 0);
	ck_assert_uint_eq(p.uid, 1000);
	ck_assert_uint_eq(p.max_tokens, TOKENS);
	ck_assert_uint_ge(p.max_pages, 2 * PAGES + 3);
	ck_assert_int_eq(held_attach(&h[1], &a, "s1"), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_restore_done(core, seq, "s1"), 0);
	ck_refused(skv_core_restore_done(core, other, "s1"), SKV_CORE_E_EXIST);
	ck_refused(skv_core_restore_done(core, seq, "s1"), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_restore_drop(core, other), 0);
	skv_core_work_all(core);
	books_even();
	pool_is(&a, 0, 2 * PAGES, 0);
	ck_assert_int_eq(drop_name(1000, "m", "s1"), 0);
	finish();
}
END_TEST

/* The sequence is the only user of its pool and account. */
START_TEST(comes_back_alone)
{
	uint32_t seq;

	ck_assert_int_eq(skv_core_restore_new(core, 3000, &model, "x", TOKENS, &seq), 0);
	ck_assert_int_eq(take(seq, 10), 0);
	ck_assert_int_eq(skv_core_restore_drop(core, seq), 0);
	skv_core_work_all(core);
	books_even();
	ck_assert_int_eq(skv_core_restore_new(core, 3000, &model, "x", TOKENS, &seq), 0);
	ck_assert_int_eq(take(seq, 10), 0);
	ck_assert_int_eq(skv_core_restore_done(core, seq, "x"), 0);
	ck_assert_int_eq(drop_name(3000, "m", "x"), 0);
	skv_core_work_all(core);
	books_even();
	finish();
}
END_TEST

/* Restoring a sequence makes others be parked. */
START_TEST(takes_room)
{
	uint32_t seq;

	fill(SEQS);
	ck_assert_int_eq(skv_core_restore_new(core, 1000, &model, "x", TOKENS, &seq), 0);
	ck_assert_int_eq(take(seq, PAGES), SKV_CORE_E_WAIT);
	ck_assert_uint_eq(park_all(), 1);
	ck_assert_int_eq(take(seq, PAGES), 0);
	ck_assert_int_eq(skv_core_restore_done(core, seq, "x"), 0);
	ck_assert_int_eq(drop_name(1000, "m", "x"), 0);
	finish();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-parking");

	add_case(s, "parking", 60, setup, books_close, own_ones_make_room, quota_makes_room, failures, with_age, few_at_a_time, attached_meanwhile,
	         lists_what_it_may_name, forks, comes_back, comes_back_alone, takes_room, NULL);
	return run_suite(s);
}
