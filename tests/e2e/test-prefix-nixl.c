/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two daemons that read sealed prefixes from each other's memory by NIXL. Whatever happens to the memory, to records
 * and to agents, every sequence gives what reading its prompt gives; blocks that are gone are computed and stored
 * again.
 *
 * Uses the library that $SKV_TEST_NIXL names, or its replacement tests/support/fake-nixl.c. tests/e2e/test-prefix-store
 * tests the rest.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/prefix-hosts.h"
#include "tests/support/run-program.h"

/* A read takes at most half of prefix-store-wait, and then something has to be deleted. */
#define BOUND_MS (HOSTS_WAIT_S * 1e3 + (slowed() ? 20000 : 2500))

static bool is_real(void)
{
	return getenv("SKV_TEST_NIXL") && *getenv("SKV_TEST_NIXL");
}

static const char *library(void)
{
	static char fake[500];

	snprintf(fake, sizeof(fake), "%s", fix_built("tests/support/.libs/fake-nixl.so"));
	return is_real() ? getenv("SKV_TEST_NIXL") : fake;
}

static void begin_both(void)
{
	hosts.nixl[0] = hosts.nixl[1] = library();
	hosts_begin();
}

static void begin_small(void)
{
	hosts.window = "5M"; /* two prompts, and a block */
	begin_both();
}

static void begin_one(void)
{
	hosts.nixl[0] = library();
	hosts_begin();
}

/* A field of this host's prefixes in status, such as what NIXL has read. */
static uint64_t n_read(int host, const char *what)
{
	struct raw *r = raw_operator(hosts.host[host].socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	const json_t *prefixes = json_array_get(json_object_get(status, "prefixes"), 0);
	const uint64_t n = (uint64_t)json_integer_value(json_object_get(prefixes, what));

	ck_assert_ptr_nonnull(json_object_get(prefixes, what));
	json_decref(status);
	raw_close(r);
	return n;
}

/* Seals the prompt on host 0, and waits until it is stored. */
static void seal(uint64_t seed)
{
	const uint32_t before = hosts_n_values();

	ck_assert_uint_eq(hosts_once(0, seed, true), 0);
	hosts_wait_values(before + HOSTS_BLOCKS);
}

static uint32_t in_time(int on, uint64_t seed, bool seals)
{
	struct hosts_user u;
	struct skv_seq *seq;
	int32_t ids[PREFIX_PROMPT];
	double begun;

	hosts_user_begin(&u, on);
	prefix_prompt(ids, seed);
	begun = store_now_ms();
	(void)prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq);
	ck_assert_double_lt(store_now_ms() - begun, BOUND_MS);
	OK(skv_seq_drop(seq));
	skv_disconnect(u.client);
	return hosts_once(on, seed, seals);
}

/* ---- shared prefixes ------------------------------------------------------------------------- */

START_TEST(transport)
{
	struct skv_store *s = hosts_open_store();
	char *text, *keys[HOSTS_BLOCKS + 1];

	seal(1);
	ck_assert_uint_eq(hosts_keys(&text, keys, HOSTS_BLOCKS + 1), HOSTS_BLOCKS);
	for (uint32_t i = 0; i < HOSTS_BLOCKS; i++) {
		struct hosts_value v = hosts_get(s, keys[i]);

		ck_assert_uint_lt(v.n, 200); /* a record */
		free(v.bytes);
	}
	ck_assert_uint_eq(hosts_once(1, 1, false), PREFIX_SEALED);
	ck_assert_uint_eq(n_read(1, "nixl_values"), HOSTS_BLOCKS);
	ck_assert_uint_gt(n_read(1, "nixl_bytes"), 10000);
	seal(2);
	ck_assert_uint_eq(hosts_once(1, 2, false), PREFIX_SEALED);
	ck_assert_uint_eq(n_read(1, "nixl_values"), 2 * HOSTS_BLOCKS);
	ck_assert_uint_eq(n_read(0, "nixl_values"), 0);
	free(text);
	skv_store_free(s);
}
END_TEST

/* Records of host 0 are of no use to a host without NIXL: it stores full values, which every host can read. */
START_TEST(mixed)
{
	seal(1);
	ck_assert_uint_eq(in_time(1, 1, true), 0);
	hosts_wait_values(HOSTS_BLOCKS);
	fix_stop(&hosts.host[0]);
	hosts_start(0);
	ck_assert_uint_eq(hosts_once(0, 1, false), PREFIX_SEALED);
	ck_assert_uint_eq(n_read(0, "nixl_values"), 0);
}
END_TEST

/* ---- lost values ----------------------------------------------------------------------------- */

/* New values overwrite the oldest ones in the window. */
START_TEST(wrapped)
{
	uint64_t bytes, seed = 1;

	seal(seed);
	ck_assert_uint_eq(hosts_once(1, seed, false), PREFIX_SEALED);
	bytes = n_read(1, "nixl_bytes");
	ck_assert_uint_gt(bytes, 0);
	for (uint64_t sealed = bytes; sealed <= 10u << 20; sealed += bytes)
		ck_assert_uint_eq(hosts_once(0, ++seed, true), 0);
	for (int i = 0; i < 500 && n_read(0, "sent") < seed; i++)
		fix_sleep_ms(10);
	ck_assert_uint_eq(n_read(0, "sent"), seed);
	/* records of overwritten values have left the store */
	ck_assert_uint_le(hosts_n_values() / HOSTS_BLOCKS * bytes, 5u << 20);
	ck_assert_uint_eq(in_time(1, 2, false), 0);
	ck_assert_uint_eq(hosts_once(1, seed, false), PREFIX_SEALED);
}
END_TEST

/* The daemon that the other one reads from, or its workers, are killed with SIGKILL. */
START_TEST(died)
{
	seal(1);
	if (_i == 0)
		fix_kill(&hosts.host[0]);
	else
		hosts_signal_workers(0, SIGKILL);
	ck_assert_uint_eq(in_time(1, 1, true), 0);
	hosts_wait_values(HOSTS_BLOCKS);
	if (_i == 1)
		fix_stop(&hosts.host[0]);
	hosts_start(0);
	for (int i = 0; i < 100 && hosts_once(0, 1, false) < PREFIX_SEALED; i++)
		fix_sleep_ms(50);
	ck_assert_uint_eq(hosts_once(0, 1, false), PREFIX_SEALED); /* from the memory of host 1 */
	ck_assert_uint_eq(n_read(0, "nixl_values"), HOSTS_BLOCKS);
	seal(2);
	ck_assert_uint_eq(hosts_once(1, 2, false), PREFIX_SEALED);
}
END_TEST

/*
 * An agent that does not answer costs the wait once; it is found again with the next prefix that it seals. `connected`:
 * it has answered before. The real library may then read its memory without its help, as with RDMA, because both are on
 * one machine.
 */
START_TEST(stopped)
{
	const bool connected = _i == 1;
	uint32_t len;

	seal(1);
	if (connected) {
		seal(2);
		ck_assert_uint_eq(hosts_once(1, 2, false), PREFIX_SEALED);
	}
	hosts_signal_workers(0, SIGSTOP);
	len = in_time(1, 1, false);
	ck_assert(len == 0 || (connected && is_real() && len == PREFIX_SEALED));
	ck_assert_uint_eq(in_time(1, 1, true), len);
	hosts_wait_values(HOSTS_BLOCKS);
	hosts_signal_workers(0, SIGCONT);
	seal(3);
	ck_assert_uint_eq(hosts_once(1, 3, false), PREFIX_SEALED);
}
END_TEST

/* A call of the library never returns, and the daemon does not know. */
START_TEST(hung)
{
	if (is_real())
		return; /* the real library cannot be made to hang */
	fix_stop(&hosts.host[1]);
	setenv("FAKE_NIXL_HANG", "1", 1);
	hosts_start(1);
	unsetenv("FAKE_NIXL_HANG");
	seal(1);
	ck_assert_uint_eq(in_time(1, 1, false), 0);
	ck_assert_uint_eq(in_time(1, 1, true), 0);
	fix_stop(&hosts.host[1]);
	hosts_start(1);
	seal(2);
	ck_assert_uint_eq(hosts_once(1, 2, false), PREFIX_SEALED);
}
END_TEST

/* ---- wrong values ---------------------------------------------------------------------------- */

enum wrong { FLIPPED_RECORD, FOREIGN_RECORD, OTHER_RECORD, FLIPPED_AGENT, FOREIGN_AGENT, LONG_AGENT, NO_AGENT, WRONG };

static char *agent_key(void)
{
	char *key = store_cli(&hosts.store, "--raw", "keys", "sparsekv-agent:*", NULL);

	key[strcspn(key, "\n")] = 0;
	ck_assert_uint_gt(strlen(key), 32);
	return key;
}

static void make_wrong(enum wrong what, char *keys[])
{
	static const char zeros[2 << 20];
	struct skv_store *s = hosts_open_store();
	char *key = what >= FLIPPED_AGENT ? agent_key() : strdup(keys[0]);
	struct hosts_value v = hosts_get(s, key), other = hosts_get(s, keys[1]);

	if (what == FLIPPED_RECORD || what == FLIPPED_AGENT)
		v.bytes[rnd_below((uint32_t)v.n)] ^= (uint8_t)(1u << rnd_below(8));
	/* with the right magic, so that it passes the first checks */
	if (what == FOREIGN_RECORD || what == FOREIGN_AGENT)
		store_fill(v.bytes + 8, v.n - 8, rnd64());
	if (what == NO_AGENT)
		free(store_cli(&hosts.store, "del", key, NULL));
	else if (what == LONG_AGENT)
		hosts_set(s, key, zeros, sizeof(zeros));
	else
		hosts_set(s, key, what == OTHER_RECORD ? other.bytes : v.bytes, v.n);
	free(v.bytes);
	free(other.bytes);
	free(key);
	skv_store_free(s);
}

START_TEST(wrong)
{
	char *text, *keys[HOSTS_BLOCKS];

	seal(1);
	ck_assert_uint_eq(hosts_keys(&text, keys, HOSTS_BLOCKS), HOSTS_BLOCKS);
	make_wrong((enum wrong)_i, keys);
	ck_assert_uint_lt(in_time(1, 1, true), PREFIX_SEALED);
	hosts_wait_values(HOSTS_BLOCKS);
	seal(2); /* the agent is there again, too */
	ck_assert_uint_eq(hosts_once(1, 2, false), PREFIX_SEALED);
	free(text);
}
END_TEST

/* A failed start reports which file and why. */
START_TEST(unloadable)
{
	char *folder = fx_folder(), secret[300], parked[300], nixl[300], socket[300], *said;
	const char *const argv[] = {"daemon/sparsekvd", "--config=/dev/null", "--cuda=off", socket, parked, secret, nixl, "--prefix-store=redis://127.0.0.1:1", NULL};

	fx_write(fx_path(folder, "secret"), "01234567890123456789012345678901", 32);
	ck_assert_int_eq(chmod(fx_path(folder, "secret"), 0600), 0);
	snprintf(secret, sizeof(secret), "--prefix-secret-file=%s/secret", folder);
	snprintf(parked, sizeof(parked), "--parked-path=%s/parked", folder);
	ck_assert_int_eq(mkdir(fx_path(folder, "parked"), 0700), 0);
	snprintf(socket, sizeof(socket), "--socket=%s/socket", folder);
	snprintf(nixl, sizeof(nixl), "--prefix-store-nixl=%s/none.so", folder);
	ck_assert_int_gt(run(folder, argv, 30), 0);
	said = run_err(folder);
	ck_assert_msg(strstr(said, "prefix-store-nixl: ") && strstr(said, "/none.so: cannot open shared object file"), "%s", said);
	free(said);
	snprintf(nixl, sizeof(nixl), "--prefix-store-nixl=libdl.so.2");
	ck_assert_int_gt(run(folder, argv, 30), 0);
	said = run_err(folder);
	ck_assert_msg(strstr(said, "libdl.so.2: it has no nixl_capi_"), "%s", said);
	free(said);
	ck_assert_int_eq(rmdir(fx_path(folder, "parked")), 0);
	fx_remove(folder);
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
	suite = begin_suite("test-prefix-nixl");
	t = add_case(suite, "nixl", 120, begin_both, hosts_end, transport, hung, NULL);
	tcase_add_loop_test(t, died, 0, 2);
	tcase_add_loop_test(t, stopped, 0, 2);
	tcase_add_loop_test(t, wrong, 0, WRONG);
	add_case(suite, "window", 120, begin_small, hosts_end, wrapped, NULL);
	add_case(suite, "mixed", 120, begin_one, hosts_end, mixed, NULL);
	add_case(suite, "start", 60, NULL, NULL, unloadable, NULL);
	return run_suite(suite);
}
