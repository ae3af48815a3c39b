/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's view of the daemon has only the user's own figures: no counter or sum in it changes when others work.
 * Operators see the figures of all users.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/privilege.h"
#include "tests/support/suite.h"

#define OTHER_UID 54321u
#define PROMPT 777u /* tokens */
#define GONE_S 20   /* maximum time until a user's account is gone */

static struct fix fix;
static char *parked;
static struct raw *user, *operator;

static void setup(void)
{
	static char path[96];
	static const char *const options[] = {path, NULL};

	parked = fx_folder();
	ck_assert_int_eq(chmod(parked, 0700), 0);
	snprintf(path, sizeof(path), "--parked-path=%s", parked);
	fix_start_process(&fix, options);
	operator = raw_operator(fix.socket);
	user = raw_hello(fix.socket);
	raw_lease(user, raw_open(user, "m", "full", NULL), 5);
}

static void teardown(void)
{
	raw_close(user);
	raw_close(operator);
	fix_stop(&fix);
	fx_remove(parked);
}

static double figure(struct raw *r, const char *group, const char *key)
{
	json_t *status = raw_query(r, SKV_QUERY_STATUS), *in = json_object_get(status, group), *value;
	double x;

	value = json_object_get(json_is_array(in) ? json_array_get(in, 0) : in, key);
	ck_assert_msg(json_is_number(value), "%s has no number %s", group, key);
	x = json_number_value(value);
	json_decref(status);
	return x;
}

/* Causes an event of every counted kind; the user sees its own ones. Its sequence stays, parked. */
static void work(void *unused)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_seq_name ask = {.n_tokens = PROMPT};
	struct raw *wrong = raw_hello(fix.socket);
	uint64_t junk[3] = {0};

	(void)unused;
	raw_send_packet(wrong, junk, sizeof(junk), NULL, 0);
	raw_expect_end(wrong);
	ask.session = raw_open(r, "m", "full", NULL);
	ask.seq = raw_seq_new(r, ask.session, "");
	raw_ask(r, SKV_MSG_PREFIX_NEW, &ask, sizeof(ask), -1);
	raw_lease(r, ask.session, 100);
	raw_leave_sequence(fix.socket, "chat");
	ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, "m", "chat"), 0);
	ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_RESUME, "m", "chat"), 0);
	ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, "m", "chat"), 0);
	ck_assert(figure(r, "prefixes", "asked") == 1 && figure(r, "prefixes", "asked_tokens") == PROMPT);
	ck_assert(figure(r, "parking", "parked") == 2 && figure(r, "parking", "resumed") == 1 && figure(r, "parking", "sequences") == 1);
	ck_assert(figure(r, "counters", "malformed") == 1 && figure(r, "counters", "connections") >= 3);
	ck_assert(figure(r, "counters", "clients_gone") >= 1 && figure(r, "totals", "clients") == 1);
	ck_assert(figure(r, "totals", "page_bytes") >= 100 * 4096 && figure(r, "held", "sequences") > 0 && figure(r, "held", "state") == 0);
	raw_close(r);
}

/* The user's view, without figures that change with time or with queries. */
static json_t *view(enum skv_query what)
{
	json_t *all = raw_query(user, what), *counters = json_object_get(all, "counters");

	json_object_del(all, "uptime_s");
	json_object_del(all, "time_s");
	json_object_del(counters, "messages");
	json_object_del(counters, "turn_max_ms");
	return all;
}

START_TEST(others_are_in_no_figure)
{
	json_t *before[SKV_QUERY_SESSIONS + 1];

	if (!can_change_user())
		return; /* there are no other users then */
	for (enum skv_query q = SKV_QUERY_STATUS; q <= SKV_QUERY_SESSIONS; q++)
		json_decref(view(q)); /* the first query allocates memory of a session's page */
	for (enum skv_query q = SKV_QUERY_STATUS; q <= SKV_QUERY_SESSIONS; q++)
		before[q] = view(q);
	fix_in_child(OTHER_UID, work, NULL);
	for (enum skv_query q = SKV_QUERY_STATUS; q <= SKV_QUERY_SESSIONS; q++) {
		json_t *after = view(q);
		char *was = json_dumps(before[q], JSON_SORT_KEYS), *is = json_dumps(after, JSON_SORT_KEYS);

		ck_assert_str_eq(is, was);
		free(is);
		free(was);
		json_decref(after);
		json_decref(before[q]);
	}
	ck_assert(figure(user, "counters", "turn_max_ms") <= figure(operator, "counters", "turn_max_ms"));
}
END_TEST

/* Operators have the sums, also when the account is gone. If the user connects again, none of it is in its view. */
static void come_again(void *unused)
{
	struct raw *r = raw_hello(fix.socket);

	(void)unused;
	ck_assert(figure(r, "prefixes", "asked") == 0 && figure(r, "parking", "parked") == 0 && figure(r, "counters", "malformed") == 0);
	ck_assert(figure(r, "parking", "sequences") == 1);
	raw_close(r);
}

static size_t n_accounts(void)
{
	json_t *status = raw_query(operator, SKV_QUERY_STATUS);
	const size_t n = json_array_size(json_object_get(status, "accounts"));

	json_decref(status);
	return n;
}

START_TEST(totals_outlive_accounts)
{
	if (!can_change_user())
		return;
	fix_in_child(OTHER_UID, work, NULL);
	for (double end = fix_now() + GONE_S; n_accounts() > 1 && fix_now() < end;)
		fix_sleep_ms(50);
	ck_assert_uint_eq(n_accounts(), 1);
	fix_sleep_ms(3500); /* the daemon checks once a second */
	ck_assert(figure(operator, "prefixes", "asked") == 1 && figure(operator, "prefixes", "asked_tokens") == PROMPT);
	ck_assert(figure(operator, "parking", "parked") == 2 && figure(operator, "counters", "malformed") == 1);
	ck_assert(figure(operator, "counters", "clients_gone") >= 2);
	fix_in_child(OTHER_UID, come_again, NULL);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-counters");

	add_case(s, "counters", 60, setup, teardown, others_are_in_no_figure, totals_outlive_accounts, NULL);
	return run_suite(s);
}
