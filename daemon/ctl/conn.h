/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/conn.h - a simple blocking connection to the daemon, for sparsekvctl.
 *
 * A connection has one request at a time, whose reply is JSON. sparsekvctl does not map any memory of KV caches, as the
 * client library does.
 */
#ifndef SKV_CTL_CONN_H
#define SKV_CTL_CONN_H

#include <jansson.h>
#include "common/wire.h"

struct skv_ctl {
	int fd;
	uint32_t serial;
	int timeout_ms;               /* time to wait for each packet of a reply */
	char daemon[SKV_NAME_MAX];    /* version of the daemon */
	char err[SKV_TEXT_MAX + 256]; /* after a failure: an error text of one line */
};
#define SKV_CTL_NULL {.fd = -1}

/* Connects to the socket `path` and sends HELLO. Returns 0, or a negative errno with a text in ctl->err. */
int skv_ctl_connect(struct skv_ctl *ctl, const char *path, const char *program, int timeout_ms);
void skv_ctl_close(struct skv_ctl *ctl); /* may be called on SKV_CTL_NULL, and twice */

/*
 * Sends a request, with the descriptor `fd` (borrowed; -1: none), and receives the reply as *ret, which the caller
 * owns. Returns 0, or a negative errno with a text in ctl->err: the error with which the daemon replied, or -ETIMEDOUT,
 * -ECONNRESET or -EPROTO if the connection failed.
 */
int skv_ctl_ask(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, int fd, json_t **ret);
/*
 * Sends a request whose reply is not JSON, but a struct of ret_bytes bytes and a descriptor, *ret_fd, which the caller
 * owns.
 */
int skv_ctl_ask_fd(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, void *ret, size_t ret_bytes, int *ret_fd);
int skv_ctl_query(struct skv_ctl *ctl, enum skv_query what, json_t **ret);

#endif
