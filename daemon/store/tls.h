/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/tls.h - TLS over a nonblocking socket, with OpenSSL.
 *
 * The server must prove its host name to the configured authorities. Writes do not raise SIGPIPE: OpenSSL's socket BIO
 * uses write(2), so sessions have a BIO of their own.
 */
#ifndef SKV_STORE_TLS_H
#define SKV_STORE_TLS_H

#include <sys/types.h>
#include "daemon/store/config.h"

struct skv_store_tls;     /* authorities and this client's certificate */
struct skv_store_session; /* one connection */

/* -EINVAL with a text: a configured file is unusable. */
int skv_store_tls_new(const struct skv_store_config *, struct skv_store_tls **ret, char why[SKV_STORE_TEXT]);
struct skv_store_tls *skv_store_tls_free(struct skv_store_tls *);

/* The server's certificate must be for `host`. fd is borrowed until the session is freed. */
int skv_store_session_new(struct skv_store_tls *, int fd, const char *host, struct skv_store_session **ret,
                          char why[SKV_STORE_TEXT]);
struct skv_store_session *skv_store_session_free(struct skv_store_session *);

/*
 * -EAGAIN: call again when poll(2) reports *ret_events, which is written in this case only. -EACCES of the handshake:
 * the server is not trusted, or does not trust this client. Other errors end the connection. All errors but -EAGAIN
 * have a text.
 */
int skv_store_session_handshake(struct skv_store_session *, short *ret_events, char why[SKV_STORE_TEXT]);
ssize_t skv_store_session_read(struct skv_store_session *, void *to, size_t n, short *ret_events,
                               char why[SKV_STORE_TEXT]);
ssize_t skv_store_session_write(struct skv_store_session *, const void *from, size_t n, short *ret_events,
                                char why[SKV_STORE_TEXT]);

#endif
