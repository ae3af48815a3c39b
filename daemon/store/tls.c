/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "common/fd.h"

struct skv_store_tls {
	SSL_CTX *context;
	BIO_METHOD *method;
};

struct skv_store_session {
	SSL *ssl;
	int fd;    /* borrowed */
	int error; /* errno of the last send(2) or recv(2); 0: success, or the server closed the connection */
};

/* ---- BIO without SIGPIPE ------------------------------------------------------------------------ */

static int done(BIO *b, struct skv_store_session *s, ssize_t n, int retry)
{
	s->error = n < 0 ? errno : 0;
	BIO_clear_retry_flags(b);
	if (n < 0 && (s->error == EAGAIN || s->error == EINTR))
		BIO_set_flags(b, retry | BIO_FLAGS_SHOULD_RETRY);
	return (int)n;
}

static int bio_write(BIO *b, const char *from, int n)
{
	struct skv_store_session *s = BIO_get_data(b);

	return done(b, s, send(s->fd, from, (size_t)n, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

static int bio_read(BIO *b, char *to, int n)
{
	struct skv_store_session *s = BIO_get_data(b);

	return done(b, s, recv(s->fd, to, (size_t)n, 0), BIO_FLAGS_READ);
}

static long bio_ctrl(BIO *b, int command, long x, void *p)
{
	(void)b, (void)x, (void)p;
	return command == BIO_CTRL_FLUSH; /* the BIO does not buffer */
}

static BIO_METHOD *new_method(void)
{
	BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");

	if (m && BIO_meth_set_write(m, bio_write) && BIO_meth_set_read(m, bio_read) && BIO_meth_set_ctrl(m, bio_ctrl))
		return m;
	BIO_meth_free(m);
	return NULL;
}

/* ---- state shared by connections ------------------------------------------------------------------ */

/* Returns the text of OpenSSL's first error in this thread's queue. */
static const char *reason(void)
{
	const char *text = ERR_reason_error_string(ERR_peek_error());

	return text ? text : "no reason given";
}

static int refuse_file(char *why, const char *option, const char *path)
{
	return skv_store_refuse(why, -EINVAL, "store: %s: \"%.128s\": %s; expected PEM", option, path, reason());
}

static int load(SSL_CTX *context, const struct skv_store_config *c, char *why)
{
	const char *wrong;
	SKV_FD_CLEANUP int key = c->key[0] ? skv_open_secret(c->key, &wrong) : -1;

	if (c->key[0] && key < 0)
		return skv_store_refuse(why, key, "store: key: \"%.128s\": %s", c->key, wrong);
	if (c->ca[0] && SSL_CTX_load_verify_file(context, c->ca) != 1)
		return refuse_file(why, "ca", c->ca);
	if (!c->ca[0] && SSL_CTX_set_default_verify_paths(context) != 1)
		return skv_store_refuse(why, -EINVAL, "store: the system's authorities: %s", reason());
	if (c->cert[0] && SSL_CTX_use_certificate_chain_file(context, c->cert) != 1)
		return refuse_file(why, "cert", c->cert);
	if (c->key[0] && (SSL_CTX_use_PrivateKey_file(context, c->key, SSL_FILETYPE_PEM) != 1 ||
	                  SSL_CTX_check_private_key(context) != 1))
		return refuse_file(why, "key", c->key);
	return 0;
}

/* Prevents OpenSSL from asking on the terminal for the passphrase of an encrypted key. */
static int no_passphrase(char *to, int n, int writes, void *ctx)
{
	(void)to, (void)n, (void)writes, (void)ctx;
	return -1;
}

int skv_store_tls_new(const struct skv_store_config *c, struct skv_store_tls **ret, char why[SKV_STORE_TEXT])
{
	struct skv_store_tls *t = calloc(1, sizeof(*t));
	int r;

	ERR_clear_error();
	if (!t || !(t->method = new_method()) || !(t->context = SSL_CTX_new(TLS_client_method())) ||
	    !SSL_CTX_set_min_proto_version(t->context, TLS1_2_VERSION)) {
		skv_store_tls_free(t);
		return skv_store_refuse(why, -ENOMEM, "store: no memory for TLS");
	}
	SSL_CTX_set_default_passwd_cb(t->context, no_passphrase);
	SSL_CTX_set_verify(t->context, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_options(t->context, SSL_OP_NO_RENEGOTIATION);
	/* a write that returned -EAGAIN may be continued from another buffer with the same bytes */
	SSL_CTX_set_mode(t->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	r = load(t->context, c, why);
	if (r < 0)
		skv_store_tls_free(t);
	else
		*ret = t;
	return r;
}

struct skv_store_tls *skv_store_tls_free(struct skv_store_tls *t)
{
	if (t) {
		SSL_CTX_free(t->context);
		BIO_meth_free(t->method);
		free(t);
	}
	return NULL;
}

/* ---- a connection --------------------------------------------------------------------------------- */

/*
 * Sets the host that the server's certificate must be for. A host name is also sent to the server (SNI), which may have
 * certificates for several names; an address is not sent (RFC 6066).
 */
static bool expect_host(SSL *ssl, const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];

	if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
	SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

int skv_store_session_new(struct skv_store_tls *t, int fd, const char *host, struct skv_store_session **ret,
                          char why[SKV_STORE_TEXT])
{
	struct skv_store_session *s = calloc(1, sizeof(*s));
	BIO *bio = NULL;

	ERR_clear_error();
	if (!s || !(s->ssl = SSL_new(t->context)) || !expect_host(s->ssl, host) || !(bio = BIO_new(t->method))) {
		skv_store_session_free(s);
		return skv_store_refuse(why, -ENOMEM, "no memory for TLS");
	}
	s->fd = fd;
	BIO_set_data(bio, s);
	BIO_set_init(bio, 1);
	SSL_set_bio(s->ssl, bio, bio); /* this takes ownership of the BIO */
	SSL_set_connect_state(s->ssl);
	*ret = s;
	return 0;
}

struct skv_store_session *skv_store_session_free(struct skv_store_session *s)
{
	if (s) {
		SSL_free(s->ssl);
		free(s);
	}
	return NULL;
}

/* Returns the negative errno, with a text unless it is -EAGAIN, for an OpenSSL call that returned n < 1. */
static int failed(struct skv_store_session *s, int n, short *ret_events, char *why)
{
	switch (SSL_get_error(s->ssl, n)) {
	case SSL_ERROR_WANT_READ:
		*ret_events = POLLIN;
		return -EAGAIN;
	case SSL_ERROR_WANT_WRITE:
		*ret_events = POLLOUT;
		return -EAGAIN;
	case SSL_ERROR_SSL:
		if (ERR_GET_REASON(ERR_peek_error()) != SSL_R_UNEXPECTED_EOF_WHILE_READING)
			return skv_store_refuse(why, -EPROTO, "TLS: %s", reason());
		break;
	case SSL_ERROR_SYSCALL:
		if (s->error)
			return skv_store_refuse(why, -s->error, "%s", strerror(s->error));
		break;
	}
	return skv_store_refuse(why, -ECONNRESET, "the server closed the connection");
}

int skv_store_session_handshake(struct skv_store_session *s, short *ret_events, char why[SKV_STORE_TEXT])
{
	int n, r;

	ERR_clear_error();
	n = SSL_do_handshake(s->ssl);
	if (n == 1)
		return 0;
	r = failed(s, n, ret_events, why);
	if (r != -EPROTO)
		return r;
	if (SSL_get_verify_result(s->ssl) != X509_V_OK)
		return skv_store_refuse(why, -EACCES, "the server's certificate: %s",
		                        X509_verify_cert_error_string(SSL_get_verify_result(s->ssl)));
	return -EACCES;
}

ssize_t skv_store_session_read(struct skv_store_session *s, void *to, size_t n, short *ret_events,
                               char why[SKV_STORE_TEXT])
{
	int got;

	ERR_clear_error();
	got = SSL_read(s->ssl, to, n < INT_MAX ? (int)n : INT_MAX);
	return got > 0 ? got : failed(s, got, ret_events, why);
}

ssize_t skv_store_session_write(struct skv_store_session *s, const void *from, size_t n, short *ret_events,
                                char why[SKV_STORE_TEXT])
{
	int put;

	ERR_clear_error();
	put = SSL_write(s->ssl, from, n < INT_MAX ? (int)n : INT_MAX);
	return put > 0 ? put : failed(s, put, ret_events, why);
}
