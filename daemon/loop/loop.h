/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/loop.h - the daemon's event loop: one io_uring, one thread, typed operations.
 *
 * An operation is a struct skv_op embedded in its owner. It has what to do (kind, fd, argument) and a callback
 * (`done`). Starting an operation only links it into a list; the ring is touched in skv_loop_run() and
 * skv_loop_drain() alone. So starting and cancelling cannot fail, a full submission queue only makes the rest of the
 * list wait, and a loop may be set up in one thread and run in another.
 *
 * Rules for owners:
 *   - `done` runs exactly once for each start, never from inside skv_op_* calls. When it runs, neither the kernel nor
 *     the loop refers to the operation or its buffers any more, not even for a cancellation, which is an operation of
 *     its own. So an owner counts its running operations and frees itself when the last one is done.
 *   - Until then the struct, and what it points to, stay where they are.
 *   - A cancelled operation ends with -ECANCELED, or with its result if that came first.
 */
#ifndef SKV_LOOP_H
#define SKV_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <linux/time_types.h>
#include "daemon/loop/meter.h"

struct skv_loop;
struct skv_op;

/* `res` is the result of the system call, with failures as negative errno; 0 for a timer that expired. */
typedef void (*skv_op_fn)(struct skv_op *op, int res);

enum skv_op_kind {
	/* the socket must not block; res: a connected socket, close-on-exec, owned by the callback; or -EAGAIN */
	SKV_OP_ACCEPT = 1,
	SKV_OP_RECVMSG,    /* MSG_CMSG_CLOEXEC is set */
	SKV_OP_SENDMSG,    /* MSG_NOSIGNAL is set */
	SKV_OP_READ,
	/* once; res: the events. SKV_OP_POLL, SKV_OP_READ and SKV_OP_TIMER do not fail for lack of memory */
	SKV_OP_POLL,
	SKV_OP_TIMER, /* once */
	SKV_OP_PUNCH, /* punches a hole, in a worker thread of the ring, since the range may be large */
	SKV_OP_CLOSE, /* in a worker thread of the ring, since closing a file may block */
};

struct skv_op {
	enum skv_op_kind kind;
	int fd; /* borrowed; must stay open until done */
	union {
		struct {
			struct msghdr *msg;
			int flags;
		} msg;
		struct {
			void *data;
			size_t bytes;
		} buf;
		struct {
			uint64_t at, bytes;
		} range;
		uint32_t events;
		struct __kernel_timespec after;
	} arg;
	skv_op_fn done;

	/* the loop's */
	uint32_t state;
	int res;
	struct skv_op *next_start, *next_cancel; /* lists of operations waiting for the submission queue */
	struct skv_op *prev, *next;              /* list of all running operations */
};

/* Creates a ring of `entries` submissions (rounded up). Negative errno: skv_loop_explain() explains it. */
int skv_loop_new(unsigned entries, struct skv_loop **ret);
/* All operations must be done. NULL is fine; returns NULL. */
struct skv_loop *skv_loop_free(struct skv_loop *loop);

/* Writes why skv_loop_new() failed with `error` (negative errno), and what to do about it. */
void skv_loop_explain(int error, char *text, size_t len);

/* Called before each wait, after all available completions were handled. True: there is more to do, so do not wait. */
void skv_loop_on_idle(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx);

/*
 * Called before newly started operations are submitted to the kernel, so before others can see their effects. False:
 * nothing is submitted, because the changes are not committed; the callee has told the loop to quit.
 */
void skv_loop_before_submit(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx);

/*
 * Runs until skv_loop_quit(), called from a `done` or the function of skv_loop_on_idle(), or until no operation is
 * running; returns at once if it was called before. Negative errno: the ring failed.
 */
int skv_loop_run(struct skv_loop *loop);
void skv_loop_quit(struct skv_loop *loop);

/*
 * How long turns took so far, from one check for completions to the next (the longest a request had to wait), and
 * which work made them long.
 */
const struct skv_meter *skv_loop_meter(const struct skv_loop *loop);
/* Attributes the time since the turn began, or since the last call, to work of this name (static text): meter.h. */
void skv_loop_did(struct skv_loop *loop, const char *work);

/* Cancels every operation, also those that are started meanwhile, and runs until none is left. For shutdown. */
int skv_loop_drain(struct skv_loop *loop);

/* The start functions. The operation must not be running. */
void skv_op_accept(struct skv_loop *, struct skv_op *, int fd, skv_op_fn done);
void skv_op_recvmsg(struct skv_loop *, struct skv_op *, int fd, struct msghdr *msg, int flags, skv_op_fn done);
void skv_op_sendmsg(struct skv_loop *, struct skv_op *, int fd, struct msghdr *msg, skv_op_fn done);
void skv_op_read(struct skv_loop *, struct skv_op *, int fd, void *data, size_t bytes, skv_op_fn done);
void skv_op_poll(struct skv_loop *, struct skv_op *, int fd, uint32_t events, skv_op_fn done);
void skv_op_timer(struct skv_loop *, struct skv_op *, uint64_t after_ns, skv_op_fn done);

/*
 * Sets how many kernel threads close files and punch holes, which may block for as long as others like. The kernel's
 * own limit is four per processor, and that many hung files would hold up everything after them.
 */
void skv_loop_allow_workers(struct skv_loop *, unsigned n);
/* `fd` is consumed in any case. If the loop is being drained, the loop closes it itself and waits for that. */
void skv_op_close(struct skv_loop *, struct skv_op *, int fd, skv_op_fn done);
/* The same, without a callback. */
void skv_loop_close_fd(struct skv_loop *, int fd);
/* Punches `bytes` from `at` on out of the file: they are gone for all descriptors and mappings of the file. */
void skv_op_punch(struct skv_loop *, struct skv_op *, int fd, uint64_t at, uint64_t bytes, skv_op_fn done);

/* Cancels; does nothing when the operation does not run or is being cancelled already. */
void skv_op_cancel(struct skv_loop *, struct skv_op *op);
static inline bool skv_op_running(const struct skv_op *op)
{
	return op->state != 0;
}

/* The struct in which `op` is embedded. */
#define SKV_OP_OWNER(op, type, member) ((type *)(void *)((char *)(op)-offsetof(type, member)))

#endif
