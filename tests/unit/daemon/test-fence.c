/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients whose connection ends before their process: what they have stays reserved until it is certain that they no
 * longer use it.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/suite.h"

static struct fix fix;
static struct raw *op;

static void setup(void)
{
	static const char *const options[] = {"--pool-bytes=4M", "--segment-bytes=64K", NULL};

	fix_start_process(&fix, options);
	op = raw_operator(fix.socket);
}

static void teardown(void)
{
	raw_close(op);
	fix_stop(&fix);
}

/* Returns "connected", "fenced", or "gone". */
static const char *state_of(uint32_t client)
{
	json_t *status = raw_query(op, SKV_QUERY_STATUS), *row;
	const char *state = "gone";
	size_t i;

	json_array_foreach(json_object_get(status, "clients"), i, row)
		if (json_integer_value(json_object_get(row, "client")) == client)
			state = json_is_true(json_object_get(row, "fenced")) ? "fenced" : "connected";
	json_decref(status);
	return state;
}

static void until_it_is(uint32_t client, const char *state)
{
	for (double end = fix_now() + 20; strcmp(state_of(client), state) != 0;)
		ck_assert_msg(fix_now() < end, "client %#x is %s, expected %s", client, state_of(client), state);
}

static void *control_page(const struct raw *r)
{
	void *map;

	ck_assert_int_eq(skv_map_fd(r->fds[0], 4096, PROT_READ, true, &map), 0);
	return map;
}

/* Returns how many pages one more client can lease. */
static uint32_t to_be_had(void)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_lease_get get = {.session = raw_open(r, "m", "full", NULL), .most = 1u << 20};
	const struct skv_msg_runs *ok = raw_ask(r, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
	const struct skv_wire_run *runs = (const void *)(ok + 1);
	uint32_t n = 0;

	for (uint32_t i = 0; i < ok->n_runs; i++)
		n += runs[i].count;
	raw_close(r);
	return n;
}

static void end_by_garbage(struct raw *r)
{
	raw_send_packet(r, "x", 1, NULL, 0);
	raw_expect_end(r);
}

START_TEST(what_it_has_is_nobodys)
{
	uint32_t all = to_be_had(), client, other;
	struct raw *r = raw_hello(fix.socket);
	const struct skv_control_page *control = control_page(r);
	struct skv_msg_client m = {.client = r->client};
	struct raw *again = raw_connect(fix.socket);

	raw_lease(r, raw_open(r, "m", "full", NULL), 100);
	client = r->client;
	ck_assert_str_eq(state_of(client), "connected");
	ck_assert_uint_eq(control->fence[skv_client_row_of(client)], client);
	if (_i)
		end_by_garbage(r);
	raw_hang_up(r);
	until_it_is(client, "fenced");
	ck_assert_uint_eq(control->fence[skv_client_row_of(client)], 0);
	ck_assert_uint_eq(to_be_had(), all - 100);

	/*
	 * it reports its end, on a connection without HELLO; a second report, or one for an unknown client, is refused
	 */
	other = op->client;
	m.client = other + 0x10000;
	ck_assert_int_eq(raw_refused(again, SKV_MSG_CLIENT_END, &m, sizeof(m), -1), ENOENT);
	m.client = client;
	raw_ask(again, SKV_MSG_CLIENT_END, &m, sizeof(m), -1);
	ck_assert_int_eq(raw_refused(again, SKV_MSG_CLIENT_END, &m, sizeof(m), -1), ENOENT);
	ck_assert_str_eq(state_of(client), "gone");
	ck_assert_str_eq(state_of(other), "connected");
	ck_assert_uint_eq(to_be_had(), all);
	raw_close(again);
	munmap((void *)control, 4096);
}
END_TEST

/* Reported before the daemon has noticed the end of the connection: the client is gone all the same. */
START_TEST(end_of_one_that_is_connected)
{
	uint32_t all = to_be_had();
	struct raw *r = raw_hello(fix.socket);

	raw_lease(r, raw_open(r, "m", "full", NULL), 100);
	raw_client_end(fix.socket, r->client);
	until_it_is(r->client, "gone");
	ck_assert_uint_eq(to_be_had(), all);
	raw_expect_end(r);
	raw_hang_up(r);
}
END_TEST

/* Written by the other process. */
static struct {
	uint32_t client;
	bool ready;
} *shared;

static void hold_and_hang_up(void *unused)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);

	(void)unused;
	raw_seq_new(r, session, "chat");
	raw_lease(r, session, 100);
	shared->client = r->client;
	raw_hang_up(r);
	__atomic_store_n(&shared->ready, true, __ATOMIC_SEQ_CST);
	pause();
}

static pid_t other_process(void)
{
	pid_t pid;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid = child_fork();
	if (pid == 0)
		hold_and_hang_up(NULL);
	while (!__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST))
		fix_sleep_ms(1);
	until_it_is(shared->client, "fenced");
	return pid;
}

static void say_end_of_another(void *client)
{
	struct raw *r = raw_connect(fix.socket);

	ck_assert_int_eq(raw_refused(r, SKV_MSG_CLIENT_END, client, sizeof(struct skv_msg_client), -1), ENOENT);
	raw_close(r);
}

START_TEST(the_end_of_the_process_gives_it_back)
{
	uint32_t all = to_be_had();
	pid_t pid = other_process();
	struct skv_msg_client m = {.client = shared->client};

	say_end_of_another(&m); /* another process cannot report it */
	ck_assert_uint_eq(to_be_had(), all - 100);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	until_it_is(m.client, "gone");
	ck_assert_uint_eq(to_be_had(), all);
}
END_TEST

/* An attach waits for a process that is about to end, but not for one that continues. */
START_TEST(an_attach_waits_a_moment)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_seq_name m = {.session = raw_open(r, "m", "full", NULL), .name = "chat"};
	pid_t pid = other_process();
	double begin = fix_now();

	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), -1), EBUSY);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "is alive"));
	ck_assert_double_gt(fix_now() - begin, 0.9);

	raw_send(r, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), -1);
	fix_sleep_ms(100);
	json_decref(raw_query(op, SKV_QUERY_STATUS)); /* other requests do not wait */
	kill(pid, SIGKILL);
	ck_assert_int_eq(raw_recv_answer(r, 5000), SKV_MSG_SEQ_ATTACH | SKV_REPLY);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	raw_close(r);
}
END_TEST

/* Waiting clients may leave, and the daemon may end. */
START_TEST(who_waits_may_leave)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_seq_name m = {.session = raw_open(r, "m", "full", NULL), .name = "chat"};
	pid_t pid = other_process();

	for (unsigned i = 0; i < 20; i++) /* more than may wait: some are refused at once */
		raw_send(r, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), -1);
	fix_sleep_ms(100);
	if (_i == 0)
		raw_close(r);
	if (_i < 2) {
		kill(pid, SIGKILL);
		ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	}
	if (_i == 1)
		raw_close(r);
	if (_i == 2) { /* the daemon ends while requests wait, and balances */
		teardown();
		raw_hang_up(r);
		kill(pid, SIGKILL);
		ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
		setup();
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-fence");
	TCase *t = add_case(s, "fence", 60, setup, teardown, the_end_of_the_process_gives_it_back, an_attach_waits_a_moment,
	                    end_of_one_that_is_connected,
	                    NULL);

	tcase_add_loop_test(t, what_it_has_is_nobodys, 0, 2);
	tcase_add_loop_test(t, who_waits_may_leave, 0, 3);
	return run_suite(s);
}
