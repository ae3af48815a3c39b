/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix store's client with failing servers: stopped, killed, absent, or sending arbitrary bytes. Each call
 * returns by its deadline, with an error and a text; memory is bounded; and a server that works again is used again.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

#define TIMEOUT 300 /* ms */
#define N 20u
/* How much longer than its deadline a call may take on a machine that runs other programs. */
#define SLACK (slowed() ? 5000 : 600)

static struct store_server server;
static struct skv_store *store;
static int status[N];
static struct skv_store_bytes keys[N], values[N];

static void open_store(const char *socket)
{
	static char names[N][8], value[1 << 20];

	for (uint32_t i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "key%u", i);
		keys[i] = (struct skv_store_bytes){names[i], strlen(names[i])};
		values[i] = (struct skv_store_bytes){value, i % 2 ? 10 : sizeof(value)};
	}
	store = store_open("unix://%s?timeout=%d&connect-timeout=%d", socket, TIMEOUT, TIMEOUT);
}

static void begin(void)
{
	store_begin(&server, store_port(), NULL);
	open_store(server.socket);
}

static void end(void)
{
	store = skv_store_free(store);
	store_end(&server);
}

static void ignore(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	(void)ctx, (void)i;
	ck_assert(!value || bytes <= SKV_STORE_MAX_VALUE);
}

/* Runs one of the five calls for all keys. */
static int call(int op)
{
	switch (op) {
	case 0: return skv_store_get(store, keys, N, 0, ignore, NULL, status);
	case 1: return skv_store_set(store, keys, values, N, 60000, false, 0, status);
	case 2: return skv_store_exists(store, keys, N, 0, status);
	case 3: return skv_store_del(store, keys, N, 0, status);
	default: return skv_store_touch(store, keys, N, 0, status);
	}
}

/* The call returns within its deadline, and its result agrees with statuses and text. */
static int timed_call(int op)
{
	const double from = store_now_ms();
	const int r = call(op);
	const double took = store_now_ms() - from;
	int worst = 0;

	ck_assert_msg(took < TIMEOUT + SLACK, "%.0f ms", took);
	ck_assert_int_le(r, 0);
	ck_assert_int_eq(!*skv_store_error(store), r == 0);
	for (const char *p = skv_store_error(store); *p; p++)
		ck_assert(*p >= 0x20 && *p < 0x7f);
	for (uint32_t i = 0; i < N; i++) {
		ck_assert_int_le(status[i], 1);
		worst = status[i] < worst ? status[i] : worst;
	}
	ck_assert_int_eq(worst < 0, r < 0);
	return r;
}

/* Waits until the store works again; returns the milliseconds. Meanwhile calls fail at once. */
static double wait_until_it_works(double at_most)
{
	const double from = store_now_ms();
	int r;

	while ((r = timed_call(1)) < 0) {
		ck_assert_msg(store_now_ms() - from < at_most, "%d: %s", r, skv_store_error(store));
		usleep(5000);
	}
	return store_now_ms() - from;
}

/* ---- servers that stop ------------------------------------------------------------------------------ */

START_TEST(stopped)
{
	double from;

	ck_assert_int_eq(timed_call(1), 0);
	for (int op = 0; op < 5; op++) {
		kill(server.pid, SIGSTOP);
		ck_assert_int_eq(timed_call(op), -ETIMEDOUT);
		from = store_now_ms();
		ck_assert_int_eq(timed_call(op), -EHOSTDOWN);
		ck_assert(slowed() || store_now_ms() - from < 50);
		kill(server.pid, SIGCONT);
		(void)wait_until_it_works(500 + SLACK);
		ck_assert_int_eq(timed_call(op), 0);
	}
}
END_TEST

/*
 * A stopped server still accepts connections, so each attempt takes until the deadline; the interval between attempts
 * grows.
 */
START_TEST(backoff)
{
	const double from = store_now_ms();
	unsigned attempts = 0, refusals = 0;

	ck_assert_int_eq(timed_call(1), 0);
	kill(server.pid, SIGSTOP);
	while (store_now_ms() - from < 4000) {
		const int r = timed_call(2);

		attempts += r == -ETIMEDOUT;
		refusals += r == -EHOSTDOWN;
		ck_assert(r == -ETIMEDOUT || r == -EHOSTDOWN);
		usleep(2000);
	}
	ck_assert_uint_ge(attempts, 3); /* about at 0, 0.4, 0.9, 1.6, 2.7 s */
	ck_assert_uint_le(attempts, 6);
	ck_assert_uint_ge(refusals, 50);
	kill(server.pid, SIGCONT);
	(void)wait_until_it_works(4000);
	ck_assert_int_eq(timed_call(0), 0);
}
END_TEST

START_TEST(killed_and_restarted)
{
	for (int round = 0; round < 4; round++) {
		const int op = round % 2;
		pid_t killer;
		int r = 0;

		ck_assert_int_eq(timed_call(1), 0);
		killer = child_fork();
		if (killer == 0) { /* perhaps in the middle of a call */
			usleep(1000 * (unsigned)(10 + 10 * round));
			kill(server.pid, SIGKILL);
			_exit(0);
		}
		while (r == 0)
			r = timed_call(op);
		child_wait(killer);
		ck_assert_msg(r == -ECONNRESET || r == -EPIPE || r == -ECONNREFUSED, "%d", r);
		ck_assert_int_eq(waitpid(server.pid, NULL, 0), server.pid);
		ck_assert_int_eq(timed_call(op), -EHOSTDOWN);
		usleep(150000);
		ck_assert_int_eq(timed_call(op), -ECONNREFUSED);
		ck_assert_int_eq(timed_call(op), -EHOSTDOWN);
		ck_assert_ptr_nonnull(strstr(skv_store_error(store), "cannot connect: Connection refused"));
		store_restart(&server);
		(void)wait_until_it_works(500 + SLACK);
	}
}
END_TEST

/* The server has closed the connection but works: calls succeed. */
START_TEST(closed_while_idle)
{
	ck_assert_int_eq(timed_call(1), 0);
	free(store_cli(&server, "CLIENT", "KILL", "TYPE", "normal", NULL));
	ck_assert_int_eq(timed_call(1), 0);
	store_kill(&server);
	store_restart(&server);
	ck_assert_int_eq(timed_call(1), 0);
}
END_TEST

START_TEST(nobody_there)
{
	skv_store_free(store);
	store = store_open("redis://127.0.0.1:%u", store_port());
	ck_assert_int_eq(timed_call(0), -ECONNREFUSED);
	ck_assert_int_eq(timed_call(0), -EHOSTDOWN);
	skv_store_free(store);
	store = store_open("redis://no-such-host.invalid?timeout=%d&connect-timeout=%d", TIMEOUT, TIMEOUT);
	ck_assert_int_lt(timed_call(0), 0); /* at once, or after the timeout of the name servers */
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "no-such-host.invalid"));
}
END_TEST

/* ---- servers that send arbitrary bytes ---------------------------------------------------------------- */

#define REPEAT "\xff" /* what follows is sent again and again */
#define SLOWLY "\xfe" /* what follows is sent again and again, one byte per 100 ms */

static const char *const answers[] = {
	"",
	"x",
	"\r\n",
	"HTTP/1.1 400 Bad Request\r\n\r\n",
	"+OK",
	"+OK\r",
	"$",
	"$5\r\nab",
	"$5\r\nabcdef",
	"$9999999999\r\n",
	"$9223372036854775807\r\n",
	"$18446744073709551616\r\n",
	"$8388609\r\n",
	"$-2\r\n",
	"$-9223372036854775808\r\n",
	"$0005\r\nabcde\r\n",
	"$+5\r\nabcde\r\n",
	"$\r\n",
	"$8388608\r\n" REPEAT "x",
	"$9999999999\r\n" REPEAT "x",
	"+" REPEAT "x",
	"-" REPEAT "x",
	":" REPEAT "1",
	"$" REPEAT "1",
	REPEAT "x",
	REPEAT "\r",
	REPEAT "\r\n",
	"+" REPEAT "\r",
	REPEAT "+OK\r\n",
	REPEAT ":1\r\n",
	REPEAT "$-1\r\n",
	REPEAT "-ERR x\r\n",
	REPEAT "-LOADING x\r\n",
	"*1\r\n$1\r\na\r\n",
	"*1000000000\r\n",
	"*2147483647\r\n",
	"*9999999999999\r\n",
	"*-1\r\n",
	"*-5\r\n",
	"*0\r\n",
	REPEAT "*1\r\n",
	REPEAT "*0\r\n",
	"*2147483647\r\n" REPEAT "$1\r\na\r\n",
	":9223372036854775808\r\n",
	":-1\r\n",
	":2\r\n",
	":x\r\n",
	"%1\r\n+a\r\n+b\r\n",
	"~1\r\n:1\r\n",
	">1\r\n:1\r\n",
	"#t\r\n",
	",1.5\r\n",
	"_\r\n",
	"(123\r\n",
	"=5\r\ntxt:a\r\n",
	"!3\r\nabc\r\n",
	"|1\r\n+a\r\n+b\r\n:1\r\n",
	"-MOVED 1 127.0.0.1:1\r\n",
	"-MOVED\r\n",
	"-MOVED 99999 x:1\r\n",
	"-ASK 1 :\r\n",
	"-MOVED 1 \r\n",
	"-ERR \x01\x02\x1b[31m\r\n",
	"-\r\n",
	"+\r\n",
	SLOWLY "+",
	SLOWLY "$1000\r\nabc",
	SLOWLY "$",
	SLOWLY "*1\r\n",
	SLOWLY "x",
	SLOWLY "-ERR x\r\n",
};
static const char *answer; /* of the current case */

static bool put(int fd, const void *bytes, size_t n)
{
	return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Waits for a command, sends the answer, and reads nothing more: further commands are not read. */
static void talk(int fd)
{
	static char many[1 << 16];
	char byte[1024];
	const char *again = answer + strcspn(answer, REPEAT SLOWLY);
	const bool slowly = *again == *SLOWLY;

	if (recv(fd, byte, sizeof(byte), 0) <= 0 || !put(fd, answer, (size_t)(again - answer)))
		return;
	if (!*again) {
		shutdown(fd, SHUT_WR);
		usleep(50000);
		return;
	}
	again++;
	for (size_t n = strlen(again), i = 0; !slowly && i + n <= sizeof(many); i += n)
		memcpy(many + i, again, n);
	for (size_t n = strlen(again), i = 0; slowly ? put(fd, again + i % n, 1) : put(fd, many, sizeof(many) / n * n);
	     i++)
		if (slowly)
			usleep(100000);
}

static void expect_refused(const char *socket)
{
	const size_t before = store_peak_bytes();

	for (int op = 0; op < 5; op++) {
		int r;

		open_store(socket);
		r = timed_call(op);
		/* surplus bytes are noticed by the next call, or not at all */
		ck_assert_msg((r < 0 || *answer == *REPEAT) && r != -EHOSTDOWN, "%d after \"%.40s\"", r, answer);
		(void)timed_call(op);
		store = skv_store_free(store);
	}
	ck_assert_msg(SANITIZED || store_peak_bytes() - before < (size_t)64 << 20, "%zu MiB more after \"%.40s\"",
	              (store_peak_bytes() - before) >> 20, answer);
}

START_TEST(any_answer)
{
	struct store_fake fake;

	answer = answers[_i];
	if (strstr(answer, "LOADING"))
		answer = "-ERR x\r\n"; /* that is a server that is not ready: see below */
	store_fake_begin(&fake, talk);
	expect_refused(fake.socket);
	store_fake_end(&fake);
}
END_TEST

START_TEST(not_ready)
{
	static const char *const says[] = {REPEAT "-LOADING Redis is loading the dataset in memory\r\n",
	                                   REPEAT "-CLUSTERDOWN x\r\n", REPEAT "-MASTERDOWN x\r\n",
	                                   REPEAT "-BUSY x\r\n"};
	struct store_fake fake;

	for (int i = 0; i < 4; i++) {
		answer = says[i];
		store_fake_begin(&fake, talk);
		open_store(fake.socket);
		for (int op = 0; op < 5; op++) {
			ck_assert_int_eq(timed_call(op), -EHOSTDOWN);
			ck_assert_ptr_nonnull(strstr(skv_store_error(store), "the server says"));
		}
		store = skv_store_free(store);
		store_fake_end(&fake);
	}
}
END_TEST

/* Words of the protocol in random order, in pieces of random size. */
static void talk_at_random(int fd)
{
	static const char *const words[] = {"+OK\r\n",
	                                    "$-1\r\n",
	                                    ":1\r\n",
	                                    ":0\r\n",
	                                    "*",
	                                    "$",
	                                    "-",
	                                    "+",
	                                    ":",
	                                    "\r\n",
	                                    "1",
	                                    "3",
	                                    "abc",
	                                    "*2\r\n",
	                                    "-ERR x\r\n",
	                                    "$3\r\nabc\r\n",
	                                    "-OOM x\r\n",
	                                    "\0",
	                                    "8388608",
	                                    "_\r\n",
	                                    "-ASK 1 a:1\r\n"};
	char byte[4096], piece[512];

	rnd_begin((uint64_t)getpid());
	while (recv(fd, byte, sizeof(byte), MSG_DONTWAIT) != 0) {
		size_t n = 0;

		for (uint32_t i = rnd_below(30); i > 0; i--) {
			const char *word = words[rnd_below(rnd_below(4) ? 4 : sizeof(words) / sizeof(words[0]))];

			memcpy(piece + n, word, strlen(word));
			n += strlen(word);
		}
		if (!put(fd, piece, n))
			return;
		usleep(rnd_below(2000));
	}
}

START_TEST(any_words)
{
	struct store_fake fake;

	store_fake_begin(&fake, talk_at_random);
	for (int i = 0; i < (slowed() ? 20 : 200); i++) {
		open_store(fake.socket);
		for (int k = 0; k < 3; k++)
			(void)timed_call((int)rnd_below(5));
		store = skv_store_free(store);
	}
	store_fake_end(&fake);
}
END_TEST

/* The server never reads, so that requests fill the socket; or it never accepts, so that its queue is full. */
static void say_nothing(int fd)
{
	(void)fd;
	pause();
}

START_TEST(silent)
{
	struct store_fake fake;

	store_fake_begin(&fake, say_nothing);
	for (int op = 0; op < 5; op++) {
		open_store(fake.socket);
		ck_assert_int_eq(timed_call(op), -ETIMEDOUT);
		store = skv_store_free(store);
	}
	kill(fake.pid, SIGSTOP);
	for (int i = 0; i < 200; i++) { /* up to its backlog of 100 they are connected */
		struct skv_store *s = store_open("unix://:password@%s?timeout=10&connect-timeout=10", fake.socket);
		const int r = skv_store_exists(s, keys, 1, 0, status);

		ck_assert_msg(r == -ETIMEDOUT || r == -EAGAIN, "%d", r);
		skv_store_free(s);
	}
	kill(fake.pid, SIGCONT);
	store_fake_end(&fake);
}
END_TEST

int main(void)
{
	Suite *s;
	TCase *t;
	const int skip = store_skip((const char *const[]){"redis-server", "redis-cli", NULL});

	if (skip)
		return skip;
	s = begin_suite("test-store-failure");
	add_case(s, "stopped", 60, begin, end, stopped, backoff, killed_and_restarted, closed_while_idle, nobody_there,
	         NULL);
	t = add_case(s, "hostile", 120, NULL, NULL, not_ready, any_words, silent, NULL);
	tcase_add_loop_test(t, any_answer, 0, (int)(sizeof(answers) / sizeof(answers[0])));
	return run_suite(s);
}
