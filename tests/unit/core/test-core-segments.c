/* SPDX-License-Identifier: Apache-2.0 */
/* Segments in the core: created and withdrawn, announced and acknowledged, never shared between users. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

#define SEGMENT 65536u

static struct skv_model small; /* pages of 1 KiB: 64 in a segment */

static void setup_on(uint32_t device)
{
	struct skv_core_config config = books_config();

	small = test_model("small", 2, 16);
	small.device = device;
	books_open(&config);
	device_add(SKV_DEVICE_CUDA(0), &config);
}

static void limit(const struct skv_core_config *config)
{
	ck_assert(skv_core_reconfigure(core, config));
	device_add(SKV_DEVICE_CUDA(0), config);
}

static void setup_host(void)
{
	setup_on(SKV_DEVICE_HOST);
}

static void setup_device(void)
{
	setup_on(SKV_DEVICE_CUDA(0));
}

/* Leases pages; pending segments are made at once. */
static int lease(const struct peer *p, uint32_t pages, struct skv_wire_run *runs, uint32_t max_runs, uint32_t *ret_n)
{
	int r;

	while ((r = skv_core_lease_get(core, p->client, p->session.session, pages, pages, runs, max_runs, ret_n)) ==
	       SKV_CORE_E_WAIT)
		devices_make();
	return r;
}

static int lease_to_stock(struct peer *p, uint32_t least, uint32_t most)
{
	int r;

	while ((r = peer_lease(p, least, most)) == SKV_CORE_E_WAIT)
		devices_make();
	return r;
}

static uint32_t waiting(void)
{
	uint32_t cursor = 0, client, n = 0;

	while (skv_core_next_waiting(core, &cursor, &client))
		n++;
	return n;
}

START_TEST(one_empty_segment_stays)
{
	struct skv_wire_run run;
	struct peer a;
	uint32_t n;

	peer_join(&a, 1000, &small);
	ck_assert_int_eq(lease(&a, 640, &run, 1, &n), 0);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 10);
	run.count = 64;
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 10);
	run = (struct skv_wire_run){64, 576};
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	books_trim();
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 1);
	ck_assert_uint_eq(mem_bytes(small.device), 65536);
	books_even();
	ck_assert_int_eq(skv_core_session_close(core, a.client, a.session.session), 0);
	ck_assert_uint_eq(mem_bytes(small.device), 0);
	ck_assert_uint_eq(books_pool(a.session.pool).page_bytes, 0);
	peer_die(&a);
}
END_TEST

/* On a device empty segments stay while they are used again and again. */
START_TEST(segments_in_use_again_stay)
{
	struct skv_wire_run run;
	struct peer a;
	uint32_t n;

	peer_join(&a, 1000, &small);
	ck_assert_int_eq(lease(&a, 640, &run, 1, &n), 0);
	skv_core_trim(core);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	skv_core_trim(core); /* all were in use since the last call */
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 10);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(lease(&a, 192, &run, 1, &n), 0);
		ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
		skv_core_trim(core); /* three were in use meanwhile, and one is spare */
		ck_assert_uint_eq(books_pool(a.session.pool).segments, 4);
	}
	skv_core_trim(core);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 1);
	books_even();
	peer_die(&a);
}
END_TEST

START_TEST(numbers_wait_for_acknowledgement)
{
	struct skv_core_segment told[8], gone;
	struct skv_core_config config = books_config();
	struct skv_wire_run run[4];
	struct peer a, b, late;
	uint32_t n;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1000, &small);
	ck_assert_int_eq(lease(&a, 192, run, 4, &n), 0);
	ck_assert_uint_eq(waiting(), 2);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert(skv_core_next_segment(core, a.client, &told[i]));
		ck_assert_uint_eq(told[i].segment, i);
		ck_assert_uint_eq(told[i].bytes, 65536);
		ck_assert_int_ge(told[i].fd, 0);
	}
	ck_assert(!skv_core_next_segment(core, a.client, &gone));
	ck_assert_uint_eq(waiting(), 1);
	/* b was told of segment 0 alone */
	ck_assert(skv_core_next_segment(core, b.client, &gone));
	ck_assert_uint_eq(gone.segment, 0);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, run, n), 0);
	books_trim();
	ck_assert_uint_eq(mem_bytes(small.device), 65536);
	books_even();
	ck_assert(!skv_core_next_segment(core, b.client, &gone)); /* b was never told of 1 and 2 */
	for (uint32_t i = 1; i < 3; i++) {
		ck_assert(skv_core_next_segment(core, a.client, &gone));
		ck_assert_uint_eq(gone.segment, i);
		ck_assert(gone.gone);
	}
	/* numbers 1 and 2 cannot be used yet, 3 can */
	ck_assert_int_eq(lease(&a, 128, run, 4, &n), 0);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(run[1].first, 192);
	peer_join(&late, 1000, &small); /* is told of live segments, and need not acknowledge earlier ones */
	for (n = 0; skv_core_next_segment(core, late.client, &gone); n++)
		ck_assert_int_ge(gone.fd, 0);
	ck_assert_uint_eq(n, 2);
	ck_assert_int_eq(skv_core_segment_ack(core, a.client, a.session.pool, 1), 0);
	ck_assert_int_eq(skv_core_segment_ack(core, a.client, a.session.pool, 1), 0); /* again: ignored */
	ck_assert_int_eq(skv_core_segment_ack(core, a.client, a.session.pool, 3), 0); /* live: ignored */
	ck_assert_int_eq(lease(&a, 64, run, 4, &n), 0);
	ck_assert_uint_eq(run[0].first, 64);
	books_even();
	ck_refused(skv_core_segment_ack(core, a.client, config.max_pools, 0), SKV_CORE_E_INVALID);
	ck_refused(skv_core_segment_ack(core, a.client, 0, UINT32_MAX), SKV_CORE_E_INVALID);
	ck_refused(skv_core_segment_ack(core, 0, 0, 0), SKV_CORE_E_NOENT);
	peer_die(&a);
	books_even();
	peer_die(&b);
	peer_die(&late);
}
END_TEST

START_TEST(a_pool_without_numbers_asks_to_try_again)
{
	struct skv_core_segment s;
	struct skv_wire_run run;
	struct peer a;
	uint32_t n, rounds = 0;
	int r;

	peer_join(&a, 1000, &small);
	/* the client is told of everything and acknowledges nothing */
	while ((r = lease(&a, 4096, &run, 1, &n)) == 0) {
		while (skv_core_next_segment(core, a.client, &s))
			;
		ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
		books_trim();
		while (skv_core_next_segment(core, a.client, &s))
			;
		ck_assert_uint_lt(++rounds, 100);
	}
	ck_refused(r, SKV_CORE_E_BACKLOG);
	ck_assert_uint_gt(rounds, 1);
	for (uint32_t i = 0; i < a.session.max_segments; i++)
		ck_assert_int_eq(skv_core_segment_ack(core, a.client, a.session.pool, i), 0);
	ck_assert_int_eq(lease(&a, 4096, &run, 1, &n), 0);
	/* a client that leaves the pool has acknowledged everything */
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	ck_assert_int_eq(skv_core_session_close(core, a.client, a.session.session), 0);
	books_even();
	/* the acknowledgement was on its way */
	ck_assert_int_eq(skv_core_segment_ack(core, a.client, a.session.pool, 0), 0);
	peer_die(&a);
}
END_TEST

/* A lease and its return leave one empty segment, the spare one. */
static void leave_spare(struct peer *p)
{
	ck_assert_int_eq(lease_to_stock(p, 64, 64), 0);
	ck_assert_int_eq(
		skv_core_lease_put(core, p->client, p->session.session, &(struct skv_wire_run){0, 64}, 1), 0);
	p->n_stock = 0;
	ck_assert_uint_eq(books_pool(p->session.pool).segments, 1);
}

START_TEST(empty_segments_go_to_who_needs_them)
{
	struct skv_core_config config = books_config();
	struct peer a, b, c;

	config.pool_bytes = 5 * SEGMENT;
	limit(&config);
	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	peer_join(&c, 1002, &small);
	leave_spare(&a);
	leave_spare(&c);
	ck_assert_int_eq(lease_to_stock(&b, 1, 256), 0); /* pages that are only wanted do not take them ... */
	ck_assert_uint_eq(b.n_stock, 192);
	ck_assert_uint_eq(books_pool(a.session.pool).segments + books_pool(c.session.pool).segments, 2);
	ck_assert_int_eq(lease_to_stock(&b, 64, 128), 0); /* ... needed ones do, one segment at a time */
	ck_assert_uint_eq(b.n_stock, 256);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 0);
	ck_assert_uint_eq(books_pool(c.session.pool).segments, 1);
	ck_assert_int_eq(lease_to_stock(&b, 1, 1), 0);
	ck_refused(lease_to_stock(&a, 1, 1), SKV_CORE_E_NOSPC);
	peer_hear(&a);
	peer_die(&a);
	peer_die(&b);
	peer_die(&c);
}
END_TEST

START_TEST(a_client_hears_of_all_its_pools)
{
	struct skv_model large = test_model("large", 2, 32); /* 32 pages in a segment */
	struct skv_core_session_info info;
	struct skv_core_segment s;
	struct skv_wire_run run[2];
	uint32_t pools = 0, n;
	struct peer a, second;

	large.device = small.device;
	peer_join(&a, 1000, &small);
	ck_assert_int_eq(skv_core_session_open(core, a.client, &large, "full", 1, &info), 0);
	ck_assert_uint_ne(info.pool, a.session.pool);
	second = (struct peer){.client = a.client, .session = info};
	ck_assert_int_eq(lease(&a, 128, &run[0], 1, &n), 0);
	ck_assert_int_eq(lease(&second, 64, &run[1], 1, &n), 0);
	for (n = 0; skv_core_next_segment(core, a.client, &s); n++)
		pools += s.pool == info.pool;
	ck_assert(n == 4 && pools == 2);
	/* first an end in the second pool alone, then one in the first */
	ck_assert_int_eq(skv_core_lease_put(core, a.client, info.session, &run[1], 1), 0);
	books_trim();
	ck_assert(skv_core_next_segment(core, a.client, &s));
	ck_assert_uint_eq(s.pool, info.pool);
	ck_assert(s.gone);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run[0], 1), 0);
	books_trim();
	ck_assert(skv_core_next_segment(core, a.client, &s));
	ck_assert_uint_eq(s.pool, a.session.pool);
	ck_assert(s.gone);
	ck_assert(!skv_core_next_segment(core, a.client, &s));
	peer_die(&a);
}
END_TEST

START_TEST(nothing_is_seen_across_uids)
{
	struct skv_core_config config = books_config();
	struct skv_core_segment s;
	unsigned char *stale, *fresh;
	struct peer a, b;
	struct skv_wire_run run;
	uint32_t n;

	config.pool_bytes = SEGMENT; /* one segment, which both want */
	limit(&config);
	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	ck_assert_int_eq(lease(&a, 64, &run, 1, &n), 0);
	ck_assert(skv_core_next_segment(core, a.client, &s));
	stale = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
	ck_assert_ptr_ne(stale, MAP_FAILED);
	memset(stale, 0xaa, SEGMENT);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	ck_assert_int_eq(lease(&b, 64, &run, 1, &n), 0);
	ck_assert_uint_eq(mem_bytes(small.device), 65536);
	for (uint32_t i = 0; i < SEGMENT; i++)
		ck_assert_msg(stale[i] == 0, "the memory was destroyed under the stale mapping");
	ck_assert(skv_core_next_segment(core, b.client, &s));
	fresh = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
	ck_assert_ptr_ne(fresh, MAP_FAILED);
	memset(stale, 0xbb, SEGMENT);
	for (uint32_t i = 0; i < SEGMENT; i++)
		ck_assert_msg(fresh[i] == 0, "byte %u came from another UID", i);
	memset(fresh, 0xcc, SEGMENT);
	ck_assert_uint_eq(stale[0], 0xbb);
	munmap(stale, SEGMENT);
	munmap(fresh, SEGMENT);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(pages_lie_without_gaps)
{
	struct skv_model m = small;
	struct skv_core_session_info info;
	uint32_t a;

	/* 3 kv heads of 80: pages of 15 KiB; whole pages and whole granules coincide every 15 granules */
	m.n_heads = m.n_kv_heads = 3;
	m.head_dim = 80;
	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &a), 0);
	ck_assert_int_eq(skv_core_session_open(core, a, &m, "full", 1, &info), 0);
	ck_assert_uint_eq(info.page_bytes, 15360);
	ck_assert_uint_eq(info.segment_bytes, info.pages_per_segment * info.page_bytes);
	ck_assert_uint_eq(info.segment_bytes % skv_mem_host.granularity, 0);
	ck_assert_uint_eq(info.segment_bytes, 15 * skv_mem_host.granularity); /* less was requested */
}
END_TEST

/*
 * Three kv heads of 64: a segment of "64M" has 5456 pages, a multiple of granules, and a limit of 128M has room for two
 * such segments.
 */
START_TEST(segments_fit_into_the_size_that_was_asked_for)
{
	struct skv_core_config config = books_config();
	struct skv_core_session_info info;
	struct skv_model m = small;
	struct skv_wire_run runs[8];
	uint32_t a, n;

	m.n_heads = m.n_kv_heads = 3;
	m.head_dim = 64;
	config.pool_bytes = config.account_bytes = 128 << 20;
	config.segment_bytes = 64 << 20;
	books_close();
	books_open(&config);
	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &a), 0);
	ck_assert_int_eq(skv_core_session_open(core, a, &m, "full", 1, &info), 0);
	ck_assert_uint_eq(info.page_bytes, 12288);
	ck_assert_uint_eq(info.segment_bytes, 5456 * 12288);
	ck_assert_int_eq(skv_core_lease_get(core, a, info.session, 2 * 5456, 2 * 5456, runs, 8, &n), 0);
	ck_refused(skv_core_lease_get(core, a, info.session, 1, 1, runs, 8, &n), SKV_CORE_E_NOSPC);
}
END_TEST

/* ---- what the system refuses ---- */

START_TEST(a_refused_pool_changes_nothing)
{
	struct skv_core_session_info info;
	uint32_t a;

	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &a), 0);
	mem.fail_after = 0;
	ck_refused(skv_core_session_open(core, a, &small, "full", 1, &info), SKV_CORE_E_NOSPC);
	ck_assert_ptr_nonnull(strstr(skv_core_why(core), "memory for a pool"));
	mem.fail_after = -1;
	ck_assert_int_eq(skv_core_session_open(core, a, &small, "full", 1, &info), 0);
	client_gone(a);
}
END_TEST

/* ---- host memory ---- */

START_TEST(a_client_hears_of_host_memory_once)
{
	struct skv_core_segment s;
	struct peer a, b;

	peer_join(&a, 1000, &small);
	ck_assert_uint_eq(waiting(), 1);
	ck_assert(skv_core_next_segment(core, a.client, &s));
	ck_assert(!s.gone && s.fd >= 0 && s.kind == SKV_HANDLE_MEMFD);
	ck_assert_uint_eq(s.segment, 0);
	ck_assert_uint_eq(s.bytes, a.session.max_segments * a.session.segment_bytes);
	ck_assert_int_eq(lease_to_stock(&a, 300, 300), 0); /* more segments are not announced */
	ck_assert_uint_eq(waiting(), 0);
	peer_join(&b, 1000, &small);
	ck_assert_uint_eq(waiting(), 1);
	peer_die(&b); /* not told yet */
	books_even();
	ck_assert_uint_eq(waiting(), 0);
	peer_die(&a);
}
END_TEST

/* A range is not reused until its memory has been given back. */
START_TEST(ranges_wait_for_their_discard)
{
	struct skv_wire_run run, again;
	struct skv_core_segment s;
	unsigned char *map;
	struct peer a;
	uint32_t n;

	peer_join(&a, 1000, &small);
	ck_assert(skv_core_next_segment(core, a.client, &s));
	map = mmap(NULL, 4 * SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	mem.slow = true;
	ck_assert_int_eq(lease(&a, 192, &run, 1, &n), 0);
	memset(map, 0xaa, 3 * SEGMENT);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	ck_assert_uint_eq(mem.n_discards, 2); /* segments 2 and 1; 0 is the spare one */
	ck_assert_uint_eq(mem.discards[1].range.offset, SEGMENT);
	ck_assert_uint_eq(mem_bytes(SKV_DEVICE_HOST), SEGMENT);
	books_even();
	mem_discarded(1);
	books_even();
	ck_assert_int_eq(lease(&a, 64, &again, 1, &n), 0);
	ck_assert_uint_eq(again.first, 0);
	ck_assert_int_eq(lease(&a, 128, &run, 1, &n), 0);
	ck_assert(n == 1 && run.first == 64 && run.count == 64); /* segments 1 and 3: there is room for one run */
	for (uint32_t i = 0; i < SEGMENT; i++)
		ck_assert_uint_eq(map[SEGMENT + i], 0);
	ck_assert_uint_eq(map[2 * SEGMENT], 0xaa);
	mem_discarded(0);
	ck_assert_uint_eq(map[2 * SEGMENT], 0);
	munmap(map, 4 * SEGMENT);
	peer_die(&a);
}
END_TEST

/* Serials distinguish an earlier discard from the awaited one. */
START_TEST(late_discards_change_nothing)
{
	struct skv_core_segment s;
	struct skv_wire_run run;
	struct peer a;
	uint32_t n;

	peer_join(&a, 1000, &small);
	ck_assert(skv_core_next_segment(core, a.client, &s));
	mem.slow = true;
	ck_assert_int_eq(lease(&a, 128, &run, 1, &n), 0);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	ck_assert_uint_eq(mem.n_discards, 1);
	skv_core_segment_discarded(core, &mem.discards[0].range);
	ck_assert_int_eq(lease(&a, 128, &run, 1, &n), 0); /* with segment 1, of another serial */
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	skv_core_segment_discarded(core, &mem.discards[0].range);
	books_even();
	ck_assert_int_eq(lease(&a, 192, &run, 1, &n), 0);
	ck_assert_uint_eq(run.count, 64); /* then come 2 and 3, behind a gap */
	peer_die(&a);
	mem_discarded(0); /* the pool is gone */
	mem_discarded(0);
	books_even();
}
END_TEST

START_TEST(a_pool_whose_ranges_all_wait_asks_to_try_again)
{
	static struct skv_wire_run runs[512];
	uint32_t n, rounds = 0;
	struct peer a;
	int r;

	peer_join(&a, 1000, &small);
	mem.slow = true;
	while ((r = lease(&a, 2048, runs, 512, &n)) == 0) {
		ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, runs, n), 0);
		ck_assert_uint_lt(++rounds, 100);
	}
	ck_refused(r, SKV_CORE_E_BACKLOG);
	ck_assert_uint_gt(rounds, 10);
	while (mem.n_discards)
		mem_discarded(0);
	ck_assert_int_eq(lease(&a, 2048, runs, 512, &n), 0);
	peer_die(&a);
}
END_TEST

START_TEST(refused_fds_change_nothing)
{
	struct rlimit was, now;
	struct skv_core_session_info session;
	struct skv_core_seq_info seq;
	struct skv_wire_run run;
	struct peer a;
	struct held h, child;
	uint32_t n;

	peer_join(&a, 1000, &small);
	held_new(&h, &a, "h", 64);
	held_append(&h, &a, 20);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	now = was;
	now.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
	ck_assert_int_eq(skv_core_session_open(core, a.client, &small, "full", 1, &session),
	                 SKV_CORE_E_NOSPC);
	ck_assert_int_eq(skv_core_seq_new(core, a.client, a.session.session, "s", 0, &seq), SKV_CORE_E_NOSPC);
	ck_assert_int_eq(skv_core_seq_fork(core, a.client, a.session.session, h.seq, "f", SKV_ALL, &seq),
	                 SKV_CORE_E_NOSPC);
	ck_assert_int_eq(lease(&a, 90, &run, 1, &n), 0); /* needs no fds */
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	ck_assert_str_ne(skv_core_why(core), "");
	books_even();
	ck_assert_uint_eq(skv_pte_kind(held_entry(&h, 0, 0)), SKV_PTE_PRIVATE);
	ck_assert_int_eq(held_fork(&child, &h, &a, "f"), 0);
	held_close(&child);
	held_close(&h);
	peer_die(&a);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-segments");

	add_case(s, "host", 60, setup_host, books_close, one_empty_segment_stays, empty_segments_go_to_who_needs_them,
	         nothing_is_seen_across_uids, pages_lie_without_gaps, segments_fit_into_the_size_that_was_asked_for, a_refused_pool_changes_nothing,
	         a_client_hears_of_host_memory_once, ranges_wait_for_their_discard, late_discards_change_nothing,
	         a_pool_whose_ranges_all_wait_asks_to_try_again, refused_fds_change_nothing, NULL);
	add_case(s, "device", 60, setup_device, books_close, one_empty_segment_stays, segments_in_use_again_stay, empty_segments_go_to_who_needs_them,
	         nothing_is_seen_across_uids, numbers_wait_for_acknowledgement, a_pool_without_numbers_asks_to_try_again,
	         a_client_hears_of_all_its_pools, NULL);
	return run_suite(s);
}
