/* SPDX-License-Identifier: Apache-2.0 */
/* The core, one guarantee at a time: ids, quotas, leases, segments, policies. Sequences: test-core-sequences.c. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/fd.h"
#include "daemon/core/state/state.h"
#include "daemon/core/operations/policies.h"
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

static struct skv_model small; /* pages of 1 KiB: 64 in a segment */

static void setup(void)
{
	struct skv_core_config config = books_config();

	small = test_model("small", 2, 16);
	books_open(&config);
}

static int open_session(uint32_t client, const struct skv_model *m)
{
	struct skv_core_session_info info;

	return skv_core_session_open(core, client, m, "full", 1, &info);
}

/* ---- ids and quotas ---- */

START_TEST(clients_have_quotas)
{
	static const uint32_t most[] = {4, 3, 1, 1, 1}; /* of each user: a quota, then as many as are left for others */
	uint32_t id, extra, last;

	for (uint32_t user = 0; user < 5; user++) {
		for (uint32_t i = 0; i < most[user]; i++)
			ck_assert_int_eq(skv_core_client_add(core, 1000 + user, 1, "a", &id), 0);
		ck_refused(skv_core_client_add(core, 1000 + user, 9, "a", &extra), user ? SKV_CORE_E_NOSPC : SKV_CORE_E_QUOTA);
		ck_assert_uint_eq(books_account(1000 + user).clients, most[user]);
		last = id;
	}
	ck_refused(skv_core_client_add(core, 1005, 9, "c", &extra), SKV_CORE_E_NOSPC);
	client_gone(last);
	ck_assert_int_eq(skv_core_client_add(core, 1005, 9, NULL, &extra), 0);
}
END_TEST

START_TEST(ids_are_not_used_again)
{
	uint32_t first, id, seen[300];
	struct skv_core_session_info info;

	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &first), 0);
	ck_assert_int_eq(skv_core_session_open(core, first, &small, "full", 1, &info), 0);
	client_gone(first);
	for (int i = 0; i < 300; i++) {
		ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &id), 0);
		ck_assert_uint_ne(id, 0);
		ck_assert_uint_ne(id, first);
		for (int j = 0; j < i; j++)
			ck_assert_uint_ne(id, seen[j]);
		seen[i] = id;
		ck_refused(skv_core_session_close(core, id, info.session), SKV_CORE_E_NOENT);
		ck_refused(skv_core_client_gone(core, first, 0), SKV_CORE_E_NOENT);
		client_gone(id);
	}
	ck_refused(skv_core_client_gone(core, 0, 0), SKV_CORE_E_NOENT);
	ck_refused(skv_core_client_gone(core, UINT32_MAX, 0), SKV_CORE_E_NOENT);
}
END_TEST

START_TEST(a_session_is_its_clients_alone)
{
	struct skv_core_seq_info info;
	struct skv_wire_run run;
	struct peer a, b;
	uint32_t n;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1000, &small);
	ck_refused(skv_core_session_close(core, b.client, a.session.session), SKV_CORE_E_NOENT);
	ck_refused(skv_core_seq_new(core, b.client, a.session.session, "x", 0, &info), SKV_CORE_E_NOENT);
	ck_refused(skv_core_lease_get(core, b.client, a.session.session, 1, 1, &run, 1, &n),
	           SKV_CORE_E_NOENT);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(sessions_have_quotas)
{
	struct skv_core_config config = books_config();
	uint32_t a, b;

	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &a), 0);
	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "b", &b), 0);
	for (uint32_t i = 0; i < config.client_sessions; i++)
		ck_assert_int_eq(open_session(a, &small), 0);
	ck_refused(open_session(a, &small), SKV_CORE_E_QUOTA);
	for (uint32_t i = config.client_sessions; i < config.max_sessions / 2; i++)
		ck_assert_int_eq(open_session(b, &small), 0);
	ck_refused(open_session(b, &small), SKV_CORE_E_NOSPC); /* the other half is for other users */
	ck_assert_uint_eq(books_account(1000).sessions, config.max_sessions / 2);
	ck_assert_int_eq(skv_core_client_add(core, 1001, 1, "c", &b), 0);
	ck_assert_int_eq(open_session(b, &small), 0);
}
END_TEST

START_TEST(pools_have_quotas)
{
	struct skv_model m = small;
	uint32_t a, b, c;

	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &a), 0);
	ck_assert_int_eq(skv_core_client_add(core, 1001, 1, "b", &b), 0);
	for (m.head_dim = 16; m.head_dim <= 48; m.head_dim += 16)
		ck_assert_int_eq(open_session(a, &m), 0);
	ck_refused(open_session(a, &m), SKV_CORE_E_QUOTA);
	for (m.head_dim = 16; m.head_dim <= 48; m.head_dim += 16)
		ck_assert_int_eq(open_session(b, &m), 0);
	ck_assert_int_eq(skv_core_client_add(core, 1002, 1, "c", &c), 0);
	for (m.head_dim = 16; m.head_dim <= 32; m.head_dim += 16)
		ck_assert_int_eq(open_session(c, &m), 0);
	ck_refused(open_session(c, &m), SKV_CORE_E_NOSPC); /* two are left, for other users */
	ck_assert_int_eq(skv_core_client_add(core, 1003, 1, "d", &b), 0);
	m = small;
	m.n_heads = m.n_kv_heads = 251; /* 251 * 15 granules of 64 KiB */
	m.head_dim = 240;
	ck_refused(open_session(b, &m), SKV_CORE_E_NOSPC);
}
END_TEST

START_TEST(models_and_specs_are_checked)
{
	struct skv_core_session_info info;
	char spec[SKV_SPEC_MAX + 1];
	struct skv_model m = small;
	uint32_t a;

	ck_assert_int_eq(skv_core_client_add(core, 1000, 1, "a", &a), 0);
	m.head_dim = 17;
	ck_refused(open_session(a, &m), SKV_CORE_E_INVALID);
	memset(spec, 'x', sizeof(spec));
	ck_refused(skv_core_session_open(core, a, &small, spec, 1, &info), SKV_CORE_E_INVALID);
	spec[SKV_SPEC_MAX - 1] = 0;
	ck_assert_int_eq(skv_core_session_open(core, a, &small, spec, 1, &info), 0);
}
END_TEST

START_TEST(every_error_has_an_errno)
{
	bool seen[256] = {false};

	ck_assert_int_eq(skv_core_errno(SKV_CORE_OK), 0);
	for (int e = SKV_CORE_E_NOSPC; e <= SKV_CORE_E_BACKLOG; e++) {
		int n = skv_core_errno(e);

		ck_assert_int_gt(n, 0);
		ck_assert_msg(!seen[n], "errno %d stands for two errors", n);
		seen[n] = true;
	}
}
END_TEST

/* ---- leases ---- */

START_TEST(leases_are_runs_of_free_pages)
{
	struct skv_wire_run runs[8], back[3] = {{8, 8}, {32, 1}, {48, 16}};
	struct peer a;
	uint32_t n;

	peer_join(&a, 1000, &small);
	ck_assert_uint_eq(a.session.page_bytes, 1024);
	ck_assert_uint_eq(a.session.segment_bytes, 65536);
	ck_assert_uint_eq(a.session.pages_per_segment, 64);
	ck_assert_int_eq(skv_core_lease_get(core, a.client, a.session.session, 90, 90, runs, 8, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(runs[0].first, 0);
	ck_assert_uint_eq(runs[0].count, 90);
	ck_assert_uint_eq(books_account(1000).page_bytes[0], 90 * 1024);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, back, 3), 0);
	ck_assert_uint_eq(books_account(1000).page_bytes[0], 65 * 1024);
	books_even();
	/* free: 8 … 15, 32, 48 … 63, and 90 … 127: the long run is taken before the short ones below it */
	ck_assert_int_eq(skv_core_lease_get(core, a.client, a.session.session, 30, 30, runs, 8, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(runs[0].first, 90);
	ck_assert_uint_eq(runs[0].count, 30);
	books_even();
	/* fewer runs than the pages need: the longest runs, and no page is lost */
	ck_assert_int_eq(skv_core_lease_get(core, a.client, a.session.session, 25, 25, runs, 2, &n), 0);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(runs[0].first, 8);
	ck_assert_uint_eq(runs[0].count, 8);
	ck_assert_uint_eq(runs[1].first, 48);
	ck_assert_uint_eq(runs[1].count, 16);
	peer_die(&a);
}
END_TEST

START_TEST(bad_leases_are_refused_whole)
{
	struct skv_wire_run good = {0, 10}, twice[2] = {{0, 5}, {4, 2}},
			    past[2] = {{0, 5}, {64 * 512 - 1, 2}}, wrap = {UINT32_MAX - 1, UINT32_MAX},
			    theirs, none[2] = {{0, 5}, {20, 1}};
	struct skv_core_pool_view before;
	struct peer a, b;
	uint32_t n;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1000, &small);
	ck_assert_int_eq(skv_core_lease_get(core, a.client, a.session.session, 10, 10, &good, 1, &n), 0);
	ck_assert_int_eq(skv_core_lease_get(core, b.client, b.session.session, 10, 10, &theirs, 1, &n), 0);
	before = books_pool(a.session.pool);
	ck_refused(skv_core_lease_put(core, a.client, a.session.session, twice, 2), SKV_CORE_E_INVALID);
	ck_refused(skv_core_lease_put(core, a.client, a.session.session, past, 2), SKV_CORE_E_INVALID);
	ck_refused(skv_core_lease_put(core, a.client, a.session.session, &wrap, 1), SKV_CORE_E_INVALID);
	ck_refused(skv_core_lease_put(core, a.client, a.session.session, &theirs, 1), SKV_CORE_E_INVALID);
	ck_refused(skv_core_lease_put(core, a.client, a.session.session, none, 2), SKV_CORE_E_INVALID);
	ck_refused(skv_core_lease_get(core, a.client, a.session.session, 2, 1, &good, 1, &n),
	           SKV_CORE_E_INVALID);
	ck_refused(skv_core_lease_get(core, a.client, a.session.session, 0, 0, &good, 1, &n),
	           SKV_CORE_E_INVALID);
	ck_assert_uint_eq(books_pool(a.session.pool).lease, before.lease);
	ck_assert_int_eq(skv_core_lease_put(core, a.client, a.session.session, &good, 1), 0);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(an_account_has_a_quota_over_all_clients)
{
	struct peer a, b, other;
	uint32_t room;

	peer_join(&a, 1000, &small);
	peer_join(&b, 1000, &small);
	peer_join(&other, 1001, &small);
	ck_assert_uint_eq(books_account(1000).other_bytes, 2 * 4096); /* two sessions */
	room = 4096 - 4000 - 2 * 4;
	ck_assert_int_eq(peer_lease(&a, 4000, 4000), 0); /* of 4096 */
	ck_refused(peer_lease(&b, room + 1, 200), SKV_CORE_E_QUOTA);
	ck_assert_int_eq(peer_lease(&b, 50, 200), 0);
	ck_assert_uint_eq(b.n_stock, room);
	ck_assert_int_eq(peer_lease(&b, 0, 200), 0);
	ck_assert_uint_eq(b.n_stock, room);
	ck_assert_int_eq(peer_lease(&other, 4000, 4000), 0);
	books_even();
	peer_die(&a);
	peer_die(&b);
	peer_die(&other);
}
END_TEST

START_TEST(the_pools_have_a_quota_together)
{
	struct skv_core_config config = books_config();
	struct peer a, b;

	config.account_bytes = 8 << 20;
	ck_assert(skv_core_reconfigure(core, &config));
	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	ck_assert_int_eq(peer_lease(&a, 8000, 8000), 0);
	ck_assert_uint_eq(mem_bytes(SKV_DEVICE_HOST), 125 * 65536); /* of 128 */
	ck_refused(peer_lease(&b, 200, 200), SKV_CORE_E_NOSPC);
	ck_assert_uint_eq(mem_bytes(SKV_DEVICE_HOST), 125 * 65536);
	ck_assert_int_eq(peer_lease(&b, 1, 200), 0);
	ck_assert_uint_eq(b.n_stock, 192);
	ck_assert_uint_eq(mem_bytes(SKV_DEVICE_HOST), config.pool_bytes);
	books_even();
	peer_die(&a);
	peer_die(&b);
}
END_TEST

/* ---- policies ---- */

struct find_session {
	uint32_t session;
	struct skv_core_session_view found;
	char spec[SKV_SPEC_MAX], error[SKV_TEXT_MAX];
};

static void find_session(void *data, const struct skv_core_session_view *v)
{
	struct find_session *f = data;

	if (v->session == f->session) {
		f->found = *v;
		snprintf(f->spec, sizeof(f->spec), "%s", v->spec);
		snprintf(f->error, sizeof(f->error), "%s", v->error);
	}
}

static void session_is(const struct peer *p, const char *spec, bool pending, const char *error)
{
	struct find_session f = {.session = p->session.session};

	skv_core_sessions(core, find_session, &f);
	ck_assert_str_eq(f.spec, spec);
	ck_assert_str_eq(f.error, error);
	ck_assert_int_eq(f.found.running_generation < f.found.generation, pending);
}

static struct skv_msg_policy policy_of(const struct peer *p)
{
	struct skv_msg_policy m;

	ck_assert_int_eq(skv_core_session_policy(core, p->client, p->session.session, &m), 0);
	ck_assert_uint_eq(m.generation, skv_core_policy_generation(core));
	return m;
}

static uint32_t swap(uint32_t session, uint32_t uid, const char *spec, uint32_t plugin)
{
	return skv_core_swap(core, &(struct skv_core_scope){.session = session, .uid = uid, .model = ""}, spec, plugin);
}

/* Three sessions that differ in user, client and model: a scope selects those that match all of it. */
START_TEST(a_swap_has_a_scope)
{
	struct skv_model other = small;
	struct skv_core_session_info info;
	struct peer a, b;

	skv_wire_string(other.name, sizeof(other.name), "HuggingFaceTB/SmolLM2-135M");
	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	ck_assert_int_eq(skv_core_session_open(core, a.client, &other, "full", 1, &info), 0);
	const struct {
		struct skv_core_scope scope;
		uint32_t n;
	} cases[] = {
	        {{0, 0, UINT32_MAX, ""}, 3},
	        {{0, 0, UINT32_MAX, small.name}, 2},
	        {{0, 0, UINT32_MAX, other.name}, 1},
	        {{0, 0, UINT32_MAX, "HuggingFaceTB"}, 0},
	        {{0, 0, 1000, ""}, 2},
	        {{0, 0, 1000, small.name}, 1},
	        {{0, 0, 1001, other.name}, 0},
	        {{0, a.client, UINT32_MAX, ""}, 2},
	        {{0, b.client, UINT32_MAX, ""}, 1},
	        {{0, b.client, 1000, ""}, 0},
	        {{info.session, 0, UINT32_MAX, ""}, 1},
	        {{info.session, b.client, UINT32_MAX, ""}, 0},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		ck_assert_uint_eq(skv_core_swap(core, &cases[i].scope, "other", 2), cases[i].n);
}
END_TEST

START_TEST(policies_are_swapped)
{
	struct skv_control_page *control;
	struct skv_msg_policy m;
	struct peer a, b;
	uint64_t bytes;
	int fd = skv_core_control_fd(core, &bytes);

	control = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(control, MAP_FAILED);
	ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	ck_assert_int_eq(pwrite(fd, "x", 1, 0), -1);
	peer_join(&a, 1000, &small);
	peer_join(&b, 1001, &small);
	session_is(&a, "full", false, "");
	ck_assert_uint_eq(control->policy_generation, skv_core_policy_generation(core));

	ck_assert_uint_eq(swap(0, 4711, "other", 2), 0); /* no session matches: nothing happens */
	ck_assert_uint_eq(policy_of(&a).plugin, 1);
	ck_assert_uint_eq(swap(0, 1000, "other?budget=8", 2), 1);
	ck_assert_uint_eq(control->policy_generation, skv_core_policy_generation(core));
	session_is(&a, "full", true, "");
	m = policy_of(&b); /* outside the scope: gets what it has */
	ck_assert_str_eq(m.spec, "full");
	ck_assert_uint_eq(m.plugin, 1);
	ck_assert_int_eq(skv_core_policy_ack(core, b.client, b.session.session, m.generation, 0, ""), 0);
	session_is(&b, "full", false, "");
	m = policy_of(&a);
	ck_assert_str_eq(m.spec, "other?budget=8");
	ck_assert_uint_eq(m.plugin, 2);
	ck_refused(skv_core_policy_ack(core, a.client, a.session.session, m.generation + 1, 0, ""),
	           SKV_CORE_E_INVALID);
	ck_assert_int_eq(skv_core_policy_ack(core, a.client, a.session.session, m.generation, 0, ""), 0);
	session_is(&a, "other?budget=8", false, "");

	/* the client refuses the policy: it keeps its previous one, and is not asked again */
	ck_assert_uint_eq(swap(0, UINT32_MAX, "bad", 3), 2);
	m = policy_of(&a);
	ck_assert_uint_eq(m.plugin, 3);
	ck_assert_int_eq(
		skv_core_policy_ack(core, a.client, a.session.session, m.generation, EINVAL, "no such thing"),
		0);
	session_is(&a, "other?budget=8", false, "no such thing");
	ck_assert_uint_eq(swap(b.session.session, UINT32_MAX, "third", 4), 1);
	m = policy_of(&a);
	ck_assert_str_eq(m.spec, "other?budget=8");
	ck_assert_uint_eq(m.plugin, 2);
	/* an answer that was overtaken by a newer policy does not count */
	ck_assert_int_eq(skv_core_policy_ack(core, a.client, a.session.session, m.generation - 1, 0, ""), 0);
	session_is(&a, "other?budget=8", false, "no such thing");
	/* refused after the operator has requested something else: that request stays */
	m = policy_of(&b);
	ck_assert_uint_eq(swap(b.session.session, UINT32_MAX, "full?x=1", 1), 1);
	ck_assert_int_eq(skv_core_policy_ack(core, b.client, b.session.session, m.generation, EINVAL, "no"),
	                 0);
	ck_assert_str_eq(policy_of(&b).spec, "full?x=1");
	munmap(control, bytes);
	peer_die(&a);
	peer_die(&b);
}
END_TEST

START_TEST(a_session_page_is_shown)
{
	struct find_session f;
	struct skv_session_page *page;
	struct peer a;

	peer_join(&a, 1000, &small);
	page = mmap(NULL, a.session.page_fd_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a.session.page_fd, 0);
	ck_assert_ptr_ne(page, MAP_FAILED);
	atomic_store(&page->steps, 7);
	f = (struct find_session){.session = a.session.session};
	skv_core_sessions(core, find_session, &f);
	ck_assert_uint_eq(f.found.page->steps, 7);
	ck_assert_uint_eq(f.found.uid, 1000);
	munmap(page, a.session.page_fd_bytes);
	peer_die(&a);
}
END_TEST

/* ---- configuration, state ---- */

START_TEST(quotas_change_tables_do_not)
{
	struct skv_core_config config = books_config(), k;
	struct peer a;

	peer_join(&a, 1000, &small);
	k = config;
	k.account_bytes = 4096 + 1024; /* a session and a page */
	ck_assert(skv_core_reconfigure(core, &k));
	ck_refused(peer_lease(&a, 2, 2), SKV_CORE_E_QUOTA);
	ck_assert_int_eq(peer_lease(&a, 1, 1), 0);
	k.account_bytes = 1;
	ck_assert(skv_core_reconfigure(core, &k));
	ck_refused(peer_lease(&a, 1, 1), SKV_CORE_E_QUOTA); /* the user is beyond it already */
	k = config;
	k.max_clients++;
	ck_assert(!skv_core_reconfigure(core, &k));
	k = config;
	k.segment_bytes *= 2;
	ck_assert(!skv_core_reconfigure(core, &k));
	k = config;
	k.pool_bytes *= 4;
	ck_assert(skv_core_reconfigure(core, &k));
	k.pool_bytes++;
	ck_assert(!skv_core_reconfigure(core, &k));
	peer_die(&a);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
	static const size_t zeroed[] = {
		offsetof(struct skv_core_config, max_clients),
		offsetof(struct skv_core_config, max_sequences),
		offsetof(struct skv_core_config, max_sessions),
		offsetof(struct skv_core_config, max_pools),
	};
	struct skv_core *other;
	struct skv_core_config k;

	for (size_t i = 0; i < sizeof(zeroed) / sizeof(*zeroed); i++) {
		k = books_config();
		*(uint32_t *)((char *)&k + zeroed[i]) = 0;
		ck_assert_int_eq(skv_core_new(&k, &mem.ops, &other), -EINVAL);
		*(uint32_t *)((char *)&k + zeroed[i]) = SKV_CORE_MAX_ROWS + 1;
		ck_assert_int_eq(skv_core_new(&k, &mem.ops, &other), -EINVAL);
	}
	k = books_config();
	k.segment_bytes = k.pool_bytes + 1;
	ck_assert_int_eq(skv_core_new(&k, &mem.ops, &other), -EINVAL);
	k.segment_bytes = 0;
	ck_assert_int_eq(skv_core_new(&k, &mem.ops, &other), -EINVAL);
}
END_TEST

static const struct skv_geometry geometry = {
	.max_clients = 3,
	.max_sessions = 4,
	.max_sequences = 5,
	.max_pools = 2,
	.max_segments = 7,
	.max_pages = 100,
	.segment_bytes = 4096,
	.pool_bytes = 1 << 20,
};

/* A file of `bytes` bytes that begins with the first `used` bytes of `data`. */
static int state_file(const char *data, size_t used, size_t bytes)
{
	int fd = skv_memfd_new("state", bytes);

	ck_assert_int_eq(pwrite(fd, data, used, 0), (ssize_t)used);
	return fd;
}

START_TEST(a_state_is_checked_before_it_is_believed)
{
	struct skv_state s = SKV_STATE_NULL;
	const char *why = "";
	size_t bytes, used;
	char *copy;
	int fd;

	ck_assert_int_eq(skv_state_new(&s, &geometry), 0);
	bytes = used = s.header->total_bytes;
	while (used > sizeof(*s.header) && ((const char *)s.header)[used - 1] == 0) /* never written */
		used--;
	copy = malloc(used);
	memcpy(copy, s.header, used);
	skv_state_deinit(&s);
	/* with any byte of the header before the row counts changed it is no state */
	for (size_t i = 0; i < offsetof(struct skv_state_header, free); i++) {
		copy[i] ^= 0x41;
		fd = state_file(copy, used, bytes);
		copy[i] ^= 0x41;
		if (i >= offsetof(struct skv_state_header, geometry.segment_bytes) && i < offsetof(struct skv_state_header, offset))
			skv_close_fd(fd); /* no table depends on these */
		else
			ck_assert_msg(skv_state_map(&s, fd, &why) == -EBADMSG && *why, "byte %zu", i);
	}
	for (int t = 0; t < SKV_TABLE_ROWS; t++) {
		struct skv_state_header *h = (void *)copy;

		h->high[t] = 1000;
		fd = state_file(copy, used, bytes);
		h->high[t] = 0;
		ck_assert_int_eq(skv_state_map(&s, fd, &why), -EBADMSG);
	}
	/* right, but too short or not sealed */
	ck_assert_int_eq(skv_state_map(&s, state_file(copy, sizeof(struct skv_state_header), 4096), &why), -EBADMSG);
	ck_assert_int_eq(skv_state_map(&s, state_file(copy, 16, 16), &why), -EBADMSG);
	fd = memfd_create("state", MFD_CLOEXEC);
	ck_assert(ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, copy, used, 0) == (ssize_t)used);
	ck_assert_int_eq(skv_state_map(&s, fd, &why), -EBADMSG);
	ck_assert_int_eq(skv_state_map(&s, state_file(copy, used, bytes), &why), 0);
	skv_state_deinit(&s);
	free(copy);
}
END_TEST

START_TEST(rows_come_and_go)
{
	struct skv_state s = SKV_STATE_NULL;
	uint32_t id, n = 0;

	ck_assert_int_eq(skv_state_new(&s, &geometry), 0);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_uint_eq(skv_state_take(&s, SKV_TABLE_SEQUENCES), i);
	ck_assert_uint_eq(skv_state_take(&s, SKV_TABLE_SEQUENCES), SKV_NO_INDEX);
	id = skv_state_id(&s, SKV_TABLE_SEQUENCES, 2);
	ck_assert_uint_eq(skv_state_find(&s, SKV_TABLE_SEQUENCES, id), 2);
	/* a generation is reused after 65,535 uses, not before */
	for (uint32_t i = 0; i < 65534; i++) {
		skv_state_give(&s, SKV_TABLE_SEQUENCES, 2);
		ck_assert_uint_eq(skv_state_find(&s, SKV_TABLE_SEQUENCES, id), SKV_NO_INDEX);
		ck_assert_uint_eq(skv_state_take(&s, SKV_TABLE_SEQUENCES), 2);
		ck_assert_uint_eq(skv_state_find(&s, SKV_TABLE_SEQUENCES, id), SKV_NO_INDEX);
	}
	skv_state_give(&s, SKV_TABLE_SEQUENCES, 3);
	skv_state_give(&s, SKV_TABLE_SEQUENCES, 0);
	SKV_EACH(i, &s, SKV_TABLE_SEQUENCES)
		n += i;
	ck_assert_uint_eq(n, 1 + 2 + 4);
	ck_assert(skv_state_find(&s, SKV_TABLE_SEQUENCES, 0) == SKV_NO_INDEX && skv_state_find(&s, SKV_TABLE_SEQUENCES, 1 << 16 | 9) == SKV_NO_INDEX);
	skv_state_deinit(&s);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core");

	add_case(s, "accounts", 60, setup, books_close, clients_have_quotas, ids_are_not_used_again, a_session_is_its_clients_alone,
	         sessions_have_quotas, pools_have_quotas, models_and_specs_are_checked, every_error_has_an_errno,
	         leases_are_runs_of_free_pages, bad_leases_are_refused_whole, an_account_has_a_quota_over_all_clients,
	         the_pools_have_a_quota_together, policies_are_swapped, a_swap_has_a_scope, a_session_page_is_shown,
	         quotas_change_tables_do_not, impossible_sizes_are_refused, NULL);
	add_case(s, "state", 60, NULL, NULL, a_state_is_checked_before_it_is_believed, rows_come_and_go, NULL);
	return run_suite(s);
}
