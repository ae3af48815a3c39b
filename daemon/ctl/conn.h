/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/conn.h - a simple blocking connection to the daemon, for sparsekvctl.
 *
 * One request at a time, its reply as JSON. KV cache memory is not accessed; the client library does that.
 */
#ifndef SKV_CTL_CONN_H
#define SKV_CTL_CONN_H

#include <jansson.h>
#include "common/wire.h"

struct skv_ctl {
	int fd;
	uint32_t serial;
	int timeout_ms;               /* for each packet */
	char daemon[SKV_NAME_MAX];    /* its version */
	char err[SKV_TEXT_MAX + 256]; /* one line, after a failure */
};
#define SKV_CTL_NULL {.fd = -1}

/* Connects and says HELLO. 0, or negative errno with a text in ctl->err. */
int skv_ctl_connect(struct skv_ctl *ctl, const char *path, const char *program, int timeout_ms);
void skv_ctl_close(struct skv_ctl *ctl); /* safe on SKV_CTL_NULL and twice */

/*
 * Sends a request, with `fd` (borrowed; -1: none). *ret: the reply, owned by the caller. Negative errno: the daemon's
 * error (text in ctl->err), or -ETIMEDOUT, -ECONNRESET, -EPROTO of the connection itself.
 */
int skv_ctl_ask(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, int fd, json_t **ret);
/* The same for a reply that is a struct of ret_bytes and a descriptor, *ret_fd, the caller's. */
int skv_ctl_ask_fd(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, void *ret, size_t ret_bytes, int *ret_fd);
int skv_ctl_query(struct skv_ctl *ctl, enum skv_query what, json_t **ret);

#endif
