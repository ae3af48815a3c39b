/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/ipc.c - accepting connections, and the list of them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/ipc/ipc-priv.h"
#include "daemon/sys/log.h"

#define RETRY_NS 100000000u /* between attempts to accept while there are no fds or memory */

static void accepted(struct skv_op *op, int res);

static void retry(struct skv_op *op, int res)
{
	struct skv_ipc *ipc = SKV_OP_OWNER(op, struct skv_ipc, retry_op);

	if (res == 0 && !ipc->closing)
		skv_op_accept(ipc->loop, &ipc->accept_op, ipc->listen_fd, accepted);
}

static void accepted(struct skv_op *op, int res)
{
	struct skv_ipc *ipc = SKV_OP_OWNER(op, struct skv_ipc, accept_op);

	if (ipc->closing) {
		skv_close_fd(res);
		return;
	}
	if (res < 0 && res != -ECONNABORTED && res != -EINTR) {
		/* EMFILE, ENFILE, ENOMEM: connections in the backlog are accepted when others have left. */
		if (!ipc->starved)
			skv_log(LOG_ERR, "cannot accept connections for now: %s", strerror(-res));
		ipc->starved = true;
		skv_op_timer(ipc->loop, &ipc->retry_op, RETRY_NS, retry);
		return;
	}
	if (res >= 0) {
		ipc->starved = false;
		skv_conn_begin(ipc, res);
	}
	skv_op_accept(ipc->loop, &ipc->accept_op, ipc->listen_fd, accepted);
}

int skv_ipc_new(struct skv_loop *loop, int listen_fd, const struct skv_ipc_ops *ops, void *ctx,
                struct skv_ipc **ret)
{
	struct skv_ipc *ipc = calloc(1, sizeof(*ipc));
	const char *debug = getenv("SPARSEKV_DEBUG");

	if (!ipc)
		return -ENOMEM;
	while (ipc->n_spare < SKV_IPC_SLOTS) {
		int fd = fcntl(listen_fd, F_DUPFD_CLOEXEC, 3);

		if (fd < 0)
			break; /* fewer then: they are for bad times, and these are bad times */
		ipc->spare[ipc->n_spare++] = fd;
	}
	ipc->loop = loop;
	ipc->listen_fd = listen_fd;
	ipc->ops = ops;
	ipc->ctx = ctx;
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
	skv_op_accept(ipc->loop, &ipc->accept_op, ipc->listen_fd, accepted);
}

void skv_ipc_close_all(struct skv_ipc *ipc)
{
	ipc->closing = true;
	skv_op_cancel(ipc->loop, &ipc->accept_op);
	skv_op_cancel(ipc->loop, &ipc->retry_op);
	while (ipc->conns)
		skv_conn_close(ipc->conns, LOG_DEBUG, NULL);
}

struct skv_ipc *skv_ipc_free(struct skv_ipc *ipc)
{
	if (ipc) {
		while (ipc->n_spare)
			skv_close_fd(ipc->spare[--ipc->n_spare]);
		skv_close_fd(ipc->listen_fd);
		free(ipc);
	}
	return NULL;
}

struct skv_conn *skv_ipc_first(struct skv_ipc *ipc)
{
	return ipc->conns;
}

struct skv_conn *skv_ipc_find(struct skv_ipc *ipc, uint64_t number)
{
	struct skv_conn *conn = ipc->conns;

	while (conn && conn->number != number)
		conn = conn->next;
	return conn;
}

const struct skv_ipc_counters *skv_ipc_counters(const struct skv_ipc *ipc)
{
	return &ipc->counters;
}
