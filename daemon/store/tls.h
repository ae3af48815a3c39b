/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/tls.h - TLS over a nonblocking socket, by OpenSSL.
 *
 * The server must prove that it is the host that was asked for, to the authorities of the configuration. No write
 * raises SIGPIPE: OpenSSL's own BIO of sockets uses write(2), so it is given another one.
 */
#ifndef SKV_STORE_TLS_H
#define SKV_STORE_TLS_H

#include <sys/types.h>
#include "daemon/store/config.h"

struct skv_store_tls;     /* authorities and this client's certificate */
struct skv_store_session; /* of one connection */

/* -EINVAL with a text: a file that is named cannot be used. */
int skv_store_tls_new(const struct skv_store_config *, struct skv_store_tls **ret, char why[SKV_STORE_TEXT]);
struct skv_store_tls *skv_store_tls_free(struct skv_store_tls *);

/* With a server that must be `host`. fd is borrowed until the session is freed. */
int skv_store_session_new(struct skv_store_tls *, int fd, const char *host, struct skv_store_session **ret,
                          char why[SKV_STORE_TEXT]);
struct skv_store_session *skv_store_session_free(struct skv_store_session *);

/*
 * Of these -EAGAIN means: again, when poll(2) finds *ret_events, which is written in this one case. -EACCES of the
 * handshake: the server is not trusted, or does not trust this client; other errors are the connection's end. All but
 * -EAGAIN have a text.
 */
int skv_store_session_handshake(struct skv_store_session *, short *ret_events, char why[SKV_STORE_TEXT]);
ssize_t skv_store_session_read(struct skv_store_session *, void *to, size_t n, short *ret_events,
                               char why[SKV_STORE_TEXT]);
ssize_t skv_store_session_write(struct skv_store_session *, const void *from, size_t n, short *ret_events,
                                char why[SKV_STORE_TEXT]);

#endif
