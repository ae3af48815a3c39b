/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/socket.h - sends and receives bytes over TCP, a UNIX socket, or TLS over TCP.
 *
 * The socket is nonblocking. Only skv_store_socket_open() waits, with poll(2), up to a deadline. SIGPIPE is never
 * raised.
 */
#ifndef SKV_STORE_SOCKET_H
#define SKV_STORE_SOCKET_H

#include "daemon/store/resolve.h"
#include "daemon/store/tls.h"

struct skv_store_socket {
	int fd; /* -1: closed */
	struct skv_store_session *session; /* NULL: without TLS */
	short read_events, write_events;   /* events of poll(2) that the next read, and the next write, wait for */
};
#define SKV_STORE_SOCKET_NULL {.fd = -1}

/*
 * Connects to the address. tls NULL: without TLS. tls_name: host name that the server's certificate must have; "": the
 * address's host. Returns 0, -ETIMEDOUT or another negative errno with a text; *ret is written on success only.
 */
int skv_store_socket_open(struct skv_store_socket *ret, const struct skv_store_address *,
                             struct skv_store_resolver *, struct skv_store_tls *tls, const char *tls_name,
                             uint64_t deadline_ns, char why[SKV_STORE_TEXT]);
void skv_store_socket_close(struct skv_store_socket *);

/*
 * Read or write up to n bytes without waiting. Return the number of bytes, at least one; -EAGAIN: nothing can be read
 * or written until poll(2) reports read_events or write_events; or -ECONNRESET or another negative errno with a text:
 * the connection is unusable.
 */
ssize_t skv_store_socket_read(struct skv_store_socket *, void *to, size_t n, char why[SKV_STORE_TEXT]);
ssize_t skv_store_socket_write(struct skv_store_socket *, const void *from, size_t n, char why[SKV_STORE_TEXT]);

struct pollfd;
/*
 * Waits until one of n descriptors has an event. Returns 0, -ETIMEDOUT, or the negative errno of a ppoll(2) that
 * failed.
 */
int skv_store_wait(struct pollfd *, size_t n, uint64_t deadline_ns);

#endif
