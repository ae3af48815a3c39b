/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix store's client over TLS: with a trusted server everything works as without TLS; any other server is
 * refused; and a server that stops, before or after the handshake, costs no more than the deadline.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

static struct store_server server;
static struct skv_store *store;
static char *certs; /* folder */

/*
 * ca.pem has signed name.pem (for localhost), address.pem (for 127.0.0.1) and client.pem; other.pem is another
 * authority.
 */
static const char script[] =
	"set -e; cd \"$1\"; exec 2>&1\n"
	"key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $1.key; }\n"
	"authority() { key $1; openssl req -x509 -new -key $1.key -subj /CN=$1 -days 2 -out $1.pem; }\n"
	"signed() { key $1; openssl req -new -key $1.key -subj /CN=$1 -out $1.csr; echo $2 >$1.ext\n"
	"openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $1.ext -out $1.pem; }\n"
	"authority ca; authority other\n"
	"signed name subjectAltName=DNS:localhost; signed address subjectAltName=IP:127.0.0.1; signed client "
        "extendedKeyUsage=clientAuth\n";

static void make_certs(void)
{
	pid_t pid;

	certs = fx_folder();
	pid = child_fork();
	if (pid == 0) {
		ck_assert_ptr_nonnull(freopen(fx_path(certs, "log"), "w", stdout));
		execlp("bash", "bash", "-c", script, "bash", certs, (char *)NULL);
		_exit(126);
	}
	child_wait(pid);
}

/* Starts a server with this certificate; `clients`: whether clients need one, too. */
static void begin_server(const char *name, const char *clients)
{
	static char port[8], cert[512], key[512], ca[512];
	static const char *args[] = {"--tls-port",
	                             port,
	                             "--tls-cert-file",
	                             cert,
	                             "--tls-key-file",
	                             key,
	                             "--tls-ca-cert-file",
	                             ca,
	                             "--tls-auth-clients",
	                             NULL,
	                             NULL};
	const uint16_t plain = store_port();

	snprintf(cert, sizeof(cert), "%s/%s.pem", certs, name);
	snprintf(key, sizeof(key), "%s/%s.key", certs, name);
	snprintf(ca, sizeof(ca), "%s/ca.pem", certs);
	args[9] = clients;
	snprintf(port, sizeof(port), "%u", plain + 1u);
	store_begin(&server, plain, args);
}

static void begin(void)
{
	make_certs();
}

static void end(void)
{
	store = skv_store_free(store);
	fx_remove(certs);
}

static int exists(void)
{
	int status, r = skv_store_exists(store, &(struct skv_store_bytes){"k", 1}, 1, 0, &status);

	ck_assert_int_eq(r, status < 0 ? status : 0);
	return r;
}

/* Opens rediss://HOST with this authority's certificate and further options. */
static int try(const char *host, const char *ca, const char *options)
{
	skv_store_free(store);
	store = store_open("rediss://%s:%u?ca=%s/%s%s", host, server.port + 1, certs, ca, options);
	return exists();
}

#define EXPECT(call, result) \
	do { \
		int got_ = (call); \
		ck_assert_msg(got_ == (result), "%s: %d, and says \"%s\"", #call, got_, skv_store_error(store)); \
	} while (0)
#define EXPECT_SAYS(text) ck_assert_msg(strstr(skv_store_error(store), text), "it says \"%s\"", skv_store_error(store))

START_TEST(trust)
{
	begin_server("name", "no");
	EXPECT(try("localhost", "ca.pem", ""), 0);
	EXPECT(try("127.0.0.1", "ca.pem", "&tls-name=localhost"), 0);
	EXPECT(try("localhost", "other.pem", ""), -EACCES);
	EXPECT_SAYS("the server's certificate: self-signed certificate in certificate chain");
	EXPECT(exists(), -EHOSTDOWN);
	EXPECT(try("127.0.0.1", "ca.pem", ""), -EACCES);
	EXPECT_SAYS("IP address mismatch");
	EXPECT(try("localhost", "ca.pem", "&tls-name=localhost.example"), -EACCES);
	EXPECT_SAYS("hostname mismatch");
	skv_store_free(store);
	store = store_open("rediss://localhost:%u", server.port + 1); /* the system's authorities */
	EXPECT(exists(), -EACCES);
	skv_store_free(store);
	store = store_open("rediss://localhost:%u", server.port); /* a port without TLS */
	ck_assert_int_lt(exists(), 0);
	skv_store_free(store);
	store = store_open("redis://localhost:%u", server.port + 1); /* a port with TLS */
	ck_assert_int_lt(exists(), 0);
	store_end(&server);

	begin_server("address", "no");
	EXPECT(try("127.0.0.1", "ca.pem", ""), 0);
	EXPECT(try("localhost", "ca.pem", ""), -EACCES);
	store_end(&server);
}
END_TEST

START_TEST(client_certificate)
{
	char options[1200];

	begin_server("name", "yes");
	ck_assert_int_lt(try("localhost", "ca.pem", ""), 0);
	snprintf(options, sizeof(options), "&cert=%s/client.pem&key=%s/client.key", certs, certs);
	EXPECT(try("localhost", "ca.pem", options), 0);
	snprintf(options, sizeof(options), "&cert=%s/other.pem&key=%s/other.key", certs, certs);
	ck_assert_int_lt(try("localhost", "ca.pem", options), 0);
	store_end(&server);
}
END_TEST

struct seen {
	const struct skv_store_bytes *values;
	uint32_t n;
};

static void see(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct seen *s = ctx;

	ck_assert_ptr_nonnull(value);
	ck_assert_uint_eq(bytes, s->values[i].n);
	ck_assert(!bytes || memcmp(value, s->values[i].at, bytes) == 0);
	s->n++;
}

/* Writes and reads 40 values of up to 8 MiB. */
static void round_trip(void)
{
	struct skv_store_bytes keys[40], values[40];
	struct seen seen = {values, 0};
	int status[40];
	double t;
	size_t all = 0;

	for (uint32_t i = 0; i < 40; i++) {
		char *key = malloc(20), *value = malloc(SKV_STORE_MAX_VALUE);

		rnd_bytes(key, 20);
		keys[i] = (struct skv_store_bytes){key, 20};
		values[i] =
			(struct skv_store_bytes){value, i < 3 ? SKV_STORE_MAX_VALUE : rnd_below(1 << rnd_below(22))};
		store_fill(value, values[i].n, i);
		all += values[i].n;
	}
	t = store_now_ms();
	EXPECT(skv_store_set(store, keys, values, 40, 0, false, 60000, status), 0);
	EXPECT(skv_store_get(store, keys, 40, 60000, see, &seen, status), 0);
	printf("over TLS, there and back: %.0f MB/s\n", 2e-3 * (double)all / (store_now_ms() - t));
	ck_assert_uint_eq(seen.n, 40);
	for (uint32_t i = 0; i < 40; i++) {
		free((void *)keys[i].at);
		free((void *)values[i].at);
	}
}

START_TEST(values_and_failures)
{
	double from;

	begin_server("name", "no");
	EXPECT(try("localhost", "ca.pem", "&timeout=400&connect-timeout=400"), 0);
	round_trip();
	for (int fresh = 0; fresh < 2; fresh++) { /* stopped in the middle, and before the handshake */
		kill(server.pid, SIGSTOP);
		from = store_now_ms();
		EXPECT(fresh ? try("localhost", "ca.pem", "&timeout=400&connect-timeout=400") : exists(), -ETIMEDOUT);
		ck_assert(slowed() || store_now_ms() - from < 1000);
		EXPECT(exists(), -EHOSTDOWN);
		kill(server.pid, SIGCONT);
		for (from = store_now_ms(); exists() < 0; usleep(5000))
			ck_assert(store_now_ms() - from < (slowed() ? 10000 : 1500));
	}
	round_trip();
	store_kill(&server);
	ck_assert_int_lt(exists(), 0);
	store_restart(&server);
	for (from = store_now_ms(); exists() < 0; usleep(5000))
		ck_assert(store_now_ms() - from < (slowed() ? 10000 : 1500));
	round_trip();
	store_end(&server);
}
END_TEST

int main(void)
{
	Suite *s;
	const int skip = store_skip((const char *const[]){"redis-server", "redis-cli", "openssl", "bash", NULL});

	if (skip)
		return skip;
	if (!store_has_localhost()) {
		printf("skipped: localhost, which certificates are for, is no name here\n");
		return 77;
	}
	s = begin_suite("test-store-tls");
	add_case(s, "tls", 60, begin, end, trust, client_certificate, values_and_failures, NULL);
	return run_suite(s);
}
