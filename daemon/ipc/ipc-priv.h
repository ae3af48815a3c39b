/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/ipc-priv.h - what ipc.c (accepting) and conn.c (one connection) know of each other. */
#ifndef SKV_IPC_PRIV_H
#define SKV_IPC_PRIV_H

#include "daemon/ipc/conn.h"
#include "daemon/ipc/rights.h"

#define SKV_IPC_SLOTS 64u
enum { SKV_DOOR_CLIENTS, SKV_DOOR_OPERATORS, SKV_IPC_DOORS };

/* A listening socket. */
struct skv_door {
	struct skv_ipc *ipc;
	int fd; /* -1: there is none */
	bool operators;
	bool starved;
	struct skv_op accept_op, retry_op;
};

struct skv_ipc {
	struct skv_loop *loop;
	struct skv_door doors[SKV_IPC_DOORS];
	const struct skv_ipc_ops *ops;
	void *ctx;
	struct skv_ipc_limits limits;
	struct skv_ipc_counters counters;
	bool closing, dump;
	uint64_t last_number;
	uint32_t n_conns;       /* of both lists */
	struct skv_conn *conns; /* the live ones */
	struct skv_conn *ended; /* and those whose socket is not closed so far */
	/*
	 * Descriptors of our own that stand by for what is sent, so that a client may be told of a segment
	 * also when the process has run out of descriptors: dup3(2) replaces it with the one to be sent.
	 */
	int spare[SKV_IPC_SLOTS];
	unsigned n_spare;
};

/* A packet to be sent, and the fds that go with it (owned). */
struct skv_conn_out {
	struct skv_conn_out *next;
	size_t bytes, charge;
	unsigned n_fds;
	int fds[SKV_WIRE_MAX_FDS];
	_Alignas(8) char packet[];
};

struct skv_conn {
	struct skv_ipc *ipc;
	struct skv_conn *prev, *next;
	uint64_t number;
	int fd;
	struct skv_peer peer;
	uint32_t client;
	char name[SKV_NAME_MAX + 16];
	bool operators; /* it came through the operators' socket */
	bool open, hello, finishing;
	bool unheard; /* the peer hung up, and what it sent before is being received */

	struct skv_op recv_op, send_op, death_op, hello_op, end_op, close_op;
	struct skv_conn_out *sending;        /* in the kernel's hands */
	struct skv_conn_out *out, **out_end; /* behind it */
	uint64_t out_charge;                 /* of both */
	bool wants_room;                     /* drained() is due */
	bool held, paused;
	struct skv_conn_out *kept, **kept_end; /* replies, until it is not held any more */

	struct msghdr recv_msg, send_msg;
	struct iovec recv_iov, send_iov;
	struct skv_rights_room recv_control, send_control;
	_Alignas(8) char packet[SKV_WIRE_MAX];
};

/* Take over a connected socket (consumed in any case). */
void skv_conn_begin(struct skv_door *, int fd);

#endif
