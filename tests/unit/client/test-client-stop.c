/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of libclient with a daemon that does not answer (SIGSTOP) and one that is gone (SIGKILL): decoding goes on with
 * leased pages, waits end in time, and a request that timed out is undone when the daemon is back.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client-test.h"
#include "tests/support/policies.h"

#define TIMEOUT_MS 150

static struct fix daemon_;
static struct skv_client *client;
static struct refmodel w;
static struct refmodel_seq q;

static void setup(void)
{
	struct skv_seq *seq;

	fix_start_process(&daemon_, NULL);
	OK(skv_connect(&client, daemon_.socket));
	refmodel_model(&w.model, "stop", SKV_F32, 600);
	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, "main", 0, &seq));
	refmodel_seq_init(&w, &q, seq, w.model.max_tokens);
	refmodel_feed(&w, &q, 1, 100, true);
	for (int i = 0; i < 60; i++) /* the pages requested for the prompt have gone back by now */
		refmodel_feed(&w, &q, 1, 1, false);
	skv_set_timeout(client, TIMEOUT_MS);
}

static void halt(void)
{
	char path[64], state = 0;

	ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)daemon_.pid);
	while (state != 'T') {
		FILE *f = fopen(path, "r");

		ck_assert_int_eq(fscanf(f, "%*d %*s %c", &state), 1);
		fclose(f);
	}
}

static void resume(void)
{
	ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
	skv_set_timeout(client, 5000);
}

static void teardown(void)
{
	skv_disconnect(client);
	fix_stop(&daemon_);
	refmodel_seq_deinit(&q);
}

static uint64_t count(enum skv_query what, const char *rows)
{
	struct raw *op = raw_operator(daemon_.socket);
	json_t *j = raw_query(op, what);
	uint64_t n = json_array_size(json_object_get(j, rows));

	json_decref(j);
	raw_close(op);
	return n;
}

static int decode(void)
{
	uint64_t content = refmodel_content(1, q.len);

	return refmodel_step(&w, &(struct refmodel_item){&q, 1, false, &content, 0}, 1, -1);
}

/* A call must time out, and in time. */
#define TIMES_OUT(call)                                                                                     \
	do {                                                                                                \
		double begin_ = fix_now();                                                                  \
		FAILS(call, ETIMEDOUT, "");                                                                 \
		ck_assert_double_lt(fix_now() - begin_, TIMEOUT_MS / 1000.0 + patience(1));                         \
	} while (0)

/* ---- stopped --------------------------------------------------------------------------------- */

/* Only a step that needs pages notices a stopped daemon; waiting for it loses nothing. */
START_TEST(decoding_goes_on)
{
	struct skv_stats stats = {.size = sizeof(stats)};
	uint32_t steps = 0, len;
	int e;

	halt();
	while ((e = decode()) == 0)
		steps++;
	ck_assert_int_eq(e, -ETIMEDOUT);
	/* the stock is refilled while it still has a page for each sequence */
	ck_assert_uint_ge(steps, SKV_PAGE_TOKENS);
	ck_assert_ptr_nonnull(strstr(skv_last_error(), "in stock"));
	len = q.len;
	TIMES_OUT(decode());
	skv_set_timeout(client, 0);
	TIMES_OUT(decode());
	ck_assert_uint_eq(skv_seq_len(q.seq), len);
	resume();
	for (int i = 0; i < 40; i++)
		ck_assert_int_eq(decode(), 0);
	OK(skv_session_stats(w.session, &stats));
	ck_assert_uint_eq(stats.steps, 1 + 60 + steps + 40);
}
END_TEST

/* Steps that need no page of the daemon do not wait for it, whatever messages it has to get. */
START_TEST(steps_do_not_wait)
{
	struct raw *op = raw_operator(daemon_.socket);
	double begin;

	/* a policy that frees pages, and a fork that frees shared ones: messages pile up */
	w.next = (struct refmodel_policy){.kind = REFMODEL_STREAMING, .budget = {.count = 40}, .sinks = 4};
	strcpy(w.next_spec, POLICY_WINDOW "?budget=40&sinks=4&dense=0");
	ck_assert_int_eq(raw_policy_swap(op, w.next_spec), 0);
	raw_close(op);
	while (w.next_spec[0])
		ck_assert_int_eq(decode(), 0);
	halt();
	begin = fix_now();
	for (int i = 0; i < 300; i++)
		ck_assert_int_eq(decode(), 0);
	printf("300 steps with a stopped daemon: %.0f ms, the reference included\n", (fix_now() - begin) * 1000);
	resume();
	ck_assert_int_eq(decode(), 0);
}
END_TEST

/* A swap that the daemon began before it stopped is waited for only briefly, and made when the daemon is back. */
START_TEST(swap_later)
{
	struct raw *op = raw_operator(daemon_.socket);
	double begin;

	w.next = (struct refmodel_policy){
	        .kind = REFMODEL_DELTA, .budget = {.count = 4}, .floor = 1, .recent_floor = 1, .layers = 2, .dense = 1};
	strcpy(w.next_spec, POLICY_PAGES "?budget=4&recent=0&layers=1&dense=1&pin=0&profile=none");
	ck_assert_int_eq(raw_policy_swap(op, w.next_spec), 0);
	halt();
	raw_close(op);
	begin = fix_now();
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(decode(), 0);
		RUNS_SPEC(skv_policy_spec(w.session), "full");
	}
	ck_assert_double_lt(fix_now() - begin, patience(1.5));
	resume();
	for (int i = 0; i < 500 && w.next_spec[0]; i++) {
		fix_sleep_ms(2);
		ck_assert_int_eq(decode(), 0);
	}
	ck_assert_str_eq(w.next_spec, "");
	ck_assert_int_eq(decode(), 0);
}
END_TEST

/* ---- what timed out is undone ---------------------------------------------------------------- */

START_TEST(calls_time_out)
{
	struct skv_session *s = NULL;
	struct skv_seq *seq = NULL;
	struct refmodel_seq other;

	skv_set_timeout(client, 5000);
	OK(skv_seq_new(w.session, "other", 0, &seq));
	refmodel_seq_init(&w, &other, seq, w.model.max_tokens);
	refmodel_feed(&w, &other, 2, 50, true);
	OK(skv_seq_detach(other.seq));
	refmodel_seq_deinit(&other);
	ck_assert_uint_eq(count(SKV_QUERY_SEQS, "sequences"), 2);
	skv_set_timeout(client, TIMEOUT_MS);

	seq = NULL;
	halt();
	TIMES_OUT(skv_seq_new(w.session, "late", 0, &seq));
	TIMES_OUT(skv_seq_attach(w.session, "other", &seq));
	TIMES_OUT(skv_open(client, &w.model, "full", &s));
	ck_assert_ptr_null(seq);
	ck_assert_ptr_null(s);
	ck_assert_int_eq(decode(), 0);
	resume();
	/* the next turn takes the late answers, and then sends, in order, what undoes them */
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	OK(skv_seq_drop(seq));
	ck_assert_uint_eq(count(SKV_QUERY_SEQS, "sequences"), 2);
	ck_assert_uint_eq(count(SKV_QUERY_SESSIONS, "sessions"), 1);
	OK(skv_seq_attach(w.session, "other", &seq));
	ck_assert_uint_eq(skv_seq_len(seq), 50);
	OK(skv_seq_drop(seq));
}
END_TEST

/* While it is unknown whether a fork happened, its parent's pages may be shared: no step may write to them. */
START_TEST(fork_times_out)
{
	struct skv_seq *child = NULL, *other;
	struct refmodel_seq ws;
	double end;
	int e;

	halt();
	TIMES_OUT(skv_seq_fork(q.seq, "child", SKV_ALL, &child));
	ck_assert_ptr_null(child);
	FAILS(decode(), ETIMEDOUT, "fork");
	TIMES_OUT(skv_seq_fork(q.seq, "child", SKV_ALL, &child));
	resume();
	for (end = fix_now() + 5; (e = decode()) == -ETIMEDOUT && fix_now() < end;)
		fix_sleep_ms(2);
	ck_assert_int_eq(e, 0);
	for (int i = 0; i < 20; i++)
		ck_assert_int_eq(decode(), 0);
	OK(skv_seq_fork(q.seq, "child", SKV_ALL, &child)); /* the name is free again */
	refmodel_seq_copy(&w, &ws, &q, child);
	refmodel_feed(&w, &ws, 3, 1, false);
	ck_assert_int_eq(decode(), 0);
	refmodel_seq_deinit(&ws);
	/* a parent that is dropped while its fork is unanswered */
	OK(skv_seq_new(w.session, NULL, 0, &other));
	refmodel_seq_init(&w, &ws, other, 600);
	refmodel_feed(&w, &ws, 4, 30, true);
	skv_set_timeout(client, TIMEOUT_MS);
	halt();
	TIMES_OUT(skv_seq_fork(other, NULL, SKV_ALL, &child));
	TIMES_OUT(skv_seq_drop(other));
	resume();
	refmodel_seq_deinit(&ws);
	OK(skv_seq_new(w.session, NULL, 0, &other));
	ck_assert_uint_eq(count(SKV_QUERY_SEQS, "sequences"), 3);
}
END_TEST

/*
 * All leased pages are in the session's stock, or belong to the only sequence. Asking for room comes first: its answer follows
 * that of a request for pages ahead of need, and pages that were given back.
 */
static void expect_leased(struct skv_session *session)
{
	struct skv_stats stats = {.size = sizeof(stats)};
	struct skv_room room = {.size = sizeof(room)};
	uint64_t resident, total;
	struct raw *op;

	OK(skv_session_room(session, &room));
	OK(skv_session_stats(session, &stats));
	skv_seq_pages(q.seq, &resident, &total);
	op = raw_operator(daemon_.socket);
	ck_assert_uint_eq(raw_pool_figure(op, "lease"), resident + stats.stock_pages);
	raw_close(op);
}

/* Pages of sequences that were dropped without an answer come back, too. */
START_TEST(drops_time_out)
{
	struct skv_seq *seq[2];

	for (int i = 0; i < 2; i++) {
		struct refmodel_seq ws;

		skv_set_timeout(client, 5000);
		OK(skv_seq_new(w.session, i ? "named" : NULL, 0, &seq[i]));
		refmodel_seq_init(&w, &ws, seq[i], 600);
		refmodel_feed(&w, &ws, 5, 200, true);
		refmodel_seq_deinit(&ws);
	}
	skv_set_timeout(client, TIMEOUT_MS);
	halt();
	TIMES_OUT(skv_seq_detach(seq[0]));
	TIMES_OUT(skv_seq_drop(seq[1]));
	resume();
	OK(skv_seq_new(w.session, NULL, 0, &seq[0]));
	for (int i = 0; i < 100; i++)
		ck_assert_int_eq(decode(), 0);
	OK(skv_seq_drop(seq[0]));
	expect_leased(w.session);
}
END_TEST

/* A session that is closed while a lease is pending, with another one on the same pool. */
START_TEST(close_times_out)
{
	struct skv_session *second;
	struct skv_seq *seq;
	double begin, end;

	skv_set_timeout(client, 5000);
	OK(skv_open(client, &w.model, "full", &second));
	skv_set_timeout(client, TIMEOUT_MS);
	halt();
	while (decode() == 0)
		;
	begin = fix_now();
	skv_close(w.session);
	ck_assert_double_lt(fix_now() - begin, 2 * TIMEOUT_MS / 1000.0 + patience(1));
	resume();
	w.session = second;
	refmodel_seq_deinit(&q);
	OK(skv_seq_new(second, NULL, 0, &seq));
	refmodel_seq_init(&w, &q, seq, 600);
	for (end = fix_now() + 5; count(SKV_QUERY_SESSIONS, "sessions") > 1 && fix_now() < end;)
		ck_assert_int_eq(decode(), 0);
	ck_assert_uint_eq(count(SKV_QUERY_SESSIONS, "sessions"), 1);
	expect_leased(second);
}
END_TEST

START_TEST(disconnect_times_out)
{
	double begin;

	halt();
	begin = fix_now();
	skv_disconnect(client);
	ck_assert_double_lt(fix_now() - begin, TIMEOUT_MS / 1000.0 + patience(1));
	FAILS(skv_connect(&client, "/nonexistent"), ENOENT, "");
	client = NULL;
	kill(daemon_.pid, SIGCONT);
}
END_TEST

/* ---- gone ------------------------------------------------------------------------------------ */

START_TEST(death)
{
	struct skv_session *s;
	struct skv_seq *seq;
	uint32_t steps = 0;
	int e;

	fix_kill(&daemon_);
	FAILS(skv_seq_new(w.session, NULL, 0, &seq), ECONNRESET, "there is no other");
	while ((e = decode()) == 0)
		steps++;
	ck_assert_int_eq(e, -ECONNRESET);
	ck_assert_uint_ge(steps, SKV_PAGE_TOKENS);
	FAILS(skv_seq_attach(w.session, "main", &seq), ECONNRESET, "");
	FAILS(skv_seq_fork(q.seq, NULL, SKV_ALL, &seq), ECONNRESET, "");
	FAILS(skv_open(client, &w.model, "full", &s), ECONNRESET, "");
	/* pages that are given up cannot be reported to the daemon; the handles are freed */
	ck_assert_uint_eq(skv_seq_len(q.seq), q.len);
	FAILS(skv_seq_detach(q.seq), ECONNRESET, "");
	skv_close(w.session);
	skv_disconnect(client);
	refmodel_seq_deinit(&q);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-stop");

	add_case(s, "stopped", 60, setup, teardown, decoding_goes_on, steps_do_not_wait, swap_later,
	         calls_time_out, fork_times_out, drops_time_out, close_times_out, disconnect_times_out, NULL);
	add_case(s, "gone", 60, setup, NULL, death, NULL);
	return run_suite(s);
}
