/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/loop.h - the daemon's event loop: one thread that starts operations in an io_uring and handles their
 * completions.
 *
 * An operation is a struct skv_op, embedded in the object that owns it. The struct has the kind of operation, its file
 * descriptor and argument, and a callback (`done`). Starting an operation only links it into a list; only
 * skv_loop_run() and skv_loop_drain() access the ring. So starting and cancelling operations cannot fail, operations
 * for which the submission queue has no room wait in the list, and a loop may be set up in one thread and run in
 * another.
 *
 * Rules for owners:
 *   - `done` runs exactly once for each start, never from inside skv_op_* calls. When `done` runs, neither the kernel
 *     nor the loop refers to the operation or its buffers any more. That is also true if the operation was cancelled,
 *     although a cancellation is an operation of its own in the ring. So an owner may be freed when its last running
 *     operation is done.
 *   - Until `done` runs, the struct skv_op and the buffers that it points to must stay where they are.
 *   - A cancelled operation ends with -ECANCELED, or with its own result if it completed before the cancellation.
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

/*
 * Callback of an operation. `res` is the result of the system call, a negative errno if it failed; 0 if a timer has
 * expired.
 */
typedef void (*skv_op_fn)(struct skv_op *op, int res);

enum skv_op_kind {
	/*
	 * the listening socket must be non-blocking; res: an accepted socket (close-on-exec), which the callback owns;
	 * or -EAGAIN
	 */
	SKV_OP_ACCEPT = 1,
	SKV_OP_RECVMSG,    /* MSG_CMSG_CLOEXEC is set */
	SKV_OP_SENDMSG,    /* MSG_NOSIGNAL is set */
	SKV_OP_READ,
	/*
	 * ends at the first event; res: the events. POLL, READ and TIMER are started again if the kernel lacks memory
	 */
	SKV_OP_POLL,
	SKV_OP_TIMER, /* expires once */
	SKV_OP_PUNCH, /* punches a hole into a file, in a worker thread of the ring, since the hole may be large */
	SKV_OP_CLOSE, /* closes a file, in a worker thread of the ring, since that may block */
};

struct skv_op {
	enum skv_op_kind kind;
	int fd; /* borrowed; must stay open until the operation is done */
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

	/* private to the loop */
	uint32_t state;
	int res;
	/* next operation in the list of starts, and of cancellations, that wait for the submission queue */
	struct skv_op *next_start, *next_cancel;
	struct skv_op *prev, *next;              /* list of all operations that have not ended */
};

/*
 * Creates a loop whose ring has at least `entries` submission entries. Returns 0, or a negative errno for
 * skv_loop_explain().
 */
int skv_loop_new(unsigned entries, struct skv_loop **ret);
/* Frees a loop, whose operations must all be done. Accepts NULL; returns NULL. */
struct skv_loop *skv_loop_free(struct skv_loop *loop);

/* Writes why skv_loop_new() failed with `error` (negative errno), and what to do about it. */
void skv_loop_explain(int error, char *text, size_t len);

/*
 * Sets the function that is called in each turn, after the available completions were handled and before the loop
 * waits. If the function returns true, there is more to do, and the loop does not wait.
 */
void skv_loop_on_idle(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx);

/*
 * Sets the function that is called before operations are submitted to the kernel, that is, before other processes can
 * see their effects. The function commits the daemon's state. If it returns false, the commit has failed and the
 * function has told the loop to quit; nothing is submitted then.
 */
void skv_loop_before_submit(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx);

/*
 * Runs the loop until a callback calls skv_loop_quit(), or until no operation is running. Returns at once if
 * skv_loop_quit() was called before. Returns 0, or a negative errno if the ring failed.
 */
int skv_loop_run(struct skv_loop *loop);
void skv_loop_quit(struct skv_loop *loop);

/*
 * Returns how long turns of the loop have taken, from one check for completions to the next (a request may have had to
 * wait that long), and which work made turns long.
 */
const struct skv_meter *skv_loop_meter(const struct skv_loop *loop);
/*
 * Attributes the time since the turn began, or since the last call, to the kind of work with this name (a static text):
 * see meter.h.
 */
void skv_loop_did(struct skv_loop *loop, const char *work);

/*
 * Cancels every operation, also those that callbacks start meanwhile, and runs the loop until no operation is left. For
 * the end of the daemon.
 */
int skv_loop_drain(struct skv_loop *loop);

/* Start an operation of each kind. The struct skv_op must not be in use for a running operation. */
void skv_op_accept(struct skv_loop *, struct skv_op *, int fd, skv_op_fn done);
void skv_op_recvmsg(struct skv_loop *, struct skv_op *, int fd, struct msghdr *msg, int flags, skv_op_fn done);
void skv_op_sendmsg(struct skv_loop *, struct skv_op *, int fd, struct msghdr *msg, skv_op_fn done);
void skv_op_read(struct skv_loop *, struct skv_op *, int fd, void *data, size_t bytes, skv_op_fn done);
void skv_op_poll(struct skv_loop *, struct skv_op *, int fd, uint32_t events, skv_op_fn done);
void skv_op_timer(struct skv_loop *, struct skv_op *, uint64_t after_ns, skv_op_fn done);

/*
 * Sets how many kernel threads of the ring may close files and punch holes. Such an operation may block for as long as
 * another process likes. With the kernel's default limit, four threads per processor, that many hanging files would
 * hold up all later operations.
 */
void skv_loop_allow_workers(struct skv_loop *, unsigned n);
/*
 * Starts to close `fd`, which is consumed in any case. While the loop is being drained, the loop's own thread closes
 * the fd, and may block.
 */
void skv_op_close(struct skv_loop *, struct skv_op *, int fd, skv_op_fn done);
/* Closes a descriptor (consumed) in a worker thread of the ring, without a callback. */
void skv_loop_close_fd(struct skv_loop *, int fd);
/*
 * Starts to punch a hole of `bytes` bytes at offset `at` into the file. The file's memory there is freed, and all
 * mappings of the file read zeros.
 */
void skv_op_punch(struct skv_loop *, struct skv_op *, int fd, uint64_t at, uint64_t bytes, skv_op_fn done);

/* Cancels an operation. Does nothing if the operation is not running or is already being cancelled. */
void skv_op_cancel(struct skv_loop *, struct skv_op *op);
static inline bool skv_op_running(const struct skv_op *op)
{
	return op->state != 0;
}

/* Returns the struct in which the operation `op` is embedded as `member`. */
#define SKV_OP_OWNER(op, type, member) ((type *)(void *)((char *)(op)-offsetof(type, member)))

#endif
