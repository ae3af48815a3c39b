/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: every operation ends exactly once, however small the ring, and whatever is cancelled when. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "daemon/loop/loop.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static struct skv_loop *loop;

static void setup(void)
{
	ck_assert_int_eq(skv_loop_new(4, &loop), 0);
}

static void teardown(void)
{
	loop = skv_loop_free(loop);
}

struct count {
	struct skv_op op;
	unsigned ended;
	int res;
	char byte;
};

static void ended(struct skv_op *op, int res)
{
	struct count *c = SKV_OP_OWNER(op, struct count, op);

	ck_assert(!skv_op_running(op));
	c->ended++;
	c->res = res;
}

START_TEST(more_operations_than_the_ring_has_entries)
{
	enum { N = 1000 };
	struct count *c = calloc(N, sizeof(*c));
	int fd = eventfd(0, EFD_CLOEXEC);

	for (int i = 0; i < N; i++) {
		if (i % 2)
			skv_op_timer(loop, &c[i].op, 1000000, ended);
		else
			skv_op_poll(loop, &c[i].op, fd, POLLIN, ended);
		if (i % 2 == 0)
			skv_op_cancel(loop, &c[i].op);
	}
	ck_assert_int_eq(skv_loop_run(loop), 0); /* returns when no operation runs */
	for (int i = 0; i < N; i++) {
		ck_assert_uint_eq(c[i].ended, 1);
		ck_assert_int_eq(c[i].res, i % 2 ? 0 : -ECANCELED);
	}
	close(fd);
	free(c);
}
END_TEST

START_TEST(cancelling_twice_or_too_late_is_nothing)
{
	struct count c = {0};

	skv_op_cancel(loop, &c.op); /* never started */
	skv_op_timer(loop, &c.op, 0, ended);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_int_eq(c.res, 0);
	skv_op_cancel(loop, &c.op); /* already ended */
	skv_op_timer(loop, &c.op, 60000000000u, ended);
	skv_op_cancel(loop, &c.op);
	skv_op_cancel(loop, &c.op);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_uint_eq(c.ended, 2);
	ck_assert_int_eq(c.res, -ECANCELED);
}
END_TEST

struct restarting {
	struct skv_op op;
	unsigned left;
};

static void restart(struct skv_op *op, int res)
{
	struct restarting *r = SKV_OP_OWNER(op, struct restarting, op);

	ck_assert_int_eq(res, -ECANCELED);
	if (r->left-- > 1)
		skv_op_timer(loop, op, 60000000000u, restart);
}

START_TEST(draining_ends_what_is_started_meanwhile)
{
	struct restarting r = {.left = 10};

	skv_op_timer(loop, &r.op, 60000000000u, restart);
	ck_assert_int_eq(skv_loop_drain(loop), 0);
	ck_assert_uint_eq(r.left, 0);
}
END_TEST

START_TEST(results_are_those_of_the_system_call)
{
	struct count in = {0}, out = {0}, bad = {0}, polled = {0};
	struct iovec to = {&in.byte, 1}, from = {(void *)"x", 1};
	struct msghdr rx = {.msg_iov = &to, .msg_iovlen = 1}, tx = {.msg_iov = &from, .msg_iovlen = 1};
	char data[8];
	int s[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	skv_op_recvmsg(loop, &in.op, s[0], &rx, 0, ended);
	skv_op_sendmsg(loop, &out.op, s[1], &tx, ended);
	skv_op_read(loop, &bad.op, -1, data, sizeof(data), ended);
	skv_op_poll(loop, &polled.op, s[1], POLLOUT, ended);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_int_eq(in.res, 1);
	ck_assert_int_eq(in.byte, 'x');
	ck_assert_int_eq(out.res, 1);
	ck_assert_int_eq(bad.res, -EBADF);
	ck_assert_int_eq(polled.res, POLLOUT);

	/* a send without a receiver is EPIPE and no signal; a hang-up is 0 */
	close(s[0]);
	skv_op_sendmsg(loop, &out.op, s[1], &tx, ended);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_int_eq(out.res, -EPIPE);
	close(s[1]);
}
END_TEST

/* ---- many at the same time, cancelled at random ---- */

enum { PAIRS = 64, TURNS = 20000 };

static struct pair {
	struct count in, timer;
	struct msghdr msg;
	struct iovec iov;
	int fds[2];
	unsigned started;
} pairs[PAIRS];
static unsigned turns;

static void stir(void)
{
	struct pair *p = &pairs[rnd_below(PAIRS)];

	switch (rnd_below(4)) {
	case 0:
		skv_op_cancel(loop, &p->in.op);
		break;
	case 1:
		ck_assert_int_eq(send(p->fds[1], "x", 1, MSG_DONTWAIT) == 1 || errno == EAGAIN, 1);
		break;
	case 2:
		skv_op_cancel(loop, &p->timer.op);
		break;
	}
}

static void received(struct skv_op *op, int res)
{
	struct pair *p = SKV_OP_OWNER(op, struct pair, in.op);

	ck_assert(res == 1 || res == -ECANCELED);
	p->in.ended++;
	if (++turns < TURNS) {
		p->started++;
		skv_op_recvmsg(loop, op, p->fds[0], &p->msg, 0, received);
	}
	stir();
}

static void expired(struct skv_op *op, int res)
{
	struct pair *p = SKV_OP_OWNER(op, struct pair, timer.op);

	ck_assert(res == 0 || res == -ECANCELED);
	stir();
	stir();
	if (++turns < TURNS)
		skv_op_timer(loop, &p->timer.op, rnd_below(20000), expired);
	else
		skv_loop_quit(loop);
}

START_TEST(each_ends_once_in_a_storm_of_cancellations)
{
	for (struct pair *p = pairs; p < pairs + PAIRS; p++) {
		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p->fds), 0);
		p->iov = (struct iovec){&p->in.byte, 1};
		p->msg = (struct msghdr){.msg_iov = &p->iov, .msg_iovlen = 1};
		p->started = 1;
		skv_op_recvmsg(loop, &p->in.op, p->fds[0], &p->msg, 0, received);
		skv_op_timer(loop, &p->timer.op, 0, expired);
	}
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_int_eq(skv_loop_drain(loop), 0);
	for (struct pair *p = pairs; p < pairs + PAIRS; p++) {
		ck_assert_uint_eq(p->in.ended, p->started);
		close(p->fds[0]);
		close(p->fds[1]);
	}
}
END_TEST

struct late {
	struct skv_op op;
	struct sockaddr_un to;
	int fd;
};

static void connects(struct skv_op *op, int res)
{
	struct late *l = SKV_OP_OWNER(op, struct late, op);

	ck_assert_int_eq(res, 0);
	ck_assert_int_eq(connect(l->fd, (struct sockaddr *)&l->to, sizeof(l->to)), 0);
}

/*
 * The ring of a killed process waits on a socket a little longer than the process lives. This second ring, whose
 * completions are never read, simulates that.
 */
START_TEST(another_ring_accepts_first)
{
	struct late l = {.to.sun_family = AF_UNIX, .fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
	struct io_uring_params p = {.flags = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER};
	int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct count c = {0};
	struct io_uring other;

	snprintf(l.to.sun_path + 1, sizeof(l.to.sun_path) - 1, "skv-test-loop-%d", (int)getpid());
	ck_assert_int_eq(bind(listening, (struct sockaddr *)&l.to, sizeof(l.to)), 0);
	ck_assert_int_eq(listen(listening, 4), 0);
	ck_assert_int_eq(io_uring_queue_init_params(4, &other, &p), 0);
	io_uring_prep_accept(io_uring_get_sqe(&other), listening, NULL, NULL, SOCK_CLOEXEC);
	ck_assert_int_eq(io_uring_submit(&other), 1);
	ck_assert_int_eq(fcntl(listening, F_SETFL, O_NONBLOCK), 0);
	skv_op_accept(loop, &c.op, listening, ended);
	skv_op_timer(loop, &l.op, 10000000, connects);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_int_ge(c.res, 0);
	close(c.res);
	io_uring_queue_exit(&other);
	close(l.fd);
	close(listening);
}
END_TEST

START_TEST(a_refusal_names_io_uring_and_the_sysctl)
{
	char text[512];

	skv_loop_explain(-EPERM, text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, "io_uring"));
	ck_assert_ptr_nonnull(strstr(text, "kernel.io_uring_disabled"));
	skv_loop_explain(-ENOMEM, text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, "io_uring"));
	ck_assert_ptr_nonnull(strstr(text, strerror(ENOMEM)));
}
END_TEST

/* Uses 3 ms of processor time, or sleeps for 20 ms. */
static void is_long(struct skv_op *op, int res)
{
	struct timespec t;
	uint64_t until;

	ended(op, res);
	if (SKV_OP_OWNER(op, struct count, op)->byte) {
		usleep(20000);
		skv_loop_did(loop, "sleep");
		return;
	}
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	until = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + 3000000;
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	while ((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec < until);
	skv_loop_did(loop, "work");
}

static const struct skv_meter_work *work_of(const char *name)
{
	const struct skv_meter *m = skv_loop_meter(loop);

	for (unsigned i = 0; i < SKV_METER_WORKS && m->works[i].name; i++)
		if (!strcmp(m->works[i].name, name))
			return &m->works[i];
	ck_abort_msg("no work '%s' was recorded", name);
}

/* A long turn is reported by its operation's name; time asleep is not processor time. */
START_TEST(turns_say_what_they_did)
{
	struct count busy = {0}, asleep = {.byte = 1};

	skv_op_timer(loop, &busy.op, 0, is_long);
	skv_op_timer(loop, &asleep.op, 5000000, is_long);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_uint_eq(busy.ended + asleep.ended, 2);
	ck_assert_uint_eq(work_of("work")->n_long, 1);
	ck_assert_uint_ge(work_of("work")->cpu_max_ns, 3000000);
	ck_assert_uint_ge(work_of("sleep")->max_ns, 20000000);
	ck_assert_uint_lt(work_of("sleep")->cpu_max_ns, 10000000);
	ck_assert_uint_ge(skv_loop_meter(loop)->turn_max_ns, 20000000);
	ck_assert_uint_ge(skv_loop_meter(loop)->turn_cpu_max_ns, 3000000);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-loop");

	add_case(s, "loop", 30, setup, teardown, more_operations_than_the_ring_has_entries,
	         cancelling_twice_or_too_late_is_nothing, draining_ends_what_is_started_meanwhile,
	         results_are_those_of_the_system_call, each_ends_once_in_a_storm_of_cancellations,
	         another_ring_accepts_first, turns_say_what_they_did, a_refusal_names_io_uring_and_the_sysctl, NULL);
	return run_suite(s);
}
