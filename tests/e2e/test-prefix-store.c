/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two daemons, and a prefix store in a redis-server between them: what one has sealed the other's sequences begin with, and whatever
 * becomes of the store, its values, workers or a daemon meanwhile, every sequence gives what reading its prompt gives.
 *
 * Daemons run in the network namespaces that $SKV_TEST_NETNS names, two paths with a ':' between, and find the store at the addresses
 * in $SKV_TEST_STORE (prefix-store.sh makes them); without these, all are in this one's.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/prefix-reader.h"
#include "tests/support/store-fixture.h"

#define ROUNDS (getenv("SKV_KILLS") ? atoi(getenv("SKV_KILLS")) : slowed() ? 3 : 8)
#define WAIT_S 2 /* prefix-store-wait */
#define BLOCKS (PREFIX_SEALED / 256)
#define TENANTS 16u
#define FIRST_UID 3000u
#define PASSWORD "between-us"
#define GAVE_UP 7 /* a child whose daemon was killed */

static struct store_server store;
static char *folder;
static char netns[2][200], address[2][64];
static struct fix host[2];
static int next_netns = -1;
static uint32_t dtype; /* of pages; 0: the model's */

/* ---- daemons --------------------------------------------------------------------------------- */

static void enter_netns(void)
{
	int fd = *netns[next_netns] ? open(netns[next_netns], O_RDONLY | O_CLOEXEC) : -1;

	if (*netns[next_netns] && (fd < 0 || setns(fd, CLONE_NEWNET) < 0))
		_exit(126);
}

static void start_host(int i)
{
	char parked[200], url[200], secret[200], wait[40];
	const char *const options[] = {parked, url, secret, wait, "--account-bytes=60M", "--account-sequences=200", "--log-level=notice", NULL};

	snprintf(parked, sizeof(parked), "--parked-path=%s/parked%d", folder, i);
	snprintf(url, sizeof(url), "--prefix-store=redis://:" PASSWORD "@%s:%u?timeout=1000", address[i], store.port);
	snprintf(secret, sizeof(secret), "--prefix-secret-file=%s/secret", folder);
	snprintf(wait, sizeof(wait), "--prefix-store-wait=%d", WAIT_S);
	next_netns = i;
	fix_before_exec = enter_netns;
	fix_start_process(&host[i], options);
	fix_before_exec = NULL;
}

static void split(const char *both, char *a, char *b, size_t size)
{
	const char *colon = both ? strchr(both, ':') : NULL;

	if (colon) {
		snprintf(a, size, "%.*s", (int)(colon - both), both);
		snprintf(b, size, "%s", colon + 1);
	}
}

static void setup(void)
{
	static const char *const args[] = {"--requirepass", PASSWORD, "--bind", "0.0.0.0", "--protected-mode", "no", NULL};
	char path[200];
	uint8_t secret[32];

	setenv("REDISCLI_AUTH", PASSWORD, 1);
	strcpy(address[0], "127.0.0.1");
	strcpy(address[1], "127.0.0.1");
	split(getenv("SKV_TEST_NETNS"), netns[0], netns[1], sizeof(netns[0]));
	split(getenv("SKV_TEST_STORE"), address[0], address[1], sizeof(address[0]));
	folder = fx_folder();
	store_begin(&store, store_port(), args);
	store_fill(secret, sizeof(secret), rnd64());
	fx_write(fx_path(folder, "secret"), secret, sizeof(secret));
	ck_assert_int_eq(chmod(fx_path(folder, "secret"), 0600), 0);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/parked%d", folder, i);
		ck_assert_int_eq(mkdir(path, 0700), 0);
		start_host(i);
	}
}

static void teardown(void)
{
	char command[300];

	for (int i = 0; i < 2; i++)
		fix_stop(&host[i]);
	store_end(&store);
	snprintf(command, sizeof(command), "rm -rf '%s'/parked?", folder);
	ck_assert_int_eq(system(command), 0);
	fx_remove(folder);
}

/* ---- the store ------------------------------------------------------------------------------- */

static uint32_t n_values(void)
{
	char *said = store_cli(&store, "dbsize", NULL);
	uint32_t n = (uint32_t)atoi(said);

	free(said);
	return n;
}

/* What was sealed gets there a moment later; and what was sealed before perhaps again. */
static void wait_values(uint32_t n)
{
	for (int i = 0; i < 2000 && n_values() < n; i++)
		fix_sleep_ms(10);
	ck_assert_uint_ge(n_values(), n);
}

/* All keys, a line each; to be freed. */
static uint32_t all_keys(char **ret, char *keys[], uint32_t most)
{
	uint32_t n = 0;

	*ret = store_cli(&store, "--raw", "keys", "*", NULL);
	for (char *at = strtok(*ret, "\n"); at && n < most; at = strtok(NULL, "\n"))
		keys[n++] = at;
	return n;
}

struct value {
	uint8_t *bytes;
	size_t n;
};

static void take_value(void *to, uint32_t i, const void *value, size_t bytes)
{
	struct value *v = (struct value *)to + i;

	v->bytes = malloc(bytes + 1);
	memcpy(v->bytes, value, bytes);
	v->n = bytes;
}

static struct value get_value(struct skv_store *s, const char *key)
{
	const struct skv_store_bytes k = {key, strlen(key)};
	struct value v = {NULL, 0};
	int status;

	ck_assert_int_eq(skv_store_get(s, &k, 1, 5000, take_value, &v, &status), 0);
	ck_assert_int_eq(status, 1);
	return v;
}

static void set_value(struct skv_store *s, const char *key, const void *bytes, size_t n)
{
	const struct skv_store_bytes k = {key, strlen(key)}, v = {bytes, n};
	int status;

	ck_assert_int_eq(skv_store_set(s, &k, &v, 1, 0, false, 5000, &status), 0);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* A client's session on a host. */
struct user {
	struct skv_client *client;
	struct refmodel w;
};

static void user_begin(struct user *u, int on)
{
	*u = (struct user){.client = NULL};
	prefix_model(&u->w, "shared");
	if (dtype)
		u->w.model.kv_dtype = dtype;
	OK(skv_connect(&u->client, host[on].socket));
	OK(skv_open(u->client, &u->w.model, "delta?budget=6&layers=0,2&dense=1", &u->w.session));
}

/* What reading the prompt gives, computed here and now. */
static float *plainly(struct user *u, const int32_t ids[PREFIX_PROMPT])
{
	struct skv_seq *seq;
	float *out;

	OK(skv_seq_new(u->w.session, NULL, 0, &seq));
	out = prefix_go_on(&u->w, seq, ids);
	OK(skv_seq_drop(seq));
	return out;
}

/* Begun with what there is of it, it gives the same; and perhaps it is sealed. How many tokens there were. */
static uint32_t read_right(struct user *u, uint64_t seed, bool seals)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	float *want, *got;
	uint32_t len;

	prefix_prompt(ids, seed);
	len = prefix_begin(&u->w, ids, PREFIX_PROMPT, &seq);
	got = prefix_go_on(&u->w, seq, ids);
	want = plainly(u, ids);
	ck_assert_msg(prefix_same(&u->w, want, got), "%u tokens of a prefix, and another output than after reading the prompt", len);
	if (seals)
		OK(skv_seq_seal(seq, PREFIX_SEALED, NULL));
	OK(skv_seq_drop(seq));
	free(want);
	free(got);
	return len;
}

static uint32_t once(int on, uint64_t seed, bool seals)
{
	struct user u;
	uint32_t len;

	user_begin(&u, on);
	len = read_right(&u, seed, seals);
	skv_disconnect(u.client);
	return len;
}

/* ---- what is shared -------------------------------------------------------------------------- */

START_TEST(fetched) /* what is compressed in memory is so in the store */
{
	int32_t ids[PREFIX_PROMPT], other[PREFIX_PROMPT];
	struct skv_seq *seq;
	struct user u;

	dtype = _i ? SKV_FP8 : 0;
	ck_assert_uint_eq(once(0, 1, true), 0);
	wait_values(BLOCKS);
	ck_assert_uint_eq(once(1, 1, false), PREFIX_SEALED);
	ck_assert_uint_eq(once(1, 1, true), PREFIX_SEALED); /* now it is here, too */
	store_kill(&store);
	ck_assert_uint_eq(once(1, 1, false), PREFIX_SEALED);
	store_restart(&store);
	fix_sleep_ms(1500); /* until it is asked again */
	ck_assert_uint_eq(once(0, 2, true), 0);
	wait_values(BLOCKS);
	user_begin(&u, 1);
	prefix_prompt(ids, 2);
	memcpy(other, ids, sizeof(other));
	other[300]++; /* the first block alone */
	ck_assert_uint_eq(prefix_begin(&u.w, other, PREFIX_PROMPT, &seq), 256);
	OK(skv_seq_drop(seq));
	ck_assert_uint_eq(prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq), PREFIX_SEALED); /* more than is here */
	skv_disconnect(u.client);
}
END_TEST

/* ---- what is damaged ------------------------------------------------------------------------- */

enum damage { FLIPPED, CUT, EMPTY, SWAPPED, FOREIGN, GONE, DAMAGES };

static void do_damage(enum damage what, char *keys[], uint32_t n)
{
	struct skv_store *s = store_open("redis://:" PASSWORD "@127.0.0.1:%u", store.port);
	const uint32_t i = rnd_below(n);
	struct value v = get_value(s, keys[i]), w = get_value(s, keys[(i + 1) % n]);

	if (what == FLIPPED)
		v.bytes[rnd_below((uint32_t)v.n)] ^= (uint8_t)(1u << rnd_below(8));
	if (what == FOREIGN)
		store_fill(v.bytes, v.n, rnd64());
	if (what == SWAPPED)
		set_value(s, keys[(i + 1) % n], v.bytes, v.n);
	if (what == GONE)
		free(store_cli(&store, "del", keys[i], NULL));
	else
		set_value(s, keys[i], what == SWAPPED ? w.bytes : v.bytes,
		          what == CUT ? rnd_below((uint32_t)v.n) : what == EMPTY ? 0 : what == SWAPPED ? w.n : v.n);
	free(v.bytes);
	free(w.bytes);
	skv_store_free(s);
}

/* It counts as absent, is computed, and is right again for the next one. */
START_TEST(damaged)
{
	char *text, *keys[BLOCKS];

	ck_assert_uint_eq(once(0, 5, true), 0);
	wait_values(BLOCKS);
	ck_assert_uint_eq(all_keys(&text, keys, BLOCKS), BLOCKS);
	do_damage((enum damage)_i, keys, BLOCKS);
	ck_assert_uint_lt(once(1, 5, true), PREFIX_SEALED);
	wait_values(BLOCKS);
	fix_stop(&host[0]);
	start_host(0);
	for (int i = 0; i < 100 && once(0, 5, false) < PREFIX_SEALED; i++)
		fix_sleep_ms(50);
	ck_assert_uint_eq(once(0, 5, false), PREFIX_SEALED);
	free(text);
}
END_TEST

/* ---- what is killed -------------------------------------------------------------------------- */

/* Workers of the daemon. */
static void kill_workers(pid_t daemon)
{
	DIR *proc = opendir("/proc");

	for (struct dirent *e; (e = readdir(proc));) {
		char path[300], text[300] = "";
		int parent = 0, fd;

		snprintf(path, sizeof(path), "/proc/%.20s/stat", e->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		(void)!read(fd, text, sizeof(text) - 1);
		close(fd);
		if (sscanf(text, "%*d (sparsekvd-disk) %*c %d", &parent) == 1 && parent == daemon)
			kill(atoi(e->d_name), SIGKILL);
	}
	closedir(proc);
}

/* In a process of its own: begin with it, go on, compare. */
static pid_t reader(int on, uint64_t seed)
{
	pid_t pid = child_fork();
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	struct user u = {.client = NULL};
	float *got;

	if (pid)
		return pid;
	prefix_model(&u.w, "shared");
	prefix_prompt(ids, seed);
	if (skv_connect(&u.client, host[on].socket) < 0 ||
	    skv_open(u.client, &u.w.model, "delta?budget=6&layers=0,2&dense=1", &u.w.session) < 0)
		_exit(GAVE_UP);
	skv_set_timeout(u.client, 10000); /* on a device a worker makes a context first */
	if (skv_seq_new_from(u.w.session, NULL, 0, ids, PREFIX_PROMPT, &seq) < 0)
		_exit(GAVE_UP);
	got = prefix_go_on(&u.w, seq, ids); /* needs pages, but of the daemon nothing else */
	ck_assert(prefix_same(&u.w, plainly(&u, ids), got));
	_exit(0);
}

/* The same as once(), in a process of its own: what has used a device has no children that can. */
static uint32_t apart(int on, uint64_t seed, bool seals)
{
	pid_t pid = child_fork();
	int status;

	if (pid == 0)
		_exit(10 + (int)(once(on, seed, seals) / 256));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) >= 10, "%s", child_problem());
	return 256 * ((uint32_t)WEXITSTATUS(status) - 10);
}

START_TEST(killed)
{
	unsigned hits = 0, unhurt = 0;

	for (int i = 0; i < ROUNDS; i++) {
		const uint64_t seed = 100 + (uint64_t)i;
		const uint32_t who = rnd_below(3), late_us = rnd_below(30000);
		int status;
		pid_t pid;

		(void)apart(0, seed, true);
		for (int k = 0; k < 100 && n_values() == 0; k++)
			fix_sleep_ms(5);
		pid = reader(1, seed);
		usleep(late_us);
		if (who == 0)
			store_kill(&store);
		if (who == 1)
			kill_workers(host[1].pid);
		if (who == 2)
			fix_kill(&host[1]);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		if (who == 2)
			start_host(1);
		if (who == 0)
			store_restart(&store);
		unhurt += WIFEXITED(status) && WEXITSTATUS(status) == 0;
		/* a daemon that was killed is the only reason to give up, and what was read is right */
		ck_assert_msg((WIFEXITED(status) && WEXITSTATUS(status) == 0) || who == 2, "round %d, victim %u after %u us: %#x %s", i, who, late_us,
		              (unsigned)status, child_problem());
		hits += apart(1, seed, false) > 0;
		ck_assert_uint_eq(apart(1, seed, true) > PREFIX_SEALED, 0);
		ck_assert_uint_eq(apart(1, seed, false), PREFIX_SEALED);
	}
	printf("%d rounds, %u without effect on the reader, %u found what was sealed\n", ROUNDS, unhurt, hits);
}
END_TEST

/* A store that is slow, down or full. */
START_TEST(bounded)
{
	const double most = WAIT_S * 1e3 + (slowed() ? 20000 : 2500);
	struct user u;
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	double begun;

	user_begin(&u, 1);
	prefix_prompt(ids, 8);
	kill(store.pid, SIGSTOP);
	begun = store_now_ms();
	ck_assert_uint_eq(prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq), 0);
	ck_assert_double_lt(store_now_ms() - begun, most);
	OK(skv_seq_drop(seq));
	begun = store_now_ms(); /* it has failed lately, and is not asked */
	ck_assert_uint_eq(prefix_begin(&u.w, ids, PREFIX_PROMPT, &seq), 0);
	ck_assert_double_lt(store_now_ms() - begun, most);
	OK(skv_seq_drop(seq));
	ck_assert_uint_eq(read_right(&u, 8, true), 0);
	kill(store.pid, SIGCONT);
	store_kill(&store);
	ck_assert_uint_eq(read_right(&u, 9, true), 0);
	store_restart(&store);
	fix_sleep_ms(2500);
	free(store_cli(&store, "config", "set", "maxmemory", "1500000", NULL));
	for (uint64_t seed = 10; seed < 14; seed++)
		ck_assert_uint_eq(read_right(&u, seed, true), 0);
	free(store_cli(&store, "config", "set", "maxmemory", "0", NULL));
	for (uint64_t seed = 8; seed < 14; seed++)
		ck_assert_uint_eq(read_right(&u, seed, false), PREFIX_SEALED);
	skv_disconnect(u.client);
}
END_TEST

/* ---- tenants --------------------------------------------------------------------------------- */

/* As that user: begins with at least so many tokens of the prompt, at most so many, and what follows is right. */
static void as_tenant(uint32_t tenant, int on, bool seals, uint32_t least, uint32_t most)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		uint32_t len;

		if (setresuid(FIRST_UID + tenant, FIRST_UID + tenant, FIRST_UID + tenant) < 0)
			_exit(126);
		len = once(on, 7, seals);
		ck_assert_msg(len >= least && len <= most, "tenant %u begins with %u tokens, expected %u to %u", tenant, len, least, most);
		_exit(0);
	}
	child_wait(pid);
}

/* Of two values a part at the same place is equal? */
static bool alike(const struct value *a, const struct value *b)
{
	for (size_t at = 64; at + 32 < a->n && at + 32 < b->n; at += 32)
		if (!memcmp(a->bytes + at, b->bytes + at, 32))
			return true;
	return false;
}

/*
 * The same prompt of 15 users, who cannot read each other's; and one more, who has the store's password, and writes what it likes where it
 * likes: other values to every third key, values of other keys to every third. Those users recompute, and nobody reads anything else.
 */
START_TEST(tenants)
{
	char *text, *keys[TENANTS * BLOCKS];
	struct value values[TENANTS * BLOCKS];
	const uint32_t n = (TENANTS - 1) * BLOCKS;
	struct skv_store *s;

	if (getuid() != 0)
		return; /* who cannot be other users */
	for (uint32_t i = 0; i + 1 < TENANTS; i++)
		as_tenant(i, 0, true, 0, 0);
	wait_values(n);
	as_tenant(TENANTS - 1, 0, false, 0, 0);
	as_tenant(TENANTS - 1, 1, false, 0, 0);
	s = store_open("redis://:" PASSWORD "@127.0.0.1:%u", store.port);
	ck_assert_uint_eq(all_keys(&text, keys, n), n);
	for (uint32_t i = 0; i < n; i++)
		values[i] = get_value(s, keys[i]);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < i; k++)
			ck_assert(!alike(&values[i], &values[k]));
	for (uint32_t i = 0; i < n; i++) {
		if (i % 3 == 0)
			store_fill(values[i].bytes, values[i].n, i);
		if (i % 3 != 2)
			set_value(s, keys[i], values[i % 3 == 0 ? i : (i + 7) % n].bytes, values[i].n);
	}
	for (uint32_t i = 0; i + 1 < TENANTS; i++)
		as_tenant(i, 1, true, 0, PREFIX_SEALED);
	as_tenant(TENANTS - 1, 1, true, 0, 0);
	wait_values(n + BLOCKS);
	ck_assert_uint_eq(n_values(), n + BLOCKS);
	fix_stop(&host[0]);
	start_host(0);
	for (uint32_t i = 0; i < TENANTS; i++) /* what was wrong was found, and written anew */
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
	t = add_case(suite, "prefix-store", 300, setup, teardown, killed, bounded, tenants, NULL);
	tcase_add_loop_test(t, fetched, 0, 2);
	tcase_add_loop_test(t, damaged, 0, DAMAGES);
	return run_suite(suite);
}
