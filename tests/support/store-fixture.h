/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/store-fixture.h - prefix stores for tests: redis-server in a private folder, and servers that
 * misbehave.
 *
 * Servers end with the test. Failures fail the test.
 */
#ifndef SKV_TEST_STORE_FIXTURE_H
#define SKV_TEST_STORE_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "daemon/store/client.h"

/*
 * If one of the programs is missing, prints that and returns the exit status with which the test program should end;
 * otherwise returns 0.
 */
int store_skip(const char *const *programs);

/* Returns whether the name localhost resolves. A minimal machine may have no /etc/hosts. */
bool store_has_localhost(void);

struct store_server {
	char *folder;
	const char *const *args; /* further arguments, also used by a restart; must stay valid */
	uint16_t port;
	char socket[128];
	pid_t pid;
};

/*
 * Starts redis-server without a file to save to, on a port of store_port(), with further arguments terminated by NULL.
 * Returns when it answers.
 */
void store_begin(struct store_server *, uint16_t port, const char *const *args);
void store_end(struct store_server *);
/* store_kill() ends only the process, with SIGKILL; store_restart() starts another one on the same socket and port. */
void store_kill(struct store_server *);
void store_restart(struct store_server *);
/* Returns a free port of 127.0.0.1; the port after it is for the caller, too. */
uint16_t store_port(void);

/* Opens a client of a URL ("unix://", "redis://" and so on), given in printf() format. */
__attribute__((format(printf, 1, 2))) struct skv_store *store_open(const char *format, ...);
/*
 * Runs redis-cli on the server's socket with these arguments, terminated by NULL; returns its output, which the caller
 * frees.
 */
__attribute__((sentinel)) char *store_cli(const struct store_server *, ...);

/* Fills with pseudo-random bytes of a seed. */
void store_fill(void *to, size_t n, uint64_t seed);

/*
 * A child process that accepts connections on FOLDER/fake. Each connection gets a process of its own that runs
 * `store_talk`, and is closed when that returns.
 */
typedef void (*store_talk)(int fd);
struct store_fake {
	char *folder;
	char socket[128];
	pid_t pid;
};
void store_fake_begin(struct store_fake *, store_talk);
void store_fake_end(struct store_fake *);

/* Milliseconds of the monotonic clock; peak memory of this process in bytes. */
double store_now_ms(void);
size_t store_peak_bytes(void);

#endif
