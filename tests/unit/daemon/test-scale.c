/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of 1 TiB in segments of 2 MiB, of which 10 million pages are leased. Clients join and leave, and pages are
 * leased and returned, as fast as if it were empty. No page is touched: the machine needs memory for the owner words
 * only.
 */
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/daemon-fixture.h"
#include "tests/support/suite.h"

#define PAGES 10000000u
#define JOINS (rnd_takes_all() ? 1000u : 150u)
#define BLOCKS 41u
#define ROUNDS 50u
#define SOME 64u /* pages */
#define PAGES_OF_SEGMENT 32u
#define SCRAPS 1000000u

/* A client with a session, and its daemon. */
struct holder {
	struct fix fix;
	struct raw *raw;
	uint32_t session;
};

static struct holder full, empty; /* full: with the 10 million leased pages; empty: for comparison */

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

static void begin(struct holder *h)
{
	static const char *const options[] = {"--pool-bytes=1T", "--account-bytes=1T", "--segment-bytes=2M", NULL};

	fix_start_process(&h->fix, options);
	h->raw = raw_hello(h->fix.socket);
	h->session = open_scale(h->raw);
}

static void end(struct holder *h)
{
	raw_close(h->raw);
	fix_stop(&h->fix);
}

/*
 * Binds all processes to one processor: it makes more of a difference whether the scheduler wakes a daemon on another
 * one than what the daemon does.
 */
static void stay_here(void)
{
	cpu_set_t here;

	CPU_ZERO(&here);
	CPU_SET((size_t)sched_getcpu(), &here);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(here), &here), 0);
}

static void setup(void)
{
	stay_here();
	begin(&full);
	begin(&empty);
}

static void teardown(void)
{
	end(&full);
	end(&empty);
}

/* ---- leases ---------------------------------------------------------------------------------- */

struct put {
	struct skv_msg_runs m;
	struct skv_wire_run runs[SKV_WIRE_MAX_RUNS];
};

static uint32_t lease(struct holder *h, uint32_t n, struct put *ret)
{
	struct skv_msg_lease_get get = {.session = h->session, .least = n, .most = n};
	const struct skv_msg_runs *ok = raw_ask(h->raw, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
	uint32_t got = 0;

	ret->m = (struct skv_msg_runs){.session = h->session, .n_runs = ok->n_runs};
	memcpy(ret->runs, ok + 1, ok->n_runs * sizeof(*ret->runs));
	for (uint32_t i = 0; i < ret->m.n_runs; i++)
		got += ret->runs[i].count;
	return got;
}

static void give_back(struct holder *h, const struct put *p)
{
	raw_ask(h->raw, SKV_MSG_LEASE_PUT, p, sizeof(p->m) + p->m.n_runs * sizeof(*p->runs), -1);
}

static void lease_many(struct holder *h, uint32_t n)
{
	static struct put p;

	while (n > 0)
		n -= lease(h, n < SKV_CALL_PAGES ? n : SKV_CALL_PAGES, &p);
}

/* Frees every other page from the second segment on. */
static void fragment(struct holder *h)
{
	static struct put p;

	for (uint32_t page = PAGES_OF_SEGMENT; page < 2 * SCRAPS;) {
		p.m = (struct skv_msg_runs){.session = h->session};
		for (; p.m.n_runs < SKV_WIRE_MAX_RUNS && page < 2 * SCRAPS; page += 2)
			p.runs[p.m.n_runs++] = (struct skv_wire_run){page, 1};
		give_back(h, &p);
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Returns the processor time of the daemon so far, in nanoseconds. */
static double worked(const struct holder *h)
{
	unsigned long long ns = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)h->fix.pid);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%llu", &ns), 1);
	fclose(f);
	return (double)ns;
}

/* Time of a lease of some pages and its return, in microseconds: elapsed, and of the daemon's processor time. */
struct took {
	double passed[BLOCKS], worked[BLOCKS];
};

static void round_trips(struct holder *h, struct took *ret, uint32_t block)
{
	static struct put p;
	double work = worked(h), since = fix_now();

	for (uint32_t i = 0; i < ROUNDS; i++) {
		ck_assert_uint_eq(lease(h, SOME, &p), SOME);
		give_back(h, &p);
	}
	ret->passed[block] = (fix_now() - since) * 1e6 / ROUNDS;
	ret->worked[block] = (worked(h) - work) * 1e-3 / ROUNDS;
}

static double median(struct took *t, const char *what)
{
	qsort(t->passed, BLOCKS, sizeof(*t->passed), by_size);
	qsort(t->worked, BLOCKS, sizeof(*t->worked), by_size);
	printf("%u pages leased and given back, %s: %.1f us, of them %.1f of the daemon's work\n", SOME, what,
	       t->passed[BLOCKS / 2], t->worked[BLOCKS / 2]);
	return t->worked[BLOCKS / 2];
}

/*
 * Returns the ratio to the time with an empty pool. Both are measured alternately, so that a slower machine is slower
 * for both.
 */
static double times_the_empty(const char *what)
{
	static struct took with, without;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		round_trips(&full, &with, i);
		round_trips(&empty, &without, i);
	}
	return median(&with, what) / median(&without, "empty pool");
}

START_TEST(a_full_pool_is_as_fast_as_an_empty_one)
{
	static struct put p;

	ck_assert_uint_eq(lease(&empty, 1, &p), 1); /* one segment exists */
	lease_many(&full, PAGES);
	ck_assert_double_lt(times_the_empty("10 million pages on lease"), 2);
	fragment(&full);
	/* as many runs as pages: more is written and read */
	ck_assert_double_lt(times_the_empty("a million scraps of one page"), 4);
}
END_TEST

/* ---- clients --------------------------------------------------------------------------------- */

static double clients_gone(void)
{
	json_t *status = raw_query(full.raw, SKV_QUERY_STATUS), *counters = json_object_get(status, "counters");
	double x = json_number_value(json_object_get(counters, "clients_gone"));

	json_decref(status);
	return x;
}

START_TEST(clients_join_and_leave)
{
	double join_most = 0, leave_most = 0;

	lease_many(&full, PAGES);
	for (uint32_t i = 0; i < JOINS; i++) {
		double since, joined, gone = clients_gone();
		struct raw *r;
		uint32_t session;

		since = fix_now();
		r = raw_hello(full.fix.socket);
		session = open_scale(r);
		joined = fix_now();
		raw_lease(r, session, SOME);
		if (joined - since > join_most)
			join_most = joined - since;
		since = fix_now();
		raw_close(r);
		while (clients_gone() == gone)
			;
		if (fix_now() - since > leave_most)
			leave_most = fix_now() - since;
	}
	printf("%u clients: joined in %.1f ms at most, left in %.1f\n", JOINS, join_most * 1e3, leave_most * 1e3);
	ck_assert_double_lt(join_most, patience(1));
	ck_assert_double_lt(leave_most, patience(1));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-scale");

	add_case(s, "scale", 240, setup, teardown, a_full_pool_is_as_fast_as_an_empty_one, clients_join_and_leave, NULL);
	return run_suite(s);
}
