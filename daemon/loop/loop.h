/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/loop.h - the daemon's event loop: one io_uring, one thread, typed operations.
 *
 * An operation is a struct skv_op embedded in its owner. It says what is to be done (kind, fd,
 * argument) and its callback (`done`). Starting one only links it into a list; the ring is touched in
 * skv_loop_run() alone. So starting and cancelling cannot fail, an exhausted submission queue merely
 * makes the rest of the list wait, and a loop may be set up in one thread and run in another.
 *
 * Rules for owners:
 *   - `done` runs exactly once for each start, never from inside skv_op_* calls, and when it runs
 *     neither the kernel nor the loop refers to the operation or its buffers any more: also not for a
 *     cancellation, which is an operation of its own. So an owner counts its running operations and
 *     frees itself when the last one is done.
 *   - until then the struct, and what it points to, stay where they are.
 *   - a cancelled operation ends with -ECANCELED, or with its result when that came first.
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

/* `res` is what the system call would return, failures as negative errno; a timer that expired gives 0. */
typedef void (*skv_op_fn)(struct skv_op *op, int res);

enum skv_op_kind {
	SKV_OP_ACCEPT = 1, /* of a socket that does not block; res: a connected one, close-on-exec, owned by the callback; or -EAGAIN */
	SKV_OP_RECVMSG,    /* MSG_CMSG_CLOEXEC is set */
	SKV_OP_SENDMSG,    /* MSG_NOSIGNAL is set */
	SKV_OP_READ,
	SKV_OP_POLL,  /* once; res: the events. For lack of memory it does not fail, nor do SKV_OP_READ and SKV_OP_TIMER */
	SKV_OP_TIMER, /* once */
	SKV_OP_PUNCH, /* a hole, in a worker thread of the ring, since it may be large */
	SKV_OP_CLOSE, /* in a worker thread of the ring: what the file does when it is closed holds up nobody */
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

	/* the loop's own */
	uint32_t state;
	int res;
	struct skv_op *next_start, *next_cancel; /* waiting for the submission queue */
	struct skv_op *prev, *next;              /* all that run */
};

/* A ring of `entries` submissions (rounded up). Negative errno: skv_loop_explain() has the words. */
int skv_loop_new(unsigned entries, struct skv_loop **ret);
/* Every operation must be done. NULL is fine; returns NULL. */
struct skv_loop *skv_loop_free(struct skv_loop *loop);

/* Why skv_loop_new() failed with `error` (negative errno), and what to do about it. */
void skv_loop_explain(int error, char *text, size_t len);

/* Called before each wait, when all completions at hand were handled. True: it has more to do, so do not wait. */
void skv_loop_on_idle(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx);

/*
 * Called before anything that was started since is given to the kernel: so before anybody can know of it. False: nobody must, and it is not
 * given; the loop has been told to quit.
 */
void skv_loop_before_submit(struct skv_loop *loop, bool (*fn)(void *ctx), void *ctx);

/* Run until skv_loop_quit(), called from a `done` or the function of skv_loop_on_idle(), or until nothing runs; not at all if that was called before. Negative errno: the ring failed. */
int skv_loop_run(struct skv_loop *loop);
void skv_loop_quit(struct skv_loop *loop);

/* How long turns took so far, from one look for completions to the next: so long did somebody wait. And of what they were made. */
const struct skv_meter *skv_loop_meter(const struct skv_loop *loop);
/* What was done since the turn began, or the last call, was work of this name (static text): meter.h. */
void skv_loop_did(struct skv_loop *loop, const char *work);

/* Cancel every operation, and each that is started meanwhile, and run until none is left. For shutdown. */
int skv_loop_drain(struct skv_loop *loop);

/* The start functions. The operation must not be running. */
void skv_op_accept(struct skv_loop *, struct skv_op *, int fd, skv_op_fn done);
void skv_op_recvmsg(struct skv_loop *, struct skv_op *, int fd, struct msghdr *msg, int flags, skv_op_fn done);
void skv_op_sendmsg(struct skv_loop *, struct skv_op *, int fd, struct msghdr *msg, skv_op_fn done);
void skv_op_read(struct skv_loop *, struct skv_op *, int fd, void *data, size_t bytes, skv_op_fn done);
void skv_op_poll(struct skv_loop *, struct skv_op *, int fd, uint32_t events, skv_op_fn done);
void skv_op_timer(struct skv_loop *, struct skv_op *, uint64_t after_ns, skv_op_fn done);

/*
 * What may take as long as others like, closing and punching, is done by threads of the kernel: by so many at a time, at
 * most. The kernel's own limit is four for each processor, and that many hung files would hold up all that follows.
 */
void skv_loop_allow_workers(struct skv_loop *, unsigned n);
/* `fd` is consumed in any case: where it is cancelled, since the loop is being drained, the loop closes it and waits. */
void skv_op_close(struct skv_loop *, struct skv_op *, int fd, skv_op_fn done);
/* The same, and nobody is told. */
void skv_loop_close_fd(struct skv_loop *, int fd);
/* `bytes` from `at` on are punched out of the file: all descriptors and mappings of it lose them. */
void skv_op_punch(struct skv_loop *, struct skv_op *, int fd, uint64_t at, uint64_t bytes, skv_op_fn done);

/* Cancel; nothing happens when it does not run or is being cancelled already. */
void skv_op_cancel(struct skv_loop *, struct skv_op *op);
static inline bool skv_op_running(const struct skv_op *op)
{
	return op->state != 0;
}

/* The struct that `op` is embedded in. */
#define SKV_OP_OWNER(op, type, member) ((type *)(void *)((char *)(op)-offsetof(type, member)))

#endif
