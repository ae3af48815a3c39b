/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prefix store whose server sends the input. Each call must end with consistent statuses and text. A reply about a
 * cluster must result in a map of existing nodes, or have no effect.
 *
 * The first byte selects a call, or the cluster test. Calls use a socket to a thread that sends the bytes on each
 * connection.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/store/client.h"
#include "daemon/store/cluster.h"
#include "tests/fuzz/fuzz.h"

#define MAX_BYTES 100000u
#define MAX_KEYS 8u

const char fuzz_name[] = "store-reply";
const int fuzz_copies = 200;

/* ---- the server --------------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	struct sockaddr_un address;
	uint8_t bytes[MAX_BYTES];
	size_t n;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER, .address = {.sun_family = AF_UNIX}};

/* Sends all bytes, closes its direction, and reads until the client disconnects. */
static void *serve(void *listener)
{
	static uint8_t bytes[MAX_BYTES];
	char commands[4096];

	for (;;) {
		int fd = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);
		size_t n;

		if (fd < 0)
			continue;
		pthread_mutex_lock(&server.lock);
		n = server.n;
		memcpy(bytes, server.bytes, n);
		pthread_mutex_unlock(&server.lock);
		for (ssize_t put = 0; n > 0 && put >= 0;
		     n -= (size_t)(put < 0 ? 0 : put), memmove(bytes, bytes + (put < 0 ? 0 : put), n))
			put = send(fd, bytes, n, MSG_NOSIGNAL);
		shutdown(fd, SHUT_WR);
		while (recv(fd, commands, sizeof(commands), 0) > 0)
			;
		close(fd);
	}
	return NULL;
}

static void remove_socket(void)
{
	unlink(server.address.sun_path);
}

static void start_server(void)
{
	const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;

	snprintf(server.address.sun_path, sizeof(server.address.sun_path), "/tmp/fuzz-store-reply-%d", (int)getpid());
	remove_socket();
	MUST(bind(listener, (struct sockaddr *)&server.address, sizeof(server.address)) == 0 &&
	     listen(listener, 100) == 0);
	atexit(remove_socket);
	MUST(pthread_create(&thread, NULL, serve, (void *)(intptr_t)listener) == 0);
	MUST(pthread_detach(thread) == 0);
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static void look(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	unsigned char sum = 0;

	MUST(i < MAX_KEYS && bytes <= SKV_STORE_MAX_VALUE);
	for (size_t k = 0; value && k < bytes; k++)
		sum ^= ((const unsigned char *)value)[k];
	*(unsigned char *)ctx ^= sum;
}

static int call(struct skv_store *s, uint8_t op, const struct skv_store_bytes *keys, uint32_t n, int *status)
{
	unsigned char sum = 0;

	switch (op) {
	case 0: return skv_store_get(s, keys, n, 5000, look, &sum, status);
	case 1: return skv_store_set(s, keys, keys, n, 1000, false, 5000, status);
	case 2: return skv_store_set(s, keys, keys, n, 0, true, 5000, status);
	case 3: return skv_store_exists(s, keys, n, 5000, status);
	case 4: return skv_store_del(s, keys, n, 5000, status);
	default: return skv_store_touch(s, keys, n, 5000, status);
	}
}

static void check_text(const char *text, int r)
{
	MUST(!*text == (r == 0));
	for (; *text; text++)
		MUST(*text >= 0x20 && *text < 0x7f);
}

static void calls(uint8_t op, uint32_t n, bool password)
{
	static const char names[MAX_KEYS][2] = {"a", "b", "c", "d", "e", "f", "g", "h"};
	struct skv_store_bytes keys[MAX_KEYS];
	struct skv_store_config config;
	struct skv_store *s;
	char text[160], why[SKV_STORE_TEXT];

	for (uint32_t i = 0; i < n; i++)
		keys[i] = (struct skv_store_bytes){names[i], 1};
	snprintf(text, sizeof(text), "unix://%s%s", password ? ":p@" : "", server.address.sun_path);
	MUST(skv_store_config_parse(&config, text, why) == 0 && skv_store_new(&config, &s, why) == 0);
	for (int k = 0; k < 2; k++) {
		int status[MAX_KEYS], worst = 0, r;

		memset(status, 0x7f, sizeof(status));
		r = call(s, op, keys, n, status);
		for (uint32_t i = 0; i < n; i++) {
			MUST(status[i] <= 1);
			worst = status[i] < worst ? status[i] : worst;
		}
		MUST(r <= 0 && r != -ETIMEDOUT && (r < 0) == (worst < 0));
		check_text(skv_store_error(s), r);
	}
	skv_store_free(s);
}

/* ---- a cluster ---------------------------------------------------------------------------------------- */

static void check_map(const struct skv_store_cluster *c, bool known)
{
	MUST(c->known == known && c->n_nodes >= 1 && c->n_nodes <= SKV_STORE_MAX_NODES);
	for (uint32_t i = 0; i < SKV_STORE_HASH_SLOTS; i++)
		MUST(known ? c->map[i] < c->n_nodes || c->map[i] == UINT16_MAX : c->map[i] == UINT16_MAX);
	for (uint32_t i = 0; i < c->n_nodes; i++)
		MUST(c->nodes[i]->conn->address.port && c->nodes[i]->conn->address.host[0]);
}

static void cluster(const uint8_t *data, size_t size, size_t piece)
{
	struct skv_store_config config;
	struct skv_store_cluster c;
	struct skv_store_replies replies;
	struct skv_store_map_reader *m;
	struct skv_store_redirection to;
	char why[SKV_STORE_TEXT] = "";
	int r = 0;

	MUST(skv_store_config_parse(&config, "redis://h?cluster=on", why) == 0 &&
	     skv_store_cluster_init(&c, &config, NULL) == 0);
	MUST(skv_store_replies_init(&replies) == 0);
	m = skv_store_map_begin(&c, &config.addresses[0]);
	MUST(m);
	skv_store_replies_expect(&replies, SKV_STORE_LINE, skv_store_map_part, m);
	for (size_t at = 0, n; r == 0 && at < size; at += n) {
		n = size - at < piece ? size - at : piece;
		MUST(skv_store_replies_feed(&replies, data + at, n, why) == 0);
		r = skv_store_replies_next(&replies, why);
	}
	MUST(r <= 1 && replies.reader);
	check_text(why, r < 0 ? r : 0);
	skv_store_map_end(m, r == 1);
	check_map(&c, r == 1);
	if (skv_store_redirection_parse((const char *)data, size, &config.addresses[0], &to) == 1)
		MUST(to.hash_slot < SKV_STORE_HASH_SLOTS && to.to.port && to.to.host[0]);
	skv_store_replies_free(&replies);
	skv_store_cluster_free(&c);
}

void fuzz_one(const uint8_t *data, size_t size)
{
	struct fuzz_input in = {data, size};
	const uint8_t what = fuzz_u8(&in), how = fuzz_u8(&in);

	if (in.left > MAX_BYTES)
		return;
	if (what % 8 >= 6) {
		cluster(in.at, in.left, 1 + how);
		return;
	}
	if (!server.address.sun_path[0])
		start_server();
	pthread_mutex_lock(&server.lock);
	server.n = in.left;
	if (in.left)
		memcpy(server.bytes, in.at, in.left);
	pthread_mutex_unlock(&server.lock);
	calls(what % 8, 1 + how % MAX_KEYS, how & 128);
}
