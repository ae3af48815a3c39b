/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a new daemon does with a client of the previous one, request by request: the client keeps what it names, the
 * rest is released, and no other client can take its place.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/manager.h"

static const char *options[] = {"--pool-bytes=16M", "--segment-bytes=64K", "--account-bytes=16M", "--cuda=off", NULL};

static struct raw *before; /* the connection to the previous daemon, which has ended */
static uint32_t session, other;

static void restart(void)
{
	(void)manager_end(SIGKILL);
	manager_start(options);
}

static struct skv_msg_reconnect hello_of(uint32_t client)
{
	return (struct skv_msg_reconnect){.hello = {.version_min = 1, .version_max = 1, .program = "raw"}, .client = client};
}

/* The client reconnects. */
static struct raw *reconnected(void)
{
	const struct skv_msg_reconnect m = hello_of(before->client);
	struct raw *r = raw_connect(manager_socket);
	const struct skv_msg_hello_ok *ok = raw_ask(r, SKV_MSG_RECONNECT, &m, sizeof(m), -1);

	ck_assert_uint_eq(ok->client, before->client);
	r->client = before->client;
	return r;
}

static int refused_reconnect(uint32_t client)
{
	const struct skv_msg_reconnect m = hello_of(client);
	struct raw *r = raw_connect(manager_socket);
	const int e = raw_refused(r, SKV_MSG_RECONNECT, &m, sizeof(m), -1);

	raw_expect_end(r);
	raw_hang_up(r);
	return e;
}

static void name_session(struct raw *r, uint32_t id)
{
	const struct skv_msg_session m = {.session = id};

	(void)raw_ask(r, SKV_MSG_RECONNECT_SESSION, &m, sizeof(m), -1);
	r->sessions[r->n_sessions++] = id;
}

static void name_seq(struct raw *r, uint32_t seq)
{
	const struct skv_msg_seq m = {.session = session, .seq = seq};

	(void)raw_ask(r, SKV_MSG_RECONNECT_SEQ, &m, sizeof(m), -1);
}

struct pages {
	struct skv_msg_runs m;
	struct skv_wire_run run;
};

static struct pages pages(uint32_t seq, uint32_t first, uint32_t count)
{
	return (struct pages){{.session = session, .seq = seq, .n_runs = 1}, {first, count}};
}

static void done(struct raw *r)
{
	const struct skv_msg_client m = {.client = r->client};

	(void)raw_ask(r, SKV_MSG_RECONNECT_DONE, &m, sizeof(m), -1);
}

static uint64_t rows(struct raw *r, enum skv_query what, const char *list)
{
	json_t *answer = raw_query(r, what);
	const size_t n = json_array_size(json_object_get(answer, list));

	json_decref(answer);
	return n;
}

/* Returns the client that has the sequence; 0: detached; -1: there is no such sequence. */
static int64_t holder(struct raw *r, const char *name)
{
	json_t *answer = raw_query(r, SKV_QUERY_SEQS), *row;
	int64_t found = -1;
	size_t i;

	json_array_foreach(json_object_get(answer, "sequences"), i, row)
		if (!strcmp(json_string_value(json_object_get(row, "name")), name))
			found = json_integer_value(json_object_get(row, "client"));
	json_decref(answer);
	return found;
}

static void setup(void)
{
	manager_open();
	manager_start(options);
	before = raw_hello(manager_socket);
	session = raw_open(before, "m", "full", NULL);
	other = raw_open(before, "m", "full", NULL);
}

static void teardown(void)
{
	char *log;

	raw_hang_up(before);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	log = manager_log();
	ck_assert_ptr_null(strstr(log, "state is inconsistent"));
	free(log);
	manager_close();
}

static void attach(struct raw *r, const char *name)
{
	struct skv_msg_seq_name m = {.session = session};

	strcpy(m.name, name);
	(void)raw_ask(r, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), -1);
}

START_TEST(the_rest_is_let_go)
{
	uint32_t kept, made, nameless;
	struct skv_msg_seq gone = {.seq = 77};
	struct pages p;
	struct raw *r;

	kept = raw_seq_new(before, session, "kept");
	(void)raw_seq_new(before, session, "attached");
	made = raw_seq_new(before, session, "detached");
	(void)raw_ask(before, SKV_MSG_SEQ_DETACH, &(struct skv_msg_seq){.session = session, .seq = made}, sizeof(gone), -1);
	attach(before, "detached"); /* it is no longer new */
	nameless = raw_seq_new(before, session, "");
	raw_lease(before, session, 64);
	restart();

	r = reconnected();
	ck_assert_uint_eq(rows(r, SKV_QUERY_SESSIONS, "sessions"), 2);
	name_session(r, session);
	name_seq(r, kept);
	name_seq(r, nameless);
	p = pages(0, 3, 10);
	(void)raw_ask(r, SKV_MSG_RECONNECT_PAGES, &p, sizeof(p), -1);
	/* requests that may have been carried out are repeated */
	gone.session = session;
	(void)raw_ask(r, SKV_MSG_SEQ_DROP, &gone, sizeof(gone), -1);
	(void)raw_ask(r, SKV_MSG_SEQ_DETACH, &gone, sizeof(gone), -1);
	p = pages(kept, 3, 10);
	(void)raw_ask(r, SKV_MSG_SEQ_RELEASE, &p, sizeof(p), -1);
	p = pages(77, 3, 10);
	(void)raw_ask(r, SKV_MSG_SEQ_RELEASE, &p, sizeof(p), -1);
	done(r);

	ck_assert_uint_eq(rows(r, SKV_QUERY_SESSIONS, "sessions"), 1);
	ck_assert_uint_eq(rows(r, SKV_QUERY_SEQS, "sequences"), 3);
	ck_assert_int_eq(holder(r, "kept"), r->client);
	ck_assert_int_eq(holder(r, "detached"), 0);
	ck_assert_int_eq(holder(r, ""), r->client);
	ck_assert_uint_eq(raw_pool_figure(r, "lease"), 10);
	/* from now on as usual */
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_DROP, &gone, sizeof(gone), -1), ENOENT);
	p = pages(kept, 3, 10);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_RELEASE, &p, sizeof(p), -1), EINVAL);
	p = pages(0, 3, 10);
	(void)raw_ask(r, SKV_MSG_LEASE_PUT, &p, sizeof(p), -1);
	raw_close(r);
}
END_TEST

START_TEST(disagreements)
{
	const struct skv_msg_session no_session = {.session = 7};
	struct skv_msg_client all = {0};
	struct skv_msg_seq no_seq = {.seq = 7};
	uint32_t seq = raw_seq_new(before, other, "x");
	struct pages p = pages(0, 0, 65);
	struct raw *r;

	raw_lease(before, session, 64);
	ck_assert_int_eq(raw_refused(before, SKV_MSG_RECONNECT_PAGES, &p, sizeof(p), -1), EINVAL);
	restart();
	r = reconnected();
	all.client = r->client;
	no_seq.session = session;
	ck_assert_int_eq(raw_refused(r, SKV_MSG_RECONNECT_SESSION, &no_session, sizeof(no_session), -1), ENOENT);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_RECONNECT_PAGES, &p, sizeof(p), -1), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "was not named"));
	name_session(r, session);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_RECONNECT_PAGES, &p, sizeof(p), -1), EINVAL);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "not on lease"));
	ck_assert_int_eq(raw_refused(r, SKV_MSG_RECONNECT_SEQ, &no_seq, sizeof(no_seq), -1), ENOENT);
	no_seq.seq = seq; /* of the other session */
	ck_assert_int_eq(raw_refused(r, SKV_MSG_RECONNECT_SEQ, &no_seq, sizeof(no_seq), -1), ENOENT);
	done(r);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_RECONNECT_DONE, &all, sizeof(all), -1), EINVAL);
	ck_assert_int_eq(holder(r, "x"), -1);
	/* the client ends with a page in its tables that is not in the pool: the daemon continues */
	raw_close(r);
}
END_TEST

/* The client belongs to another process, or never existed. */
START_TEST(not_this_one)
{
	struct raw *r;
	pid_t pid;

	restart();
	ck_assert_int_eq(refused_reconnect(before->client + 1), ENOENT);
	pid = child_fork();
	if (pid == 0) {
		ck_assert_int_eq(refused_reconnect(before->client), ENOENT);
		_exit(0);
	}
	child_wait(pid);
	r = reconnected();
	/* the client ends during the reconnection: what it has stays reserved until its process reports the end */
	raw_hang_up(r);
	r = raw_hello(manager_socket);
	ck_assert_uint_eq(rows(r, SKV_QUERY_SESSIONS, "sessions"), 2);
	raw_client_end(manager_socket, before->client);
	while (rows(r, SKV_QUERY_SESSIONS, "sessions"))
		usleep(1000);
	raw_close(r);
}
END_TEST

/*
 * A process that was not answered in time retries, and the daemon sees both connections: it continues with the later
 * one.
 */
START_TEST(asked_twice)
{
	const struct skv_msg_reconnect m = hello_of(before->client);
	struct pages p = pages(0, 0, 64);
	struct raw *first, *second, *last;

	raw_lease(before, session, 64);
	restart();
	first = raw_connect(manager_socket);
	second = reconnected();
	ck_assert_int_eq(raw_refused(first, SKV_MSG_RECONNECT, &m, sizeof(m), -1), ENOENT);
	raw_expect_end(first);
	name_session(second, session);
	last = reconnected();
	raw_expect_end(second);
	name_session(last, session);
	(void)raw_ask(last, SKV_MSG_RECONNECT_PAGES, &p, sizeof(p), -1);
	done(last);
	ck_assert_uint_eq(raw_pool_figure(last, "lease"), 64);
	raw_hang_up(first);
	raw_hang_up(second);
	raw_close(last);
}
END_TEST

/* Policy files have new numbers, and a session can get the file of its policy. */
START_TEST(policies)
{
	struct skv_msg_session m = {.session = session};
	const uint32_t was = ((const struct skv_msg_policy *)raw_ask(before, SKV_MSG_POLICY_GET, &m, sizeof(m), -1))->plugin;
	const struct skv_msg_policy *is;
	struct raw *r;

	restart();
	r = reconnected();
	name_session(r, session);
	done(r);
	is = raw_ask(r, SKV_MSG_POLICY_GET, &m, sizeof(m), -1);
	ck_assert_str_eq(is->spec, "full");
	ck_assert_uint_gt(is->plugin, was);
	raw_close(r);
}
END_TEST

/* The next daemon dies before the client has named everything: the client starts again with the one after it. */
START_TEST(twice)
{
	struct pages p = pages(0, 0, 64);
	struct raw *r;

	raw_lease(before, session, 64);
	restart();
	r = reconnected();
	name_session(r, session);
	raw_hang_up(r);
	restart();
	r = reconnected();
	name_session(r, session);
	(void)raw_ask(r, SKV_MSG_RECONNECT_PAGES, &p, sizeof(p), -1);
	done(r);
	ck_assert_uint_eq(raw_pool_figure(r, "lease"), 64);
	raw_close(r);
}
END_TEST

/* The process is watched with a new descriptor: the client stays. */
START_TEST(without_its_pidfd)
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";
	char name[] = "c0000";
	struct raw *r;

	for (uint32_t i = 4, id = before->client; i > 0; i--, id /= 64)
		name[i] = digits[id % 64];
	(void)manager_end(SIGKILL);
	manager_replace(name, _i ? skv_memfd_new("x", 4096) : -1);
	manager_start(options);
	usleep(20000);
	r = reconnected();
	ck_assert_uint_eq(rows(r, SKV_QUERY_SESSIONS, "sessions"), 2);
	done(r);
	raw_close(r);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-reconnect-raw");
	TCase *c;

	rnd_seed("test-reconnect-raw");
	c = add_case(s, "raw", 60, setup, teardown, the_rest_is_let_go, disagreements, not_this_one, asked_twice, policies, twice, NULL);
	tcase_add_loop_test(c, without_its_pidfd, 0, 2);
	return run_suite(s);
}
