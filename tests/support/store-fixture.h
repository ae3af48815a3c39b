/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/store-fixture.h - prefix stores for tests: redis-server in a private folder, and servers that
 * misbehave.
 *
 * Servers end with the test. Assertions are Check's.
 */
#ifndef SKV_TEST_STORE_FIXTURE_H
#define SKV_TEST_STORE_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "daemon/store/client.h"

/* Programs that are needed and are not here: a line says so, and the test program ends with this status; 0: they are
 * here. */
int store_skip(const char *const *programs);

/* Is localhost a name here? A bare machine may have no file of names. */
bool store_has_localhost(void);

struct store_server {
	char *folder;
	const char *const *args; /* further ones, for a restart: they outlive it */
	uint16_t port;
	char socket[128];
	pid_t pid;
};

/* redis-server without a file to save to, on a port of store_port(), with further arguments up to NULL; it answers when
 * this returns. */
void store_begin(struct store_server *, uint16_t port, const char *const *args);
void store_end(struct store_server *);
/* The process alone: SIGKILL, and another one on the same socket and port. */
void store_kill(struct store_server *);
void store_restart(struct store_server *);
/* A port of 127.0.0.1 that nobody listens on; the one behind it is for the caller, too. */
uint16_t store_port(void);

/* A client of "unix://", "redis://" and so on: format as printf. */
__attribute__((format(printf, 1, 2))) struct skv_store *store_open(const char *format, ...);
/* redis-cli on the socket, in words up to NULL: what it prints, to be freed. */
__attribute__((sentinel)) char *store_cli(const struct store_server *, ...);

/* Bytes of a seed: the same for the same seed. */
void store_fill(void *to, size_t n, uint64_t seed);

/*
 * A child process that accepts connections on FOLDER/fake, each in a process of its own that runs this: the connection
 * is closed when it returns.
 */
typedef void (*store_talk)(int fd);
struct store_fake {
	char *folder;
	char socket[128];
	pid_t pid;
};
void store_fake_begin(struct store_fake *, store_talk);
void store_fake_end(struct store_fake *);

/* Milliseconds of the monotonic clock; the highest memory of this process in bytes. */
double store_now_ms(void);
size_t store_peak_bytes(void);

#endif
