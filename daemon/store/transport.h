/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/transport.h - sends and receives bytes: over TCP, a UNIX socket, or TLS over TCP.
 *
 * The socket is nonblocking. Only opening waits, with poll(2) and up to a deadline. SIGPIPE is never raised.
 */
#ifndef SKV_STORE_TRANSPORT_H
#define SKV_STORE_TRANSPORT_H

#include "daemon/store/resolve.h"
#include "daemon/store/tls.h"

struct skv_store_transport {
	int fd; /* -1: closed */
	struct skv_store_session *session; /* NULL: without TLS */
	short read_events, write_events;   /* events that the next read or write needs */
};
#define SKV_STORE_TRANSPORT_NULL {.fd = -1}

/*
 * tls NULL: without TLS. tls_name "": the address's host. Returns 0, -ETIMEDOUT or another negative errno with a text;
 * *ret is written on success only.
 */
int skv_store_transport_open(struct skv_store_transport *ret, const struct skv_store_address *,
                             struct skv_store_resolver *, struct skv_store_tls *tls, const char *tls_name,
                             uint64_t deadline_ns, char why[SKV_STORE_TEXT]);
void skv_store_transport_close(struct skv_store_transport *);

/*
 * Return the number of bytes, at least one; -EAGAIN: poll(2) for read_events or write_events; or -ECONNRESET or another
 * error with a text: the connection is unusable.
 */
ssize_t skv_store_transport_read(struct skv_store_transport *, void *to, size_t n, char why[SKV_STORE_TEXT]);
ssize_t skv_store_transport_write(struct skv_store_transport *, const void *from, size_t n, char why[SKV_STORE_TEXT]);

struct pollfd;
/* Waits until one of them has an event. Returns 0 or -ETIMEDOUT; another negative errno if ppoll(2) fails. */
int skv_store_wait(struct pollfd *, size_t n, uint64_t deadline_ns);

#endif
