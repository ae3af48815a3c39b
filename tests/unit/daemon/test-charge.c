/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that clients write directly, in sequences and in pool memory without a segment, with a real daemon: it is
 * charged to them, status reports it, and after their end no more than their quota of it remains.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/seqmem.h"
#include "common/spec.h"
#include "daemon/core/state/block-index.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/privilege.h"
#include "tests/support/store-fixture.h"
#include "tests/support/suite.h"

#define HOSTILE_UID 54321u
#define MiB (UINT64_C(1) << 20)
#define QUOTA (64 * MiB)
#define N_SEQS 8u
#define LEN (12u << 20) /* tokens */
#define PATIENCE 20     /* s */

static struct fix fix;
static struct raw *operator;
static struct store_fake store;
static char *parked;
static uint32_t last_seq; /* set by make_seq() */

static void setup(void)
{
	static const char *const options[] = {"--pool-bytes=1G", "--account-bytes=64M", "--segment-bytes=2M", NULL};

	fix_start_process(&fix, options);
	operator = raw_operator(fix.socket);
}

static void teardown(void)
{
	raw_close(operator);
	fix_stop(&fix);
}

static struct skv_wire_model wide(void)
{
	struct skv_wire_model m = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16, .kv_dtype = SKV_F16,
	                           .max_tokens = SKV_MAX_TOKENS, .n_ranks = 1};

	skv_wire_string(m.name, sizeof(m.name), "wide");
	return m;
}

static char *map_of(const struct raw *r, uint64_t bytes)
{
	char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fds[0], 0);

	ck_assert_ptr_ne(map, MAP_FAILED);
	return map;
}

/* Makes a sequence and maps its memory, unwritten. */
static char *make_seq(struct raw *r, const struct skv_msg_open_ok *session, const char *name, struct skv_seqmem_layout *ret_layout)
{
	struct skv_msg_seq_name m = {.session = session->session};
	const struct skv_msg_seq_ok *ok;
	struct skv_wire_model wire = wide();
	struct skv_model model;

	skv_wire_to_model(&model, &wire);
	skv_wire_string(m.name, sizeof(m.name), name);
	ok = raw_ask(r, SKV_MSG_SEQ_NEW, &m, sizeof(m), -1);
	last_seq = ok->seq;
	skv_seqmem_layout(&model, ok->max_tokens, ret_layout);
	return map_of(r, ret_layout->total);
}

/* Writes LEN tokens without pages, so that their memory is allocated. */
static void write_seq(char *mem, const struct skv_seqmem_layout *layout)
{
	skv_pte *table = skv_seqmem_table((struct skv_seqmem *)(void *)mem, layout, 0);

	for (uint32_t i = 0; i < skv_pages_of(LEN); i++)
		table[i] = skv_pte_make(SKV_PTE_HOLE, 0);
	memset(mem + layout->tokens, 1, LEN * sizeof(int32_t));
	atomic_store(&((struct skv_seqmem *)(void *)mem)->commit, (uint64_t)2 << 32 | LEN);
	munmap(mem, layout->total);
}

static int ready[2], go[2]; /* pipes */

/* Runs `body` in a child, as another user if possible; the child holds what it has until end_child(). */
static pid_t start_child(void (*body)(void))
{
	char byte;
	pid_t pid;

	ck_assert_int_eq(pipe(ready) | pipe(go), 0);
	pid = child_fork();
	if (pid == 0) {
		if (can_change_user() && (setgid(HOSTILE_UID) < 0 || setuid(HOSTILE_UID) < 0))
			_exit(2);
		body();
		_exit(0);
	}
	close(ready[1]);
	close(go[0]);
	ck_assert_msg(read(ready[0], &byte, 1) == 1, "%s", child_problem());
	return pid;
}

static void end_child(pid_t pid)
{
	close(ready[0]);
	close(go[1]);
	child_wait(pid);
}

static void wait_for_end(void)
{
	char byte = 0;

	close(go[1]);
	ck_assert_int_eq(write(ready[1], &byte, 1), 1);
	(void)!read(go[0], &byte, 1);
}

/*
 * Writes 408 MiB of sequences. All are made before the first is written, since the daemon refuses a sequence once it
 * has measured others.
 */
static void pin_memory(void)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_msg_open_ok session;
	struct skv_wire_model m = wide();
	struct skv_seqmem_layout layout;
	char *mem[N_SEQS];

	raw_open_model(r, &m, "full", &session);
	for (uint32_t n = 0; n < N_SEQS; n++) {
		char name[16];

		snprintf(name, sizeof(name), "s%u", n);
		mem[n] = make_seq(r, &session, name, &layout);
	}
	for (uint32_t n = 0; n < N_SEQS; n++)
		write_seq(mem[n], &layout);
	wait_for_end();
	raw_close(r);
}

static uint64_t account_figure(uid_t uid, const char *field)
{
	json_t *status = raw_query(operator, SKV_QUERY_STATUS), *row;
	uint64_t x = 0;
	size_t i;

	json_array_foreach(json_object_get(status, "accounts"), i, row)
		if (json_integer_value(json_object_get(row, "uid")) == (json_int_t)uid)
			x = (uint64_t)json_integer_value(json_object_get(row, field));
	json_decref(status);
	return x;
}

static uint64_t held(void)
{
	json_t *status = raw_query(operator, SKV_QUERY_STATUS);
	uint64_t x = (uint64_t)json_integer_value(json_object_get(json_object_get(status, "held"), "sequences"));

	json_decref(status);
	return x;
}

/*
 * Waits until the measured charge is between `least` and `most`. The daemon measures once a second, later on a busy
 * machine.
 */
static void wait_for_charge(uid_t uid, uint64_t least, uint64_t most)
{
	uint64_t x = 0;

	for (double end = fix_now() + PATIENCE; fix_now() < end; fix_sleep_ms(50))
		if ((x = account_figure(uid, "other_bytes")) >= least && x <= most)
			return;
	ck_abort_msg("%ju bytes charged, expected %ju to %ju", (uintmax_t)x, (uintmax_t)least, (uintmax_t)most);
}

START_TEST(no_sequence_outlives_the_quota)
{
	uid_t uid = can_change_user() ? HOSTILE_UID : getuid();
	pid_t pid = start_child(pin_memory);
	double end;

	wait_for_charge(uid, N_SEQS * 50 * MiB, UINT64_MAX);
	ck_assert_uint_ge(account_figure(uid, "fds"), N_SEQS);
	raw_expect_held(operator, fix.pid);
	end_child(pid);
	for (end = fix_now() + PATIENCE; held() > QUOTA && fix_now() < end;)
		fix_sleep_ms(10);
	ck_assert_uint_le(held(), QUOTA);
	raw_expect_held(operator, fix.pid);
	wait_for_charge(uid, 0, QUOTA);
	/* memory is freed in the background, after its charge has ended */
	for (end = fix_now() + PATIENCE; account_figure(uid, "other_bytes") < held() && fix_now() < end;)
		fix_sleep_ms(10);
	ck_assert_uint_ge(account_figure(uid, "other_bytes"), held());
	fix_expect_log(&fix, "account-bytes");
}
END_TEST

/* Writes to pool memory that has no segment. */
static void write_beside(void)
{
	struct raw *r = raw_hello(fix.socket);
	struct skv_wire_model m = wide();
	struct skv_msg_open_ok session;
	struct skv_msg_lease_get get = {.least = 1, .most = 1};
	uint64_t bytes = 128 * MiB;
	int answer = SKV_MSG_LEASE_GET | SKV_REPLY;
	char *map;

	r->keep_fd = true;
	raw_open_model(r, &m, "full", &session);
	raw_seq_new(r, session.session, "kept"); /* so the pool stays */
	raw_lease(r, session.session, 16);
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->segment_fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	memset(map + 8 * MiB, 1, bytes - 8 * MiB);
	get.session = session.session;
	for (double end = fix_now() + PATIENCE; answer == (SKV_MSG_LEASE_GET | SKV_REPLY) && fix_now() < end; fix_sleep_ms(100)) {
		raw_send(r, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
		answer = raw_recv_answer(r, PATIENCE * 1000);
	}
	ck_assert_int_eq(raw_refused(r, SKV_MSG_LEASE_GET, &get, sizeof(get), -1), EDQUOT);
	wait_for_end();
	raw_close(r);
}

START_TEST(memory_beside_segments_goes)
{
	pid_t pid = start_child(write_beside);
	double end;

	ck_assert_uint_ge(fix_held_bytes(fix.pid), 100 * MiB);
	raw_expect_held(operator, fix.pid);
	end_child(pid);
	for (end = fix_now() + PATIENCE; fix_held_bytes(fix.pid) > 32 * MiB && fix_now() < end;)
		fix_sleep_ms(50);
	ck_assert_uint_le(fix_held_bytes(fix.pid), 32 * MiB);
	raw_expect_held(operator, fix.pid);
}
END_TEST

/* A store that never replies. */
static void say_nothing(int fd)
{
	char byte;

	while (read(fd, &byte, 1) > 0)
		;
}

/* Starts a daemon that asks this store and waits for it. */
static void start_with_store(const char *account_bytes)
{
	static char secret[160], option[3][256];
	const char *const options[] = {"--pool-bytes=1G", account_bytes, "--segment-bytes=2M", "--prefix-store-wait=4",
	                               option[0], option[1], option[2], NULL};

	store_fake_begin(&store, say_nothing);
	parked = fx_folder();
	snprintf(secret, sizeof(secret), "%s", fx_path(store.folder, "secret"));
	fx_text(secret, "32 bytes are a secret's least length.");
	ck_assert_int_eq(chmod(secret, 0600) | chmod(parked, 0700), 0);
	snprintf(option[0], sizeof(option[0]), "--prefix-store=unix://%s", store.socket);
	snprintf(option[1], sizeof(option[1]), "--prefix-secret-file=%s", secret);
	snprintf(option[2], sizeof(option[2]), "--parked-path=%s", parked);
	fix_start_process(&fix, options);
	operator = raw_operator(fix.socket);
}

static void setup_store(void)
{
	start_with_store("--account-bytes=64M");
}

static void setup_small(void)
{
	start_with_store("--account-bytes=8M");
}

static void teardown_store(void)
{
	teardown();
	store_fake_end(&store);
	fx_remove(parked);
}

static struct {
	uint64_t held, charged; /* maximum that the daemon allocated meanwhile, and charged */
	unsigned refused;
} asked;

/* Clients ask at the same time for prefixes of prompts of LEN tokens whose ids they have never written. */
static void ask_for_holes(void)
{
	struct skv_wire_model m = wide();
	struct skv_msg_seq_name ask = {.n_tokens = LEN};
	struct raw *r[N_SEQS];
	uint64_t held_first, charged_first;
	unsigned waiting = N_SEQS;
	int answer;

	for (unsigned i = 0; i < N_SEQS; i++) {
		r[i] = raw_hello(fix.socket);
		raw_open_model(r[i], &m, "full", NULL);
		raw_seq_new(r[i], r[i]->sessions[0], "");
	}
	held_first = fix_held_bytes(fix.pid);
	charged_first = account_figure(getuid(), "other_bytes");
	for (unsigned i = 0; i < N_SEQS; i++) {
		ask.session = r[i]->sessions[0];
		ask.seq = raw_seq_new(r[i], ask.session, "");
		raw_send(r[i], SKV_MSG_PREFIX_NEW, &ask, sizeof(ask), -1);
	}
	for (double end = fix_now() + PATIENCE; waiting && fix_now() < end;) {
		const uint64_t held_now = fix_held_bytes(fix.pid) - held_first, charged = account_figure(getuid(), "other_bytes") - charged_first;

		asked.held = held_now > asked.held ? held_now : asked.held;
		asked.charged = charged > asked.charged ? charged : asked.charged;
		while (waiting && (answer = raw_recv_answer(r[waiting - 1], 10)) > 0) {
			waiting--;
			asked.refused += answer == SKV_MSG_ERROR;
			ck_assert(answer != SKV_MSG_ERROR || strstr(raw_error_text(r[waiting]), "quota"));
		}
	}
	ck_assert_uint_eq(waiting, 0);
	for (unsigned i = 0; i < N_SEQS; i++)
		raw_close(r[i]);
	wait_for_charge(getuid(), 0, MiB); /* all is freed */
}

#define KEYS (LEN / SKV_BLOCK_TOKENS * sizeof(struct skv_block_key)) /* of a prompt */

/* The prompts are longer than the quota: the daemon has no copy of their ids, and charges what it has. */
START_TEST(prompts_of_holes)
{
	ask_for_holes();
	ck_assert_uint_eq(asked.refused, 0);
	ck_assert_msg(asked.held < QUOTA / 4, "the daemon took %ju KiB", (uintmax_t)asked.held >> 10);
	ck_assert_uint_ge(asked.charged, N_SEQS * KEYS);
}
END_TEST

/* The quota has no room for the keys of all prompts. */
START_TEST(prompts_beyond_the_quota)
{
	ask_for_holes();
	ck_assert_uint_gt(asked.refused, 0);
	ck_assert_uint_lt(asked.refused, N_SEQS);
	ck_assert_uint_le(asked.charged, 8 * MiB);
	ck_assert_uint_ge(asked.charged, KEYS);
}
END_TEST

/* Starts a daemon that parks sequences without a holder at once. */
static void setup_parking(void)
{
	static char path[160];
	static const char *const options[] = {"--pool-bytes=1G", "--account-bytes=256M", "--segment-bytes=2M", "--park-after=1", path, NULL};

	parked = fx_folder();
	ck_assert_int_eq(chmod(parked, 0700), 0);
	snprintf(path, sizeof(path), "--parked-path=%s", parked);
	fix_start_process(&fix, options);
	operator = raw_operator(fix.socket);
}

static void teardown_parking(void)
{
	teardown();
	fx_remove(parked);
}

static json_int_t prefixes_on_disk(void)
{
	json_t *status = raw_query(operator, SKV_QUERY_STATUS);
	json_int_t n = json_integer_value(json_object_get(json_array_get(json_object_get(status, "prefixes"), 0), "parked"));

	json_decref(status);
	return n;
}

/* A prefix on disk is found by its keys, which stay in memory: its user is charged for these only. */
START_TEST(keys_of_a_prefix_on_disk)
{
	const uint64_t keys = skv_block_index_bytes(LEN / SKV_BLOCK_TOKENS);
	struct raw *r = raw_hello(fix.socket);
	struct skv_wire_model m = wide();
	struct skv_msg_open_ok session;
	struct skv_seqmem_layout layout;
	char *mem;

	raw_open_model(r, &m, "full", &session);
	mem = make_seq(r, &session, "", &layout);
	((struct skv_seqmem *)(void *)mem)->policy = skv_spec_fingerprint("full");
	((struct skv_seqmem *)(void *)mem)->about[0] = LEN; /* all of it was a prompt */
	write_seq(mem, &layout);
	raw_ask(r, SKV_MSG_PREFIX_SEAL, &(struct skv_msg_seal){.session = session.session, .seq = last_seq, .n_tokens = LEN}, sizeof(struct skv_msg_seal), -1);
	raw_close(r);
	for (double end = fix_now() + PATIENCE; prefixes_on_disk() == 0 && fix_now() < end;)
		fix_sleep_ms(50);
	ck_assert_int_eq(prefixes_on_disk(), 1);
	wait_for_charge(getuid(), keys, keys + MiB);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-charge");

	add_case(s, "charges", 120, setup, teardown, no_sequence_outlives_the_quota, memory_beside_segments_goes, NULL);
	add_case(s, "prompts", 120, setup_store, teardown_store, prompts_of_holes, NULL);
	add_case(s, "prompts beyond", 120, setup_small, teardown_store, prompts_beyond_the_quota, NULL);
	add_case(s, "keys", 120, setup_parking, teardown_parking, keys_of_a_prefix_on_disk, NULL);
	return run_suite(s);
}
