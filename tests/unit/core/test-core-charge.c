/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory beside pages is charged to the user that takes it, and does not stay beyond the user's quota. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/core/memory/pins.h"
#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/prefix.h"
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

#define MiB (UINT64_C(1) << 20)
#define QUOTA (64 * MiB)
#define LEN (12u << 20) /* tokens */

static struct skv_model model;
static struct peer a, b;

static void setup(void)
{
	struct skv_core_config k = books_config();

	k.account_bytes = QUOTA;
	k.pool_bytes = 8 * QUOTA;
	books_open(&k);
	model = test_model("m", 1, 16);
	model.max_tokens = SKV_MAX_TOKENS;
	peer_join(&a, 1000, &model);
	peer_join(&b, 2000, &model);
}

static void teardown(void)
{
	peer_die(&b);
	books_close();
}

static void measure(void)
{
	uint32_t at = 0;

	do
		skv_core_measure(core, &at, 1000);
	while (at);
	books_even();
}

static uint64_t other(uid_t uid)
{
	measure();
	return books_account(uid).other_bytes;
}

static void write_bytes(struct held *h, size_t at, uint64_t bytes)
{
	memset((char *)h->mem + at, 1, bytes);
}

/* A sequence of LEN tokens without a page: all were evicted, and only its entries are left. */
static void claim_holes(struct held *h)
{
	skv_pte *table = skv_seqmem_table(h->mem, &h->layout, 0);

	for (uint32_t i = 0; i < skv_pages_of(LEN); i++)
		table[i] = skv_pte_make(SKV_PTE_HOLE, 0);
	atomic_store(&h->mem->commit, (uint64_t)2 << 32 | LEN);
}

START_TEST(what_a_client_writes_is_charged)
{
	struct held h, more;
	uint64_t before = other(1000);

	ck_assert_uint_eq(before, 4096); /* a session */
	held_new(&h, &a, "h", 0);
	write_bytes(&h, h.layout.tokens, 40 * MiB);
	ck_assert_uint_ge(other(1000), before + 40 * MiB);
	ck_assert_uint_le(other(1000), before + 41 * MiB);
	ck_assert_uint_eq(other(2000), 4096);
	ck_refused(peer_lease(&a, 30 << 10, 30 << 10), SKV_CORE_E_QUOTA); /* pages of 1 KiB, 23 MiB are left */
	ck_assert_int_eq(peer_lease(&a, 20 << 10, 20 << 10), 0);
	ck_assert_int_eq(peer_lease(&b, 60 << 10, 60 << 10), 0);
	write_bytes(&h, h.layout.tokens + 40 * MiB, 8 * MiB);
	measure();
	ck_refused(peer_lease(&a, 1, 1), SKV_CORE_E_QUOTA);
	ck_refused(skv_core_seq_new(core, a.client, a.session.session, "more", 0, &(struct skv_core_seq_info){0}),
	           SKV_CORE_E_QUOTA);
	ck_refused(skv_core_session_open(core, a.client, &model, "full", 1, &(struct skv_core_session_info){0}),
	           SKV_CORE_E_QUOTA);
	/* memory beyond the committed length is given back at detach; the sequence stays */
	ck_assert_int_eq(held_detach(&h, &a), 0);
	ck_assert_uint_lt(other(1000), before + MiB);
	ck_assert(books_has_seq("h"));
	held_new(&more, &a, "more", 0);
	held_close(&more);
	peer_die(&a);
	ck_assert_uint_le(other(1000), 4 * 4096); /* a header, and the next token */
}
END_TEST

/* Nothing is measured between the writing and the lease, or the next sequence. */
START_TEST(the_newest_sequence_is_charged_at_once)
{
	struct held h;

	held_new(&h, &a, "h", 0);
	write_bytes(&h, h.layout.tokens, 40 * MiB);
	ck_refused(peer_lease(&a, 30 << 10, 30 << 10), SKV_CORE_E_QUOTA); /* pages of 1 KiB, 23 MiB are left */
	write_bytes(&h, h.layout.tokens + 40 * MiB, 24 * MiB);
	ck_refused(skv_core_seq_new(core, a.client, a.session.session, "more", 0, &(struct skv_core_seq_info){0}), SKV_CORE_E_QUOTA);
	held_close(&h);
	peer_die(&a);
}
END_TEST

/*
 * A sequence with pages of its own may stay whatever its tables take; memory without pages does not stay beyond the
 * quota.
 */
START_TEST(memory_without_pages_goes_with_its_holder)
{
	struct held h[3];
	struct skv_core_held held;
	const char *const names[] = {"0", "1", "2"};

	for (int i = 0; i < 3; i++) /* nothing is made any more once the first has been written */
		held_new(&h[i], &a, names[i], 0);
	for (int i = 0; i < 3; i++) { /* 51 MiB each: 48 of token ids, 3 of entries */
		claim_holes(&h[i]);
		write_bytes(&h[i], h[i].layout.tokens, 48 * MiB);
	}
	ck_assert_uint_gt(other(1000), 150 * MiB);
	held = books_held();
	ck_assert_uint_ge(held.sequences, 153 * MiB);
	ck_assert_uint_le(held.sequences, 154 * MiB);
	for (int i = 0; i < 3; i++)
		held_close(&h[i]);
	peer_die(&a);
	ck_assert_uint_eq(n_corrupt, 2);
	ck_assert_ptr_nonnull(strstr(corrupt_why, "account-bytes"));
	ck_assert_uint_le(other(1000), 52 * MiB);
	ck_assert_uint_eq(books_account(1000).sequences, 1);
	held = books_held();
	ck_assert_uint_le(held.sequences, 52 * MiB);
}
END_TEST

START_TEST(a_fork_needs_room_for_what_it_copies)
{
	struct skv_core_seq_info info;
	struct held h, f;

	held_new(&h, &a, "h", 0);
	claim_holes(&h);
	write_bytes(&h, h.layout.tokens, 48 * MiB);
	ck_refused(in_turns(skv_core_seq_fork(core, a.client, a.session.session, h.seq, "f", SKV_ALL, &info), &info), SKV_CORE_E_QUOTA);
	ck_assert(!books_has_seq("f"));
	ck_assert_int_eq(skv_core_seq_drop(core, a.client, a.session.session, h.seq), 0);
	held_close(&h);
	held_new(&h, &a, "h", 0);
	write_bytes(&h, h.layout.tokens, 20 * MiB);
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0);
	measure();
	ck_assert_uint_ge(books_account(1000).other_bytes, 20 * MiB);
	ck_assert_uint_le(books_account(1000).other_bytes, 21 * MiB); /* the child has no token */
	held_close(&h);
	held_close(&f);
	peer_die(&a);
}
END_TEST

/*
 * Lists a sequence whose tables are holes but for one: the list takes the memory announced before, and is as long as
 * all tables.
 */
START_TEST(a_list_of_holes)
{
	struct skv_core_listing l;
	const int fd = memfd_create("list", MFD_CLOEXEC);
	uint32_t seq, units;
	uint64_t most;
	struct stat st;
	struct held h;
	int r;

	held_new(&h, &a, "h", 0);
	claim_holes(&h);
	seq = h.seq;
	ck_assert_int_eq(held_detach(&h, &a), 0);
	ck_assert_int_eq(skv_core_list_begin(core, seq, fd, &l), 0);
	most = l.most_bytes;
	ck_assert_uint_le(most, 16 * MiB); /* 3 MiB of entries */
	do
		units = 1000000;
	while ((r = skv_core_list_some(core, &l, &units)) == SKV_CORE_E_TURNS);
	ck_assert_int_eq(r, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_eq((uint64_t)st.st_size, l.n_entries * sizeof(skv_pte));
	ck_assert_uint_ge(l.n_entries, 2 * skv_pages_of(LEN));
	ck_assert_uint_le((uint64_t)st.st_blocks * 512, most);
	close(fd);
	peer_die(&a);
}
END_TEST

/* Seals a prefix of holes: it takes no more than it was charged for, and is copied in turns. */
START_TEST(a_prefix_of_holes)
{
	const uint32_t n = LEN / SKV_BLOCK_TOKENS;
	struct skv_block_key *keys = calloc(n, sizeof(*keys));
	const uint8_t origin[SKV_PREFIX_ORIGIN] = {1};
	struct skv_core_done d = {.more = true};
	unsigned turns = 0;
	struct skv_made made;
	struct held h;

	ck_assert_ptr_nonnull(keys);
	for (uint32_t i = 0; i < n; i++)
		memcpy(keys[i].bytes, &i, sizeof(i));
	held_new(&h, &a, "h", 0);
	claim_holes(&h);
	h.mem->about[0] = LEN; /* all tokens were a prompt */
	ck_assert_int_eq(skv_core_prefix_made(core, a.client, a.session.session, h.seq, &made), 0);
	ck_assert_int_eq(skv_core_prefix_seal(core, a.client, a.session.session, h.seq, origin, &made, keys, n), SKV_CORE_E_TURNS);
	for (; d.more && !d.through; turns++)
		skv_core_work(core, 1000, &d);
	ck_assert(d.through);
	ck_assert_msg(d.result == 0, "%s", d.why);
	/* turns of 1,000 units, fewer than one copied piece takes */
	ck_assert_uint_gt(turns, LEN * sizeof(int32_t) / (256 << 10));
	ck_assert_uint_le(other(1000), 12 * MiB); /* 3 MiB of entries each and 2.3 MiB of keys, but not 48 MiB of ids */
	held_close(&h);
	peer_die(&a);
	free(keys);
}
END_TEST

/* A client writes to the pool's memory where it has no segment. */
START_TEST(stray_memory_of_a_pool)
{
	uint32_t pool = a.session.pool;
	struct held h;
	uint8_t *map;

	held_new(&h, &a, "h", 0);
	held_append(&h, &a, 100);
	ck_assert_uint_lt(other(1000), MiB);
	map = mmap(NULL, QUOTA, PROT_READ | PROT_WRITE, MAP_SHARED, core->pools[pool].fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	memset(map + 16 * MiB, 1, 32 * MiB);
	ck_assert_uint_ge(other(1000), 31 * MiB);
	ck_refused(peer_lease(&a, 40 << 10, 40 << 10), SKV_CORE_E_QUOTA);
	held_close(&h);
	peer_die(&a);
	/* no session is open on the pool: the memory is given back, and the sequence's pages are unchanged */
	measure();
	ck_assert_uint_lt(other(1000), MiB);
	ck_assert_int_eq(map[16 * MiB], 0);
	ck_assert_int_eq(map[48 * MiB - 1], 0);
	munmap(map, QUOTA);
	peer_join(&a, 1000, &model);
	ck_assert_int_eq(held_attach(&h, &a, "h"), 0);
	ck_assert_int_eq(peer_lease(&a, 40 << 10, 40 << 10), 0);
	held_close(&h);
	peer_die(&a);
}
END_TEST

/* What the cgroup allows the daemon is divided: no user takes what is left for others, and everything is returned. */
START_TEST(room_of_the_cgroup)
{
	struct skv_core_seq_info info;
	struct held h, f;

	held_new(&h, &a, "h", 0);
	write_bytes(&h, h.layout.tokens, 20 * MiB);
	mem.left = 30 * MiB; /* the fork would leave less than its own size */
	ck_refused(in_turns(skv_core_seq_fork(core, a.client, a.session.session, h.seq, "f", SKV_ALL, &info), &info), SKV_CORE_E_NOSPC);
	ck_assert_ptr_nonnull(strstr(skv_core_why(core), "cgroup"));
	mem.left = 41 * MiB;
	ck_assert_int_eq(held_fork(&f, &h, &a, "f"), 0);
	books_even();
	mem.left = 20 * MiB;
	ck_refused(skv_core_seq_new(core, a.client, a.session.session, "g", 0, &info), SKV_CORE_E_NOSPC);
	ck_assert_int_eq(skv_core_seq_new(core, b.client, b.session.session, "g", 0, &info), 0);
	ck_assert_int_eq(skv_core_seq_drop(core, a.client, a.session.session, f.seq), 0);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, a.session.session, "g", 0, &info), 0);
	mem.left = 0;
	ck_refused(skv_core_seq_new(core, b.client, b.session.session, "more", 0, &info), SKV_CORE_E_NOSPC);
	ck_assert(skv_core_room_is_used_up(core));
	mem.left = UINT64_MAX;
	held_close(&h);
	held_close(&f);
	peer_die(&a);
}
END_TEST

/*
 * Memory that the daemon holds for a user counts like the user's sequences, with and without a client, and is not in
 * the state.
 */
START_TEST(pins)
{
	struct skv_core_seq_info info;
	uint64_t before = other(1000), one = 0, two = 0, gone = 0;

	ck_assert_int_eq(skv_core_pin(core, 1000, 40 * MiB, &one), 0);
	ck_assert_int_eq(skv_core_pin(core, 1000, 8 * MiB, &one), 0);
	ck_assert_uint_eq(one, 48 * MiB);
	ck_assert_uint_eq(other(1000), before + one);
	ck_refused(skv_core_pin(core, 1000, 16 * MiB, &two), SKV_CORE_E_QUOTA);
	ck_assert_uint_eq(two, 0);
	ck_refused(skv_core_pin_list(core, 1000, 17 * MiB, &two), SKV_CORE_E_QUOTA);
	ck_refused(peer_lease(&a, 20 << 10, 20 << 10), SKV_CORE_E_QUOTA); /* pages of 1 KiB */
	ck_assert_int_eq(peer_lease(&b, 20 << 10, 20 << 10), 0);
	ck_assert_int_eq(skv_core_pin(core, 3000, QUOTA, &gone), 0); /* a user without an account */
	ck_refused(skv_core_pin(core, 3000, 1, &two), SKV_CORE_E_QUOTA);
	mem.left = 60 * MiB; /* of the cgroup, which no user may take alone */
	ck_refused(skv_core_pin(core, 2000, 31 * MiB, &two), SKV_CORE_E_NOSPC);
	mem.left = UINT64_MAX;
	skv_core_unpin(core, 3000, &gone);
	skv_core_unpin(core, 1000, &one);
	ck_assert_uint_eq(one + gone, 0);
	ck_assert_uint_eq(other(1000), before);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, a.session.session, "s", 0, &info), 0);
	/* at its quota the user may still have small lists: 4 MiB */
	ck_assert_int_eq(peer_lease(&a, 60 << 10, 60 << 10), 0);
	ck_assert_int_eq(skv_core_pin_list(core, 1000, 4 * MiB, &one), 0);
	ck_refused(skv_core_pin_list(core, 1000, 4 * MiB, &two), SKV_CORE_E_QUOTA);
	skv_core_unpin(core, 1000, &one);
	peer_die(&a);
}
END_TEST

/* Other users take the cgroup's room while a fork is in progress: the fork is abandoned, and nothing of it is left. */
START_TEST(a_fork_that_is_crowded_out)
{
	struct skv_core_done d = {0};
	struct skv_core_seq_info info;
	struct held h;

	held_new(&h, &a, "h", 0);
	claim_holes(&h);
	ck_assert_int_eq(skv_core_seq_fork(core, a.client, a.session.session, h.seq, "f", SKV_ALL, &info), SKV_CORE_E_TURNS);
	while (!books_has_seq("f")) {
		skv_core_work(core, 100000, &d);
		ck_assert(!d.client);
	}
	mem.left = 0;
	while (!d.client)
		skv_core_work(core, 100000, &d);
	ck_assert_int_eq(d.result, SKV_CORE_E_NOSPC);
	ck_assert_ptr_nonnull(strstr(d.why, "cgroup"));
	ck_assert(!books_has_seq("f"));
	books_even();
	mem.left = UINT64_MAX;
	held_close(&h);
	peer_die(&a);
}
END_TEST

START_TEST(connections_are_charged)
{
	uint64_t before = other(1000);

	skv_core_client_holds(core, a.client, 3 * MiB);
	ck_assert_uint_eq(other(1000), before + 3 * MiB);
	skv_core_client_holds(core, a.client, MiB);
	ck_assert_uint_eq(other(1000), before + MiB);
	skv_core_client_holds(core, a.client + 1000, MiB); /* no such client */
	peer_die(&a);
	ck_assert_uint_eq(other(1000), 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-charge");

	add_case(s, "charges", 120, setup, teardown, what_a_client_writes_is_charged, the_newest_sequence_is_charged_at_once,
	         memory_without_pages_goes_with_its_holder, a_fork_needs_room_for_what_it_copies, pins, room_of_the_cgroup,
	         a_fork_that_is_crowded_out, a_list_of_holes, a_prefix_of_holes, stray_memory_of_a_pool,
	         connections_are_charged, NULL);
	return run_suite(s);
}
