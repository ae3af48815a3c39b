/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk worker's jobs for the prefix store, with a redis-server: what was stored is read back into other pages; a
 * wrong value is found, deleted and stored again; a store that is down, slow or full costs a bounded wait.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/disk-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/prefix-case.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

#define PLENTY 60000u /* ms */
#define KEY 100 /* maximum bytes of a store's key */

static struct store_server server;
static struct skv_store *store;
static char url[160];

static void begin_with(const char *const *args)
{
	disk_begin();
	store_begin(&server, store_port(), args);
	store = store_open("unix://%s?timeout=20000", server.socket);
	snprintf(url, sizeof(url), "unix://%s", server.socket);
}

static void begin(void)
{
	begin_with(NULL);
}

static void end(void)
{
	store = skv_store_free(store);
	store_end(&server);
	disk_end();
}

/* ---- values ------------------------------------------------------------------------------------ */

static const char *key_of(const struct prefix_case *p, uint32_t block, uint32_t part)
{
	static char keys[4][KEY];
	static int i;
	char *to = keys[i++ % 4];
	int n = snprintf(to, KEY, "sparsekv:");

	for (uint32_t k = 0; k < SKV_STORE_NAME; k++)
		n += snprintf(to + n, KEY - (size_t)n, "%02x", p->names[block][k]);
	snprintf(to + n, KEY - (size_t)n, ":%u", part);
	return to;
}

struct value {
	uint8_t *at;
	size_t n;
};

static void take(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct value *v = ctx;

	(void)i;
	if (!value)
		return;
	v->n = bytes;
	v->at = malloc(bytes + 1);
	memcpy(v->at, value, bytes);
}

/* Returns the value; its pointer is NULL if there is none. */
static struct value read_value(const char *key)
{
	const struct skv_store_bytes k = {key, strlen(key)};
	struct value v = {0};
	int status;

	ck_assert_int_eq(skv_store_get(store, &k, 1, 0, take, &v, &status), 0);
	return v;
}

static void write_value(const char *key, const void *at, size_t n)
{
	const struct skv_store_bytes k = {key, strlen(key)}, value = {at, n};
	int status;

	ck_assert_int_eq(skv_store_set(store, &k, &value, 1, 0, false, 0, &status), 0);
}

static bool is_there(const char *key)
{
	const struct skv_store_bytes k = {key, strlen(key)};
	int status;

	ck_assert_int_eq(skv_store_exists(store, &k, 1, 0, &status), 0);
	return status;
}

static void delete_value(const char *key)
{
	const struct skv_store_bytes k = {key, strlen(key)};
	int status;

	ck_assert_int_eq(skv_store_del(store, &k, 1, 0, &status), 0);
	ck_assert_int_eq(status, 1);
}

/* ---- there and back ---------------------------------------------------------------------------- */

static void there_and_back(const struct prefix_case *p)
{
	const uint32_t n = p->what.n_blocks;

	prefix_expect_found(p, 0);
	prefix_expect_got(p, 0);
	prefix_expect_put(p, prefix_value_bytes(p));
	prefix_expect_found(p, n);
	prefix_expect_got(p, n);
	prefix_expect_put(p, 0);
}

START_TEST(what_was_put_comes_back)
{
	struct prefix_case p;

	for (int i = 0; i < (slowed() ? 5 : 30); i++) {
		prefix_random(&p, url, 8);
		there_and_back(&p);
		prefix_free(&p);
	}
}
END_TEST

/* Layers in rows, and compressed in all forms, with records that begin and end within pages. */
START_TEST(records_come_back)
{
	struct prefix_case p;

	for (int i = 0; i < (slowed() ? 10 : 60); i++) {
		const uint32_t n_kv_heads = 1u << rnd_below(3);
		const struct skv_wire_model model = parked_model(1 + rnd_below(5), n_kv_heads, n_kv_heads, 16 * (1 + rnd_below(4)), rnd_below(4));
		const struct skv_made made = prefix_random_forms(&model);

		prefix_make_so(&p, url, model, 1 + rnd_below(8), &made);
		there_and_back(&p);
		delete_value(key_of(&p, p.what.n_blocks / 2, 0));
		prefix_expect_got(&p, p.what.n_blocks / 2);
		prefix_free(&p);
	}
}
END_TEST

/* Peak memory in bytes: the worker has one call's values of a prefix at a time. */
static size_t peak_of_worker(void)
{
	char path[40], *status;
	size_t kib;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)disk.pid);
	status = fx_read(path, NULL);
	kib = strtoul(strstr(status, "VmHWM:") + 6, NULL, 10);
	free(status);
	return kib << 10;
}

/* Parts of blocks, and a page that is a part; more keys and more bytes than one call takes. */
START_TEST(all_sizes_come_back)
{
	struct prefix_case p;

	prefix_make(&p, url, prefix_wide_model(), 5);
	ck_assert_uint_eq(prefix_parts(&p), 4);
	there_and_back(&p);
	ck_assert(slowed() || peak_of_worker() < 60 << 20);
	prefix_free(&p);
	prefix_make(&p, url, parked_model(1, 1, 1, 16, SKV_FP8), 700);
	there_and_back(&p);
	prefix_free(&p);
	prefix_make(&p, url, parked_model(3, 6, 3, 112, SKV_F32), 70); /* pages whose size does not divide a part */
	there_and_back(&p);
	prefix_free(&p);
	prefix_make(&p, url, parked_model(1, 192, 192, 256, SKV_F32), 1);
	ck_assert_uint_eq(prefix_parts(&p), PREFIX_BLOCK_PAGES);
	there_and_back(&p);
	prefix_free(&p);
}
END_TEST

/* Values do not show the pages' contents, no two are equal, and a value lives as long as it should. */
START_TEST(values_are_sealed)
{
	struct prefix_case p;
	struct value a, b;
	char page[8], *ttl;

	prefix_random(&p, url, 3);
	p.what.ttl_ms = 100000;
	prefix_expect_put(&p, prefix_value_bytes(&p));
	a = read_value(key_of(&p, 0, 0));
	ttl = store_cli(&server, "pttl", key_of(&p, 0, 0), NULL);
	ck_assert(atoi(ttl) > 10000 && atoi(ttl) <= 100000);
	ck_assert_uint_eq(a.n, p.job.model.n_layers * PREFIX_BLOCK_PAGES * p.job.page_bytes + PREFIX_OVERHEAD);
	ck_assert_mem_eq(a.at, "SKVPART1", 8);
	for (uint32_t i = 0; i < PREFIX_BLOCK_PAGES; i++) {
		ck_assert_int_eq(pread(p.pages, page, sizeof(page), (off_t)(p.ids[i] * p.job.page_bytes)), sizeof(page));
		ck_assert_ptr_null(memmem(a.at, a.n, page, sizeof(page)));
	}
	delete_value(key_of(&p, 0, 0));
	prefix_expect_put(&p, a.n);
	b = read_value(key_of(&p, 0, 0));
	ck_assert_uint_eq(a.n, b.n);
	ck_assert_mem_ne(a.at + 8, b.at + 8, 12);
	ck_assert_mem_ne(a.at + 20, b.at + 20, 16);
	free(a.at), free(b.at), free(ttl);
	prefix_free(&p);
}
END_TEST

/* ---- absent and wrong values --------------------------------------------------------------------- */

START_TEST(what_follows_a_missing_part_is_of_no_use)
{
	struct prefix_case p;

	prefix_make(&p, url, prefix_wide_model(), 4);
	prefix_expect_put(&p, prefix_value_bytes(&p));
	for (int i = 0; i < 6; i++) {
		const uint32_t block = rnd_below(4), part = rnd_below(4);

		delete_value(key_of(&p, block, part));
		prefix_expect_found(&p, part ? 4 : block);
		prefix_expect_got(&p, block);
		prefix_expect_put(&p, PREFIX_PART + PREFIX_OVERHEAD);
		prefix_expect_got(&p, 4);
	}
	prefix_free(&p);
}
END_TEST

/* A daemon derives the names from the secret, too: only a daemon with a wrong secret would look for these blocks. */
START_TEST(another_key_opens_nothing)
{
	struct prefix_case p;

	prefix_random(&p, url, 5);
	prefix_expect_put(&p, prefix_value_bytes(&p));
	p.what.key[rnd_below(SKV_STORE_KEY)] ^= (uint8_t)(1u << rnd_below(8));
	prefix_expect_got(&p, 0);
	ck_assert(!is_there(key_of(&p, 0, 0)));
	prefix_expect_put(&p, prefix_value_bytes(&p));
	prefix_expect_got(&p, p.what.n_blocks);
	prefix_free(&p);
}
END_TEST

enum { FLIPPED, CUT, LONGER, EMPTY, SWAPPED, LARGEST, TOO_LARGE, LIST, DAMAGES };

static void damage(const struct prefix_case *p, int how, uint32_t block, uint32_t part)
{
	const char *key = key_of(p, block, part), *other = key_of(p, block + 1, part);
	struct value a = read_value(key), b = read_value(other);
	uint8_t *largest = calloc(1, SKV_STORE_MAX_VALUE);

	a.at[a.n] = 0;
	switch (how) {
	case FLIPPED: a.at[rnd_below((uint32_t)a.n)] ^= (uint8_t)(1u << rnd_below(8)); write_value(key, a.at, a.n); break;
	case CUT: write_value(key, a.at, rnd_below((uint32_t)a.n)); break;
	case LONGER: write_value(key, a.at, a.n + 1); break;
	case EMPTY: write_value(key, "", 0); break;
	case SWAPPED: write_value(key, b.at, b.n); write_value(other, a.at, a.n); break;
	case LARGEST: write_value(key, largest, SKV_STORE_MAX_VALUE); break;
	case TOO_LARGE: free(store_cli(&server, "setrange", key, "9437184", "x", NULL)); break;
	default:
		delete_value(key);
		free(store_cli(&server, "lpush", key, "x", NULL));
		break;
	}
	free(largest);
	free(a.at);
	free(b.at);
}

START_TEST(what_is_not_right_is_deleted_and_put_again)
{
	struct prefix_case p;

	for (int round = 0; round < (slowed() ? 1 : 4); round++) {
		if (round == 0)
			prefix_make(&p, url, prefix_wide_model(), 3);
		else
			prefix_random(&p, url, 6);
		prefix_expect_put(&p, prefix_value_bytes(&p));
		for (int how = 0; how < DAMAGES && p.what.n_blocks > 1; how++) {
			const uint32_t n = p.what.n_blocks, block = rnd_below(n - 1), part = rnd_below(prefix_parts(&p));

			damage(&p, how, block, part);
			prefix_expect_found(&p, n);
			prefix_expect_got(&p, block);
			ck_assert(!is_there(key_of(&p, block, part)));
			DISK_EXPECT(prefix_ask(&p, SKV_DISK_STORE_PUT), 0);
			ck_assert_uint_gt(disk.answer.bytes, 0);
			if (how == SWAPPED) /* the other one may have been in another call */
				DISK_EXPECT(prefix_ask(&p, SKV_DISK_STORE_GET), 0);
			prefix_expect_put(&p, how == SWAPPED && disk.answer.n_blocks < n ? prefix_value_bytes(&p) / n / prefix_parts(&p) : 0);
			prefix_expect_got(&p, n);
		}
		prefix_free(&p);
	}
}
END_TEST

/* ---- a store that fails -------------------------------------------------------------------------- */

static void expect_errors(const struct prefix_case *p, int error)
{
	static const uint32_t kinds[] = {SKV_DISK_STORE_FIND, SKV_DISK_STORE_GET, SKV_DISK_STORE_PUT};

	for (int i = 0; i < 3; i++) {
		const int r = prefix_ask(p, kinds[i]);

		ck_assert_msg(error ? r == error : r < 0, "%d: %s", r, disk.answer.why);
	}
}

static void wait_until_it_works(const struct prefix_case *p)
{
	const double from = store_now_ms();

	while (prefix_ask(p, SKV_DISK_STORE_PUT) < 0) {
		ck_assert(store_now_ms() - from < 20000);
		usleep(100000);
	}
}

START_TEST(a_store_that_is_down_costs_little)
{
	struct prefix_case p;

	prefix_random(&p, url, 5);
	p.what.timeout_ms = 2000;
	store_kill(&server);
	expect_errors(&p, 0);
	expect_errors(&p, -EHOSTDOWN);
	store_restart(&server);
	wait_until_it_works(&p);
	prefix_expect_got(&p, p.what.n_blocks);
	snprintf(p.what.url, sizeof(p.what.url), "redis://127.0.0.1:%u", store_port());
	expect_errors(&p, 0);
	snprintf(p.what.url, sizeof(p.what.url), "redis://127.0.0.1:%u", server.port);
	prefix_expect_got(&p, p.what.n_blocks);
	prefix_free(&p);
}
END_TEST

START_TEST(a_store_that_hangs_costs_its_time)
{
	struct prefix_case p;

	prefix_random(&p, url, 5);
	prefix_expect_put(&p, prefix_value_bytes(&p));
	p.what.timeout_ms = 400;
	kill(server.pid, SIGSTOP);
	ck_assert_int_eq(prefix_ask(&p, SKV_DISK_STORE_GET), -ETIMEDOUT);
	expect_errors(&p, 0);
	kill(server.pid, SIGCONT);
	wait_until_it_works(&p);
	prefix_expect_got(&p, p.what.n_blocks);
	p.what.timeout_ms = 0;
	expect_errors(&p, -ETIMEDOUT);
	prefix_free(&p);
}
END_TEST

static void talk_nonsense(int fd)
{
	char bytes[4096];

	while (read(fd, bytes, sizeof(bytes)) > 0)
		if (write(fd, "+PONG\r\n", 7) < 0)
			break;
}

START_TEST(a_server_that_is_no_store_is_an_error)
{
	struct store_fake fake;
	struct prefix_case p;

	prefix_random(&p, url, 5);
	store_fake_begin(&fake, talk_nonsense);
	snprintf(p.what.url, sizeof(p.what.url), "unix://%s", fake.socket);
	p.what.timeout_ms = 2000;
	ck_assert_int_eq(prefix_ask(&p, SKV_DISK_STORE_GET), -EPROTO);
	expect_errors(&p, 0);
	store_fake_end(&fake);
	prefix_free(&p);
}
END_TEST

/* On a new connection: after a timeout the old one is not used for a moment. */
static int ask_in(struct prefix_case *p, uint32_t kind, uint32_t ms)
{
	int r;

	p->what.timeout_ms = ms;
	snprintf(p->what.url, sizeof(p->what.url), "%s?timeout=%u", url, 1000 + rnd_below(599000));
	r = prefix_ask(p, kind);
	ck_assert_msg(r == 0 || r == -ETIMEDOUT, "%d: %s", r, disk.answer.why);
	return r;
}

/* Whenever its time ends, a job has done what it reports. */
START_TEST(what_is_done_in_time_counts)
{
	struct prefix_case p;
	uint64_t sent = 0;
	const uint32_t most = rnd_takes_all() ? 6 : 24;
	uint32_t some = 0;

	prefix_make(&p, url, prefix_wide_model(), 8);
	for (uint32_t ms = 1; ms < 60; ms += 1 + rnd_below(most)) {
		const int r = ask_in(&p, SKV_DISK_STORE_PUT, ms);

		ck_assert(r == 0 || disk.answer.bytes == 0);
		sent += disk.answer.bytes;
		ck_assert_uint_le(sent, prefix_value_bytes(&p));
	}
	ck_assert_int_eq(ask_in(&p, SKV_DISK_STORE_PUT, PLENTY), 0);
	for (uint32_t ms = 1; ms < 150; ms += 1 + rnd_below(most)) {
		struct prefix_case to = prefix_target(&p);

		if (ask_in(&to, SKV_DISK_STORE_GET, ms) == 0)
			prefix_expect_same(&p, &to, disk.answer.n_blocks);
		some += disk.answer.n_blocks > 0 && disk.answer.n_blocks < 8;
		prefix_free_target(&to);
	}
	ck_assert(some > 0 || slowed());
	prefix_expect_got(&p, 8);
	prefix_free(&p);
}
END_TEST

static void begin_small(void)
{
	static const char *const args[] = {"--maxmemory", "48mb", "--maxmemory-policy", "noeviction", NULL};

	begin_with(args);
}

START_TEST(a_store_that_is_full_has_the_first_blocks)
{
	struct prefix_case p;

	prefix_make(&p, url, prefix_wide_model(), 5);
	DISK_EXPECT(prefix_ask(&p, SKV_DISK_STORE_PUT), 0);
	ck_assert(disk.answer.bytes > 0 && disk.answer.bytes < prefix_value_bytes(&p));
	prefix_expect_got(&p, (uint32_t)(disk.answer.bytes / (4 * (PREFIX_PART + PREFIX_OVERHEAD))));
	ck_assert_int_eq(prefix_ask(&p, SKV_DISK_STORE_PUT), -ENOSPC);
	prefix_free(&p);
}
END_TEST

/* ---- invalid jobs -------------------------------------------------------------------------------- */

static void refuses(const struct prefix_case *p, uint32_t kind, int error)
{
	ck_assert_msg(prefix_ask(p, kind) == error, "%d: %s", disk.answer.error, disk.answer.why);
}

START_TEST(jobs_are_checked)
{
	static const uint32_t kinds[] = {SKV_DISK_STORE_PUT, SKV_DISK_STORE_GET, SKV_DISK_STORE_FIND};
	struct prefix_case p, bad;

	prefix_random(&p, url, 5);
	for (int i = 0; i < 3; i++) {
		uint32_t *list = prefix_list(&p, kinds[i]);
		const size_t list_bytes = prefix_list_bytes(&p, kinds[i]), what = prefix_what_bytes(&p, kinds[i]);

		ck_assert_int_eq(prefix_ask_with(&p, kinds[i], what - 1, list, list_bytes), -EINVAL);
		ck_assert_int_eq(prefix_ask_with(&p, kinds[i], rnd_below(sizeof(p.what)), list, list_bytes), -EINVAL);
		bad = p;
		memset(bad.what.url, 'x', sizeof(bad.what.url));
		refuses(&bad, kinds[i], -EINVAL);
		strcpy(bad.what.url, "http://127.0.0.1");
		refuses(&bad, kinds[i], -EINVAL);
		bad = p;
		bad.what.n_blocks = 0;
		ck_assert_int_eq(prefix_ask_with(&bad, kinds[i], what, list, list_bytes), -EINVAL);
		bad.what.n_blocks = SKV_MAX_TOKENS / SKV_BLOCK_TOKENS + 1;
		bad.names = calloc(bad.what.n_blocks, sizeof(*bad.names));
		bad.tokens = calloc(bad.what.n_blocks, 4 * SKV_BLOCK_TOKENS);
		ck_assert_int_eq(prefix_ask_with(&bad, kinds[i], prefix_what_bytes(&bad, kinds[i]), list, list_bytes), -EINVAL);
		free(bad.names), free(bad.tokens);
		if (kinds[i] != SKV_DISK_STORE_FIND) {
			ck_assert_int_eq(prefix_ask_with(&p, kinds[i], what, list, rnd_below((uint32_t)list_bytes / 4) * 4), -EIO);
			list[rnd_below((uint32_t)prefix_pages(&p))] = skv_pte_make(SKV_PTE_PRIVATE, (uint32_t)p.job.max_pages);
			ck_assert_int_eq(prefix_ask_with(&p, kinds[i], what, list, list_bytes), -EINVAL);
		}
		free(list);
	}
	there_and_back(&p); /* nothing of these jobs was done, and the worker still works */
	prefix_free(&p);
}
END_TEST

#define REFUSES(field, value, kind, error) \
	do { \
		bad = p; \
		bad.field = (value); \
		refuses(&bad, kind, error); \
	} while (0)

START_TEST(models_and_lengths_are_checked)
{
	struct prefix_case p, bad;
	uint32_t *list;

	prefix_random(&p, url, 5);
	for (uint32_t kind = SKV_DISK_STORE_PUT; kind <= SKV_DISK_STORE_GET; kind += 2) {
		REFUSES(job.page_bytes, 0, kind, -EINVAL);
		REFUSES(job.page_bytes, p.job.page_bytes + 64, kind, -EINVAL);
		REFUSES(job.model.kv_dtype, 77, kind, -EINVAL);
		REFUSES(job.model.head_dim, 0, kind, -EINVAL);
		REFUSES(job.n_pages, 0, kind, -EINVAL);
		REFUSES(job.n_pages, p.job.n_pages + 1, kind, -EINVAL);
		REFUSES(job.n_fds, SKV_DISK_FD_PAGES, kind, -EINVAL);
	}
	REFUSES(job.n_entries, p.job.n_entries - 1, SKV_DISK_STORE_PUT, -EINVAL);
	REFUSES(job.commit, p.job.commit + 1, SKV_DISK_STORE_PUT, -EINVAL);
	REFUSES(job.max_tokens, p.what.n_blocks * SKV_BLOCK_TOKENS - 1, SKV_DISK_STORE_GET, -EINVAL);
	REFUSES(job.max_tokens, ~0u, SKV_DISK_STORE_GET, -EINVAL);
	list = prefix_list(&p, SKV_DISK_STORE_PUT);
	list[rnd_below((uint32_t)prefix_pages(&p))] = skv_pte_make(rnd_below(2) ? SKV_PTE_HOLE : SKV_PTE_NONE, 0);
	ck_assert_int_eq(prefix_ask_with(&p, SKV_DISK_STORE_PUT, prefix_what_bytes(&p, SKV_DISK_STORE_PUT), list,
	                                 prefix_list_bytes(&p, SKV_DISK_STORE_PUT)), -EOPNOTSUPP);
	free(list);
	there_and_back(&p);
	prefix_free(&p);
	prefix_make(&p, url, parked_model(1, 256, 256, 256, SKV_F32), 1);
	ck_assert_uint_eq(p.job.page_bytes, SKV_STORE_MAX_VALUE);
	refuses(&p, SKV_DISK_STORE_PUT, -EOPNOTSUPP);
	refuses(&p, SKV_DISK_STORE_GET, -EOPNOTSUPP);
	prefix_free(&p);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("store-values");
	const int skip = store_skip((const char *const[]){"redis-server", "redis-cli", NULL});

	if (skip)
		return skip;
	add_case(s, "there and back", 120, begin, end, what_was_put_comes_back, records_come_back, all_sizes_come_back, values_are_sealed, NULL);
	add_case(s, "what is not right", 120, begin, end, what_follows_a_missing_part_is_of_no_use, another_key_opens_nothing,
	         what_is_not_right_is_deleted_and_put_again, NULL);
	add_case(s, "failure", 120, begin, end, a_store_that_is_down_costs_little, a_store_that_hangs_costs_its_time,
	         a_server_that_is_no_store_is_an_error, what_is_done_in_time_counts, NULL);
	add_case(s, "full", 60, begin_small, end, a_store_that_is_full_has_the_first_blocks, NULL);
	add_case(s, "checks", 60, begin, end, jobs_are_checked, models_and_lengths_are_checked, NULL);
	return run_suite(s);
}
