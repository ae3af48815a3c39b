/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission: skv_session_room() and skv_seq_need() predict what skv_step_begin() does. With exactly as many pages as a
 * prompt needs it is read to its end; with one page less a step returns -ENOSPC.
 */
#include <errno.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

#define MAX_TOKENS 2000u
#define ROWS 600u /* of a prompt at most */

static struct skv_model model;
static struct skv_session *session;
static struct raw *tenant; /* of the same user, on the same pool: holds the pages that shall not be available */
static struct skv_msg_open_ok pool;

static uint64_t room(void)
{
	struct skv_room r = {.size = sizeof(r)};

	OK(skv_session_room(session, &r));
	ck_assert_uint_eq(r.page_bytes, pool.page_bytes);
	return r.pages;
}

/* Read a prompt of n tokens in chunks. Returns 0, or the error of skv_step_begin. */
static int read_prompt(struct skv_seq *q, uint32_t n, uint32_t chunk)
{
	for (uint32_t at = 0; at < n;) {
		uint32_t some = n - at < chunk ? n - at : chunk;
		struct devmem_rows rows = devmem_rows_new(&model, some);
		int e = skv_step_begin(session, &SKV_STEP_ITEM(
		                .seq = q, .n_tokens = some, .flags = SKV_STEP_PROMPT, .n_prompt_remaining = n - at - some),
		                1, devmem_stream());

		for (uint32_t layer = 0; layer < model.n_layers && e == 0; layer++)
			OK(devmem_attend(session, layer, &rows, false));
		devmem_rows_free(&rows);
		if (e < 0)
			return e;
		OK(skv_step_end(session, NULL, NULL));
		at += some;
	}
	return 0;
}

/* Lease all but `pages` of the available pages to the tenant. */
static void leave(uint64_t pages)
{
	uint64_t all = room();

	ck_assert_uint_ge(all, pages);
	for (uint64_t rest = all - pages, n; rest > 0; rest -= n) {
		n = rest < 500 ? rest : 500;
		raw_lease(tenant, pool.session, (uint32_t)n);
	}
	ck_assert_uint_eq(room(), pages);
}

static void tenant_comes(void)
{
	struct skv_wire_model m = {0};

	skv_wire_from_model(&m, &model);
	tenant = raw_hello(daemon_.socket);
	raw_open_model(tenant, &m, "full", &pool);
}

static void tenant_goes(uint64_t all)
{
	struct skv_msg_session m = {.session = pool.session};

	raw_ask(tenant, SKV_MSG_CLOSE, &m, sizeof(m), -1); /* a connection's end alone would leave it its pages */
	raw_close(tenant);
	for (double end = fix_now() + 10; room() < all;)
		ck_assert_double_lt(fix_now(), end);
}

/* A prompt for which the pool has as many pages as it needs, or one less. */
START_TEST(need_is_what_begin_takes)
{
	const char *spec = policy_row(SET_ROOM, _i % policy_rows(SET_ROOM))->spec;

	for (int round = 0; round < 6; round++) {
		uint32_t n = 1 + rnd_below(ROWS), chunk = round % 2 ? 1 + rnd_below(n) : n;
		bool enough = rnd_below(2);
		struct skv_seq *q;
		uint64_t need, all;
		int e;

		tenant_comes();
		OK(skv_open(client, &model, spec, &session)); /* its stock is empty, so the tenant can have all pages */
		OK(skv_seq_need(session, n, round % 2 ? chunk : 0, &need));
		OK(skv_seq_new(session, NULL, 0, &q));
		all = room();
		leave(need - !enough);
		e = read_prompt(q, n, chunk);
		ck_assert_msg(e == (enough ? 0 : -ENOSPC), "%s: %u tokens, %u at a time, need %llu pages%s: %d %s", spec, n, chunk,
		              (unsigned long long)need, enough ? "" : ", a page less is there", e, e ? skv_last_error() : "");
		if (enough)
			ck_assert_uint_le(room(), need - (uint64_t)skv_pages_of(n) * model.n_layers);
		OK(skv_seq_drop(q));
		tenant_goes(all);
		skv_close(session);
	}
}
END_TEST

/* Pages set aside for prompts that are being read are not available to others. */
START_TEST(what_is_set_aside_is_no_room)
{
	struct skv_seq *q, *other;
	struct devmem_rows rows = devmem_rows_new(&model, 16);
	uint64_t all, need, need_of_other;
	int e;

	tenant_comes();
	OK(skv_open(client, &model, "full", &session));
	OK(skv_seq_need(session, 160, 16, &need));
	OK(skv_seq_need(session, 32, 0, &need_of_other));
	OK(skv_seq_new(session, NULL, 0, &q));
	OK(skv_seq_new(session, NULL, 0, &other));
	all = room();
	leave(need + need_of_other);
	OK(skv_step_begin(session, &SKV_STEP_ITEM(
	        .seq = q, .n_tokens = 16, .flags = SKV_STEP_PROMPT, .n_prompt_remaining = 144), 1, devmem_stream()));
	for (uint32_t layer = 0; layer < model.n_layers; layer++)
		OK(devmem_attend(session, layer, &rows, false));
	OK(skv_step_end(session, NULL, NULL));
	devmem_rows_free(&rows);
	ck_assert_uint_eq(room(), need_of_other);
	e = read_prompt(other, 33, 32); /* the first of two steps, and pages for both */
	ck_assert_int_eq(e, -ENOSPC);
	ck_assert_uint_eq(skv_seq_len(other), 0);
	OK(read_prompt(other, 32, 32));
	ck_assert_uint_eq(room(), 0);
	OK(skv_seq_drop(q));
	OK(skv_seq_drop(other));
	tenant_goes(all);
	skv_close(session);
}
END_TEST

/* The daemon hears of shared pages with a later step, or when it is asked for room. */
START_TEST(what_was_given_up_is_room)
{
	struct skv_seq *parent, *child;
	struct skv_room r = {.size = sizeof(r)};
	uint64_t with_one_page;

	OK(skv_open(client, &model, "full", &session));
	OK(skv_seq_new(session, NULL, 0, &parent));
	ck_assert_int_eq(read_prompt(parent, SKV_PAGE_TOKENS, SKV_PAGE_TOKENS), 0);
	OK(skv_session_room(session, &r));
	with_one_page = r.pages;
	ck_assert_int_eq(read_prompt(parent, 4 * SKV_PAGE_TOKENS, 4 * SKV_PAGE_TOKENS), 0);
	OK(skv_seq_fork(parent, NULL, SKV_ALL, &child));
	OK(skv_seq_drop(parent));
	OK(skv_seq_truncate(child, SKV_PAGE_TOKENS, -1));
	OK(skv_session_room(session, &r));
	ck_assert_uint_eq(r.pages, with_one_page);
	OK(skv_seq_drop(child));
	skv_close(session);
}
END_TEST

START_TEST(questions_are_checked)
{
	struct skv_room r = {.size = 0};
	uint64_t need = 77;

	OK(skv_open(client, &model, "full", &session));
	FAILS(skv_session_room(session, &r), EINVAL, "room: size is 0");
	r.size = sizeof(r) + 8;
	FAILS(skv_session_room(session, &r), EINVAL, "room: size is");
	FAILS(skv_seq_need(session, 0, 0, &need), EINVAL, "n_tokens is 0");
	FAILS(skv_seq_need(session, MAX_TOKENS + 1, 0, &need), EINVAL, "2000");
	ck_assert_uint_eq(need, 77);
	r = (struct skv_room){.size = offsetof(struct skv_room, stock_pages), .stock_pages = 99};
	OK(skv_session_room(session, &r));
	ck_assert_uint_eq(r.stock_pages, 99); /* the caller's struct is of an earlier library */
	skv_close(session);
}
END_TEST

/* The quota is the limit if it is lower, and counts what the user's sequences take besides pages. */
START_TEST(a_quota_is_the_limit)
{
	struct skv_room r = {.size = sizeof(r)};

	skv_disconnect(client);
	raw_close(op);
	fix_stop(&daemon_);
	client_begin((const char *[]){"--pool-bytes=8M", "--account-bytes=1M", "--segment-bytes=64K", NULL});
	OK(skv_open(client, &model, "full", &session));
	OK(skv_session_room(session, &r));
	ck_assert_uint_le(r.pages * r.page_bytes, 1 << 20);
	ck_assert_uint_gt(r.pages * r.page_bytes, 1 << 19);
	skv_close(session);
}
END_TEST

static void setup(void)
{
	client_begin((const char *[]){"--pool-bytes=16M", "--account-bytes=1G", "--segment-bytes=64K", "--cuda-pool-bytes=64M",
	                              "--account-cuda-bytes=1G", NULL});
	refmodel_model(&model, "org/room", SKV_F32, MAX_TOKENS);
	model.head_dim = 64; /* every policy has codes for it */
}

static void teardown(void)
{
	client_end();
}

int main(void)
{
	Suite *s = begin_suite("test-client-room");
	TCase *t = add_case(s, "room", 120, setup, teardown, what_is_set_aside_is_no_room, what_was_given_up_is_room, questions_are_checked,
	                    a_quota_is_the_limit, NULL);

	tcase_add_loop_test(t, need_is_what_begin_takes, 0, 2 * policy_rows(SET_ROOM));
	return run_suite(s);
}
