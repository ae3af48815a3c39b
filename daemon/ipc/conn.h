/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/conn.h - connections: packets in, packets out, and the end of both.
 *
 * Guarantees to the caller:
 *   - message() gets well-formed requests only (skv_wire_check()), one at a time, HELLO first and once. Anything else
 *     ends the connection, with one line in the log.
 *   - Descriptors come from the operators' socket only. Descriptors of other peers never enter the daemon's table:
 *     where the kernel can, it refuses to carry them (SO_PASSRIGHTS); elsewhere a message is peeked at before it is
 *     received, and a peer that has sent descriptors is disconnected.
 *   - What is closed here and came from a peer is closed by a worker thread of the ring: closing a file may block for
 *     as long as its owner likes (a FUSE server that does not answer, a socket that lingers).
 *   - Every received fd is closed when message() returns, except those that it took.
 *   - gone() is called exactly once for each connection that began, as soon as its peer hung up, its process died
 *     (pidfd), broke the protocol or let its output pile up. The struct lives until its last operation in the ring
 *     has ended.
 *   - Sending never fails for the caller: a packet is queued, or the connection is closed.
 *
 * A peer that does not read costs little: above a mark of queued bytes none of its requests is received, and the
 * owner holds back its notices (skv_conn_is_full()).
 */
#ifndef SKV_CONN_H
#define SKV_CONN_H

#include <stdarg.h>
#include "common/wire.h"
#include "daemon/ipc/peer.h"
#include "daemon/loop/loop.h"
#include "daemon/sys/counts.h"

struct skv_conn;
struct skv_deferred;
struct skv_ipc;

struct skv_ipc_ops {
	/* fds: header->n_fds of them; set to -1 those that were taken. */
	void (*message)(void *ctx, struct skv_conn *, const struct skv_msg_header *, const void *body,
	                int *fds);
	void (*gone)(void *ctx, struct skv_conn *);
	/*
	 * Is all memory in use that the daemon may use? Then clients cannot connect, and peers that do not read their
	 * replies are disconnected.
	 */
	bool (*used_up)(void *ctx);
	/* There is room for notices again, after skv_conn_is_full() returned true. */
	void (*drained)(void *ctx, struct skv_conn *);
};

struct skv_ipc_limits {
	uint32_t connections;         /* of all users */
	uint32_t account_connections; /* of one UID */
	uint64_t hello_ns;            /* time for the first message */
};

/*
 * Accepts on the two sockets (consumed on success) after skv_ipc_listen(). operators_fd -1: there is none.
 * Connections and messages are counted in `counts`, borrowed. -ENOMEM.
 */
int skv_ipc_new(struct skv_loop *, int clients_fd, int operators_fd, const struct skv_ipc_ops *, void *ctx, struct skv_counts *counts,
                struct skv_ipc **ret);
void skv_ipc_set_limits(struct skv_ipc *, const struct skv_ipc_limits *);
void skv_ipc_listen(struct skv_ipc *);
/* Runs a turn: serves messages and closes sockets; users take turns. Returns true if there is more to do. */
bool skv_ipc_work(struct skv_ipc *);
/* Disconnects peers that do not read their replies. Call it when no more memory may be used. */
void skv_ipc_relieve(struct skv_ipc *);
/* Closes every connection and accepts no more; skv_loop_drain() completes this. */
void skv_ipc_close_all(struct skv_ipc *);
struct skv_ipc *skv_ipc_free(struct skv_ipc *); /* after skv_loop_drain(); NULL is fine; returns NULL */

/* Iterates over live connections. */
struct skv_conn *skv_ipc_first(struct skv_ipc *);
struct skv_conn *skv_conn_next(struct skv_conn *);
/* Where the list of its deferred requests begins (daemon/requests/deferred.h). */
struct skv_deferred **skv_conn_deferred(struct skv_conn *);

const struct skv_peer *skv_conn_peer(const struct skv_conn *);
struct skv_peer skv_conn_take_peer(struct skv_conn *); /* the caller owns its pidfd; only within gone() */
bool skv_conn_is_operator(const struct skv_conn *);
uint64_t skv_conn_number(const struct skv_conn *); /* never used twice */
bool skv_conn_open(const struct skv_conn *);       /* false after gone() */
uint32_t skv_conn_client(const struct skv_conn *); /* its id in the core, 0 before HELLO */
void skv_conn_set_client(struct skv_conn *, uint32_t client, const char *program);
const char *skv_conn_name(const struct skv_conn *); /* "PROGRAM[PID]", for the log */

/* Sends one packet: a body, and a tail that may be empty. fds are borrowed (duplicated). */
void skv_conn_send(struct skv_conn *, uint16_t type, uint32_t serial, const void *body, size_t body_bytes,
                   const void *tail, size_t tail_bytes, const int *fds, unsigned n_fds);
/* Sends a text of any length in as many SKV_MSG_TEXT packets as needed. */
void skv_conn_send_text(struct skv_conn *, uint16_t type, uint32_t serial, const char *text, size_t len);
/* Sends SKV_MSG_ERROR; `error` is a positive errno. */
void skv_conn_error(struct skv_conn *, uint32_t serial, int error, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void skv_conn_verror(struct skv_conn *, uint32_t serial, int error, const char *fmt, va_list ap);

/* Memory of the connection, including what is queued for its peer. */
uint64_t skv_conn_bytes(const struct skv_conn *);
/* Is so much queued that notices have to wait until drained() is called? */
bool skv_conn_is_full(struct skv_conn *);
/*
 * While held, replies wait and no request is received: the peer does not know everything yet that replies may name.
 * Notices are sent.
 */
void skv_conn_hold(struct skv_conn *, bool held);

/* Pauses or resumes the receipt of requests. Pauses are counted. */
void skv_conn_pause(struct skv_conn *, bool paused);

/* Ends it now; logs `why` at `level` (NULL: logs nothing). Calls gone(). */
void skv_conn_close(struct skv_conn *, int level, const char *why);
/* Ends it when everything queued has been sent; receives nothing more. */
void skv_conn_finish(struct skv_conn *);

#endif
