/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two daemons with a prefix store between them, a redis-server: sequences of one daemon begin with what the other has
 * sealed. Whatever happens to the store, its values, workers or a daemon, every sequence gives what reading its prompt
 * gives. (With $SKV_TEST_NIXL all tests run with NIXL between the hosts, and records in the store:
 * tests/support/prefix-hosts.h.)
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/policies.h"
#include "tests/support/prefix-hosts.h"
#include "tests/support/privilege.h"

#define ROUNDS (getenv("SKV_KILLS") ? atoi(getenv("SKV_KILLS")) : slowed() ? 3 : 8)
#define TENANTS 16u
#define FIRST_UID 3000u

/* ---- shared prefixes ------------------------------------------------------------------------- */

START_TEST(fetched) /* what is compressed in memory is compressed in the store */
{
	int32_t ids[PREFIX_PROMPT], other[PREFIX_PROMPT];
	struct skv_seq *seq;
	struct hosts_user u;

	hosts.dtype = _i ? SKV_FP8 : 0;
	ck_assert_uint_eq(hosts_once(0, 1, true), 0);
	hosts_wait_values(HOSTS_BLOCKS);
	ck_assert_uint_eq(hosts_once(1, 1, false), PREFIX_SEALED);
	ck_assert_uint_eq(hosts_once(1, 1, true), PREFIX_SEALED); /* now it is in memory here, too */
	store_kill(&hosts.store);
	ck_assert_uint_eq(hosts_once(1, 1, false), PREFIX_SEALED);
	store_restart(&hosts.store);
	fix_sleep_ms(1500); /* until the store is asked again */
	ck_assert_uint_eq(hosts_once(0, 2, true), 0);
	hosts_wait_values(HOSTS_BLOCKS);
	hosts_user_begin(&u, 1);
	prefix_prompt(ids, 2);
	memcpy(other, ids, sizeof(other));
	other[300]++; /* only the first block is the same */
	ck_assert_uint_eq(prefix_begin(&u.w, other, PREFIX_PROMPT, &seq), 256);
	OK(skv_seq_drop(seq));
	/* longer than what is in memory here */
	ck_assert_uint_eq(prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq), PREFIX_SEALED);
	skv_disconnect(u.client);
}
END_TEST

/*
 * Records are stored unchanged, and are smaller than rows; a sequence that begins with them is like the one that sealed
 * them.
 */
START_TEST(fetched_compressed)
{
	static const char *const specs[] = {
		POLICY_QUANTIZES "?residual=64&block=64&bits=2&scale_block=32",
		POLICY_LATENT "?budget=40&recent=8&layers=1,3&dense=1&bits=0&residual=1&block=16&stride=7&n_refs=4&"
		              "ref_bits=8",
	};
	char *text, *keys[HOSTS_BLOCKS];
	struct skv_store *store = hosts_open_store();
	int32_t ids[PREFIX_PROMPT];
	struct hosts_user a, b;
	struct skv_seq *seq;
	float *want, *got;
	size_t bytes = 0;

	hosts.spec = specs[_i];
	prefix_prompt(ids, 9);
	hosts_user_begin(&a, 0);
	ck_assert_uint_eq(prefix_begin(&a.w, ids, PREFIX_PROMPT, &seq), 0);
	prefix_read(&a.w, seq, ids, 0, PREFIX_SEALED, true, NULL);
	OK(skv_seq_seal(seq, SKV_ALL, NULL));
	want = prefix_go_on(&a.w, seq, ids);
	hosts_wait_values(HOSTS_BLOCKS);
	ck_assert_uint_eq(hosts_keys(&text, keys, HOSTS_BLOCKS), HOSTS_BLOCKS);
	for (uint32_t i = 0; i < HOSTS_BLOCKS; i++) {
		struct hosts_value v = hosts_get(store, keys[i]);

		bytes += v.n;
		free(v.bytes);
	}
	if (!hosts.nixl[0]) /* otherwise the values are in the hosts' memory */
		ck_assert_uint_lt(bytes, skv_page_bytes(&a.w.model) / SKV_PAGE_TOKENS * a.w.model.n_layers * PREFIX_SEALED * 4 / 5);
	hosts_user_begin(&b, 1);
	ck_assert_uint_eq(prefix_begin(&b.w, ids, PREFIX_PROMPT, &seq), PREFIX_SEALED);
	got = prefix_go_on(&b.w, seq, ids);
	ck_assert_msg(prefix_same(&a.w, want, got), "%s: another output than on the host that has read it", specs[_i]);
	skv_disconnect(a.client);
	skv_disconnect(b.client);
	skv_store_free(store);
	free(text);
	free(want);
	free(got);
}
END_TEST

/* ---- with a disk ----------------------------------------------------------------------------- */

/* Parks all prefixes in memory; returns their number. */
static unsigned park_prefixes(int i)
{
	struct raw *r = raw_operator(hosts.host[i].socket);
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS), *row;
	unsigned n = 0;
	size_t at;

	json_array_foreach(json_object_get(seqs, "sequences"), at, row) {
		const char *name = json_string_value(json_object_get(row, "name"));

		if (*name != '/' || json_object_get(row, "parked_bytes"))
			continue;
		ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, json_string_value(json_object_get(row, "model")), name), 0);
		n++;
	}
	json_decref(seqs);
	raw_close(r);
	return n;
}

static json_int_t figure(int i, const char *key)
{
	struct raw *r = raw_operator(hosts.host[i].socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	json_int_t n = json_integer_value(json_object_get(json_array_get(json_object_get(status, "prefixes"), 0), key));

	json_decref(status);
	raw_close(r);
	return n;
}

/*
 * The disk has one block and the store two: both are asked, and the longer prefix is used. Prefixes on disk need no
 * store.
 */
START_TEST(longest_of_all)
{
	struct hosts_user u;
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	hosts_user_begin(&u, 1);
	prefix_prompt(ids, 3);
	OK(skv_seq_new(u.w.session, NULL, 0, &seq));
	prefix_read(&u.w, seq, ids, 0, 256, true, NULL);
	OK(skv_seq_seal(seq, 256, NULL));
	skv_disconnect(u.client);
	hosts_wait_values(1);
	ck_assert_uint_eq(park_prefixes(1), 1);
	ck_assert_uint_eq(hosts_once(0, 3, true), 256);
	hosts_wait_values(HOSTS_BLOCKS);
	ck_assert_uint_eq(hosts_once(1, 3, false), PREFIX_SEALED);
	ck_assert_int_eq(figure(1, "restored_tokens"), 256);
	ck_assert_int_eq(figure(1, "fetched_tokens"), PREFIX_SEALED);
	ck_assert_uint_eq(park_prefixes(1), 2);
	store_kill(&hosts.store);
	ck_assert_uint_eq(hosts_once(1, 3, false), PREFIX_SEALED);
	ck_assert_int_eq(figure(1, "restored_tokens"), 256 + PREFIX_SEALED);
	ck_assert_uint_eq(park_prefixes(1), 1);
	fix_kill(&hosts.host[1]);
	hosts_start(1);
	ck_assert_uint_eq(hosts_once(1, 3, false), PREFIX_SEALED);
	store_restart(&hosts.store);
}
END_TEST

/* ---- without a disk -------------------------------------------------------------------------- */

/* Restarts both hosts without parked-path; they have what the store has, and park nothing. */
static void forget_disks(void)
{
	hosts.diskless = true;
	for (int i = 0; i < 2; i++) {
		fix_stop(&hosts.host[i]);
		hosts_start(i);
	}
}

/* A store needs no parked-path; whatever ends a host, the next daemon finds in the store what is not in memory. */
START_TEST(diskless)
{
	struct raw *r;

	forget_disks();
	ck_assert_uint_eq(hosts_once(0, 4, true), 0);
	hosts_wait_values(HOSTS_BLOCKS);
	ck_assert_uint_eq(hosts_once(1, 4, false), PREFIX_SEALED);
	ck_assert_int_eq(figure(1, "fetched_tokens"), PREFIX_SEALED);
	fix_kill(&hosts.host[1]);
	hosts_start(1);
	ck_assert_uint_eq(hosts_once(1, 4, true), PREFIX_SEALED);
	ck_assert_int_eq(figure(1, "fetched_tokens"), PREFIX_SEALED);
	r = raw_operator(hosts.host[1].socket);
	ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, "shared", "/of no use"), EOPNOTSUPP);
	raw_close(r);
}
END_TEST

/* ---- long prompts ---------------------------------------------------------------------------- */

#define LONG_BLOCKS 130u /* more than the daemon hands its worker in one turn */
#define LONG_PROMPT (LONG_BLOCKS * 256 + 1)
#define LONG_CHUNK 1024u

static void open_long(struct hosts_user *u, int on)
{
	prefix_model(&u->w, "long");
	u->w.model.n_layers = u->w.model.n_heads = u->w.model.n_kv_heads = 1;
	u->w.model.max_tokens = LONG_PROMPT;
	OK(skv_connect(&u->client, hosts.host[on].socket));
	OK(skv_open(u->client, &u->w.model, "delta?budget=64", &u->w.session));
}

START_TEST(long_prompt)
{
	int32_t *ids = malloc(LONG_PROMPT * sizeof(*ids));
	struct hosts_user a, b;
	struct skv_seq *seq;

	for (uint32_t i = 0; i < LONG_PROMPT; i++)
		ids[i] = refmodel_token(refmodel_content(6, i));
	open_long(&a, 0);
	OK(skv_seq_new(a.w.session, NULL, 0, &seq));
	for (uint32_t at = 0; at < LONG_BLOCKS * 256; at += LONG_CHUNK)
		prefix_read(&a.w, seq, ids, at, at + LONG_CHUNK < LONG_BLOCKS * 256 ? at + LONG_CHUNK : LONG_BLOCKS * 256, true, NULL);
	OK(skv_seq_seal(seq, SKV_ALL, NULL));
	hosts_wait_values(LONG_BLOCKS);
	open_long(&b, 1);
	ck_assert_uint_eq(prefix_begin(&b.w, ids, LONG_PROMPT, &seq), LONG_BLOCKS * 256);
	skv_disconnect(a.client);
	skv_disconnect(b.client);
	free(ids);
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

enum damage { FLIPPED, CUT, EMPTY, SWAPPED, FOREIGN, GONE, DAMAGES };

static void do_damage(enum damage what, char *keys[], uint32_t n)
{
	struct skv_store *s = hosts_open_store();
	const uint32_t i = rnd_below(n);
	struct hosts_value v = hosts_get(s, keys[i]), w = hosts_get(s, keys[(i + 1) % n]);

	if (what == FLIPPED)
		v.bytes[rnd_below((uint32_t)v.n)] ^= (uint8_t)(1u << rnd_below(8));
	if (what == FOREIGN)
		store_fill(v.bytes, v.n, rnd64());
	if (what == SWAPPED)
		hosts_set(s, keys[(i + 1) % n], v.bytes, v.n);
	if (what == GONE)
		free(store_cli(&hosts.store, "del", keys[i], NULL));
	else
		hosts_set(s, keys[i], what == SWAPPED ? w.bytes : v.bytes,
		          what == CUT ? rnd_below((uint32_t)v.n) : what == EMPTY ? 0 : what == SWAPPED ? w.n : v.n);
	free(v.bytes);
	free(w.bytes);
	skv_store_free(s);
}

/* A damaged value counts as absent, is computed, and is right again for the next reader. */
START_TEST(damaged)
{
	char *text, *keys[HOSTS_BLOCKS];

	ck_assert_uint_eq(hosts_once(0, 5, true), 0);
	hosts_wait_values(HOSTS_BLOCKS);
	ck_assert_uint_eq(hosts_keys(&text, keys, HOSTS_BLOCKS), HOSTS_BLOCKS);
	do_damage((enum damage)_i, keys, HOSTS_BLOCKS);
	ck_assert_uint_lt(hosts_once(1, 5, true), PREFIX_SEALED);
	hosts_wait_values(HOSTS_BLOCKS);
	fix_stop(&hosts.host[0]);
	hosts_start(0);
	for (int i = 0; i < 100 && hosts_once(0, 5, false) < PREFIX_SEALED; i++) {
		fix_sleep_ms(50);
		/* host 0's memory is gone: host 1 has computed the blocks, and sends them once it finds that out */
		if (hosts.nixl[0])
			ck_assert_uint_eq(hosts_once(1, 5, true), PREFIX_SEALED);
	}
	ck_assert_uint_eq(hosts_once(0, 5, false), PREFIX_SEALED);
	free(text);
}
END_TEST

/* ---- kills ----------------------------------------------------------------------------------- */

START_TEST(killed)
{
	unsigned hits = 0, unhurt = 0;

	for (int i = 0; i < ROUNDS; i++) {
		const uint64_t seed = 100 + (uint64_t)i;
		const uint32_t who = rnd_below(hosts.nixl[0] ? 4 : 3), late_us = rnd_below(30000);
		/* an agent first takes half a second */
		const uint32_t sent = hosts.nixl[0] ? hosts_n_values() + HOSTS_BLOCKS : 1;
		int status;
		pid_t pid;

		(void)hosts_apart(0, seed, true);
		for (int k = 0; k < 200 && hosts_n_values() < sent; k++)
			fix_sleep_ms(5);
		pid = hosts_reader(1, seed);
		usleep(late_us);
		if (who == 0)
			store_kill(&hosts.store);
		if (who == 1)
			hosts_signal_workers(1, SIGKILL);
		if (who == 2)
			fix_kill(&hosts.host[1]);
		if (who == 3)
			hosts_signal_workers(0, SIGKILL); /* host 1 reads from their memory */
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		if (who == 2)
			hosts_start(1);
		if (who == 0)
			store_restart(&hosts.store);
		unhurt += WIFEXITED(status) && WEXITSTATUS(status) == 0;
		/* only a killed daemon is a reason to give up, and what was read is right */
		ck_assert_msg((WIFEXITED(status) && WEXITSTATUS(status) == 0) || who == 2, "round %d, victim %u after %u us: %#x %s", i, who, late_us,
		              (unsigned)status, child_problem());
		hits += hosts_apart(1, seed, false) > 0;
		ck_assert_uint_eq(hosts_apart(1, seed, true) > PREFIX_SEALED, 0);
		ck_assert_uint_eq(hosts_apart(1, seed, false), PREFIX_SEALED);
	}
	printf("%d rounds, %u without effect on the reader, %u found what was sealed\n", ROUNDS, unhurt, hits);
}
END_TEST

/* A store that is slow, down or full. */
START_TEST(bounded)
{
	const double most = HOSTS_WAIT_S * 1e3 + (slowed() ? 20000 : 2500);
	struct hosts_user u;
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	double begun;

	hosts_user_begin(&u, 1);
	prefix_prompt(ids, 8);
	kill(hosts.store.pid, SIGSTOP);
	begun = store_now_ms();
	ck_assert_uint_eq(prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq), 0);
	ck_assert_double_lt(store_now_ms() - begun, most);
	OK(skv_seq_drop(seq));
	begun = store_now_ms(); /* the store failed a moment ago and is not asked */
	ck_assert_uint_eq(prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq), 0);
	ck_assert_double_lt(store_now_ms() - begun, most);
	OK(skv_seq_drop(seq));
	ck_assert_uint_eq(hosts_read(&u, 8, true), 0);
	kill(hosts.store.pid, SIGCONT);
	store_kill(&hosts.store);
	ck_assert_uint_eq(hosts_read(&u, 9, true), 0);
	store_restart(&hosts.store);
	fix_sleep_ms(2500);
	free(store_cli(&hosts.store, "config", "set", "maxmemory", "1500000", NULL));
	for (uint64_t seed = 10; seed < 14; seed++)
		ck_assert_uint_eq(hosts_read(&u, seed, true), 0);
	free(store_cli(&hosts.store, "config", "set", "maxmemory", "0", NULL));
	for (uint64_t seed = 8; seed < 14; seed++)
		ck_assert_uint_eq(hosts_read(&u, seed, false), PREFIX_SEALED);
	skv_disconnect(u.client);
}
END_TEST

/* ---- tenants --------------------------------------------------------------------------------- */

/* As another user: the sequence begins with `least` to `most` tokens of the prompt, and outputs are right. */
static void as_tenant(uint32_t tenant, int on, bool seals, uint32_t least, uint32_t most)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		uint32_t len;

		if (setresuid(FIRST_UID + tenant, FIRST_UID + tenant, FIRST_UID + tenant) < 0)
			_exit(126);
		len = hosts_once(on, 7, seals);
		ck_assert_msg(len >= least && len <= most, "tenant %u begins with %u tokens, expected %u to %u", tenant, len, least, most);
		_exit(0);
	}
	child_wait(pid);
}

/* Returns whether two values have equal bytes in the same place. */
static bool alike(const struct hosts_value *a, const struct hosts_value *b)
{
	for (size_t at = 64; at + 32 < a->n && at + 32 < b->n; at += 32)
		if (!memcmp(a->bytes + at, b->bytes + at, 32))
			return true;
	return false;
}

/*
 * 15 users with the same prompt cannot read each other's values. A sixteenth user has the store's password and
 * overwrites values: a third of the keys get random values, another third the values of other keys. The affected users
 * recompute, and no user reads wrong data.
 */
START_TEST(tenants)
{
	char *text, *keys[TENANTS * HOSTS_BLOCKS];
	struct hosts_value values[TENANTS * HOSTS_BLOCKS];
	const uint32_t n = (TENANTS - 1) * HOSTS_BLOCKS;
	struct skv_store *s;

	if (!can_change_user())
		return; /* this process cannot become other users */
	for (uint32_t i = 0; i + 1 < TENANTS; i++)
		as_tenant(i, 0, true, 0, 0);
	hosts_wait_values(n);
	as_tenant(TENANTS - 1, 0, false, 0, 0);
	as_tenant(TENANTS - 1, 1, false, 0, 0);
	s = hosts_open_store();
	ck_assert_uint_eq(hosts_keys(&text, keys, n), n);
	for (uint32_t i = 0; i < n; i++)
		values[i] = hosts_get(s, keys[i]);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < i; k++)
			ck_assert(!alike(&values[i], &values[k]));
	for (uint32_t i = 0; i < n; i++) {
		if (i % 3 == 0)
			store_fill(values[i].bytes, values[i].n, i);
		if (i % 3 != 2)
			hosts_set(s, keys[i], values[i % 3 == 0 ? i : (i + 7) % n].bytes, values[i].n);
	}
	for (uint32_t i = 0; i + 1 < TENANTS; i++)
		as_tenant(i, 1, true, 0, PREFIX_SEALED);
	as_tenant(TENANTS - 1, 1, true, 0, 0);
	hosts_wait_values(n + HOSTS_BLOCKS);
	ck_assert_uint_eq(hosts_n_values(), n + HOSTS_BLOCKS);
	fix_stop(&hosts.host[0]);
	hosts_start(0);
	for (uint32_t i = 0; i < TENANTS && hosts.nixl[0]; i++) { /* host 0's memory is gone */
		as_tenant(i, 0, false, 0, PREFIX_SEALED);
		as_tenant(i, 1, true, PREFIX_SEALED, PREFIX_SEALED);
	}
	if (hosts.nixl[0])
		hosts_wait_values(n + HOSTS_BLOCKS);
	for (uint32_t i = 0; i < TENANTS; i++) /* wrong values were found, and stored again */
		as_tenant(i, 0, false, PREFIX_SEALED, PREFIX_SEALED);
	for (uint32_t i = 0; i < n; i++)
		free(values[i].bytes);
	free(text);
	skv_store_free(s);
}
END_TEST

int main(void)
{
	static const char *const programs[] = {"redis-server", "redis-cli", NULL};
	int skip = store_skip(programs);
	Suite *suite;
	TCase *t;

	if (skip)
		return skip;
	suite = begin_suite("test-prefix-store");
	t = add_case(suite, "prefix-store", 300, hosts_begin, hosts_end, longest_of_all, diskless, long_prompt, killed, bounded, tenants, NULL);
	tcase_add_loop_test(t, fetched, 0, 2);
	tcase_add_loop_test(t, fetched_compressed, 0, 2);
	tcase_add_loop_test(t, damaged, 0, DAMAGES);
	return run_suite(suite);
}
