/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/conn.h - connections: packets in, packets out, and the end of both.
 *
 * What this part promises to the one above it:
 *   - message() sees well-formed requests only (skv_wire_check), one at a time, HELLO first and once.
 *     Anything else ends the connection, with one line in the log.
 *   - descriptors come from operators alone: those who came through the operators' socket. Of all others the daemon
 *     never takes one into its table. Where the kernel can, it refuses to carry them (SO_PASSRIGHTS); elsewhere a
 *     message is looked at before it is received, and a peer that has sent any is disconnected.
 *   - what is closed here and came from a peer is closed by a worker thread of the ring: closing a file may take
 *     as long as its owner likes (a FUSE server that does not answer, a socket that lingers).
 *   - every received fd is closed when message() returns, except those it took.
 *   - gone() is called exactly once for each connection that began, as soon as its peer hung up, its
 *     process died (pidfd), broke the protocol or let its output pile up. The struct lives on until its
 *     last operation in the ring is over.
 *   - sending never fails for the caller: a packet is queued, or the connection is closed.
 *
 * A peer that does not read is no burden: above a mark of queued bytes no request of its is received, and the owner
 * keeps its notices to itself (skv_conn_is_full).
 */
#ifndef SKV_CONN_H
#define SKV_CONN_H

#include <stdarg.h>
#include "common/wire.h"
#include "daemon/ipc/peer.h"
#include "daemon/loop/loop.h"
#include "daemon/sys/counts.h"

struct skv_conn;
struct skv_ipc;

struct skv_ipc_ops {
	/* fds: header->n_fds of them; one that is set to -1 was taken. */
	void (*message)(void *ctx, struct skv_conn *, const struct skv_msg_header *, const void *body,
	                int *fds);
	void (*gone)(void *ctx, struct skv_conn *);
	/* Is all memory used that the daemon may use? Then who does not read its answers is disconnected. */
	bool (*used_up)(void *ctx);
	/* There is room for notices again, after skv_conn_is_full() said that there is none. */
	void (*drained)(void *ctx, struct skv_conn *);
};

struct skv_ipc_limits {
	uint32_t connections;         /* all together */
	uint32_t account_connections; /* a UID */
	uint64_t hello_ns;            /* time for the first message */
};

/*
 * Accept on the two sockets (consumed on success) once skv_ipc_listen() was called. operators_fd -1: there is none. Connections and
 * messages are counted in `counts`, borrowed. -ENOMEM.
 */
int skv_ipc_new(struct skv_loop *, int clients_fd, int operators_fd, const struct skv_ipc_ops *, void *ctx, struct skv_counts *counts,
                struct skv_ipc **ret);
void skv_ipc_set_limits(struct skv_ipc *, const struct skv_ipc_limits *);
void skv_ipc_listen(struct skv_ipc *);
/* A turn: messages are served, sockets are closed, of users one after the other. Is there more to do? */
bool skv_ipc_work(struct skv_ipc *);
/* All memory is used that may be: disconnect those who do not read their answers. */
void skv_ipc_relieve(struct skv_ipc *);
/* Close every connection; their ends are seen by skv_loop_drain(). No more are accepted. */
void skv_ipc_close_all(struct skv_ipc *);
/* The listening sockets, the caller's from now on, as they were given to skv_ipc_new(); after skv_loop_drain(). */
void skv_ipc_take_sockets(struct skv_ipc *, int *ret_clients, int *ret_operators);
struct skv_ipc *skv_ipc_free(struct skv_ipc *); /* after skv_loop_drain(); NULL is fine; returns NULL */

/* Each live connection. */
struct skv_conn *skv_ipc_first(struct skv_ipc *);
struct skv_conn *skv_conn_next(struct skv_conn *);
/* The live connection with this number, or NULL. For answers that come later. */
struct skv_conn *skv_ipc_find(struct skv_ipc *, uint64_t number);

const struct skv_peer *skv_conn_peer(const struct skv_conn *);
struct skv_peer skv_conn_take_peer(struct skv_conn *); /* its pidfd is the caller's; from within gone() */
bool skv_conn_is_operator(const struct skv_conn *);
uint64_t skv_conn_number(const struct skv_conn *); /* never used twice */
bool skv_conn_open(const struct skv_conn *);       /* false once gone() was called */
uint32_t skv_conn_client(const struct skv_conn *); /* the id in the core, 0 before HELLO */
void skv_conn_set_client(struct skv_conn *, uint32_t client, const char *program);
const char *skv_conn_name(const struct skv_conn *); /* "PROGRAM[PID]", for the log */

/* One packet: a body, and a tail that may be empty. fds are borrowed (duplicated). */
void skv_conn_send(struct skv_conn *, uint16_t type, uint32_t serial, const void *body, size_t body_bytes,
                   const void *tail, size_t tail_bytes, const int *fds, unsigned n_fds);
/* A text of any length, in as many SKV_MSG_TEXT packets as it takes. */
void skv_conn_send_text(struct skv_conn *, uint16_t type, uint32_t serial, const char *text, size_t len);
/* SKV_MSG_ERROR; `error` is a positive errno. */
void skv_conn_error(struct skv_conn *, uint32_t serial, int error, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void skv_conn_verror(struct skv_conn *, uint32_t serial, int error, const char *fmt, va_list ap);

/* Memory that the connection takes, with what is queued for its peer. */
uint64_t skv_conn_bytes(const struct skv_conn *);
/* Is so much queued that notices wait until drained() is called? */
bool skv_conn_is_full(struct skv_conn *);
/*
 * Held, replies wait, and no request is received: for as long as the peer was not told all that they may name. Notices
 * go on.
 */
void skv_conn_hold(struct skv_conn *, bool held);

/* Receive no request of the peer, until it is let go on as often as it was paused. */
void skv_conn_pause(struct skv_conn *, bool paused);

/* End it now; `why` goes to the log at `level` (NULL: nothing to say). gone() is called from within. */
void skv_conn_close(struct skv_conn *, int level, const char *why);
/* End it when what is queued has been sent; nothing is received any more. */
void skv_conn_finish(struct skv_conn *);

#endif
