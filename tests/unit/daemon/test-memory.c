/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon in memory cgroups of 128 and of 512 MB, with clients that make it use as much memory as they can: replies
 * that are not read, forks, sequences, tables of a client that dies. The kernel kills no process, the daemon refuses
 * what it lacks memory for, and new clients are served. Needs root and a memory cgroup.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/memory-group.h"
#include "tests/support/raw-engine.h"
#include "tests/support/suite.h"

#define HOSTILE_UID 54321u
#define USERS 16u
#define CONNECTIONS 60u /* of a user: fewer than it may have */
#define TOKENS (128u << 10)
#define MB ((uint64_t)1000 * 1000)

static const uint64_t limits[] = {128 * MB, 512 * MB};
#define N_LIMITS (int)(sizeof(limits) / sizeof(limits[0]))

static struct fix fix;

static bool begin(uint64_t limit)
{
	static const char *const options[] = {"--pool-bytes=16G", "--account-bytes=16G", "--segment-bytes=64M",
	                                      "--log-level=error", NULL};

	if (getuid() != 0) {
		printf("not root: not run\n");
		return false;
	}
	if (slowed()) {
		printf("a sanitizer or valgrind takes memory of its own: not run\n");
		return false;
	}
	if (!memory_group_begin(limit))
		return false;
	fix_start_process(&fix, options);
	return true;
}

/*
 * As raw_seq_new(); returns false if there is no memory yet: clients that do not read their replies are disconnected at
 * the next tick.
 */
static bool seq_new(struct raw *r, uint32_t session)
{
	struct skv_msg_seq_name m = {.session = session};
	int got;

	raw_send(r, SKV_MSG_SEQ_NEW, &m, sizeof(m), -1);
	got = raw_recv_answer(r, 5000);
	if (got == (SKV_MSG_SEQ_NEW | SKV_REPLY))
		return true;
	ck_assert_int_eq(got, SKV_MSG_ERROR);
	ck_assert_ptr_nonnull(strstr(raw_error_text(r), "the daemon's memory cgroup"));
	return false;
}

/* A new client is served. The machine does other work, too, so the client may have to retry. */
static void newcomer(void *unused)
{
	const double end = fix_now() + 40;
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1, .program = "newcomer"};
	struct raw *r = NULL;
	uint32_t session;
	int got = 0;

	(void)unused;
	for (; got != (SKV_MSG_HELLO | SKV_REPLY) && fix_now() < end; fix_sleep_ms(20)) {
		if (r)
			raw_close(r);
		r = raw_connect(fix.socket);
		ck_assert_ptr_nonnull(r);
		raw_send(r, SKV_MSG_HELLO, &hello, sizeof(hello), -1);
		got = raw_recv_answer(r, 5000);
	}
	ck_assert_int_eq(got, SKV_MSG_HELLO | SKV_REPLY);
	session = raw_open(r, "newcomer", "full", NULL);
	while (!seq_new(r, session)) {
		ck_assert_msg(fix_now() < end, "%s", raw_error_text(r));
		fix_sleep_ms(20);
	}
	raw_lease(r, session, 16);
	raw_close(r);
}

static void end(const char *what)
{
	printf("%s: %.1f of %.0f MB, %llu killed\n", what, (double)memory_group_used() / 1e6, (double)memory_group_limit() / 1e6,
	       (unsigned long long)memory_group_kills());
	ck_assert_uint_eq(memory_group_kills(), 0);
	fix_in_child(HOSTILE_UID + USERS, newcomer, NULL);
	fix_stop(&fix);
	memory_group_end();
}

/* All users run `body` at the same time, and keep what they have until all are done and a new client was served. */
static void attack(void (*body)(void))
{
	pid_t pids[USERS];
	int status;

	for (unsigned u = 0; u < USERS; u++) {
		pids[u] = child_fork();
		if (pids[u] == 0) {
			if (setgid(HOSTILE_UID + u) < 0 || setuid(HOSTILE_UID + u) < 0)
				_exit(2);
			body();
			raise(SIGSTOP);
			_exit(0);
		}
	}
	for (unsigned u = 0; u < USERS; u++) {
		ck_assert_int_eq(waitpid(pids[u], &status, WUNTRACED), pids[u]);
		ck_assert_msg(WIFSTOPPED(status), "%s", child_problem());
	}
	raw_close(raw_operator(fix.socket)); /* however little memory is left */
	fix_in_child(HOSTILE_UID + USERS, newcomer, NULL);
	for (unsigned u = 0; u < USERS; u++)
		kill(pids[u], SIGCONT);
	for (unsigned u = 0; u < USERS; u++)
		child_wait(pids[u]);
}

/* ---- replies that are not read --------------------------------------------------------------- */

static void ask_and_not_read(void)
{
	struct {
		struct skv_msg_header h;
		struct skv_msg_hello m;
	} hello = {{sizeof(hello), SKV_MSG_HELLO, 0, 1, 0}, {.version_min = 1, .version_max = 1, .program = "mute"}};
	struct {
		struct skv_msg_header h;
		struct skv_msg_query m;
	} query = {{sizeof(query), SKV_MSG_QUERY, 0, 2, 0}, {.what = SKV_QUERY_POLICIES}};
	struct raw *r[CONNECTIONS];

	for (unsigned i = 0; i < CONNECTIONS; i++) {
		r[i] = raw_connect(fix.socket);
		(void)send(r[i]->fd, &hello, sizeof(hello), MSG_NOSIGNAL);
	}
	for (double until = fix_now() + 3; fix_now() < until; fix_sleep_ms(10))
		for (unsigned i = 0; i < CONNECTIONS; i++)
			(void)send(r[i]->fd, &query, sizeof(query), MSG_NOSIGNAL | MSG_DONTWAIT);
}

START_TEST(answers_that_nobody_reads)
{
	if (!begin(limits[_i]))
		return;
	attack(ask_and_not_read);
	end("answers that nobody reads");
}
END_TEST

/* ---- sequences and forks --------------------------------------------------------------------- */

/* Sends a request until the daemon refuses it, with a reason; returns how often it succeeded. */
static unsigned ask_until_refused(struct raw *r, uint16_t type, const struct skv_msg_seq_name *m)
{
	unsigned n = 0;
	int got;

	do {
		raw_send(r, type, m, sizeof(*m), -1);
		got = raw_recv_answer(r, 60000);
		n++;
	} while (got == (int)(type | SKV_REPLY));
	ck_assert_int_eq(got, SKV_MSG_ERROR);
	ck_assert_msg(strstr(raw_error_text(r), "cgroup") || strstr(raw_error_text(r), "is reserved for others"), "%s",
	              raw_error_text(r));
	return n - 1;
}

static void fork_on_and_on(void)
{
	struct skv_msg_seq_name m = {0};
	struct raw_engine e;

	raw_engine_open(&e, fix.socket, 32);
	m.session = e.session.session;
	m.seq = raw_engine_seq(&e, "", TOKENS / 16);
	m.n_tokens = SKV_ALL;
	(void)ask_until_refused(e.raw, SKV_MSG_SEQ_FORK, &m);
}

static void make_on_and_on(void)
{
	struct skv_msg_seq_name m = {0};
	struct raw_engine e;

	raw_engine_open(&e, fix.socket, 32);
	m.session = e.session.session;
	(void)ask_until_refused(e.raw, SKV_MSG_SEQ_NEW, &m);
}

START_TEST(forks)
{
	if (!begin(limits[_i]))
		return;
	attack(fork_on_and_on);
	end("forks");
}
END_TEST

START_TEST(sequences)
{
	if (!begin(limits[_i]))
		return;
	attack(make_on_and_on);
	end("sequences");
}
END_TEST

/* ---- page cache ------------------------------------------------------------------------------ */

/* A process in the group reads a file larger than the group: its page cache fills the group, but can be reclaimed. */
START_TEST(page_cache_is_no_use)
{
	static char block[1 << 20];
	struct statfs fs;
	char path[128];
	int status, fd;
	pid_t pid;

	if (!begin(limits[_i]))
		return;
	ck_assert_int_eq(statfs(fix.dir, &fs), 0);
	if (fs.f_type == TMPFS_MAGIC) {
		printf("%s is on a tmpfs, whose pages cannot be reclaimed: not run\n", fix.dir);
		end("nothing");
		return;
	}
	snprintf(path, sizeof(path), "%s/file", fix.dir);
	pid = child_fork();
	if (pid == 0) {
		memory_group_enter();
		fd = open(path, O_RDWR | O_CREAT, 0600);
		for (uint64_t n = 0; n < limits[_i] * 5 / 4; n += sizeof(block))
			if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block) || (n % (16 << 20) == 0 && fdatasync(fd) < 0))
				_exit(1);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_uint_ge(memory_group_used(), limits[_i] * 9 / 10);
	end("page cache");
}
END_TEST

/* ---- the end of a client --------------------------------------------------------------------- */

START_TEST(death)
{
	struct raw *other;
	int status;
	pid_t pid;

	if (!begin(limits[_i]))
		return;
	pid = child_fork();
	if (pid == 0) {
		struct raw_engine e;

		raw_engine_open(&e, fix.socket, 32);
		for (int i = 0; i < 20; i++)
			raw_engine_seq(&e, i % 2 ? (char[]){'s', (char)('a' + i), 0} : "", TOKENS);
		raise(SIGSTOP);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	ck_assert_msg(WIFSTOPPED(status), "%s", child_problem());
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	other = raw_hello(fix.socket);
	for (double until = fix_now() + 30; raw_leased(other) > 0;) {
		ck_assert_double_lt(fix_now(), until);
		fix_sleep_ms(20);
	}
	raw_close(other);
	end("death with 20 sequences of 131,072 tokens in 32 layers");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-memory");
	TCase *t = add_case(s, "memory", 120, NULL, NULL, NULL);

	add_share(t, answers_that_nobody_reads, N_LIMITS, 2);
	add_share(t, forks, N_LIMITS, 2);
	add_share(t, sequences, N_LIMITS, 2);
	add_share(t, page_cache_is_no_use, N_LIMITS, 2);
	add_share(t, death, N_LIMITS, 2);
	return run_suite(s);
}
