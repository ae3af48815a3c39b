/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed prefixes are parked and read back: outputs after such a prefix are bit for bit those of reading the prompt,
 * also after a restart. With another secret they cannot be used. Whatever is wrong with a file or the disk only
 * shortens the prefix.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/disk/parked.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/policies.h"
#include "tests/support/prefix-disk.h"
#include "tests/support/run-program.h"

#define MANY 8 /* sequences: memory has room for half of them */

START_TEST(comes_back)
{
	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	for (int i = 0; i < 3; i++) {
		pd_squeeze();
		ck_assert_uint_eq(pd_prefix_files(), 1);
		ck_assert_int_eq(pd_of_prefixes("parked"), 1);
		ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
		ck_assert_uint_eq(pd_in_memory(), 1);
		ck_assert_int_eq(pd_of_prefixes("restored"), i + 1);
		ck_assert_int_eq(pd_of_prefixes("restored_tokens"), (i + 1) * (int)PREFIX_SEALED);
		ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED); /* now it is in memory */
	}
	ck_assert_int_eq(pd_of_prefixes("restored"), 3);
	ck_assert_int_eq(pd_of_prefixes("written"), 1); /* it never changed */
	ck_assert_int_eq(pd_figure("parking", "sequences"), 0);
	ck_assert_uint_eq(pd_attend(2), 0);
	pd_end();
}
END_TEST

/* Memory has the first block, the disk two. The smallest file with enough blocks is read. */
START_TEST(the_longest)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	pd_squeeze();
	pd_seal(1, 256);
	ck_assert_uint_eq(pd_in_memory(), 1);
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	ck_assert_int_eq(pd_of_prefixes("restored_tokens"), PREFIX_SEALED);
	pd_squeeze();
	pd_wait_files(2);
	prefix_prompt(ids, 1);
	ck_assert_uint_eq(prefix_begin(&pd.w, ids, 300, &seq), 256);
	OK(skv_seq_drop(seq));
	ck_assert_int_eq(pd_of_prefixes("restored_tokens"), PREFIX_SEALED + 256);
	OK(skv_seq_new_from(pd.w.session, NULL, PREFIX_SEALED - 1, ids, 400, &seq)); /* too short for more */
	ck_assert_uint_eq(skv_seq_len(seq), 256);
	OK(skv_seq_drop(seq));
	ck_assert_int_eq(pd_of_prefixes("restored_tokens"), PREFIX_SEALED + 256);
	pd_end();
}
END_TEST

/* A prefix of another policy or model is not used. */
START_TEST(whose)
{
	struct skv_session *mine;
	struct skv_model m;
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;

	pd_begin();
	mine = pd.w.session;
	m = pd.w.model;
	pd_seal(1, PREFIX_SEALED);
	pd_squeeze();
	prefix_prompt(ids, 1);
	OK(skv_open(pd.client, &pd.w.model, POLICY_PAGES "?budget=7&layers=0,2&dense=1", &pd.w.session));
	ck_assert_uint_eq(prefix_begin(&pd.w, ids, PREFIX_PROMPT, &seq), 0);
	skv_close(pd.w.session);
	snprintf(m.name, sizeof(m.name), "another");
	OK(skv_open(pd.client, &m, PD_SPEC, &pd.w.session));
	ck_assert_uint_eq(prefix_begin(&pd.w, ids, PREFIX_PROMPT, &seq), 0);
	skv_close(pd.w.session);
	pd.w.session = mine;
	ck_assert_int_eq(pd_of_prefixes("restored"), 0);
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	pd_end();
}
END_TEST

static void make_secret(const char *path)
{
	uint8_t secret[32];

	rnd_bytes(secret, sizeof(secret));
	fx_write(path, secret, sizeof(secret));
	ck_assert_int_eq(chmod(path, 0600), 0);
}

/* The next daemon finds the prefix; with another secret it is gone. */
START_TEST(after_a_reboot)
{
	static char option[160];
	char path[128];

	pd.folder = fx_folder();
	snprintf(path, sizeof(path), "%s.secret", pd.folder);
	snprintf(option, sizeof(option), "--prefix-secret-file=%s", path);
	pd.options[0] = option;
	make_secret(path);
	pd_begin();
	for (uint64_t seed = 1; seed <= 3; seed++)
		pd_seal(seed, PREFIX_SEALED);
	pd_squeeze();
	pd_reboot();
	fix_expect_log(&pd.f, "3 sealed prefixes on disk can be used again, 0 are removed");
	for (uint64_t seed = 1; seed <= 3; seed++)
		ck_assert_uint_eq(pd_attend(seed), PREFIX_SEALED);
	ck_assert_uint_eq(pd_attend(4), 0);
	pd_reboot();
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	make_secret(path);
	pd_reboot();
	fix_expect_log(&pd.f, "0 sealed prefixes on disk can be used again, 3 are removed");
	pd_wait_files(0);
	ck_assert_uint_eq(pd_attend(1), 0);
	unlink(path);
	pd_end();
}
END_TEST

/* A flipped bit, or a missing end: the prefix counts as absent, and its file is removed. */
START_TEST(damaged)
{
	char path[300];
	struct stat st;
	uint8_t byte;
	int fd;

	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	pd_squeeze();
	ck_assert_uint_eq(pd_files(".prefix", path, sizeof(path)), 1);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_eq(pread(fd, &byte, 1, st.st_size / 2), 1);
	byte ^= 4;
	ck_assert_int_eq(pwrite(fd, &byte, 1, st.st_size / 2), 1);
	if (_i == 1)
		ck_assert_int_eq(ftruncate(fd, st.st_size / 2), 0);
	close(fd);
	ck_assert_uint_eq(pd_attend(1), 0);
	pd_wait_files(0);
	ck_assert_int_eq(pd_figure("parking", "damaged"), 1);
	ck_assert_uint_eq(pd_attend(1), 0);
	pd_seal(1, PREFIX_SEALED);
	pd_squeeze();
	ck_assert_uint_eq(pd_files(".prefix", path, sizeof(path)), 1);
	if (_i < 2) {
		ck_assert_int_eq(truncate(path, _i ? 5000 : 100), 0);
	} else { /* a key */
		fd = open(path, O_RDWR | O_CLOEXEC);
		ck_assert_int_eq(pwrite(fd, &byte, 1, SKV_PARKED_ALIGN + SKV_PARKED_TAG + 3), 1);
		close(fd);
	}
	pd_reboot();
	pd_wait_files(0);
	ck_assert_uint_eq(pd_attend(1), 0);
	pd_end();
}
END_TEST

/* A slow disk: the sequence begins with what is read in time. The read continues, and serves the next sequence. */
START_TEST(bounded)
{
	int32_t ids[PREFIX_PROMPT];
	struct skv_seq *seq;
	double begun;

	pd.options[0] = "--prefix-store-wait=1";
	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	pd_seal(2, PREFIX_SEALED);
	pd_squeeze();
	ck_assert_uint_eq(pd_attend(2), PREFIX_SEALED); /* now there is a worker */
	pd_seal(1, 256);
	ck_assert_uint_gt(pd_signal_workers(SIGSTOP), 0);
	prefix_prompt(ids, 1);
	begun = fix_now();
	ck_assert_uint_eq(prefix_begin(&pd.w, ids, PREFIX_PROMPT, &seq), 256);
	ck_assert_double_gt(fix_now() - begun, 0.9);
	ck_assert_double_lt(fix_now() - begun, slowed() ? 20 : 4);
	OK(skv_seq_drop(seq));
	pd_signal_workers(SIGCONT);
	for (int i = 0; i < 1000 && pd_of_prefixes("restored") == 1; i++)
		fix_sleep_ms(10);
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	ck_assert_int_eq(pd_of_prefixes("restored"), 2);
	pd_end();
}
END_TEST

/* Several sequences wait for the same prefix: it is read once. */
START_TEST(together)
{
	pid_t pids[4];

	if (devmem_is_device())
		return; /* which a child cannot use */
	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	pd_seal(2, PREFIX_SEALED);
	pd_squeeze();
	ck_assert_uint_eq(pd_attend(2), PREFIX_SEALED);
	pd_signal_workers(SIGSTOP);
	for (int i = 0; i < 4; i++)
		if ((pids[i] = child_fork()) == 0) {
			int32_t ids[PREFIX_PROMPT];
			struct skv_seq *seq;

			prefix_prompt(ids, 1);
			OK(skv_connect(&pd.client, pd.f.socket));
			OK(skv_open(pd.client, &pd.w.model, PD_SPEC, &pd.w.session));
			ck_assert_uint_eq(prefix_begin(&pd.w, ids, PREFIX_PROMPT, &seq), PREFIX_SEALED);
			_exit(0);
		}
	fix_sleep_ms(300);
	pd_signal_workers(SIGCONT);
	for (int i = 0; i < 4; i++)
		child_wait(pids[i]);
	ck_assert_int_eq(pd_of_prefixes("restored"), 2);
	pd_end();
}
END_TEST

/*
 * There is no memory for the prefix; or (_i) the sequence waits for memory that does not become free. Nothing of the
 * prefix is left then.
 */
START_TEST(no_memory)
{
	uint64_t content[PREFIX_TOKENS] = {0};
	struct skv_seq *seq, *held[MANY];
	struct skv_session *mine;
	struct skv_client *other;
	int32_t prompt[PREFIX_PROMPT];
	int n = 0, r = 0;

	pd.options[0] = "--prefix-store-wait=1";
	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	pd_squeeze();
	if (_i) {
		pd_seal(2, PREFIX_SEALED);
		ck_assert_uint_gt(pd_signal_workers(SIGSTOP), 0); /* so it cannot make room */
	}
	mine = pd.w.session;
	OK(skv_connect(&other, pd.f.socket));
	skv_set_timeout(other, 500);
	OK(skv_open(other, &pd.w.model, PD_SPEC, &pd.w.session));
	while (r == 0) {
		ck_assert_int_lt(n, MANY);
		OK(skv_seq_new(pd.w.session, NULL, 0, &held[n]));
		for (uint32_t len = 0; r == 0 && len < PREFIX_TOKENS; len += 64)
			r = refmodel_items(&pd.w, &SKV_STEP_ITEM(.seq = held[n], .n_tokens = 64, .flags = SKV_STEP_PROMPT), 1, content, 64, NULL, NULL);
		n++;
	}
	pd.w.session = mine;
	prefix_prompt(prompt, 1);
	ck_assert_uint_eq(prefix_begin(&pd.w, prompt, PREFIX_PROMPT, &seq), 0);
	OK(skv_seq_drop(seq));
	for (int i = 0; i < 500 && pd_figure("parking", "jobs") != _i; i++)
		fix_sleep_ms(10);
	ck_assert_int_eq(pd_figure("parking", "jobs"), _i);
	pd_signal_workers(SIGCONT);
	pd_wait_files(1 + (unsigned)_i);
	for (int i = 0; i < 500 && pd_figure("parking", "jobs"); i++)
		fix_sleep_ms(10);
	ck_assert_int_eq(pd_of_prefixes("restored"), 0);
	skv_disconnect(other);
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	pd_end();
}
END_TEST

/* Parks the prefixes that are only in memory. */
static void send_park(struct raw *r)
{
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS), *row;
	size_t i;

	json_array_foreach(json_object_get(seqs, "sequences"), i, row) {
		const char *name = json_string_value(json_object_get(row, "name"));

		if (*name == '/' && !json_object_get(row, "parked_bytes"))
			raw_send_named(r, SKV_MSG_SEQ_PARK, pd.w.model.name, name);
	}
	json_decref(seqs);
}

/*
 * The daemon is killed and its memory lost at any instant while a prefix is parked or read: the prefix is complete on
 * disk, or absent.
 */
START_TEST(daemon_dies)
{
	unsigned found = 0;

	pd_begin();
	for (uint64_t seed = 1; seed <= 25; seed++) {
		const uint64_t earlier = 1 + rnd_below((uint32_t)seed);
		struct raw *r = raw_hello(pd.f.socket);
		uint32_t len;

		if (rnd_below(3) == 0)
			(void)pd_attend(earlier);
		pd_seal(seed, PREFIX_SEALED);
		send_park(r);
		usleep(rnd_below(15000));
		skv_disconnect(pd.client);
		fix_kill(&pd.f);
		raw_hang_up(r);
		pd_begin();
		ck_assert_uint_eq(pd_files(".parked", NULL, 0), 0);
		len = pd_attend(seed);
		ck_assert(len == 0 || len == PREFIX_SEALED);
		found += len > 0;
	}
	printf("25 daemons; %u prefixes were on disk\n", found);
	ck_assert_int_eq(pd_figure("parking", "damaged"), 0);
	pd_end();
}
END_TEST

static int ctl(const char *shell)
{
	char command[600];

	snprintf(command, sizeof(command), "ctl() { '%s' --socket '%s' \"$@\"; }; %s", run_built("daemon/ctl/sparsekvctl"), pd.f.socket, shell);
	return system(command);
}

/* A prefix is listed, counted, and dropped by its name; it cannot be exported, resumed or attached as a sequence. */
START_TEST(controlled)
{
	char path[300], name[40] = "/", command[400];
	struct skv_seq *seq;

	pd_begin();
	pd_seal(1, PREFIX_SEALED);
	pd_squeeze();
	ck_assert_uint_eq(pd_files(".prefix", path, sizeof(path)), 1);
	snprintf(name + 1, sizeof(name) - 1, "%.32s", strrchr(path, '-') + 1);
	snprintf(command, sizeof(command), "ctl seq list | grep -q 'disk *%s'", name);
	ck_assert_int_eq(ctl(command), 0);
	ck_assert_int_eq(ctl("ctl status | grep -q '^on disk *1 prefixes' && ctl metrics | grep -q '^sparsekv_prefix_parked 1'"), 0);
	FAILS(skv_seq_attach(pd.w.session, name, &seq), EINVAL, "name");
	snprintf(command, sizeof(command), "ctl seq import <'%s' 2>&1 | grep -q 'file of a sealed prefix'", path);
	ck_assert_int_eq(ctl(command), 0);
	snprintf(command, sizeof(command), "ctl seq export --model parked %s 2>&1 | grep -q 'cannot be exported'", name);
	ck_assert_int_eq(ctl(command), 0);
	snprintf(command, sizeof(command), "ctl seq resume --model parked %s >/dev/null && ctl seq list | grep -q 'none *%s'", name, name);
	ck_assert_int_eq(ctl(command), 0);
	snprintf(command, sizeof(command), "ctl seq park --model parked %s >/dev/null && ctl seq list | grep -q 'disk *%s'", name, name);
	ck_assert_int_eq(ctl(command), 0);
	snprintf(command, sizeof(command), "ctl seq drop --model parked %s >/dev/null", name);
	ck_assert_int_eq(ctl(command), 0);
	pd_wait_files(0);
	ck_assert_uint_eq(pd_attend(1), 0);
	pd_end();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-prefix-disk");
	TCase *t = add_case(s, "prefix", 60, NULL, NULL, comes_back, the_longest, whose, after_a_reboot, bounded, together, controlled, daemon_dies, NULL);

	tcase_add_loop_test(t, no_memory, 0, 2);
	tcase_add_loop_test(t, damaged, 0, 3);
	return run_suite(s);
}
