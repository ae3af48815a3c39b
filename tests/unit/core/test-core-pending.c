/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of devices in the core: wanted, started, made or failed, and the leases that wait for them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "tests/support/core-peer.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define SEGMENT 65536u

/* A device's memory: this test makes the segments and counts those that exist. */
static int alive;

static void destroy(const struct skv_mem_ops *ops, struct skv_mem_handle *handle, size_t bytes)
{
	(void)ops;
	ck_assert_uint_eq(bytes, SEGMENT);
	ck_assert_int_ge(handle->fd, 0);
	handle->fd = skv_close_fd(handle->fd);
	alive--;
}

static const struct skv_mem_ops device_ops = {
	.granularity = SEGMENT, .handle_kind = SKV_HANDLE_CUDA_FD, .destroy = destroy};
static const struct skv_core_memory_limits limits = {
	.pool_bytes = 6 * SEGMENT,
	.segment_bytes = SEGMENT,
	.account_bytes = 5 * SEGMENT,
	.most_bytes = 8 * SEGMENT,
};
static struct skv_model small; /* pages of 1 KiB: 64 in a segment */

static void setup(void)
{
	struct skv_core_config config = books_config();

	small = test_model("small", 2, 16);
	small.device = SKV_DEVICE_CUDA(0);
	alive = 0;
	books_open(&config);
	skv_core_set_device(core, SKV_DEVICE_CUDA(0), &device_ops, &limits);
	skv_core_set_device(core, SKV_DEVICE_CUDA(1), &device_ops, &limits);
}

static void teardown(void)
{
	books_close();
	ck_assert_int_eq(alive, 0);
}

static struct skv_core_pending begin(void)
{
	struct skv_core_pending m;

	ck_assert(skv_core_next_pending(core, &m));
	ck_assert_uint_eq(m.bytes, SEGMENT);
	books_even();
	return m;
}

static void nothing_to_make(void)
{
	struct skv_core_pending m;

	ck_assert(!skv_core_next_pending(core, &m));
}

static void made(const struct skv_core_pending *m)
{
	struct skv_mem_handle h = {.fd = skv_memfd_new("test", 4096)};

	ck_assert_int_ge(h.fd, 0);
	alive++;
	skv_core_segment_made(core, m, &h);
	ck_assert_int_eq(h.fd, -1); /* consumed, whether the segment was still awaited or not */
	books_even();
}

static uint64_t device_bytes(uid_t uid)
{
	return books_account(uid).segment_bytes[SKV_DEVICE_CUDA(0)];
}

START_TEST(a_lease_waits_for_all_that_it_wants)
{
	struct skv_core_pending m[3];
	struct skv_core_segment seg;
	struct peer a;

	peer_join(&a, 1000, &small);
	ck_refused(peer_lease(&a, 65, 150), SKV_CORE_E_WAIT);
	ck_assert_uint_eq(device_bytes(1000), 3 * SEGMENT);
	ck_assert_uint_eq(books_pool(a.session.pool).pending, 3);
	ck_refused(peer_lease(&a, 65, 150), SKV_CORE_E_WAIT); /* asking again requests no more segments */
	for (int i = 0; i < 3; i++) {
		m[i] = begin();
		ck_assert_uint_eq(m[i].device, SKV_DEVICE_CUDA(0));
		ck_assert_uint_eq(m[i].segment, (uint32_t)i);
	}
	nothing_to_make();
	ck_assert(!skv_core_next_segment(core, a.client, &seg)); /* a pending segment is not announced */
	made(&m[2]);
	made(&m[0]);
	ck_refused(peer_lease(&a, 65, 150), SKV_CORE_E_WAIT); /* there are 128, and 150 are wanted */
	ck_refused(peer_lease(&a, 0, 150), SKV_CORE_E_WAIT);
	ck_assert_int_eq(peer_lease(&a, 65, 128), 0);
	made(&m[1]);
	ck_assert(skv_core_next_segment(core, a.client, &seg));
	ck_assert(!seg.gone && seg.fd >= 0 && seg.kind == SKV_HANDLE_CUDA_FD);
	ck_assert_int_eq(peer_lease(&a, 22, 22), 0);
	pool_is(&a, 150, 0, 0);
	ck_assert_uint_eq(books_account(1000).page_bytes[SKV_DEVICE_CUDA(0)], 150 * 1024);
	ck_assert_uint_eq(books_account(1000).page_bytes[SKV_DEVICE_HOST], 0);
	peer_die(&a);
}
END_TEST

START_TEST(what_cannot_be_had_is_done_without)
{
	struct skv_core_pending m[3];
	struct skv_wire_run run[2];
	struct peer a;
	uint32_t n;

	peer_join(&a, 1000, &small);
	ck_refused(peer_lease(&a, 65, 150), SKV_CORE_E_WAIT);
	for (int i = 0; i < 3; i++)
		m[i] = begin();
	made(&m[0]);
	skv_core_segment_failed(core, &m[1]);
	books_even();
	ck_assert_uint_eq(device_bytes(1000), 2 * SEGMENT);
	ck_refused(skv_core_lease_rest(core, a.client, a.session.session, 65, 150, run, 2, &n),
	           SKV_CORE_E_WAIT); /* the third segment may still come */
	made(&m[2]);
	ck_assert_int_eq(skv_core_lease_rest(core, a.client, a.session.session, 65, 150, run, 2, &n), 0);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(run[0].count + run[1].count, 128);
	ck_refused(skv_core_lease_rest(core, a.client, a.session.session, 1, 1, run, 2, &n),
	           SKV_CORE_E_NOSPC);
	nothing_to_make();
	/* the number of a failed segment is reused; a late result for it changes nothing */
	ck_refused(peer_lease(&a, 1, 1), SKV_CORE_E_WAIT);
	skv_core_segment_failed(core, &m[1]);
	made(&m[1]);
	ck_assert_int_eq(alive, 2);
	m[0] = begin();
	ck_assert_uint_eq(m[0].segment, 1);
	ck_assert_uint_ne(m[0].serial, m[1].serial);
	made(&m[0]);
	ck_assert_int_eq(peer_lease(&a, 1, 1), 0);
	peer_die(&a);
}
END_TEST

static uint64_t room_of(const struct peer *p)
{
	uint64_t pages;

	ck_assert_int_eq(skv_core_lease_room(core, p->client, p->session.session, &pages), 0);
	return pages;
}

static void fail_to_lease(struct peer *p)
{
	struct skv_core_pending m;

	ck_refused(peer_lease(p, 1, 1), SKV_CORE_E_WAIT);
	m = begin();
	skv_core_segment_failed(core, &m);
	ck_assert_uint_eq(room_of(p), 0);
}

/* Other programs use the device, too. When it has no memory left there is no room, until there may be some again. */
START_TEST(a_full_device_has_no_room)
{
	struct skv_core_pending m;
	struct peer a, b;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	fail_to_lease(&a);
	ck_assert_uint_eq(room_of(&b), 0);
	skv_core_trim(core); /* time has passed */
	ck_assert_uint_gt(room_of(&a), 0);
	fail_to_lease(&a);
	ck_refused(peer_lease(&b, 1, 1), SKV_CORE_E_WAIT);
	m = begin();
	made(&m);
	ck_assert_uint_gt(room_of(&a), 0);
	ck_assert_int_eq(peer_lease(&b, 1, 1), 0);
	fail_to_lease(&a);
	peer_die(&b); /* gives its memory back */
	ck_assert_uint_gt(room_of(&a), 0);
	peer_die(&a);
}
END_TEST

START_TEST(quotas_hold_for_what_is_under_way)
{
	struct skv_core_memory_limits lower = limits;
	struct skv_model elsewhere = small;
	struct peer a, b, c;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	ck_refused(peer_lease(&a, 321, 321), SKV_CORE_E_QUOTA); /* a user's quota is 5 segments */
	ck_refused(peer_lease(&a, 320, 320), SKV_CORE_E_WAIT);
	ck_refused(peer_lease(&b, 65, 65), SKV_CORE_E_NOSPC); /* the device's limit is 6; nothing is left behind */
	ck_assert_uint_eq(device_bytes(1001), 0);
	ck_refused(peer_lease(&b, 64, 320), SKV_CORE_E_WAIT);
	ck_assert_uint_eq(device_bytes(1001), SEGMENT);
	/* another device and host memory have quotas of their own */
	elsewhere.device = SKV_DEVICE_CUDA(1);
	peer_join(&c, 1001, &elsewhere);
	ck_assert_uint_ne(c.session.pool, b.session.pool);
	ck_refused(peer_lease(&c, 64, 64), SKV_CORE_E_WAIT);
	peer_die(&c);
	elsewhere.device = SKV_DEVICE_HOST;
	peer_join(&c, 1001, &elsewhere);
	ck_assert_int_eq(peer_lease(&c, 1024, 1024), 0);
	peer_die(&c);
	lower.pool_bytes = SEGMENT;
	lower.segment_bytes = lower.most_bytes = 1; /* these two do not change */
	skv_core_set_device(core, SKV_DEVICE_CUDA(0), &device_ops, &lower);
	peer_die(&a);
	ck_refused(peer_lease(&b, 65, 65), SKV_CORE_E_NOSPC);
	peer_join(&a, 1002, &small);
	ck_assert_uint_eq(a.session.max_segments, 8);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(empty_segments_stay_while_more_are_made)
{
	struct skv_core_pending m[5];
	struct skv_wire_run run = {0, 64};
	struct peer a, b;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	ck_refused(peer_lease(&a, 64, 64), SKV_CORE_E_WAIT);
	m[0] = begin();
	made(&m[0]);
	ck_assert_int_eq(peer_lease(&a, 64, 64), 0);
	ck_refused(peer_lease(&a, 256, 256), SKV_CORE_E_WAIT);
	for (int i = 1; i < 5; i++)
		m[i] = begin();
	made(&m[1]);
	made(&m[2]);
	made(&m[3]);
	/* empty segments are kept for the waiting lease, from the pool itself and from another user */
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &run, 1), 0);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 4);
	ck_refused(peer_lease(&b, 128, 128), SKV_CORE_E_NOSPC);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 4);
	a.n_stock = 0;
	made(&m[4]);
	ck_assert_int_eq(peer_lease(&a, 1, 1), 0);
	skv_core_segments_served(core, a.session.pool);
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 5);
	books_trim();
	ck_assert_uint_eq(books_pool(a.session.pool).segments, 2); /* one in use and a spare one */
	ck_assert_int_eq(alive, 2);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(a_pool_that_ends_waits_for_nothing)
{
	struct skv_core_pending m, old;
	struct peer a;

	peer_join(&a, 1000, &small);
	ck_refused(peer_lease(&a, 128, 128), SKV_CORE_E_WAIT);
	old = begin();
	peer_die(&a);
	nothing_to_make();
	skv_core_segments_served(core, old.pool);
	peer_join(&a, 1000, &small); /* gets the same row and the same segment number */
	ck_refused(peer_lease(&a, 64, 64), SKV_CORE_E_WAIT);
	m = begin();
	ck_assert(m.pool == old.pool && m.segment == old.segment);
	made(&old);
	ck_assert_int_eq(alive, 0);
	ck_refused(peer_lease(&a, 64, 64), SKV_CORE_E_WAIT);
	made(&m);
	ck_assert_int_eq(peer_lease(&a, 64, 64), 0);
	peer_die(&a);
	ck_assert_int_eq(alive, 0);
}
END_TEST

START_TEST(sequences_stay_on_their_device)
{
	struct skv_model other = small;
	struct skv_core_pending m;
	struct peer a, b;
	struct held h;
	uint32_t pool;

	peer_join(&a, 1000, &small);
	ck_refused(peer_lease(&a, 64, 64), SKV_CORE_E_WAIT);
	m = begin();
	made(&m);
	held_new(&h, &a, "chat", 64);
	held_append(&h, &a, 20);
	ck_assert_int_eq(held_detach(&h, &a), 0);
	for (uint32_t device = 0; device < 3; device++) {
		other.device = device;
		peer_join(&b, 1000, &other);
		ck_assert_int_eq(skv_core_session_pool(core, b.client, b.session.session, &pool), 0);
		ck_assert_uint_eq(pool, b.session.pool);
		if (device == SKV_DEVICE_CUDA(0)) {
			ck_assert_int_eq(held_attach(&h, &b, "chat"), 0);
			held_close(&h);
		} else {
			ck_refused(held_attach(&h, &b, "chat"), SKV_CORE_E_INVALID);
		}
		peer_die(&b);
	}
	other.device = SKV_DEVICE_CUDA(2);
	ck_refused(skv_core_session_open(core, a.client, &other, "full", 1, &b.session), SKV_CORE_E_INVALID);
	ck_assert_ptr_nonnull(strstr(skv_core_why(core), "no CUDA device 2"));
	peer_die(&a);
}
END_TEST

/* ---- at random ---- */

#define PEERS 4
#define UNDER_WAY 32

/* Segments of two devices that this test has started to make, in no order. */
static struct skv_core_pending under_way[UNDER_WAY];
static uint32_t n_under_way;

static void step(struct peer peers[PEERS])
{
	uint32_t i = rnd_below(PEERS), which = n_under_way ? rnd_below(n_under_way) : 0;
	uint32_t most = 1 + rnd_below(200), n;
	struct peer *p = &peers[i];
	struct skv_model m = small;
	struct skv_wire_run run;

	switch (rnd_below(6)) {
	case 0:
		if (!p->client) {
			m.device = SKV_DEVICE_CUDA(i % 2);
			peer_join(p, 1000 + i / 2, &m);
		} else if (rnd_below(4) == 0) {
			peer_die(p);
		}
		return;
	case 1:
		if (p->client)
			(void)peer_lease(p, rnd_below(most), most);
		return;
	case 2:
		if (p->n_stock) {
			run = (struct skv_wire_run){p->stock[--p->n_stock], 1};
			ck_assert_int_eq(skv_core_lease_put(core, p->client, p->session.session, &run, 1), 0);
			peer_hear(p);
		}
		return;
	case 3:
		if (p->client &&
		    skv_core_lease_rest(core, p->client, p->session.session, 0, most, &run, 1, &n) == 0)
			for (uint32_t k = 0; n && k < run.count; k++)
				peer_stock(p, run.first + k);
		return;
	case 4:
		if (n_under_way < UNDER_WAY && skv_core_next_pending(core, &under_way[n_under_way]))
			n_under_way++;
		return;
	default:
		if (!n_under_way)
			return;
		if (rnd_below(4))
			made(&under_way[which]);
		else
			skv_core_segment_failed(core, &under_way[which]);
		skv_core_segments_served(core, under_way[which].pool);
		under_way[which] = under_way[--n_under_way];
	}
}

START_TEST(any_order_leaves_the_books_even)
{
	struct peer peers[PEERS] = {{0}};
	uint32_t most_alive = 0;

	for (uint32_t i = 0; i < 20000; i++) {
		step(peers);
		books_even();
		if ((uint32_t)alive > most_alive)
			most_alive = (uint32_t)alive;
	}
	ck_assert_uint_gt(most_alive, 8);  /* segments were made */
	ck_assert_uint_le(most_alive, 12); /* both limits held */
	for (uint32_t i = 0; i < PEERS; i++)
		if (peers[i].client)
			peer_die(&peers[i]);
	ck_assert_int_eq(alive, 0);
	while (n_under_way)
		made(&under_way[--n_under_way]); /* too late, and harmless */
}
END_TEST

/* ---- sizes ---- */

/*
 * Pages of fp8 have no power-of-two size: only 17 segments together are whole pages and whole granules. A segment has
 * the pages that lie in it as a whole, wherever it begins among the pages.
 */
START_TEST(odd_pages_do_not_make_large_segments)
{
	const uint64_t page = 17 * 32;
	const uint32_t pages = SEGMENT / (17 * 32) - 1;
	struct skv_core_pending m;
	struct peer a;

	small.kv_dtype = SKV_FP8;
	peer_join(&a, 1000, &small);
	ck_assert_uint_eq(a.session.page_bytes, page);
	ck_assert_uint_eq(a.session.segment_bytes, SEGMENT);
	ck_assert_uint_eq(a.session.pages_per_segment, pages);
	for (uint64_t segment = 0; segment < 17; segment++)
		ck_assert_uint_le((segment * SEGMENT + page - 1) / page * page + pages * page, (segment + 1) * SEGMENT);
	ck_refused(peer_lease(&a, pages, pages), SKV_CORE_E_WAIT);
	m = begin();
	made(&m);
	ck_assert_int_eq(peer_lease(&a, pages, pages), 0);
	pool_is(&a, pages, 0, 0);
	ck_refused(peer_lease(&a, 1, 1), SKV_CORE_E_WAIT);
	peer_die(&a);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-pending");

	add_case(s, "pending", 60, setup, teardown, a_lease_waits_for_all_that_it_wants,
	         what_cannot_be_had_is_done_without, a_full_device_has_no_room, quotas_hold_for_what_is_under_way,
	         empty_segments_stay_while_more_are_made, a_pool_that_ends_waits_for_nothing,
	         sequences_stay_on_their_device, any_order_leaves_the_books_even, odd_pages_do_not_make_large_segments, NULL);
	return run_suite(s);
}
