/* SPDX-License-Identifier: Apache-2.0 */
/* The books, one promise at a time; test-core-random.c plays all of them at once. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "core-peer.h"

static struct test_mem mem;
static struct skv_core *core;
static struct skv_core_config config;
static uint32_t fds_before;

static void even(bool empty)
{
	const char *problem = skv_core_balance(core, empty);

	ck_assert_msg(!problem, "%s", problem);
}

static void setup(void)
{
	config = (struct skv_core_config){
		.pool_bytes = 8 << 20,
		.segment_bytes = 64 << 10,
		.account_bytes = 4 << 20,
		.account_clients = 4,
		.account_sequences = 8,
		.max_clients = 8,
		.max_sequences = 16,
		.max_sessions = 16,
		.max_pools = 8,
	};
	fds_before = count_fds();
	test_mem_init(&mem);
	ck_assert_int_eq(skv_core_new(&config, &mem.ops, &core), 0);
	even(true);
}

static void teardown(void)
{
	even(false);
	skv_core_drop_all(core);
	even(true);
	ck_assert_uint_eq(mem.bytes, 0);
	core = skv_core_free(core);
	ck_assert_uint_eq(count_fds(), fds_before);
}

START_TEST(test_life_of_a_sequence)
{
	struct skv_model m = test_model("m", 2, 16);
	struct skv_core_seq_info info;
	struct peer a, b;
	struct held h;

	peer_join(&a, core, 1000, &m);
	held_new(&h, &a, "chat", 1024);
	held_append(&h, &a, 100, NULL);
	held_commit(&h, 100);
	even(false);
	ck_assert_int_eq(skv_core_client_gone(core, a.client), 0);
	even(false);
	peer_join(&b, core, 1000, &m);
	ck_assert_int_eq(skv_core_seq_attach(core, b.client, b.session.session, "chat", &info), 0);
	held_close(&h);
	held_open(&h, &b, &info);
	ck_assert_uint_eq(held_len(&h), 100);
	even(false);
	ck_assert_int_eq(skv_core_seq_drop(core, b.client, b.session.session, h.seq), 0);
	held_close(&h);
	peer_forget(&a);
	peer_forget(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("core");
	TCase *t = tcase_create("core");
	SRunner *r;
	int failed;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, test_life_of_a_sequence);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
