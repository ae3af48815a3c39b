/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients whose connection ends before their process: what they have stays reserved until it is certain that they no
 * longer use it. And requests that wait, for such clients or for memory: a client has one task of the core at a time.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/privilege.h"
#include "tests/support/raw-engine.h"
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

/* ---- one task at a time ---------------------------------------------------------------------- */

#define MANY_TOKENS (128u << 10) /* of 32 layers: their pages take many turns, and are never touched */

static void setup_large(void)
{
	static const char *const options[] = {"--pool-bytes=8G", "--account-bytes=8G", "--segment-bytes=64M", NULL};

	fix_start_process(&fix, options);
	op = raw_operator(fix.socket);
}

static void setup_full(void)
{
	static const char *const options[] = {"--pool-bytes=512M", "--account-bytes=512M", "--segment-bytes=1M", NULL};

	fix_start_process(&fix, options);
	op = raw_operator(fix.socket);
}

static char parked[96];

static void setup_parked(void)
{
	static char option[128];
	static const char *const options[] = {"--pool-bytes=12M", "--account-bytes=80M", "--segment-bytes=1M", option, NULL};

	strcpy(parked, "/tmp/sparsekv-parked-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(parked));
	snprintf(option, sizeof(option), "--parked-path=%s", parked);
	fix_start_process(&fix, options);
	op = raw_operator(fix.socket);
}

static void teardown_parked(void)
{
	char command[160];

	teardown();
	snprintf(command, sizeof(command), "rm -r %s", parked);
	ck_assert_int_eq(system(command), 0);
}

/* Expects the replies to two requests in this order. ret[] gets the sequence that each reply names. */
static void expect_replies(struct raw *r, uint16_t first, uint16_t second, uint32_t ret[2])
{
	const uint16_t type[] = {first, second};

	for (int i = 0; i < 2; i++) {
		const int got = raw_recv_answer(r, 30000);

		ck_assert_msg(got == (int)(type[i] | SKV_REPLY), "reply %d: got %#x %s, expected %#x", i, (unsigned)got,
		              got == SKV_MSG_ERROR ? raw_error_text(r) : "", type[i] | SKV_REPLY);
		ret[i] = ((const struct skv_msg_seq_ok *)(const void *)(r->packet + sizeof(struct skv_msg_header)))->seq;
	}
}

/* A sequence that begins with a sealed prefix is forked in turns: the session is not closed meanwhile. */
START_TEST(a_close_waits_for_the_prefix)
{
	struct skv_msg_seq_name new = {.n_tokens = MANY_TOKENS};
	struct skv_msg_seal seal = {.n_tokens = MANY_TOKENS};
	struct raw_engine e;
	uint32_t seqs[2];

	raw_engine_open(&e, fix.socket, 32);
	seal.session = new.session = e.session.session;
	seal.seq = new.seq = raw_engine_seq(&e, "", MANY_TOKENS);
	raw_ask(e.raw, SKV_MSG_PREFIX_SEAL, &seal, sizeof(seal), -1);
	raw_send(e.raw, SKV_MSG_PREFIX_NEW, &new, sizeof(new), -1);
	raw_send(e.raw, SKV_MSG_CLOSE, &(struct skv_msg_session){.session = new.session}, sizeof(struct skv_msg_session), -1);
	expect_replies(e.raw, SKV_MSG_PREFIX_NEW, SKV_MSG_CLOSE, seqs);
	raw_close(e.raw);
}
END_TEST

static void hold_fenced(int ready)
{
	struct raw_engine e;

	raw_engine_open(&e, fix.socket, 32);
	raw_engine_seq(&e, "chat", MANY_TOKENS / 8);
	raw_hang_up(e.raw);
	(void)!write(ready, "", 1);
	pause();
}

/*
 * An attach waits until the sequence's holder is gone, and its client forks meanwhile: a client has one task at a time,
 * so both are done, one after the other, and each has its own reply.
 */
START_TEST(an_attach_waits_for_the_fork)
{
	struct skv_msg_seq_name attach = {0}, fork = {.n_tokens = SKV_ALL};
	struct raw_engine e;
	uint32_t seqs[2];
	int ready[2];
	pid_t pid;

	raw_engine_open(&e, fix.socket, 32);
	attach.session = fork.session = e.session.session;
	fork.seq = raw_engine_seq(&e, "", 4 * MANY_TOKENS);
	ck_assert_int_eq(pipe(ready), 0);
	pid = child_fork();
	if (pid == 0)
		hold_fenced(ready[1]);
	ck_assert_int_eq(read(ready[0], &(char){0}, 1), 1);
	skv_wire_string(attach.name, sizeof(attach.name), "chat");
	raw_send(e.raw, SKV_MSG_SEQ_ATTACH, &attach, sizeof(attach), -1);
	raw_send(e.raw, SKV_MSG_SEQ_FORK, &fork, sizeof(fork), -1);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	expect_replies(e.raw, SKV_MSG_SEQ_FORK, SKV_MSG_SEQ_ATTACH, seqs);
	ck_assert_uint_ne(seqs[0], seqs[1]);
	raw_close(e.raw);
}
END_TEST

static void leave_most(void *unused)
{
	struct skv_msg_seq m = {0};
	struct raw_engine e;

	(void)unused;
	raw_engine_open(&e, fix.socket, 8);
	m = (struct skv_msg_seq){.session = e.session.session, .seq = raw_engine_seq(&e, "most", 600000)};
	raw_ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	raw_close(e.raw);
}

/* A lease waits until a sequence of another user has made room, and its client forks meanwhile. */
START_TEST(a_lease_waits_for_the_fork)
{
	struct skv_msg_lease_get get = {.least = 40000, .most = 40000};
	struct skv_msg_seq_name fork = {.n_tokens = SKV_ALL};
	struct raw_engine e;
	uint32_t seqs[2];

	if (!can_change_user())
		return;
	fix_in_child(54321, leave_most, NULL);
	raw_engine_open(&e, fix.socket, 8);
	get.session = fork.session = e.session.session;
	fork.seq = raw_engine_seq(&e, "", 384000);
	ck_assert_int_eq(kill(fix.pid, SIGSTOP), 0); /* so that both requests are there when the sequence is dropped */
	raw_send(e.raw, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
	raw_send(e.raw, SKV_MSG_SEQ_FORK, &fork, sizeof(fork), -1);
	ck_assert_int_eq(kill(fix.pid, SIGCONT), 0);
	expect_replies(e.raw, SKV_MSG_SEQ_FORK, SKV_MSG_LEASE_GET, seqs);
	raw_close(e.raw);
}
END_TEST

#define LEFT_PAGES 2000u /* the pool has 12,288, so that an attach takes no more than a turn */
#define OWN_PAGES 10000u

/*
 * A sequence that is to be parked for a lease is attached before that has begun: the lease does not wait for it for
 * ever, but is refused.
 */
START_TEST(a_lease_does_not_wait_for_what_is_attached)
{
	struct skv_msg_lease_get get = {.least = LEFT_PAGES / 2, .most = LEFT_PAGES / 2};
	struct skv_msg_seq_name attach = {0};
	struct skv_msg_seq m;
	struct raw_engine e, holder;

	raw_engine_open(&holder, fix.socket, 1);
	attach.session = holder.session.session;
	skv_wire_string(attach.name, sizeof(attach.name), "left");
	m = (struct skv_msg_seq){.session = attach.session, .seq = raw_engine_seq(&holder, attach.name, LEFT_PAGES * SKV_PAGE_TOKENS)};
	raw_ask(holder.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	raw_close(holder.raw); /* and gives back what it has leased */
	raw_engine_open(&holder, fix.socket, 1);
	raw_engine_open(&e, fix.socket, 1);
	get.session = e.session.session;
	attach.session = holder.session.session;
	raw_engine_seq(&e, "", OWN_PAGES * SKV_PAGE_TOKENS);
	ck_assert_int_eq(kill(fix.pid, SIGSTOP), 0); /* so that it receives both at once */
	raw_send(e.raw, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
	raw_send(holder.raw, SKV_MSG_SEQ_ATTACH, &attach, sizeof(attach), -1);
	ck_assert_int_eq(kill(fix.pid, SIGCONT), 0);
	ck_assert_int_eq(raw_recv_answer(holder.raw, 10000), SKV_MSG_SEQ_ATTACH | SKV_REPLY);
	ck_assert_int_eq(raw_recv_answer(e.raw, 10000), SKV_MSG_ERROR);
	ck_assert_msg(strstr(raw_error_text(e.raw), "the pools are full"), "%s", raw_error_text(e.raw));
	raw_close(holder.raw);
	raw_close(e.raw);
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
	add_case(s, "tasks", 60, setup_large, teardown, a_close_waits_for_the_prefix, an_attach_waits_for_the_fork, NULL);
	add_case(s, "full memory", 60, setup_full, teardown, a_lease_waits_for_the_fork, NULL);
	add_case(s, "files", 60, setup_parked, teardown_parked, a_lease_does_not_wait_for_what_is_attached, NULL);
	return run_suite(s);
}
