/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/prefix-hosts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/policies.h"

struct prefix_hosts hosts;

static char netns[2][200], address[2][64];
static int next_netns = -1;

/* ---- daemons --------------------------------------------------------------------------------- */

/* Also mounts the namespace's /sys, where UCX finds network devices. */
static void enter_netns(void)
{
	int fd = *netns[next_netns] ? open(netns[next_netns], O_RDONLY | O_CLOEXEC) : -1;

	if (!*netns[next_netns])
		return;
	if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
		_exit(126);
	if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		(void)mount("sysfs", "/sys", "sysfs", 0, NULL);
}

void hosts_start(int i)
{
	char parked[200], url[200], secret[200], wait[40], nixl[300], window[40];
	const char *options[10] = {parked, url, secret, wait, "--account-bytes=60M", "--account-sequences=200", "--log-level=notice"};
	size_t n = 7;

	snprintf(parked, sizeof(parked), "--parked-path=%s/parked%d", hosts.folder, i);
	snprintf(url, sizeof(url), "--prefix-store=redis://:" HOSTS_PASSWORD "@%s:%u?timeout=1000", address[i], hosts.store.port);
	snprintf(secret, sizeof(secret), "--prefix-secret-file=%s/secret", hosts.folder);
	snprintf(wait, sizeof(wait), "--prefix-store-wait=%d", HOSTS_WAIT_S);
	snprintf(nixl, sizeof(nixl), "--prefix-store-nixl=%s", hosts.nixl[i] ? hosts.nixl[i] : "");
	snprintf(window, sizeof(window), "--prefix-store-nixl-window=%s", hosts.window ? hosts.window : "");
	if (hosts.nixl[i])
		options[n++] = nixl;
	if (hosts.window)
		options[n++] = window;
	if (hosts.diskless)
		options[0] = options[--n];
	options[n] = NULL;
	next_netns = i;
	fix_before_exec = enter_netns;
	fix_start_process(&hosts.host[i], options);
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

void hosts_begin(void)
{
	static const char *const args[] = {"--requirepass", HOSTS_PASSWORD, "--bind", "0.0.0.0", "--protected-mode", "no", NULL};
	char path[200];
	uint8_t secret[32];

	hosts.spec = POLICY_PAGES "?budget=6&layers=0,2&dense=1";
	setenv("REDISCLI_AUTH", HOSTS_PASSWORD, 1);
	strcpy(address[0], "127.0.0.1");
	strcpy(address[1], "127.0.0.1");
	split(getenv("SKV_TEST_NETNS"), netns[0], netns[1], sizeof(netns[0]));
	split(getenv("SKV_TEST_STORE"), address[0], address[1], sizeof(address[0]));
	if (!hosts.nixl[0] && getenv("SKV_TEST_NIXL") && *getenv("SKV_TEST_NIXL"))
		hosts.nixl[0] = hosts.nixl[1] = getenv("SKV_TEST_NIXL");
	hosts.folder = fx_folder();
	store_begin(&hosts.store, store_port(), args);
	store_fill(secret, sizeof(secret), rnd64());
	fx_write(fx_path(hosts.folder, "secret"), secret, sizeof(secret));
	ck_assert_int_eq(chmod(fx_path(hosts.folder, "secret"), 0600), 0);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/parked%d", hosts.folder, i);
		ck_assert_int_eq(mkdir(path, 0700), 0);
		hosts_start(i);
	}
}

void hosts_end(void)
{
	char command[300];

	for (int i = 0; i < 2; i++)
		fix_stop(&hosts.host[i]);
	store_end(&hosts.store);
	snprintf(command, sizeof(command), "rm -rf '%s'/parked?", hosts.folder);
	ck_assert_int_eq(system(command), 0);
	fx_remove(hosts.folder);
}

void hosts_signal_workers(int i, int signal)
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
		if (sscanf(text, "%*d (sparsekvd-disk) %*c %d", &parent) == 1 && parent == hosts.host[i].pid)
			kill(atoi(e->d_name), signal);
	}
	closedir(proc);
}

/* ---- the store ------------------------------------------------------------------------------- */

uint32_t hosts_n_values(void)
{
	char *said = store_cli(&hosts.store, "--raw", "eval", "return #redis.call('keys', 'sparsekv:*')", "0", NULL);
	uint32_t n = (uint32_t)atoi(said);

	free(said);
	return n;
}

void hosts_wait_values(uint32_t n)
{
	for (int i = 0; i < 2000 && hosts_n_values() < n; i++)
		fix_sleep_ms(10);
	ck_assert_uint_ge(hosts_n_values(), n);
}

uint32_t hosts_keys(char **ret, char *keys[], uint32_t most)
{
	uint32_t n = 0;

	*ret = store_cli(&hosts.store, "--raw", "keys", "sparsekv:*", NULL);
	for (char *at = strtok(*ret, "\n"); at && n < most; at = strtok(NULL, "\n"))
		keys[n++] = at;
	return n;
}

static void take_value(void *to, uint32_t i, const void *value, size_t bytes)
{
	struct hosts_value *v = (struct hosts_value *)to + i;

	v->bytes = malloc(bytes + 1);
	memcpy(v->bytes, value, bytes);
	v->n = bytes;
}

struct hosts_value hosts_get(struct skv_store *s, const char *key)
{
	const struct skv_store_bytes k = {key, strlen(key)};
	struct hosts_value v = {NULL, 0};
	int status;

	ck_assert_int_eq(skv_store_get(s, &k, 1, 5000, take_value, &v, &status), 0);
	ck_assert_int_eq(status, 1);
	return v;
}

void hosts_set(struct skv_store *s, const char *key, const void *bytes, size_t n)
{
	const struct skv_store_bytes k = {key, strlen(key)}, v = {bytes, n};
	int status;

	ck_assert_int_eq(skv_store_set(s, &k, &v, 1, 0, false, 5000, &status), 0);
}

struct skv_store *hosts_open_store(void)
{
	return store_open("redis://:" HOSTS_PASSWORD "@127.0.0.1:%u", hosts.store.port);
}

/* ---- prompts --------------------------------------------------------------------------------- */

void hosts_user_begin(struct hosts_user *u, int on)
{
	*u = (struct hosts_user){.client = NULL};
	prefix_model(&u->w, "shared");
	if (hosts.dtype)
		u->w.model.kv_dtype = hosts.dtype;
	OK(skv_connect(&u->client, hosts.host[on].socket));
	OK(skv_open(u->client, &u->w.model, hosts.spec, &u->w.session));
}

/* Outputs after reading the whole prompt without a prefix. */
static float *plainly(struct hosts_user *u, const int32_t ids[PREFIX_PROMPT])
{
	struct skv_seq *seq;
	float *out;

	OK(skv_seq_new(u->w.session, NULL, 0, &seq));
	out = prefix_go_on(&u->w, seq, ids);
	OK(skv_seq_drop(seq));
	return out;
}

uint32_t hosts_read(struct hosts_user *u, uint64_t seed, bool seals)
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

uint32_t hosts_once(int on, uint64_t seed, bool seals)
{
	struct hosts_user u;
	uint32_t len;

	hosts_user_begin(&u, on);
	len = hosts_read(&u, seed, seals);
	skv_disconnect(u.client);
	return len;
}

pid_t hosts_reader(int on, uint64_t seed)
{
	pid_t pid = child_fork();
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	struct hosts_user u = {.client = NULL};
	float *got;

	if (pid)
		return pid;
	prefix_model(&u.w, "shared");
	prefix_prompt(ids, seed);
	if (skv_connect(&u.client, hosts.host[on].socket) < 0 ||
	    skv_open(u.client, &u.w.model, hosts.spec, &u.w.session) < 0)
		_exit(HOSTS_GAVE_UP);
	skv_set_timeout(u.client, 10000); /* the worker of a device first makes a context */
	if (skv_seq_new_from(u.w.session, NULL, 0, ids, PREFIX_PROMPT, &seq) < 0)
		_exit(HOSTS_GAVE_UP);
	got = prefix_go_on(&u.w, seq, ids); /* needs pages, but no other request to the daemon */
	ck_assert(prefix_same(&u.w, plainly(&u, ids), got));
	_exit(0);
}

uint32_t hosts_apart(int on, uint64_t seed, bool seals)
{
	pid_t pid = child_fork();
	int status;

	if (pid == 0)
		_exit(10 + (int)(hosts_once(on, seed, seals) / 256));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) >= 10, "%s", child_problem());
	return 256 * ((uint32_t)WEXITSTATUS(status) - 10);
}
