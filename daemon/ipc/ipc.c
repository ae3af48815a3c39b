/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/ipc.c - accepts connections, and has the list of all connections. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/ipc/ipc-priv.h"
#include "daemon/sys/log.h"

/* pause between attempts to accept a connection, while the daemon has no descriptors or memory left */
#define RETRY_NS 100000000u

static void accepted(struct skv_op *op, int res);

static void retry(struct skv_op *op, int res)
{
	struct skv_door *door = SKV_OP_OWNER(op, struct skv_door, retry_op);

	if (res == 0 && !door->ipc->closing)
		skv_op_accept(door->ipc->loop, &door->accept_op, door->fd, accepted);
}

static void accepted(struct skv_op *op, int res)
{
	struct skv_door *door = SKV_OP_OWNER(op, struct skv_door, accept_op);
	struct skv_ipc *ipc = door->ipc;

	if (ipc->closing) {
		skv_close_fd(res);
		return;
	}
	if (res < 0 && res != -ECONNABORTED && res != -EINTR && res != -EAGAIN) {
		/* EMFILE, ENFILE or ENOMEM: connections wait in the socket's backlog until others have ended. */
		if (!door->starved)
			skv_log(LOG_ERR, "new connections cannot be accepted now, and have to wait: %s",
			        strerror(-res));
		door->starved = true;
		skv_op_timer(ipc->loop, &door->retry_op, RETRY_NS, retry);
		return;
	}
	if (res >= 0) {
		door->starved = false;
		skv_conn_begin(door, res);
	}
	skv_op_accept(ipc->loop, &door->accept_op, door->fd, accepted);
}

int skv_ipc_new(struct skv_loop *loop, int clients_fd, int operators_fd, const struct skv_ipc_ops *ops, void *ctx, struct skv_counts *counts,
                struct skv_ipc **ret)
{
	struct skv_ipc *ipc = calloc(1, sizeof(*ipc));
	const char *debug = getenv("SPARSEKV_DEBUG");

	if (!ipc)
		return -ENOMEM;
	while (ipc->n_spare < SKV_IPC_SLOTS) {
		int fd = fcntl(clients_fd, F_DUPFD_CLOEXEC, 3);

		if (fd < 0)
			break; /* descriptors are short already, so there are fewer spare ones */
		ipc->spare[ipc->n_spare++] = fd;
	}
	skv_rights_refuse(clients_fd);
	/* another daemon may have the same socket and accept the connection first; accept must not block then */
	(void)fcntl(clients_fd, F_SETFL, O_NONBLOCK);
	if (operators_fd >= 0)
		(void)fcntl(operators_fd, F_SETFL, O_NONBLOCK);
	ipc->doors[SKV_DOOR_CLIENTS] = (struct skv_door){.ipc = ipc, .fd = clients_fd};
	ipc->doors[SKV_DOOR_OPERATORS] = (struct skv_door){.ipc = ipc, .fd = operators_fd, .operators = true};
	ipc->turns_end = &ipc->turns;
	ipc->loop = loop;
	ipc->ops = ops;
	ipc->ctx = ctx;
	ipc->counts = counts;
	ipc->dump = debug && strstr(debug, "wire");
	*ret = ipc;
	return 0;
}

void skv_ipc_set_limits(struct skv_ipc *ipc, const struct skv_ipc_limits *limits)
{
	ipc->limits = *limits;
}

void skv_ipc_listen(struct skv_ipc *ipc)
{
	for (int i = 0; i < SKV_IPC_DOORS; i++)
		if (ipc->doors[i].fd >= 0)
			skv_op_accept(ipc->loop, &ipc->doors[i].accept_op, ipc->doors[i].fd, accepted);
}

void skv_ipc_close_all(struct skv_ipc *ipc)
{
	ipc->closing = true;
	for (int i = 0; i < SKV_IPC_DOORS; i++) {
		skv_op_cancel(ipc->loop, &ipc->doors[i].accept_op);
		skv_op_cancel(ipc->loop, &ipc->doors[i].retry_op);
	}
	while (ipc->conns)
		skv_conn_close(ipc->conns, LOG_DEBUG, NULL);
	while (skv_ipc_work(ipc))
		; /* closes sockets of connections without operations in the loop */
}

struct skv_ipc *skv_ipc_free(struct skv_ipc *ipc)
{
	if (ipc) {
		while (ipc->n_spare)
			skv_close_fd(ipc->spare[--ipc->n_spare]);
		for (int i = 0; i < SKV_IPC_DOORS; i++)
			skv_close_fd(ipc->doors[i].fd);
		free(ipc);
	}
	return NULL;
}

struct skv_conn *skv_ipc_first(struct skv_ipc *ipc)
{
	return ipc->conns;
}
