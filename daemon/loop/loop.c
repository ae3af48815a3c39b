/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/loop.c - see loop.h.
 *
 * The state of an operation is a set of four bits. An operation's start, and its cancellation, are each either in a
 * list of the loop (QUEUED), or in the kernel (INFLIGHT), or neither. The operation is done when no bit is set. A
 * completion carries the address of its operation; in the completion of a cancellation, the lowest bit of the address
 * is set.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/loop/loop.h"

enum {
	START_QUEUED = 1u << 0,
	START_INFLIGHT = 1u << 1,
	CANCEL_QUEUED = 1u << 2,
	CANCEL_INFLIGHT = 1u << 3,
};
#define CANCEL_TAG ((uint64_t)1)

struct skv_loop {
	struct io_uring ring;
	struct skv_op *starts, **starts_end;   /* operations to be submitted, in order, linked by next_start */
	struct skv_op *cancels, **cancels_end; /* operations to be cancelled, in order, linked by next_cancel */
	struct skv_op *running;
	bool quit, draining;
	struct skv_meter meter;
	bool (*idle)(void *ctx);
	void *idle_ctx;
	bool (*before)(void *ctx); /* called before submissions */
	void *before_ctx;
};

int skv_loop_new(unsigned entries, struct skv_loop **ret)
{
	/*
	 * With COOP_TASKRUN the kernel does not interrupt the thread for completions, which are handled in
	 * io_uring_enter().
	 */
	struct io_uring_params p = {.flags = IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN};
	struct skv_loop *loop = calloc(1, sizeof(*loop));
	int r;

	if (!loop)
		return -ENOMEM;
	r = io_uring_queue_init_params(entries, &loop->ring, &p);
	if (r < 0) {
		free(loop);
		return r;
	}
	(void)fcntl(loop->ring.ring_fd, F_SETFD, FD_CLOEXEC);
	loop->starts_end = &loop->starts;
	loop->cancels_end = &loop->cancels;
	*ret = loop;
	return 0;
}

struct skv_loop *skv_loop_free(struct skv_loop *loop)
{
	if (loop) {
		io_uring_queue_exit(&loop->ring);
		free(loop);
	}
	return NULL;
}

void skv_loop_explain(int error, char *text, size_t len)
{
	char sysctl[16] = "not there";
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");

	if (f) {
		if (fgets(sysctl, sizeof(sysctl), f))
			sysctl[strcspn(sysctl, "\n")] = 0;
		fclose(f);
	}
	if (error == -ENOSYS || error == -EPERM || error == -EACCES)
		snprintf(text, len,
		         "the kernel refuses io_uring (io_uring_setup: %s): Linux 6.1 or later is needed, "
		         "with the sysctl kernel.io_uring_disabled at 0 (it is %s), and no seccomp filter "
		         "of a container in the way",
		         strerror(-error), sysctl);
	else if (error == -EINVAL)
		snprintf(text, len,
		         "the kernel's io_uring is too old (io_uring_setup: %s), Linux 6.1 or later is needed",
		         strerror(-error));
	else
		snprintf(text, len, "io_uring cannot be set up (io_uring_setup: %s)", strerror(-error));
}

void skv_loop_on_idle(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx)
{
	loop->idle = fn;
	loop->idle_ctx = ctx;
}

void skv_loop_before_submit(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx)
{
	loop->before = fn;
	loop->before_ctx = ctx;
}

void skv_loop_quit(struct skv_loop *loop)
{
	loop->quit = true;
}

/* ---- starting and cancelling: only lists ---- */

static void enqueue(struct skv_loop *loop, struct skv_op *op)
{
	op->state = START_QUEUED;
	op->next_start = op->next_cancel = NULL;
	*loop->starts_end = op;
	loop->starts_end = &op->next_start;
}

static void start(struct skv_loop *loop, struct skv_op *op, enum skv_op_kind kind, int fd, skv_op_fn done)
{
	op->kind = kind;
	op->fd = fd;
	op->done = done;
	enqueue(loop, op);
	op->prev = NULL;
	op->next = loop->running;
	if (op->next)
		op->next->prev = op;
	loop->running = op;
	if (loop->draining)
		skv_op_cancel(loop, op);
}

void skv_op_accept(struct skv_loop *loop, struct skv_op *op, int fd, skv_op_fn done)
{
	start(loop, op, SKV_OP_ACCEPT, fd, done);
}

void skv_op_recvmsg(struct skv_loop *loop, struct skv_op *op, int fd, struct msghdr *msg, int flags, skv_op_fn done)
{
	op->arg.msg.msg = msg;
	op->arg.msg.flags = flags | MSG_CMSG_CLOEXEC;
	start(loop, op, SKV_OP_RECVMSG, fd, done);
}

void skv_op_sendmsg(struct skv_loop *loop, struct skv_op *op, int fd, struct msghdr *msg, skv_op_fn done)
{
	op->arg.msg.msg = msg;
	op->arg.msg.flags = MSG_NOSIGNAL;
	start(loop, op, SKV_OP_SENDMSG, fd, done);
}

void skv_op_read(struct skv_loop *loop, struct skv_op *op, int fd, void *data, size_t bytes, skv_op_fn done)
{
	op->arg.buf.data = data;
	op->arg.buf.bytes = bytes;
	start(loop, op, SKV_OP_READ, fd, done);
}

void skv_op_poll(struct skv_loop *loop, struct skv_op *op, int fd, uint32_t events, skv_op_fn done)
{
	op->arg.events = events;
	start(loop, op, SKV_OP_POLL, fd, done);
}

void skv_op_timer(struct skv_loop *loop, struct skv_op *op, uint64_t after_ns, skv_op_fn done)
{
	op->arg.after.tv_sec = (long long)(after_ns / 1000000000u);
	op->arg.after.tv_nsec = (long long)(after_ns % 1000000000u);
	start(loop, op, SKV_OP_TIMER, -1, done);
}

void skv_loop_allow_workers(struct skv_loop *loop, unsigned n)
{
	/* limits of worker threads for bounded and for unbounded work; 0: leave the limit as it is */
	unsigned most[2] = {n, 0};

	(void)io_uring_register_iowq_max_workers(&loop->ring, most);
}

void skv_op_close(struct skv_loop *loop, struct skv_op *op, int fd, skv_op_fn done)
{
	start(loop, op, SKV_OP_CLOSE, fd, done);
}

static void closed(struct skv_op *op, int res)
{
	(void)res;
	free(op);
}

void skv_loop_close_fd(struct skv_loop *loop, int fd)
{
	struct skv_op *op = calloc(1, sizeof(*op));

	if (op)
		skv_op_close(loop, op, fd, closed);
	else
		close(fd);
}

void skv_op_punch(struct skv_loop *loop, struct skv_op *op, int fd, uint64_t at, uint64_t bytes, skv_op_fn done)
{
	op->arg.range.at = at;
	op->arg.range.bytes = bytes;
	start(loop, op, SKV_OP_PUNCH, fd, done);
}

void skv_op_cancel(struct skv_loop *loop, struct skv_op *op)
{
	if (!(op->state & (START_QUEUED | START_INFLIGHT)) || op->state & (CANCEL_QUEUED | CANCEL_INFLIGHT))
		return;
	op->state |= CANCEL_QUEUED;
	op->next_cancel = NULL;
	*loop->cancels_end = op;
	loop->cancels_end = &op->next_cancel;
}

/* ---- the ring ---- */

static int accept_now(int fd)
{
	const int r = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

	return r < 0 ? -errno : r;
}

/*
 * Commits the changes of this turn. Returns whether operations may be submitted, so that other processes learn of the
 * changes.
 */
static bool may_submit(struct skv_loop *loop)
{
	return !loop->before || loop->before(loop->before_ctx);
}

static void finish(struct skv_loop *loop, struct skv_op *op)
{
	if (op->prev)
		op->prev->next = op->next;
	else
		loop->running = op->next;
	if (op->next)
		op->next->prev = op->prev;
	if (op->kind == SKV_OP_TIMER && op->res == -ETIME)
		op->res = 0;
	if (op->kind == SKV_OP_ACCEPT && op->res >= 0)
		op->res = accept_now(op->fd);
	if (op->kind == SKV_OP_CLOSE && op->res == -ECANCELED) /* the loop is being drained, so the close may block */
		close(op->fd);
	op->done(op, op->res);
}

/*
 * Returns whether an operation has failed because the kernel had no memory for it, and has to be started again: owners
 * rely on timers, polls and reads to complete.
 */
static bool is_to_start_again(const struct skv_op *op)
{
	return (op->res == -ENOMEM || op->res == -EAGAIN) && (op->kind == SKV_OP_TIMER || op->kind == SKV_OP_POLL || op->kind == SKV_OP_READ);
}

/* Clears one of the four bits of an operation's state, and finishes the operation if no bit is left. */
static void clear_state(struct skv_loop *loop, struct skv_op *op, uint32_t bit)
{
	const bool cancelled = op->state & (CANCEL_QUEUED | CANCEL_INFLIGHT) || bit & (CANCEL_QUEUED | CANCEL_INFLIGHT);

	op->state &= ~bit;
	if (!cancelled && is_to_start_again(op))
		enqueue(loop, op);
	else if (!op->state)
		finish(loop, op);
}

static void prepare(struct io_uring_sqe *sqe, struct skv_op *op)
{
	switch (op->kind) {
	case SKV_OP_ACCEPT:
		/*
		 * The operation polls the socket, and finish() accepts the connection. An accept in the ring would not
		 * do: for a new connection the kernel wakes only one of the accepts that wait, which may belong to the
		 * ring of a dead daemon, since a ring outlives its process for a moment. A poll wakes all waiters.
		 */
		io_uring_prep_poll_add(sqe, op->fd, POLLIN);
		break;
	case SKV_OP_RECVMSG:
		io_uring_prep_recvmsg(sqe, op->fd, op->arg.msg.msg, (unsigned)op->arg.msg.flags);
		break;
	case SKV_OP_SENDMSG:
		io_uring_prep_sendmsg(sqe, op->fd, op->arg.msg.msg, (unsigned)op->arg.msg.flags);
		break;
	case SKV_OP_READ:
		io_uring_prep_read(sqe, op->fd, op->arg.buf.data, (unsigned)op->arg.buf.bytes, (uint64_t)-1);
		break;
	case SKV_OP_POLL:
		io_uring_prep_poll_add(sqe, op->fd, op->arg.events);
		break;
	case SKV_OP_TIMER:
		io_uring_prep_timeout(sqe, &op->arg.after, 0, 0);
		break;
	case SKV_OP_PUNCH:
		io_uring_prep_fallocate(sqe, op->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		                        (off_t)op->arg.range.at, (off_t)op->arg.range.bytes);
		io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
		break;
	case SKV_OP_CLOSE:
		io_uring_prep_close(sqe, op->fd);
		io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
		break;
	}
	io_uring_sqe_set_data64(sqe, (uintptr_t)op);
}

/*
 * Returns a free submission entry. NULL: the kernel takes no more until completions are handled; the operations stay in
 * their lists.
 */
static struct io_uring_sqe *get_sqe(struct skv_loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	if (!sqe) {
		io_uring_submit(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	return sqe;
}

/*
 * Moves operations from the lists into the submission queue. Starts go first, so that an operation is always submitted
 * before its cancellation.
 */
static void fill(struct skv_loop *loop)
{
	struct io_uring_sqe *sqe;
	struct skv_op *op;

	if (!may_submit(loop) && !loop->draining) /* a loop that is being drained only cancels operations */
		return;
	while ((op = loop->starts)) {
		if (!(op->state & CANCEL_QUEUED)) {
			sqe = get_sqe(loop);
			if (!sqe)
				return;
			prepare(sqe, op);
			op->state |= START_INFLIGHT;
		} else {
			op->res = -ECANCELED; /* the operation was cancelled before it was submitted */
		}
		loop->starts = op->next_start;
		if (!loop->starts)
			loop->starts_end = &loop->starts;
		op->state &= ~(uint32_t)START_QUEUED;
	}
	/*
	 * The loop stops at an operation that a callback below has started again and cancelled: its start is submitted
	 * first.
	 */
	while ((op = loop->cancels) && !(op->state & START_QUEUED)) {
		if (op->state & START_INFLIGHT) {
			sqe = get_sqe(loop);
			if (!sqe)
				return;
			io_uring_prep_cancel64(sqe, (uintptr_t)op, 0);
			io_uring_sqe_set_data64(sqe, (uintptr_t)op | CANCEL_TAG);
			op->state |= CANCEL_INFLIGHT;
		}
		loop->cancels = op->next_cancel;
		if (!loop->cancels)
			loop->cancels_end = &loop->cancels;
		clear_state(loop, op, CANCEL_QUEUED);
	}
}

static void reap(struct skv_loop *loop)
{
	static const char *const names[] = {
		[SKV_OP_ACCEPT] = "accepting", [SKV_OP_RECVMSG] = "receiving", [SKV_OP_SENDMSG] = "sending", [SKV_OP_READ] = "reading",
		[SKV_OP_POLL] = "polling", [SKV_OP_TIMER] = "timers", [SKV_OP_PUNCH] = "punching", [SKV_OP_CLOSE] = "closing",
	};
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&loop->ring, &cqe) == 0) {
		uint64_t data = io_uring_cqe_get_data64(cqe);
		struct skv_op *op = (struct skv_op *)(uintptr_t)(data & ~CANCEL_TAG);
		const enum skv_op_kind kind = op->kind; /* read now, since the callback may free `op` */
		int res = cqe->res;

		io_uring_cqe_seen(&loop->ring, cqe);
		if (data & CANCEL_TAG) {
			clear_state(loop, op, CANCEL_INFLIGHT);
		} else {
			op->res = res;
			clear_state(loop, op, START_INFLIGHT);
		}
		skv_loop_did(loop, names[kind]);
	}
}

/* Runs one turn of the loop: handles completions, calls the idle function, submits operations, and waits. */
static int turn(struct skv_loop *loop)
{
	bool more;
	int r;

	reap(loop);
	more = loop->idle && loop->idle(loop->idle_ctx);
	fill(loop);
	skv_loop_did(loop, "starting operations");
	skv_meter_end(&loop->meter);
	/*
	 * Do not wait if fill() has finished operations whose callbacks have started others, or if idle() has called
	 * skv_loop_quit().
	 */
	more |= loop->quit || loop->starts || loop->cancels || !loop->running;
	r = more ? io_uring_submit_and_get_events(&loop->ring) : io_uring_submit_and_wait(&loop->ring, 1);
	skv_meter_begin(&loop->meter);
	return r < 0 && r != -EINTR && r != -EBUSY && r != -EAGAIN ? r : 0;
}

const struct skv_meter *skv_loop_meter(const struct skv_loop *loop)
{
	return &loop->meter;
}

void skv_loop_did(struct skv_loop *loop, const char *work)
{
	skv_meter_did(&loop->meter, work);
}

int skv_loop_run(struct skv_loop *loop)
{
	int r = 0;

	skv_meter_begin(&loop->meter);
	while (!loop->quit && loop->running && r >= 0)
		r = turn(loop);
	loop->quit = false;
	return r;
}

int skv_loop_drain(struct skv_loop *loop)
{
	int r = 0;

	loop->draining = true;
	loop->quit = false;
	loop->idle = NULL;
	for (struct skv_op *op = loop->running; op; op = op->next)
		skv_op_cancel(loop, op);
	skv_meter_begin(&loop->meter);
	while (loop->running && r >= 0)
		r = turn(loop);
	return r;
}
