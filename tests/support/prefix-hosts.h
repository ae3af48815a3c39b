/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-hosts.h - two daemons that share a prefix store, a redis-server, and users who read prompts there.
 *
 * Daemons run in the network namespaces that $SKV_TEST_NETNS names, two paths with a ':' between, and find the store at the addresses
 * in $SKV_TEST_STORE (scale.sh makes them); without these, all are in this one's. Where `nixl` names NIXL's library, they read values from
 * each other's memory; if it names none, $SKV_TEST_NIXL does. Assertions are Check's.
 */
#ifndef SKV_TEST_PREFIX_HOSTS_H
#define SKV_TEST_PREFIX_HOSTS_H

#include "tests/support/daemon-fixture.h"
#include "tests/support/prefix-reader.h"
#include "tests/support/store-fixture.h"

#define HOSTS_WAIT_S 2 /* prefix-store-wait */
#define HOSTS_BLOCKS (PREFIX_SEALED / 256)
#define HOSTS_PASSWORD "between-us"
#define HOSTS_GAVE_UP 7 /* a child whose daemon was killed */

struct prefix_hosts {
	struct store_server store;
	char *folder;
	struct fix host[2];
	uint32_t dtype; /* of pages; 0: the model's */
	const char *spec; /* of users' sessions */
	const char *nixl[2]; /* of the next start; NULL: without */
	const char *window;  /* prefix-store-nixl-window; NULL: its default */
};
extern struct prefix_hosts hosts;

/* For each test. */
void hosts_begin(void);
void hosts_end(void);
void hosts_start(int i);
/* SIGKILL, to the workers of a daemon; SIGSTOP and SIGCONT too. */
void hosts_signal_workers(int i, int signal);

/* ---- the store ---- */

/* Keys of parts, not of agents. */
uint32_t hosts_n_values(void);
/* What was sealed gets there a moment later; and what was sealed before perhaps again. */
void hosts_wait_values(uint32_t n);
/* All of these keys, a line each; to be freed. */
uint32_t hosts_keys(char **ret, char *keys[], uint32_t most);

struct hosts_value {
	uint8_t *bytes;
	size_t n;
};
struct hosts_value hosts_get(struct skv_store *, const char *key);
void hosts_set(struct skv_store *, const char *key, const void *bytes, size_t n);
struct skv_store *hosts_open_store(void);

/* ---- prompts ---- */

/* A client's session on a host. */
struct hosts_user {
	struct skv_client *client;
	struct refmodel w;
};
void hosts_user_begin(struct hosts_user *, int on);
/*
 * Begun with what there is of the prompt of this seed, a sequence gives the same as reading it does; and perhaps it is sealed. How many tokens
 * there were. The same with a user of its own; and in a process of its own: what has used a device has no children that can.
 */
uint32_t hosts_read(struct hosts_user *, uint64_t seed, bool seals);
uint32_t hosts_once(int on, uint64_t seed, bool seals);
uint32_t hosts_apart(int on, uint64_t seed, bool seals);
/* In a process of its own: begin with it, go on, compare; it ends with 0, or HOSTS_GAVE_UP. */
pid_t hosts_reader(int on, uint64_t seed);

#endif
