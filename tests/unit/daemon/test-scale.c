/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of 1 TiB in segments of 2 MiB, of which 10 million pages are on lease. Clients join and leave, and pages come
 * and go, as if it were empty. No page is touched: so a machine needs memory for the owner words alone.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/daemon-fixture.h"
#include "tests/support/suite.h"

#define PAGES 10000000u
#define JOINS 1000u
#define ROUNDS 2001u
#define SOME 64u /* pages */
#define PAGES_OF_SEGMENT 32u
#define SCRAPS 1000000u

static struct fix fix;
static struct raw *holder; /* of the 10 million */
static uint32_t holders_session;

/* Pages of 64 KiB, 16.7 million in the pool. */
static struct skv_wire_model model_of_scale(void)
{
	struct skv_wire_model m = {.n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .kv_dtype = SKV_BF16,
	                           .max_tokens = 131072, .n_ranks = 1};

	skv_wire_string(m.name, sizeof(m.name), "scale");
	return m;
}

static uint32_t open_scale(struct raw *r)
{
	struct skv_wire_model m = model_of_scale();

	return raw_open_model(r, &m, "full", NULL);
}

static void setup(void)
{
	static const char *const options[] = {"--pool-bytes=1T", "--account-bytes=1T", "--segment-bytes=2M", NULL};

	fix_start_process(&fix, options);
	holder = raw_hello(fix.socket);
	holders_session = open_scale(holder);
}

static void teardown(void)
{
	raw_close(holder);
	fix_stop(&fix);
}

/* ---- leases ---------------------------------------------------------------------------------- */

struct put {
	struct skv_msg_runs m;
	struct skv_wire_run runs[SKV_WIRE_MAX_RUNS];
};

static uint32_t lease(uint32_t n, struct put *ret)
{
	struct skv_msg_lease_get get = {.session = holders_session, .least = n, .most = n};
	const struct skv_msg_runs *ok = raw_ask(holder, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
	uint32_t got = 0;

	ret->m = (struct skv_msg_runs){.session = holders_session, .n_runs = ok->n_runs};
	memcpy(ret->runs, ok + 1, ok->n_runs * sizeof(*ret->runs));
	for (uint32_t i = 0; i < ret->m.n_runs; i++)
		got += ret->runs[i].count;
	return got;
}

static void give_back(const struct put *p)
{
	raw_ask(holder, SKV_MSG_LEASE_PUT, p, sizeof(p->m) + p->m.n_runs * sizeof(*p->runs), -1);
}

static void lease_many(uint32_t n)
{
	static struct put p;

	while (n > 0)
		n -= lease(n < SKV_CALL_PAGES ? n : SKV_CALL_PAGES, &p);
}

/* Every other page of those from the second segment on is free again. */
static void fragment(void)
{
	static struct put p;

	for (uint32_t page = PAGES_OF_SEGMENT; page < 2 * SCRAPS;) {
		p.m = (struct skv_msg_runs){.session = holders_session};
		for (; p.m.n_runs < SKV_WIRE_MAX_RUNS && page < 2 * SCRAPS; page += 2)
			p.runs[p.m.n_runs++] = (struct skv_wire_run){page, 1};
		give_back(&p);
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of a lease of some pages and their return, in seconds. */
static double round_trip(const char *what)
{
	static double took[ROUNDS];
	static struct put p;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		double begin = fix_now();

		ck_assert_uint_eq(lease(SOME, &p), SOME);
		give_back(&p);
		took[i] = fix_now() - begin;
	}
	qsort(took, ROUNDS, sizeof(*took), by_size);
	printf("%u pages leased and given back, %s: median %.1f us, p99 %.1f, at most %.1f\n", SOME, what, took[ROUNDS / 2] * 1e6,
	       took[ROUNDS * 99 / 100] * 1e6, took[ROUNDS - 1] * 1e6);
	return took[ROUNDS / 2];
}

START_TEST(a_full_pool_is_as_fast_as_an_empty_one)
{
	static struct put p;
	double empty, full, scraps;

	ck_assert_uint_eq(lease(1, &p), 1); /* one segment is there */
	empty = round_trip("empty pool");
	lease_many(PAGES);
	full = round_trip("10 million pages on lease");
	fragment();
	scraps = round_trip("a million scraps of one page");
	ck_assert_double_lt(full, 2 * empty);
	/* of as many runs as pages: more is written and read */
	ck_assert_double_lt(scraps, 4 * empty);
}
END_TEST

/* ---- clients --------------------------------------------------------------------------------- */

static double clients_gone(void)
{
	json_t *status = raw_query(holder, SKV_QUERY_STATUS), *counters = json_object_get(status, "counters");
	double x = json_number_value(json_object_get(counters, "clients_gone"));

	json_decref(status);
	return x;
}

START_TEST(clients_join_and_leave)
{
	double join_most = 0, leave_most = 0;

	lease_many(PAGES);
	for (uint32_t i = 0; i < JOINS; i++) {
		double begin = fix_now(), joined, gone = clients_gone();
		struct raw *r;
		uint32_t session;

		begin = fix_now();
		r = raw_hello(fix.socket);
		session = open_scale(r);
		joined = fix_now();
		raw_lease(r, session, SOME);
		if (joined - begin > join_most)
			join_most = joined - begin;
		begin = fix_now();
		raw_close(r);
		while (clients_gone() == gone)
			;
		if (fix_now() - begin > leave_most)
			leave_most = fix_now() - begin;
	}
	printf("%u clients: joined in %.1f ms at most, left in %.1f\n", JOINS, join_most * 1e3, leave_most * 1e3);
	ck_assert_double_lt(join_most, 1);
	ck_assert_double_lt(leave_most, 1);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-scale");

	add_case(s, "scale", 240, setup, teardown, a_full_pool_is_as_fast_as_an_empty_one, clients_join_and_leave, NULL);
	return run_suite(s);
}
