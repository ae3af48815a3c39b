/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed prefixes go to disk and come back: what follows from one that did is, bit by bit, what follows from reading the prompt; after a
 * restart, too. On disk they have what sequences leave, are nobody's with another secret, and whatever is wrong with a file or the
 * disk, fewer tokens were there already.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/prefix-reader.h"
#include "tests/support/run-program.h"

#define MANY 8 /* sequences: memory has room for half of them */
#define SPEC "delta?budget=6&layers=0,2&dense=1"

static struct fix f;
static char *folder;
static struct refmodel w;
static struct skv_client *client;
static const char *more[4]; /* options of the next daemon */

/* ---- daemon and client ----------------------------------------------------------------------- */

static void start(void)
{
	const bool device = devmem_is_device();
	char parked[96];
	const char *options[12] = {parked, "--segment-bytes=1M", "--account-bytes=64M", "--account-sequences=40",
	                           device ? "--cuda-pool-bytes=16M" : "--pool-bytes=16M", "--cuda-segment-bytes=2M"};
	int n = 6;

	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	for (int i = 0; more[i]; i++)
		options[n++] = more[i];
	fix_start_process(&f, options);
	OK(skv_connect(&client, f.socket));
	skv_set_timeout(client, 5000);
	prefix_model(&w, "parked");
	OK(skv_open(client, &w.model, SPEC, &w.session));
}

static void begin(void)
{
	folder = fx_folder();
	start();
}

static void end(void)
{
	char command[200];

	skv_disconnect(client);
	fix_stop(&f);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
}

/* A machine that loses its memory, and starts again. */
static void reboot(void)
{
	skv_disconnect(client);
	fix_kill(&f);
	start();
}

static json_int_t figure(const char *of, const char *key)
{
	struct raw *r = raw_hello(f.socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS), *value = json_object_get(json_array_get(json_object_get(status, of), 0), key);
	json_int_t n = json_integer_value(value);

	ck_assert_msg(json_is_integer(value), "%s has no %s", of, key);
	json_decref(status);
	raw_close(r);
	return n;
}

static json_int_t of_prefixes(const char *key)
{
	return figure("prefixes", key);
}

/* Prefixes in memory. */
static unsigned in_memory(void)
{
	struct raw *r = raw_hello(f.socket);
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS), *row;
	unsigned n = 0;
	size_t i;

	json_array_foreach(json_object_get(seqs, "sequences"), i, row)
		n += *json_string_value(json_object_get(row, "name")) == '/' && !json_object_get(row, "parked_bytes");
	json_decref(seqs);
	raw_close(r);
	return n;
}

/* Files of the user's folder. */
static unsigned files(const char *end, char *ret, size_t size)
{
	char pattern[200];
	unsigned n;
	glob_t g;

	snprintf(pattern, sizeof(pattern), "%s/%u/*%s", folder, (unsigned)getuid(), end);
	n = glob(pattern, 0, NULL, &g) == 0 ? (unsigned)g.gl_pathc : 0;
	if (n && ret)
		snprintf(ret, size, "%s", g.gl_pathv[0]);
	globfree(&g);
	return n;
}

static unsigned prefix_files(void)
{
	return files(".prefix", NULL, 0);
}

static void wait_files(unsigned n)
{
	for (int i = 0; i < 500 && prefix_files() != n; i++)
		fix_sleep_ms(10);
	ck_assert_uint_eq(prefix_files(), n);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* It is read, and its first n tokens are sealed; whatever is sealed already. */
static void seal(uint64_t seed, uint32_t n)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	prefix_prompt(ids, seed);
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	prefix_read(&w, seq, ids, 0, n, true, NULL);
	OK(skv_seq_seal(seq, n, NULL));
	OK(skv_seq_drop(seq));
}

/* How many tokens of the prompt are there; what follows is right. */
static uint32_t attend(uint64_t seed)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	float *want, *got;
	uint32_t len;

	prefix_prompt(ids, seed);
	len = prefix_begin(&w, ids, PREFIX_PROMPT, &seq);
	got = prefix_go_on(&w, seq, ids);
	OK(skv_seq_drop(seq));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	want = prefix_go_on(&w, seq, ids);
	OK(skv_seq_drop(seq));
	ck_assert_msg(prefix_same(&w, want, got), "%u tokens of a prefix, and another output than after reading the prompt", len);
	free(want);
	free(got);
	return len;
}

/* Another client takes the memory, until no prefix is there; then it goes. */
static void squeeze(void)
{
	struct skv_session *mine = w.session;
	int32_t ids[PREFIX_TOKENS] = {0};
	struct skv_client *other;
	struct skv_seq *held = NULL;

	OK(skv_connect(&other, f.socket));
	skv_set_timeout(other, 5000);
	OK(skv_open(other, &w.model, SPEC, &w.session));
	for (uint32_t len = PREFIX_TOKENS; in_memory() > 0; len += 64) {
		if (len == PREFIX_TOKENS) {
			OK(skv_seq_new(w.session, NULL, 0, &held));
			len = 0;
		}
		prefix_read(&w, held, ids, len, len + 64, true, NULL);
	}
	skv_disconnect(other);
	w.session = mine;
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(comes_back)
{
	begin();
	seal(1, PREFIX_SEALED);
	for (int i = 0; i < 3; i++) {
		squeeze();
		ck_assert_uint_eq(prefix_files(), 1);
		ck_assert_int_eq(of_prefixes("parked"), 1);
		ck_assert_uint_eq(attend(1), PREFIX_SEALED);
		ck_assert_uint_eq(in_memory(), 1);
		ck_assert_int_eq(of_prefixes("restored"), i + 1);
		ck_assert_int_eq(of_prefixes("restored_tokens"), (i + 1) * (int)PREFIX_SEALED);
		ck_assert_uint_eq(attend(1), PREFIX_SEALED); /* now it is here */
	}
	ck_assert_int_eq(of_prefixes("restored"), 3);
	ck_assert_int_eq(of_prefixes("written"), 1); /* which never changed */
	ck_assert_int_eq(figure("parking", "sequences"), 0);
	ck_assert_uint_eq(attend(2), 0);
	end();
}
END_TEST

/* Memory has the first block, the disk two. And the smallest that has as many is read. */
START_TEST(the_longest)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	begin();
	seal(1, PREFIX_SEALED);
	squeeze();
	seal(1, 256);
	ck_assert_uint_eq(in_memory(), 1);
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	ck_assert_int_eq(of_prefixes("restored_tokens"), PREFIX_SEALED);
	squeeze();
	wait_files(2);
	prefix_prompt(ids, 1);
	ck_assert_uint_eq(prefix_begin(&w, ids, 300, &seq), 256);
	OK(skv_seq_drop(seq));
	ck_assert_int_eq(of_prefixes("restored_tokens"), PREFIX_SEALED + 256);
	OK(skv_seq_new_from(w.session, NULL, PREFIX_SEALED - 1, ids, 400, &seq)); /* too short for more */
	ck_assert_uint_eq(skv_seq_len(seq), 256);
	OK(skv_seq_drop(seq));
	ck_assert_int_eq(of_prefixes("restored_tokens"), PREFIX_SEALED + 256);
	end();
}
END_TEST

/* Nobody else's: another policy, another model. */
START_TEST(whose)
{
	struct skv_session *mine;
	struct skv_model m;
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	begin();
	mine = w.session;
	m = w.model;
	seal(1, PREFIX_SEALED);
	squeeze();
	prefix_prompt(ids, 1);
	OK(skv_open(client, &w.model, "delta?budget=7&layers=0,2&dense=1", &w.session));
	ck_assert_uint_eq(prefix_begin(&w, ids, PREFIX_PROMPT, &seq), 0);
	skv_close(w.session);
	snprintf(m.name, sizeof(m.name), "another");
	OK(skv_open(client, &m, SPEC, &w.session));
	ck_assert_uint_eq(prefix_begin(&w, ids, PREFIX_PROMPT, &seq), 0);
	skv_close(w.session);
	w.session = mine;
	ck_assert_int_eq(of_prefixes("restored"), 0);
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	end();
}
END_TEST

static void make_secret(const char *path)
{
	uint8_t secret[32];

	rnd_bytes(secret, sizeof(secret));
	fx_write(path, secret, sizeof(secret));
	ck_assert_int_eq(chmod(path, 0600), 0);
}

/* Found again by the next daemon; with another secret, gone. */
START_TEST(after_a_reboot)
{
	static char option[160];
	char path[128];

	folder = fx_folder();
	snprintf(path, sizeof(path), "%s.secret", folder);
	snprintf(option, sizeof(option), "--prefix-secret-file=%s", path);
	more[0] = option;
	make_secret(path);
	start();
	for (uint64_t seed = 1; seed <= 3; seed++)
		seal(seed, PREFIX_SEALED);
	squeeze();
	reboot();
	fix_expect_log(&f, "3 sealed prefixes on disk are found again, 0 are of another secret");
	for (uint64_t seed = 1; seed <= 3; seed++)
		ck_assert_uint_eq(attend(seed), PREFIX_SEALED);
	ck_assert_uint_eq(attend(4), 0);
	reboot();
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	make_secret(path);
	reboot();
	fix_expect_log(&f, "0 sealed prefixes on disk are found again, 3 are of another secret");
	wait_files(0);
	ck_assert_uint_eq(attend(1), 0);
	unlink(path);
	end();
}
END_TEST

/* The quota has room for two prefixes: the one that was not used for longest goes. */
START_TEST(least_recently_used)
{
	more[0] = "--account-parked-bytes=5M";
	begin();
	for (uint64_t seed = 1; seed <= 2; seed++) {
		seal(seed, PREFIX_SEALED);
		squeeze();
	}
	ck_assert_uint_eq(prefix_files(), 2);
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	squeeze();
	seal(3, PREFIX_SEALED);
	squeeze();
	wait_files(2);
	ck_assert_int_eq(of_prefixes("evicted"), 1);
	ck_assert_uint_eq(attend(2), 0);
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	ck_assert_uint_eq(attend(3), PREFIX_SEALED);
	end();
}
END_TEST

static int park(const char *name)
{
	struct raw *r = raw_hello(f.socket);
	const int error = raw_seq_named(r, SKV_MSG_SEQ_PARK, w.model.name, name);

	raw_close(r);
	return error;
}

static void leave(const char *name, uint32_t n_tokens)
{
	int32_t ids[PREFIX_TOKENS] = {0};
	struct skv_seq *seq;

	OK(skv_seq_new(w.session, name, 0, &seq));
	prefix_read(&w, seq, ids, 0, n_tokens, true, NULL);
	OK(skv_seq_detach(seq));
}

/* Sequences have the quota: their bytes, or (_i) their number. A prefix goes for one, and one that does not fit beside them is dropped. */
START_TEST(sequences_first)
{
	const int n = _i ? 6 : 2;
	char name[16];

	more[0] = _i ? "--account-sequences=6" : "--account-parked-bytes=6M";
	begin();
	for (uint64_t seed = 1; seed <= 2; seed++) {
		seal(seed, PREFIX_SEALED);
		squeeze();
	}
	ck_assert_uint_eq(prefix_files(), 2);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "chat-%d", i);
		leave(name, _i ? 20 : 700);
		ck_assert_int_eq(park(name), 0);
		wait_files(i + 2 < n ? 2 : i + 2 == n ? 1 : 0);
		if (i + 2 == n)
			ck_assert_uint_eq(attend(2), PREFIX_SEALED);
	}
	ck_assert_int_eq(figure("parking", "sequences"), n);
	seal(3, PREFIX_SEALED);
	squeeze();
	ck_assert_uint_eq(prefix_files(), 0);
	ck_assert_uint_eq(attend(3), 0);
	ck_assert_int_eq(of_prefixes("evicted"), 2);
	ck_assert_int_eq(figure("parking", "failed"), 0);
	ck_assert_int_eq(figure("parking", "sequences"), n);
	end();
}
END_TEST

/* The daemon's alone. */
static void small_disk(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", folder, "tmpfs", 0, "size=6M,mode=0700") < 0)
		_exit(126);
}

/* The disk is full: prefixes on it go for a sequence, and for a prefix; and what does not fit even so stays in memory. */
START_TEST(full_disk)
{
	if (getuid() != 0)
		return; /* who cannot have a small disk */
	fix_before_exec = small_disk;
	begin();
	for (uint64_t seed = 1; seed <= 3; seed++) {
		seal(seed, PREFIX_SEALED);
		squeeze();
	}
	ck_assert_int_eq(of_prefixes("parked"), 2);
	ck_assert_int_eq(of_prefixes("evicted"), 1);
	leave("first", 700);
	ck_assert_int_eq(park("first"), 0);
	ck_assert_int_eq(of_prefixes("parked"), 1);
	leave("second", 700);
	ck_assert_int_eq(park("second"), 0);
	ck_assert_int_eq(of_prefixes("parked"), 0);
	leave("third", 700);
	ck_assert_int_eq(park("third"), ENOSPC);
	ck_assert_int_eq(figure("parking", "sequences"), 2);
	ck_assert_int_eq(figure("parking", "jobs"), 0);
	end();
}
END_TEST

/* One bit, or the end: it counts as absent, and its file goes. */
START_TEST(damaged)
{
	char path[300];
	struct stat st;
	uint8_t byte;
	int fd;

	begin();
	seal(1, PREFIX_SEALED);
	squeeze();
	ck_assert_uint_eq(files(".prefix", path, sizeof(path)), 1);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_eq(pread(fd, &byte, 1, st.st_size / 2), 1);
	byte ^= 4;
	ck_assert_int_eq(pwrite(fd, &byte, 1, st.st_size / 2), 1);
	if (_i)
		ck_assert_int_eq(ftruncate(fd, st.st_size / 2), 0);
	close(fd);
	ck_assert_uint_eq(attend(1), 0);
	wait_files(0);
	ck_assert_int_eq(figure("parking", "damaged"), 1);
	ck_assert_uint_eq(attend(1), 0);
	seal(1, PREFIX_SEALED);
	squeeze();
	ck_assert_uint_eq(files(".prefix", path, sizeof(path)), 1);
	ck_assert_int_eq(truncate(path, _i ? 5000 : 100), 0);
	reboot();
	wait_files(0);
	ck_assert_uint_eq(attend(1), 0);
	end();
}
END_TEST

/* To all disk workers of the daemon: how many. */
static int signal_workers(int signal)
{
	char path[64], comm[32];
	int pid, n = 0;
	FILE *p, *c;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)f.pid, (int)f.pid);
	p = fopen(path, "re");
	ck_assert_ptr_nonnull(p);
	while (fscanf(p, "%d", &pid) == 1) {
		snprintf(path, sizeof(path), "/proc/%d/comm", pid);
		c = fopen(path, "re");
		if (c && fgets(comm, sizeof(comm), c) && !strcmp(comm, "sparsekvd-disk\n"))
			n += kill(pid, signal) == 0;
		if (c)
			fclose(c);
	}
	fclose(p);
	return n;
}

/* A disk that is slow: what is there in time is what the sequence begins with. The rest goes on, and serves the next one. */
START_TEST(bounded)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	double begun;

	more[0] = "--prefix-store-wait=1";
	begin();
	seal(1, PREFIX_SEALED);
	seal(2, PREFIX_SEALED);
	squeeze();
	ck_assert_uint_eq(attend(2), PREFIX_SEALED); /* there is a worker now */
	seal(1, 256);
	ck_assert_int_gt(signal_workers(SIGSTOP), 0);
	prefix_prompt(ids, 1);
	begun = fix_now();
	ck_assert_uint_eq(prefix_begin(&w, ids, PREFIX_PROMPT, &seq), 256);
	ck_assert_double_gt(fix_now() - begun, 0.9);
	ck_assert_double_lt(fix_now() - begun, slowed() ? 20 : 4);
	OK(skv_seq_drop(seq));
	signal_workers(SIGCONT);
	for (int i = 0; i < 1000 && of_prefixes("restored") == 1; i++)
		fix_sleep_ms(10);
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	ck_assert_int_eq(of_prefixes("restored"), 2);
	end();
}
END_TEST

/* Several wait for the same: it is read once. */
START_TEST(together)
{
	pid_t pids[4];

	begin();
	seal(1, PREFIX_SEALED);
	seal(2, PREFIX_SEALED);
	squeeze();
	ck_assert_uint_eq(attend(2), PREFIX_SEALED);
	signal_workers(SIGSTOP);
	for (int i = 0; i < 4; i++)
		if ((pids[i] = child_fork()) == 0) {
			int32_t ids[PREFIX_PROMPT];
			struct skv_seq *seq;

			prefix_prompt(ids, 1);
			OK(skv_connect(&client, f.socket));
			OK(skv_open(client, &w.model, SPEC, &w.session));
			ck_assert_uint_eq(prefix_begin(&w, ids, PREFIX_PROMPT, &seq), PREFIX_SEALED);
			_exit(0);
		}
	fix_sleep_ms(300);
	signal_workers(SIGCONT);
	for (int i = 0; i < 4; i++)
		child_wait(pids[i]);
	ck_assert_int_eq(of_prefixes("restored"), 2);
	end();
}
END_TEST

/* There is no memory for it; or (_i) it is waited for, and does not come. Nothing is left of it then. */
START_TEST(no_memory)
{
	uint64_t content[PREFIX_TOKENS] = {0};
	struct skv_seq *seq, *held[MANY];
	struct skv_session *mine;
	struct skv_client *other;
	int32_t prompt[PREFIX_PROMPT];
	int n = 0, r = 0;

	more[0] = "--prefix-store-wait=1";
	begin();
	seal(1, PREFIX_SEALED);
	squeeze();
	if (_i) {
		seal(2, PREFIX_SEALED);
		ck_assert_int_gt(signal_workers(SIGSTOP), 0); /* it cannot make room */
	}
	mine = w.session;
	OK(skv_connect(&other, f.socket));
	skv_set_timeout(other, 500);
	OK(skv_open(other, &w.model, SPEC, &w.session));
	while (r == 0) {
		ck_assert_int_lt(n, MANY);
		OK(skv_seq_new(w.session, NULL, 0, &held[n]));
		for (uint32_t len = 0; r == 0 && len < PREFIX_TOKENS; len += 64)
			r = refmodel_items(&w, &SKV_STEP_ITEM(.seq = held[n], .n_tokens = 64, .flags = SKV_STEP_PROMPT), 1, content, 64, NULL, NULL);
		n++;
	}
	w.session = mine;
	prefix_prompt(prompt, 1);
	ck_assert_uint_eq(prefix_begin(&w, prompt, PREFIX_PROMPT, &seq), 0);
	OK(skv_seq_drop(seq));
	for (int i = 0; i < 500 && figure("parking", "jobs") != _i; i++)
		fix_sleep_ms(10);
	ck_assert_int_eq(figure("parking", "jobs"), _i);
	signal_workers(SIGCONT);
	wait_files(1 + (unsigned)_i);
	for (int i = 0; i < 500 && figure("parking", "jobs"); i++)
		fix_sleep_ms(10);
	ck_assert_int_eq(of_prefixes("restored"), 0);
	skv_disconnect(other);
	ck_assert_uint_eq(attend(1), PREFIX_SEALED);
	end();
}
END_TEST

static int ctl(const char *shell)
{
	char command[600];

	snprintf(command, sizeof(command), "ctl() { '%s' --socket '%s' \"$@\"; }; %s", run_built("daemon/ctl/sparsekvctl"), f.socket, shell);
	return system(command);
}

/* It is listed, counted, and dropped by its name; it is no sequence that can be exported, resumed or attached. */
START_TEST(controlled)
{
	char path[300], name[40] = "/", command[300];
	struct skv_seq *seq;

	begin();
	seal(1, PREFIX_SEALED);
	squeeze();
	ck_assert_uint_eq(files(".prefix", path, sizeof(path)), 1);
	snprintf(name + 1, sizeof(name) - 1, "%.32s", strrchr(path, '-') + 1);
	snprintf(command, sizeof(command), "ctl seq list | grep -q 'disk *%s'", name);
	ck_assert_int_eq(ctl(command), 0);
	ck_assert_int_eq(ctl("ctl status | grep -q '^on disk *1 prefixes' && ctl metrics | grep -q '^sparsekv_prefix_parked 1'"), 0);
	FAILS(skv_seq_attach(w.session, name, &seq), EINVAL, "name");
	snprintf(command, sizeof(command), "ctl seq drop --model parked %s >/dev/null", name);
	ck_assert_int_eq(ctl(command), 0);
	wait_files(0);
	ck_assert_uint_eq(attend(1), 0);
	end();
}
END_TEST

/* The user's quota of sequences is used by prefixes, and they go to disk one by one; all come back. */
START_TEST(beyond_the_quota)
{
	more[0] = "--account-sequences=16";
	begin();
	for (uint64_t seed = 1; seed <= 14; seed++) {
		seal(seed, 256);
		fix_sleep_ms(100);
	}
	for (int i = 0; i < 500 && in_memory() > 12; i++)
		fix_sleep_ms(10);
	ck_assert_uint_le(in_memory(), 12);
	for (uint64_t seed = 1; seed <= 14; seed++)
		ck_assert_uint_eq(attend(seed), 256);
	ck_assert_int_gt(of_prefixes("restored"), 1);
	end();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-prefix-disk");
	TCase *t = add_case(s, "prefix", 60, NULL, NULL, comes_back, the_longest, whose, after_a_reboot, least_recently_used, bounded, together,
	                    full_disk, controlled, beyond_the_quota, NULL);

	tcase_add_loop_test(t, sequences_first, 0, 2);
	tcase_add_loop_test(t, no_memory, 0, 2);
	tcase_add_loop_test(t, damaged, 0, 2);
	return run_suite(s);
}
