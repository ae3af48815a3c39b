/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/conn.h - a plain, waiting conversation with the daemon, for sparsekvctl.
 *
 * One request at a time, its answer as JSON. Nothing of the data plane: the client library is for that.
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
	char err[SKV_TEXT_MAX + 256]; /* after a failure: one line */
};
#define SKV_CTL_NULL {.fd = -1}

/* Connect and say hello. 0, or negative errno with a text in ctl->err. */
int skv_ctl_connect(struct skv_ctl *ctl, const char *path, const char *program, int timeout_ms);
void skv_ctl_close(struct skv_ctl *ctl); /* safe on SKV_CTL_NULL and twice */

/*
 * Ask, with `fd` (borrowed; -1 for none). The answer into *ret, owned by the caller. Negative errno: what
 * the daemon said (its text in ctl->err), or -ETIMEDOUT, -ECONNRESET, -EPROTO of the conversation itself.
 */
int skv_ctl_ask(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, int fd, json_t **ret);
/* The same where the answer is a struct of ret_bytes and a descriptor, *ret_fd, the caller's. */
int skv_ctl_ask_fd(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, void *ret, size_t ret_bytes, int *ret_fd);
int skv_ctl_query(struct skv_ctl *ctl, enum skv_query what, json_t **ret);

#endif
