/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix store's client with a working redis-server: random keys and values over a UNIX socket and TCP, pipelines,
 * times to live, a full store, passwords; and URLs of stores.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/store/client.h"
#include "tests/support/folder.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

static struct store_server server;
static struct skv_store *store;

static void begin(void)
{
	store_begin(&server, store_port(), NULL);
	store = store_open("unix://%s?timeout=20000", server.socket);
}

static void end(void)
{
	store = skv_store_free(store);
	store_end(&server);
}

#define EXPECT(call, result)                                                                                           \
	do {                                                                                                           \
		int got_ = (call);                                                                                     \
		ck_assert_msg(got_ == (result), "%s: %d, and says \"%s\"", #call, got_, skv_store_error(store));       \
		ck_assert_msg((got_ == 0) == !*skv_store_error(store), "%d, and says \"%s\"", got_,                    \
		              skv_store_error(store));                                                                 \
	} while (0)

/* ---- round trips ------------------------------------------------------------------------------------ */

/* Keys and values, and what was read back. */
struct lot {
	uint32_t n, n_seen;
	struct skv_store_bytes *keys, *values;
	int *status;
	bool *seen, *missing; /* [n]; missing: expected to be absent */
};

static struct lot new_lot(uint32_t n, size_t max_key, size_t max_value)
{
	struct lot l = {.n = n,
	                .keys = calloc(n, sizeof(*l.keys)),
	                .values = calloc(n, sizeof(*l.values)),
	                .status = calloc(n, sizeof(int)),
	                .seen = calloc(n, 1),
	                .missing = calloc(n, 1)};

	for (uint32_t i = 0; i < n; i++) {
		const size_t k = 12 + rnd_below((uint32_t)max_key - 11), v = rnd_below((uint32_t)max_value + 1);
		char *key = malloc(k), *value = malloc(v + 1);

		rnd_bytes(key, k);
		store_fill(value, v, rnd64());
		l.keys[i] = (struct skv_store_bytes){key, k};
		l.values[i] = (struct skv_store_bytes){value, v};
	}
	return l;
}

static void free_lot(struct lot *l)
{
	for (uint32_t i = 0; i < l->n; i++) {
		free((void *)l->keys[i].at);
		free((void *)l->values[i].at);
	}
	free(l->keys), free(l->values), free(l->status), free(l->seen), free(l->missing);
}

static void see(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct lot *l = ctx;

	ck_assert(!l->seen[i]);
	l->seen[i] = true;
	l->n_seen++;
	ck_assert_int_eq(!value, l->missing[i]);
	if (!value)
		return;
	ck_assert_uint_eq(bytes, l->values[i].n);
	ck_assert(!bytes || memcmp(value, l->values[i].at, bytes) == 0);
}

static void expect_same(struct lot *l)
{
	l->n_seen = 0;
	memset(l->seen, 0, l->n);
	EXPECT(skv_store_get(store, l->keys, l->n, 0, see, l, l->status), 0);
	ck_assert_uint_eq(l->n_seen, l->n);
	for (uint32_t i = 0; i < l->n; i++)
		ck_assert_int_eq(l->status[i], !l->missing[i]);
}

static void expect_all(const struct lot *l, int status)
{
	for (uint32_t i = 0; i < l->n; i++)
		ck_assert_msg(l->status[i] == status, "key %u: %d, and says \"%s\"", i, l->status[i],
		              skv_store_error(store));
}

static void set_all(struct lot *l)
{
	EXPECT(skv_store_set(store, l->keys, l->values, l->n, 0, false, 0, l->status), 0);
	expect_all(l, 1);
}

static void all_calls(struct lot *l)
{
	set_all(l);
	expect_same(l);
	EXPECT(skv_store_exists(store, l->keys, l->n, 0, l->status), 0);
	expect_all(l, 1);
	EXPECT(skv_store_touch(store, l->keys, l->n, 0, l->status), 0);
	expect_all(l, 1);
	for (uint32_t i = 0; i < l->n; i += 3) { /* a third is deleted, and half of these are set again */
		EXPECT(skv_store_del(store, &l->keys[i], 1, 0, &l->status[i]), 0);
		ck_assert_int_eq(l->status[i], 1);
		EXPECT(skv_store_del(store, &l->keys[i], 1, 0, &l->status[i]), 0);
		ck_assert_int_eq(l->status[i], 0);
		l->missing[i] = true;
	}
	expect_same(l);
	EXPECT(skv_store_exists(store, l->keys, l->n, 0, l->status), 0);
	for (uint32_t i = 0; i < l->n; i++)
		ck_assert_int_eq(l->status[i], !l->missing[i]);
	EXPECT(skv_store_set(store, l->keys, l->values, l->n, 0, true, 0, l->status), 0);
	for (uint32_t i = 0; i < l->n; i++) {
		ck_assert_int_eq(l->status[i], l->missing[i]);
		l->missing[i] = false;
	}
	expect_same(l);
}

static const char *const urls[] = {"unix://%s", "redis://127.0.0.1:%s", "redis://127.0.0.1:%s/3", "redis://localhost:%s"};

START_TEST(round_trips)
{
	static const struct {
		uint32_t n;
		size_t max_key, max_value;
	} sizes[] = {{1, 12, 0}, {1000, 64, 100}, {300, 4096, 20000}, {40, 32, 1 << 20}};
	char where[128];

	if (strstr(urls[_i], "localhost") && !store_has_localhost())
		return;
	skv_store_free(store);
	snprintf(where, sizeof(where), "%u", server.port);
	store = store_open(urls[_i], _i == 0 ? server.socket : where);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct lot l = new_lot(sizes[i].n, sizes[i].max_key, sizes[i].max_value);

		all_calls(&l);
		free_lot(&l);
	}
}
END_TEST

/* Keys and values of maximum size, several of them in a pipeline. */
START_TEST(largest)
{
	const size_t sizes[] = {SKV_STORE_MAX_VALUE, SKV_STORE_MAX_VALUE,    0, SKV_STORE_MAX_VALUE - 1, 1,
	                        SKV_STORE_MAX_VALUE, SKV_STORE_MAX_VALUE + 1};
	struct lot l = new_lot(7, SKV_STORE_MAX_KEY, 1);

	for (int i = 0; i < 7; i++) {
		char *value = malloc(sizes[i] + 1);

		store_fill(value, sizes[i], (uint64_t)i);
		free((void *)l.values[i].at);
		l.values[i] = (struct skv_store_bytes){value, sizes[i]};
	}
	EXPECT(skv_store_set(store, l.keys, l.values, 7, 0, false, 0, l.status), -EMSGSIZE);
	for (int i = 0; i < 7; i++)
		ck_assert_int_eq(l.status[i], i < 6 ? 1 : -EMSGSIZE);
	l.missing[6] = true;
	expect_same(&l);
	l.keys[6].n = SKV_STORE_MAX_KEY + 1;
	EXPECT(skv_store_exists(store, l.keys, 7, 0, l.status), -EMSGSIZE);
	ck_assert_int_eq(l.status[5], 1);
	free_lot(&l);
}
END_TEST

/* No keys, no bytes, and a value that is no string. */
START_TEST(odd_keys)
{
	struct lot l = new_lot(2, 12, 10);
	const struct skv_store_bytes list = {"list", 4}, none = {NULL, 0};
	int status = 5;

	EXPECT(skv_store_get(store, NULL, 0, 0, see, &l, NULL), 0);
	EXPECT(skv_store_set(store, &none, &none, 1, 0, false, 0, &status), 0);
	EXPECT(skv_store_exists(store, &none, 1, 0, &status), 0);
	ck_assert_int_eq(status, 1);
	free(store_cli(&server, "RPUSH", "list", "a", NULL));
	EXPECT(skv_store_get(store, &list, 1, 0, see, &l, &status), -EBADMSG);
	ck_assert_int_eq(status, -EBADMSG);
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "WRONGTYPE"));
	set_all(&l);
	expect_same(&l);
	free_lot(&l);
}
END_TEST

START_TEST(time_to_live)
{
	struct lot l = new_lot(50, 40, 100);
	char *ttl;

	EXPECT(skv_store_set(store, l.keys, l.values, 25, 300, false, 0, l.status), 0);
	EXPECT(skv_store_set(store, l.keys + 25, l.values + 25, 25, 60000, false, 0, l.status), 0);
	usleep(500000);
	for (uint32_t i = 0; i < 25; i++)
		l.missing[i] = true;
	expect_same(&l);
	EXPECT(skv_store_set(store, &(struct skv_store_bytes){"k", 1}, l.values, 1, 60000, true, 0, l.status), 0);
	ttl = store_cli(&server, "PTTL", "k", NULL);
	ck_assert_int_ge(atoi(ttl), 50000);
	ck_assert_int_le(atoi(ttl), 60000);
	free(ttl);
	free_lot(&l);
}
END_TEST

/* ---- a full store, passwords -------------------------------------------------------------------------- */

/* What does not fit is refused, and the rest of the call is not sent; existing values can be read. */
START_TEST(full)
{
	struct lot l = new_lot(200, 40, 10);
	uint32_t stored = 0;
	double from;

	free(store_cli(&server, "CONFIG", "SET", "maxmemory", "40mb", NULL));
	free(store_cli(&server, "CONFIG", "SET", "maxmemory-policy", "noeviction", NULL));
	for (uint32_t i = 0; i < l.n; i++) {
		free((void *)l.values[i].at);
		l.values[i] = (struct skv_store_bytes){malloc(1 << 20), 1 << 20};
		store_fill((void *)l.values[i].at, 1 << 20, i);
	}
	from = store_now_ms();
	EXPECT(skv_store_set(store, l.keys, l.values, l.n, 0, false, 0, l.status), -ENOSPC);
	for (uint32_t i = 0; i < l.n; i++) {
		ck_assert(l.status[i] == 1 || l.status[i] == -ENOSPC);
		stored += l.status[i] == 1;
		l.missing[i] = l.status[i] != 1;
	}
	ck_assert_uint_ge(stored, 10);
	ck_assert_uint_le(stored, 40);
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "OOM"));
	ck_assert(slowed() || store_now_ms() - from < 5000);
	expect_same(&l);
	EXPECT(skv_store_del(store, l.keys, l.n, 0, l.status), 0);
	/* the store was not marked as down */
	EXPECT(skv_store_set(store, l.keys, l.values, 5, 0, false, 0, l.status), 0);
	free_lot(&l);
}
END_TEST

static int exists(const char *format, const char *a, const char *b)
{
	const struct skv_store_bytes key = {"k", 1};
	int status, r;

	skv_store_free(store);
	store = store_open(format, a, b); /* NOLINT */
	r = skv_store_exists(store, &key, 1, 0, &status);
	ck_assert_int_eq(r, status < 0 ? status : 0);
	return r;
}

static void password_file(const char *text, size_t bytes, mode_t mode)
{
	const char *path = fx_path(server.folder, "password");

	fx_write(path, text, bytes);
	ck_assert_int_eq(chmod(path, mode), 0);
}

START_TEST(passwords)
{
	char port[8];

	snprintf(port, sizeof(port), "%u", server.port);
	EXPECT(exists("unix://:any@%s%s", server.socket, ""), -EACCES); /* the server has no password */
	free(store_cli(&server, "ACL", "SETUSER", "reader", "on", ">pa@ss", "+exists", "+select", "~*", NULL));
	free(store_cli(&server, "CONFIG", "SET", "requirepass", "sesame", NULL));
	EXPECT(exists("unix://%s%s", server.socket, ""), -EACCES);
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "NOAUTH"));
	EXPECT(exists("unix://:sesame@%s%s", server.socket, ""), 0);
	EXPECT(exists("unix://:wrong@%s%s", server.socket, ""), -EACCES);
	ck_assert_ptr_null(strstr(skv_store_error(store), "wrong@"));
	EXPECT(exists("redis://:sesame@127.0.0.1:%s/%s", port, "2"), 0);
	EXPECT(exists("redis://reader:pa%%40ss@127.0.0.1:%s%s", port, ""), 0);
	EXPECT(exists("redis://reader:sesame@127.0.0.1:%s%s", port, ""), -EACCES);
	EXPECT(exists("redis://:sesame@127.0.0.1:%s/%s", port, "77"), -EACCES); /* no such database */
	EXPECT(skv_store_del(store, &(struct skv_store_bytes){"k", 1}, 1, 0, &(int){0}),
	       -EHOSTDOWN); /* not retried yet */
	EXPECT(exists("redis://reader:pa%%40ss@127.0.0.1:%s%s", port, ""), 0);
	EXPECT(skv_store_del(store, &(struct skv_store_bytes){"k", 1}, 1, 0, &(int){0}), -EACCES);
	ck_assert_ptr_nonnull(strstr(skv_store_error(store), "NOPERM"));
	password_file("sesame\n", 7, 0640);
	EXPECT(exists("unix://%s?password-file=%s/password", server.socket, server.folder), 0);
}
END_TEST

/* Other users may read or write the file; its first line ends early, or is empty. */
START_TEST(password_files)
{
	static const struct {
		mode_t mode;
		size_t bytes;
		const char *first, *says;
	} files[] = {
		{0644, 7, "sesame\n", "expected a file that nobody but its owner and group may read or write"},
		{0602, 7, "sesame\n", "expected a file that nobody but its owner and group may read or write"},
		{0600, 8, "ses\0ame\n", "none of them NUL"},
		{0600, 1, "\n", "expected a first line of 1 to 512 bytes"},
	};
	char url[256], why[SKV_STORE_TEXT];
	struct skv_store_config c;

	snprintf(url, sizeof(url), "redis://h?password-file=%s/password", server.folder);
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		password_file(files[i].first, files[i].bytes, files[i].mode);
		ck_assert_int_lt(skv_store_config_parse(&c, url, why), 0);
		ck_assert_msg(strstr(why, files[i].says) != NULL, "%s", why);
	}
}
END_TEST

/* ---- URLs --------------------------------------------------------------------------------------------- */

START_TEST(configurations)
{
	static const struct {
		const char *text, *why; /* NULL: valid */
	} cases[] = {
		{"redis://h", NULL},
		{"redis://h:1/5?timeout=700&connect-timeout=600", NULL},
		{"rediss://u:p@[::1]:7?ca=/a%20b&tls-name=x", NULL},
		{"redis://a,b:2,c:3?cluster=on", NULL},
		{"unix://u:p@/s?db=4", NULL},
		{"", "store: got \"\", expected redis://HOST, rediss://HOST or unix:///PATH"},
		{"http://h", "store: got \"http\", expected redis://HOST, rediss://HOST or unix:///PATH"},
		{"u:secret@h", "store: got \"u\", expected redis://HOST, rediss://HOST or unix:///PATH"},
		{"redis://", "store: got \"\", expected host[:port], with a port from 1 to 65535"},
		{"redis://h:0", "store: got \"h:0\", expected host[:port], with a port from 1 to 65535"},
		{"redis://h:65536", "store: got \"h:65536\", expected host[:port], with a port from 1 to 65535"},
		{"redis://[::1", "store: got \"[::1\", expected host[:port], with a port from 1 to 65535"},
		{"redis://[::1]7", "store: got \"[::1]7\", expected host[:port], with a port from 1 to 65535"},
		{"redis://h/x", "store: got the database \"x\", expected a number from 0 to 999999"},
		{"redis://secret@h", "store: what stands before '@' is not [user]:password, each of at most 512 bytes, "
	                             "with %XX for characters such as "
	                             "@ : / ?"},
		{"redis://:se?cret@h", "store: got '@' behind '?', expected %3F for '?' in a password, and %40 for '@' "
	                               "in an option"},
		{"redis://a,b", "store: got 2 hosts, expected one, or cluster=on"},
		{"redis://a/1?cluster=on", "store: got database 1, expected none: a cluster has database 0 alone"},
		{"unix:///s?cluster=on", "store: cluster=on: expected with redis:// or rediss:// only"},
		{"unix://s", "store: got \"s\", expected the path of a socket that begins with '/' and has at most 107 "
	                     "bytes"},
		{"redis://h?db=1", "store: db: expected with unix:// only; redis:// has it as HOST/db"},
		{"redis://h?ca=/x", "store: ca: expected with rediss:// only"},
		{"rediss://h?key=/x", "store: got key, expected cert and key, or none of them"},
		{"redis://h?timeout=1s", "store: timeout: got \"1s\", expected milliseconds from 1 to 600000"},
		{"redis://h?timeout=400", "store: got connect-timeout=500 and timeout=400, expected no more for a "
	                                  "connection than for a call"},
		{"redis://h?cluster=yes", "store: cluster: got \"yes\", expected on or off"},
		{"redis://h?cluster", "store: got the option \"cluster\", expected name=value"},
		{"redis://:p@h?password-file=/p", "store: got a password and password-file, expected one of them"},
		{"redis://h?password-file=/none/x", "store: password-file: \"/none/x\": No such file or directory"},
		{"redis://h?password-file=/dev/null", "store: password-file: \"/dev/null\": expected a file that nobody but "
	                                              "its owner and group may read or write"},
	};
	struct skv_store_config c;
	char why[SKV_STORE_TEXT];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		why[0] = '\0';
		ck_assert_msg((skv_store_config_parse(&c, cases[i].text, why) == 0) == !cases[i].why, "%s: %s",
		              cases[i].text, why);
		ck_assert_str_eq(why, cases[i].why ? cases[i].why : "");
	}
	ck_assert_int_eq(skv_store_config_parse(&c, "rediss://u%3a:p%2f@[::1]:7,h?cluster=on&ca=/a%20b", why), 0);
	ck_assert_str_eq(c.user, "u:");
	ck_assert_str_eq(c.password, "p/");
	ck_assert_uint_eq(c.n_addresses, 2);
	ck_assert_str_eq(c.addresses[0].host, "::1");
	ck_assert_uint_eq(c.addresses[0].port, 7);
	ck_assert_uint_eq(c.addresses[1].port, 6379);
	ck_assert_str_eq(c.ca, "/a b");
	ck_assert(c.tls && c.cluster);
	ck_assert_int_eq(skv_store_config_parse(&c, "rediss://h?ca=/dev/null", why), 0);
	ck_assert_int_eq(skv_store_new(&c, &store, why), -EINVAL);
	ck_assert_str_eq(why, "store: ca: \"/dev/null\": no certificate or crl found; expected PEM");
}
END_TEST

/* ---- speed --------------------------------------------------------------------------------------------- */

static void ignore(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	(void)ctx, (void)i, (void)value, (void)bytes;
}

/* 64 values of 1 MiB, and 1,000 keys; times are printed only. */
START_TEST(speeds)
{
	struct lot l = new_lot(64, 40, 1), many = new_lot(1000, 40, 1);
	char port[8];

	for (uint32_t i = 0; i < l.n; i++) {
		free((void *)l.values[i].at);
		l.values[i] = (struct skv_store_bytes){calloc(1, 1 << 20), 1 << 20};
	}
	snprintf(port, sizeof(port), "%u", server.port);
	for (int k = 0; k < 2; k++) {
		double t, set, get, found;

		skv_store_free(store);
		store = store_open(urls[k], k == 0 ? server.socket : port);
		set_all(&l);
		t = store_now_ms();
		for (int i = 0; i < 4; i++)
			set_all(&l);
		set = store_now_ms() - t;
		t = store_now_ms();
		for (int i = 0; i < 4; i++)
			EXPECT(skv_store_get(store, l.keys, l.n, 0, ignore, NULL, l.status), 0);
		get = store_now_ms() - t;
		t = store_now_ms();
		for (int i = 0; i < 50; i++)
			EXPECT(skv_store_exists(store, many.keys, many.n, 0, many.status), 0);
		found = store_now_ms() - t;
		printf("%s: SET %.0f MB/s, GET %.0f MB/s, EXISTS %.0f/s\n", k == 0 ? "UNIX socket" : "TCP",
		       256 * 1048.576 / set, 256 * 1048.576 / get, 50e6 / found);
	}
	free_lot(&l);
	free_lot(&many);
}
END_TEST

int main(void)
{
	Suite *s;
	TCase *t;
	const int skip = store_skip((const char *const[]){"redis-server", "redis-cli", NULL});

	if (skip)
		return skip;
	s = begin_suite("test-store-client");
	t = add_case(s, "values", 120, begin, end, largest, odd_keys, time_to_live, full, passwords, password_files, speeds, NULL);
	tcase_add_loop_test(t, round_trips, 0, (int)(sizeof(urls) / sizeof(urls[0])));
	add_case(s, "configuration", 10, NULL, NULL, configurations, NULL);
	return run_suite(s);
}
