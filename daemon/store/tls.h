/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/tls.h - TLS over a nonblocking socket, with OpenSSL.
 *
 * The server must have a certificate for its host name, signed by an authority that is configured. Writes do not raise
 * SIGPIPE: OpenSSL's socket BIO uses write(2), which may raise it, so sessions use a BIO that calls send(2).
 */
#ifndef SKV_STORE_TLS_H
#define SKV_STORE_TLS_H

#include <sys/types.h>
#include "daemon/store/config.h"

struct skv_store_tls;     /* authorities and this client's certificate */
struct skv_store_session; /* one connection */

/* Loads authorities, certificate and key. Returns 0, or a negative errno with a text; -EINVAL: a file is unusable. */
int skv_store_tls_new(const struct skv_store_config *, struct skv_store_tls **ret, char why[SKV_STORE_TEXT]);
struct skv_store_tls *skv_store_tls_free(struct skv_store_tls *);

/* Creates a TLS session on a connected socket. The server's certificate must be for `host`. fd is borrowed. */
int skv_store_session_new(struct skv_store_tls *, int fd, const char *host, struct skv_store_session **ret,
                          char why[SKV_STORE_TEXT]);
struct skv_store_session *skv_store_session_free(struct skv_store_session *);

/*
 * Do the handshake, read or write without waiting. -EAGAIN: the function must be called again when poll(2) reports
 * *ret_events, which is written in this case only. -EACCES of the handshake: the server is not trusted, or does not
 * trust this client. All errors but -EAGAIN have a text and make the connection unusable.
 */
int skv_store_session_handshake(struct skv_store_session *, short *ret_events, char why[SKV_STORE_TEXT]);
ssize_t skv_store_session_read(struct skv_store_session *, void *to, size_t n, short *ret_events,
                               char why[SKV_STORE_TEXT]);
ssize_t skv_store_session_write(struct skv_store_session *, const void *from, size_t n, short *ret_events,
                                char why[SKV_STORE_TEXT]);

#endif
