/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/transport.h - bytes to a server and back: over TCP, a UNIX socket, or TLS over TCP.
 *
 * The socket is nonblocking: opening waits, with poll(2) and until a deadline; nothing else does. No SIGPIPE is raised.
 */
#ifndef SKV_STORE_TRANSPORT_H
#define SKV_STORE_TRANSPORT_H

#include "daemon/store/resolve.h"
#include "daemon/store/tls.h"

struct skv_store_transport {
	int fd; /* -1: it is closed */
	struct skv_store_session *session; /* NULL: without TLS */
	short read_events, write_events;   /* what the next one waits for */
};
#define SKV_STORE_TRANSPORT_NULL {.fd = -1}

/*
 * tls: NULL, without. tls_name: "", the address's host. -ETIMEDOUT or why not, with a text; *ret is written on success
 * only.
 */
int skv_store_transport_open(struct skv_store_transport *ret, const struct skv_store_address *,
                             struct skv_store_resolver *, struct skv_store_tls *tls, const char *tls_name,
                             uint64_t deadline_ns, char why[SKV_STORE_TEXT]);
void skv_store_transport_close(struct skv_store_transport *);

/*
 * Bytes, at least one; -EAGAIN: when poll(2) finds read_events, or write_events; or -ECONNRESET and such with a text:
 * it is of no use any more.
 */
ssize_t skv_store_transport_read(struct skv_store_transport *, void *to, size_t n, char why[SKV_STORE_TEXT]);
ssize_t skv_store_transport_write(struct skv_store_transport *, const void *from, size_t n, char why[SKV_STORE_TEXT]);

struct pollfd;
/* Until one of them has something: 0, or -ETIMEDOUT. */
int skv_store_wait(struct pollfd *, size_t n, uint64_t deadline_ns);

#endif
