/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix store's client and a Redis Cluster of three masters: each key is sent to its node, also while hash slots
 * move and after a master has died; a node that is down affects its own keys only.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/store/cluster.h"
#include "tests/support/child.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

#define N_NODES 4 /* the last one is the first one's replica, in tests that have one */
#define N 600u
#define SLACK (slowed() ? 6000 : 800)

static struct store_server nodes[N_NODES];
static struct skv_store *store;
static char ports[N_NODES][8], bus[N_NODES][8];
static char key_text[N][32], value_text[N][64];
static struct skv_store_bytes keys[N], values[N];
static int status[N];

/* ---- a cluster ---------------------------------------------------------------------------------------- */

static void start_node(int i)
{
	static const char *args[N_NODES][24];
	const uint16_t port = store_port();
	const char *const all[] = {"--cluster-enabled",
	                           "yes",
	                           "--cluster-port",
	                           bus[i],
	                           "--cluster-node-timeout",
	                           "600",
	                           "--cluster-replica-validity-factor",
	                           "0",
	                           "--repl-diskless-sync-delay",
	                           "0"};

	memcpy(args[i], all, sizeof(all));
	snprintf(ports[i], sizeof(ports[i]), "%u", port);
	snprintf(bus[i], sizeof(bus[i]), "%u", port + 1u);
	store_begin(&nodes[i], port, args[i]);
}

/* Waits until a node reports this text. */
static void wait_for(int i, const char *command, const char *text)
{
	for (int tries = 0;; tries++) {
		char *says = store_cli(&nodes[i], "CLUSTER", command, NULL);
		const bool found = strstr(says, text);

		free(says);
		if (found)
			return;
		ck_assert_msg(tries < 600, "node %d does not say %s", i, text);
		usleep(50000);
	}
}

static void begin(void)
{
	static const char *const ranges[][2] = {{"0", "5460"}, {"5461", "10922"}, {"10923", "16383"}};

	for (int i = 0; i < 3; i++) {
		start_node(i);
		free(store_cli(&nodes[i], "CLUSTER", "ADDSLOTSRANGE", ranges[i][0], ranges[i][1], NULL));
	}
	for (int i = 1; i < 3; i++)
		free(store_cli(&nodes[0], "CLUSTER", "MEET", "127.0.0.1", ports[i], bus[i], NULL));
	for (int i = 0; i < 3; i++) {
		wait_for(i, "INFO", "cluster_state:ok");
		wait_for(i, "INFO", "cluster_known_nodes:3");
	}
	for (uint32_t i = 0; i < N; i++) {
		snprintf(key_text[i], sizeof(key_text[i]), i % 2 ? "{same}%u" : "key %u", i);
		snprintf(value_text[i], sizeof(value_text[i]), "value %llu", (unsigned long long)rnd64());
		keys[i] = (struct skv_store_bytes){key_text[i], strlen(key_text[i])};
		values[i] = (struct skv_store_bytes){value_text[i], strlen(value_text[i])};
	}
	store = store_open("redis://127.0.0.1:%s,127.0.0.1:%s?cluster=on&timeout=3000", ports[0], ports[1]);
}

static void end(void)
{
	store = skv_store_free(store);
	for (int i = 0; i < N_NODES; i++)
		if (nodes[i].folder)
			store_end(&nodes[i]);
}

static void see(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	(*(uint32_t *)ctx)++;
	ck_assert_ptr_nonnull(value);
	ck_assert_uint_eq(bytes, values[i].n);
	ck_assert(memcmp(value, values[i].at, bytes) == 0);
}

#define EXPECT(call, result) \
	do { \
		int got_ = (call); \
		ck_assert_msg(got_ == (result), "%s: %d, and says \"%s\"", #call, got_, skv_store_error(store)); \
	} while (0)

static void set_all(void)
{
	EXPECT(skv_store_set(store, keys, values, N, 0, false, 0, status), 0);
}

static void get_all(void)
{
	uint32_t n = 0;

	EXPECT(skv_store_get(store, keys, N, 0, see, &n, status), 0);
	ck_assert_uint_eq(n, N);
}

/* Waits until a key of each node can be set and read. */
static void wait_until_it_works(double at_most)
{
	const double from = store_now_ms();

	while (skv_store_set(store, keys, values, N, 0, false, 0, status) < 0) {
		ck_assert_msg(store_now_ms() - from < at_most, "%s", skv_store_error(store));
		usleep(10000);
	}
	get_all();
}

static unsigned count_errors(const char *name)
{
	unsigned n = 0;
	char word[64];

	snprintf(word, sizeof(word), "errorstat_%s:count=", name);
	for (int i = 0; i < 3; i++) {
		char *says = store_cli(&nodes[i], "INFO", "errorstats", NULL);
		const char *at = strstr(says, word);

		n += at ? (unsigned)atoi(at + strlen(word)) : 0;
		free(says);
	}
	return n;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

START_TEST(hash_slots)
{
	static const struct {
		const char *key;
		size_t n;
	} cases[] = {{"123456789", 9}, {"", 0},      {"{a}b", 4},  {"x{a}b", 5}, {"{}a", 3},
	             {"{a", 2},        {"a}{b}", 5}, {"{{a}}", 5}, {"{a}{b}", 6}};

	ck_assert_uint_eq(skv_store_hash_slot("123456789", 9), 0x31c3);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) + 30; i++) {
		char random[12], *says;
		const char *key = i < sizeof(cases) / sizeof(cases[0]) ? cases[i].key : random;

		for (int k = 0; k < 11; k++)
			random[k] = "ab{}"[rnd_below(4)];
		random[11] = '\0';
		says = store_cli(&nodes[0], "CLUSTER", "KEYSLOT", key, NULL);
		ck_assert_uint_eq(skv_store_hash_slot(key, strlen(key)), (uint32_t)atoi(says));
		free(says);
	}
}
END_TEST

/* All calls; no key is sent to a wrong node, since the map is read first. */
START_TEST(keys_find_their_nodes)
{
	set_all();
	get_all();
	EXPECT(skv_store_exists(store, keys, N, 0, status), 0);
	EXPECT(skv_store_touch(store, keys, N, 0, status), 0);
	ck_assert_uint_eq(count_errors("MOVED"), 0);
	for (int i = 0; i < 3; i++) {
		char *says = store_cli(&nodes[i], "DBSIZE", NULL);

		ck_assert_int_gt(atoi(says), 50);
		free(says);
	}
	EXPECT(skv_store_del(store, keys, N, 0, status), 0);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_int_eq(status[i], 1);
	skv_store_free(store);
	store = store_open("redis://127.0.0.1:%s", ports[0]); /* as if it were no cluster */
	EXPECT(skv_store_exists(store, keys, N, 0, status), -EPROTO);
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "cluster=on"));
}
END_TEST

/* Runs in a child process until it is told to stop: existing values can be read and stored again. */
static pid_t begin_load(int stop)
{
	pid_t pid = child_fork();
	char byte;

	if (pid == 0) {
		store = store_open("redis://127.0.0.1:%s?cluster=on&timeout=10000", ports[1]);
		do {
			get_all();
			set_all();
		} while (read(stop, &byte, 1) < 0);
		_exit(0);
	}
	return pid;
}

static int owner_of(uint32_t hash_slot)
{
	return hash_slot <= 5460 ? 0 : hash_slot <= 10922 ? 1 : 2;
}

/* Half of all keys, {same}…, move one after the other from one node to another. */
START_TEST(moved_under_load)
{
	const uint32_t hash_slot = skv_store_hash_slot("same", 4);
	const int from = owner_of(hash_slot), to = (from + 1) % 3;
	char number[8], *ids[2] = {store_cli(&nodes[from], "CLUSTER", "MYID", NULL),
	                           store_cli(&nodes[to], "CLUSTER", "MYID", NULL)};
	int stop[2];
	pid_t load;

	set_all();
	ck_assert_int_eq(pipe2(stop, O_CLOEXEC | O_NONBLOCK), 0);
	load = begin_load(stop[0]);
	snprintf(number, sizeof(number), "%u", hash_slot);
	for (int k = 0; k < 2; k++)
		ids[k][strcspn(ids[k], "\n")] = '\0';
	free(store_cli(&nodes[to], "CLUSTER", "SETSLOT", number, "IMPORTING", ids[0], NULL));
	free(store_cli(&nodes[from], "CLUSTER", "SETSLOT", number, "MIGRATING", ids[1], NULL));
	for (uint32_t i = 1; i < N; i += 2) {
		free(store_cli(&nodes[from], "MIGRATE", "127.0.0.1", ports[to], key_text[i], "0", "5000", NULL));
		if (i % 50 == 1)
			get_all();
	}
	get_all();
	ck_assert_uint_gt(count_errors("ASK"), 0);
	ck_assert_uint_eq(count_errors("MOVED"), 0);
	free(store_cli(&nodes[to], "CLUSTER", "SETSLOT", number, "NODE", ids[1], NULL));
	free(store_cli(&nodes[from], "CLUSTER", "SETSLOT", number, "NODE", ids[1], NULL));
	free(store_cli(&nodes[3 - from - to], "CLUSTER", "SETSLOT", number, "NODE", ids[1], NULL));
	get_all();
	set_all();
	ck_assert_uint_gt(count_errors("MOVED"), 0);
	usleep(300000);
	get_all(); /* with a map that was read again: the load's process has one, too */
	get_all();
	ck_assert_int_eq(write(stop[1], "", 1), 1);
	child_wait(load);
	ck_assert_uint_le(count_errors("MOVED"), 4 * N); /* only a few of the 300 in each round were redirected */
	free(ids[0]);
	free(ids[1]);
}
END_TEST

/* One node is stopped, then killed: keys of the other nodes work until the cluster reports that it is down. */
START_TEST(node_is_down)
{
	double from;
	uint32_t n = 0;

	set_all();
	kill(nodes[2].pid, SIGSTOP);
	from = store_now_ms();
	EXPECT(skv_store_exists(store, keys, N, 300, status), -ETIMEDOUT);
	ck_assert(store_now_ms() - from < 300 + SLACK);
	for (uint32_t i = 0; i < N; i++) {
		ck_assert_int_eq(status[i], owner_of(skv_store_hash_slot(keys[i].at, keys[i].n)) == 2 ? -ETIMEDOUT : 1);
		n += status[i] == 1;
	}
	ck_assert_uint_gt(n, 100);
	wait_for(0, "INFO", "cluster_state:fail");
	wait_for(1, "INFO", "cluster_state:fail");
	for (int i = 0; i < 50; i++) {
		from = store_now_ms();
		ck_assert_int_lt(skv_store_exists(store, keys, N, 300, status), 0);
		ck_assert(store_now_ms() - from < 300 + SLACK);
		usleep(10000);
	}
	for (uint32_t i = 0; i < N; i++)
		ck_assert_int_lt(status[i], 0); /* CLUSTERDOWN */
	kill(nodes[2].pid, SIGCONT);
	wait_until_it_works(20000);
	store_kill(&nodes[2]);
	ck_assert_int_lt(skv_store_exists(store, keys, N, 300, status), 0);
	wait_for(0, "INFO", "cluster_state:fail");
	store_restart(&nodes[2]);
	wait_until_it_works(20000); /* it has nodes.conf, but lost the values */
}
END_TEST

/* A master dies, and its replica takes over. */
START_TEST(failover)
{
	char *id = store_cli(&nodes[0], "CLUSTER", "MYID", NULL);

	id[strcspn(id, "\n")] = '\0';
	start_node(3);
	free(store_cli(&nodes[3], "CLUSTER", "MEET", "127.0.0.1", ports[0], bus[0], NULL));
	for (int i = 0; i < N_NODES; i++)
		wait_for(i, "INFO", "cluster_known_nodes:4");
	wait_for(3, "NODES", id);
	for (int tries = 0;; tries++) { /* until it knows the master */
		char *says = store_cli(&nodes[3], "CLUSTER", "REPLICATE", id, NULL);
		const bool done = strncmp(says, "OK", 2) == 0;

		free(says);
		if (done)
			break;
		ck_assert_int_lt(tries, 200);
		usleep(50000);
	}
	wait_for(1, "NODES", "slave");
	set_all();
	for (int tries = 0;; tries++) { /* until it has the values */
		char *says = store_cli(&nodes[3], "INFO", "replication", NULL);
		const bool up = strstr(says, "master_link_status:up") && strstr(says, "master_sync_in_progress:0");

		free(says);
		if (up)
			break;
		ck_assert_int_lt(tries, 400);
		usleep(50000);
	}
	set_all();
	free(store_cli(&nodes[0], "WAIT", "1", "5000", NULL));
	store_kill(&nodes[0]);
	ck_assert_int_lt(skv_store_exists(store, keys, N, 300, status), 0);
	/* without an election, which fails again and again if the other nodes are slow to answer */
	free(store_cli(&nodes[3], "CLUSTER", "FAILOVER", "TAKEOVER", NULL));
	wait_until_it_works(30000);
	store_restart(&nodes[0]); /* for end() */
	free(id);
}
END_TEST

START_TEST(no_cluster)
{
	struct store_server plain;

	store_begin(&plain, store_port(), NULL);
	store = store_open("redis://127.0.0.1:%u?cluster=on", plain.port);
	EXPECT(skv_store_exists(store, &(struct skv_store_bytes){"k", 1}, 1, 0, status), -EHOSTDOWN);
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "cluster support disabled"));
	ck_assert_int_eq(status[0], -EHOSTDOWN);
	store = skv_store_free(store);
	store_end(&plain);
}
END_TEST

int main(void)
{
	Suite *s;
	const int skip = store_skip((const char *const[]){"redis-server", "redis-cli", NULL});

	if (skip)
		return skip;
	s = begin_suite("test-store-cluster");
	add_case(s, "cluster", 120, begin, end, hash_slots, keys_find_their_nodes, moved_under_load, node_is_down,
	         failover, NULL);
	add_case(s, "no cluster", 20, NULL, NULL, no_cluster, NULL);
	return run_suite(s);
}
