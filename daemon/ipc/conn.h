/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/conn.h - connections of clients and operators: receives their requests, sends them packets, and notices
 * their end.
 *
 * Guarantees to the caller:
 *   - message() is called with well-formed requests only (skv_wire_check()), one at a time; the first one is HELLO,
 *     which does not come again. Any other input ends the connection, with one line in the log.
 *   - File descriptors are received on the operators' socket only. Descriptors that other peers send never enter the
 *     daemon's table of descriptors. A kernel that can refuses to carry such descriptors (SO_PASSRIGHTS). On other
 *     kernels a message is peeked at before it is received, and a peer that has sent descriptors is disconnected.
 *   - Descriptors that a peer has sent, and sockets in which such descriptors may wait, are closed by a worker thread
 *     of the ring. Closing a file may block for as long as the file's owner likes (a FUSE server that does not answer,
 *     a socket that lingers).
 *   - When message() returns, every received fd is closed, except those that message() took.
 *   - gone() is called exactly once for each connection that began, as soon as the peer hangs up, dies (its pidfd
 *     tells), breaks the protocol, or leaves too much unread. The struct skv_conn lives until its last operation in the
 *     ring has ended.
 *   - Functions that send do not fail: the packet is queued, or the connection is closed.
 *
 * A peer that does not read its replies costs the daemon little memory: while more than a fixed number of bytes is
 * queued for the peer, no request of the peer is received, and callers send it no notices (skv_conn_is_full()).
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
	/*
	 * A request has arrived, with header->n_fds descriptors in `fds`. The callee sets the descriptors that it takes
	 * to -1.
	 */
	void (*message)(void *ctx, struct skv_conn *, const struct skv_msg_header *, const void *body,
	                int *fds);
	void (*gone)(void *ctx, struct skv_conn *);
	/*
	 * Returns whether all memory that the daemon may use is in use. Then clients cannot connect, and peers that do
	 * not read their replies are disconnected.
	 */
	bool (*used_up)(void *ctx);
	/* Called after skv_conn_is_full() has returned true: the connection's queue has room for notices again. */
	void (*drained)(void *ctx, struct skv_conn *);
};

struct skv_ipc_limits {
	uint32_t connections;         /* maximum of connections of all users together */
	uint32_t account_connections; /* maximum of connections of one UID */
	uint64_t hello_ns;            /* time within which a new connection must send its first message */
};

/*
 * Takes two listening sockets (consumed on success), on which connections are accepted after skv_ipc_listen().
 * operators_fd -1: there is no socket for operators. Connections and messages are counted in `counts` (borrowed).
 * Returns 0 or -ENOMEM.
 */
int skv_ipc_new(struct skv_loop *, int clients_fd, int operators_fd, const struct skv_ipc_ops *, void *ctx, struct skv_counts *counts,
                struct skv_ipc **ret);
void skv_ipc_set_limits(struct skv_ipc *, const struct skv_ipc_limits *);
void skv_ipc_listen(struct skv_ipc *);
/*
 * Serves messages and closes sockets for about a third of a millisecond; users take turns. Returns true if there is
 * more to do.
 */
bool skv_ipc_work(struct skv_ipc *);
/* Disconnects peers that do not read their replies. Called when all memory that the daemon may use is in use. */
void skv_ipc_relieve(struct skv_ipc *);
/* Starts to close every connection, and accepts no more. The sockets are closed when skv_loop_drain() has returned. */
void skv_ipc_close_all(struct skv_ipc *);
struct skv_ipc *skv_ipc_free(struct skv_ipc *); /* after skv_loop_drain(); accepts NULL; returns NULL */

/* Iterate over the connections that have not ended: skv_conn_next() returns NULL after the last one. */
struct skv_conn *skv_ipc_first(struct skv_ipc *);
struct skv_conn *skv_conn_next(struct skv_conn *);
/* Returns where the connection has the list of its deferred requests (daemon/requests/deferred.h). */
struct skv_deferred **skv_conn_deferred(struct skv_conn *);

const struct skv_peer *skv_conn_peer(const struct skv_conn *);
struct skv_peer skv_conn_take_peer(struct skv_conn *); /* the caller then owns the peer's pidfd; only within gone() */
bool skv_conn_is_operator(const struct skv_conn *);
uint64_t skv_conn_number(const struct skv_conn *); /* number of the connection; a later connection has a higher one */
bool skv_conn_open(const struct skv_conn *);       /* false after gone() was called */
uint32_t skv_conn_client(const struct skv_conn *); /* the client's id in the core; 0 before HELLO */
void skv_conn_set_client(struct skv_conn *, uint32_t client, const char *program);
const char *skv_conn_name(const struct skv_conn *); /* "PROGRAM[PID]" of the peer, for the log */

/* Sends one packet with a body and a tail, which may be empty. The fds are borrowed: the function duplicates them. */
void skv_conn_send(struct skv_conn *, uint16_t type, uint32_t serial, const void *body, size_t body_bytes,
                   const void *tail, size_t tail_bytes, const int *fds, unsigned n_fds);
/* Sends a text of any length in as many SKV_MSG_TEXT packets as needed. */
void skv_conn_send_text(struct skv_conn *, uint16_t type, uint32_t serial, const char *text, size_t len);
/* Sends SKV_MSG_ERROR; `error` is a positive errno. */
void skv_conn_error(struct skv_conn *, uint32_t serial, int error, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void skv_conn_verror(struct skv_conn *, uint32_t serial, int error, const char *fmt, va_list ap);

/* Returns the bytes of memory that the connection takes, including packets that are queued for its peer. */
uint64_t skv_conn_bytes(const struct skv_conn *);
/* Returns whether so many bytes are queued that notices have to wait until drained() is called. */
bool skv_conn_is_full(struct skv_conn *);
/*
 * Holds a connection, or ends that. While a connection is held, its replies wait and no request is received, because
 * replies may name segments that have not been announced to the peer yet. Notices, which announce segments, are sent.
 */
void skv_conn_hold(struct skv_conn *, bool held);

/* Pauses or resumes the receipt of requests. A connection that was paused twice must be resumed twice. */
void skv_conn_pause(struct skv_conn *, bool paused);

/* Ends a connection at once, and calls gone(). Logs `why` at `level`; `why` NULL: logs nothing. */
void skv_conn_close(struct skv_conn *, int level, const char *why);
/* Ends a connection when all queued packets have been sent; receives nothing more from the peer. */
void skv_conn_finish(struct skv_conn *);

#endif
