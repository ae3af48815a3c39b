/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-hosts.h - two daemons that share a prefix store, a redis-server, and users that read prompts
 * there.
 *
 * Daemons run in the network namespaces that $SKV_TEST_NETNS names (two paths separated by ':'), and find the store at
 * the addresses in $SKV_TEST_STORE (scale.sh makes them); without these, all run in this namespace. If `nixl` names
 * NIXL's library, daemons read values from each other's memory; its default is $SKV_TEST_NIXL. Failures fail the test.
 */
#ifndef SKV_TEST_PREFIX_HOSTS_H
#define SKV_TEST_PREFIX_HOSTS_H

#include "tests/support/daemon-fixture.h"
#include "tests/support/prefix-reader.h"
#include "tests/support/store-fixture.h"

#define HOSTS_WAIT_S 2 /* prefix-store-wait */
#define HOSTS_BLOCKS (PREFIX_SEALED / 256)
#define HOSTS_PASSWORD "between-us"
#define HOSTS_GAVE_UP 7 /* exit status of a child whose daemon was killed */

struct prefix_hosts {
	struct store_server store;
	char *folder;
	struct fix host[2];
	uint32_t dtype; /* of pages; 0: the model's dtype */
	const char *spec; /* of users' sessions */
	const char *nixl[2]; /* used at the next start; NULL: without NIXL */
	const char *window;  /* prefix-store-nixl-window; NULL: its default */
	bool diskless;       /* used at the next start: without parked-path */
};
extern struct prefix_hosts hosts;

/* Before and after each test. */
void hosts_begin(void);
void hosts_end(void);
void hosts_start(int i);
/* Sends a signal (SIGKILL, SIGSTOP, SIGCONT) to the workers of a daemon. */
void hosts_signal_workers(int i, int signal);

/* ---- the store ---- */

/* Number of keys in the store, without those of agents. */
uint32_t hosts_n_values(void);
/*
 * Waits until the store has n values: sealed blocks get there a moment later, and blocks sealed before may be written
 * again.
 */
void hosts_wait_values(uint32_t n);
/* Returns up to `most` of these keys; keys[] points into *ret, which the caller frees. */
uint32_t hosts_keys(char **ret, char *keys[], uint32_t most);

struct hosts_value {
	uint8_t *bytes;
	size_t n;
};
struct hosts_value hosts_get(struct skv_store *, const char *key);
void hosts_set(struct skv_store *, const char *key, const void *bytes, size_t n);
struct skv_store *hosts_open_store(void);

/* ---- prompts ---- */

/* A client and its session on a host. */
struct hosts_user {
	struct skv_client *client;
	struct refmodel w;
};
void hosts_user_begin(struct hosts_user *, int on);
/*
 * hosts_read() begins a sequence with what there is of this seed's prompt, checks that its outputs are those of reading
 * the whole prompt, and seals it if `seals`. Returns how many tokens the prefix had. hosts_once() does so with a new
 * client; hosts_apart() in a child process: a process that has used a device cannot have children that use it.
 */
uint32_t hosts_read(struct hosts_user *, uint64_t seed, bool seals);
uint32_t hosts_once(int on, uint64_t seed, bool seals);
uint32_t hosts_apart(int on, uint64_t seed, bool seals);
/* Starts a process that begins a sequence with the prefix, continues and compares; it exits with 0 or HOSTS_GAVE_UP. */
pid_t hosts_reader(int on, uint64_t seed);

#endif
