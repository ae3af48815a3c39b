/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of parked sequences that are removed by other programs, that are deleted durably, and that expire while the
 * system clock is changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/client-test.h"
#include "tests/support/folder.h"
#include "tests/support/parked-chats.h"

static struct fix f;
static char *folder, clock_file[96]; /* clock_file: offset of the daemon's system clock, in seconds */
static const char *preloaded = "tests/support/.libs/fake-clock.so";
static struct skv_client *client;

static void begin(const char *ttl)
{
	static char parked[96];
	const char *options[] = {parked, ttl, NULL};

	chats_first_prompt = 100;
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	snprintf(clock_file, sizeof(clock_file), "%s.clock", folder);
	fx_text(clock_file, "0");
	setenv("SKV_CLOCK", clock_file, 1);
	setenv("LD_PRELOAD", fix_built(preloaded), 1);
	fix_start_process(&f, options);
	unsetenv("LD_PRELOAD");
	chats_models();
	OK(skv_connect(&client, f.socket));
	skv_set_timeout(client, 3000);
	chats_open(client);
}

static void end(void)
{
	char command[200];

	skv_disconnect(client);
	fix_stop(&f);
	snprintf(command, sizeof(command), "rm -rf '%s' '%s'", folder, clock_file);
	ck_assert_int_eq(system(command), 0);
}

/* Sends PARK, RESUME or DROP_NAME; returns 0 or the errno. */
static int ask(uint16_t type, const char *name)
{
	struct raw *r = raw_hello(f.socket);
	const int error = raw_seq_named(r, type, world[0].model.name, name);

	raw_close(r);
	return error;
}

static json_int_t expired(void)
{
	struct raw *r = raw_operator(f.socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	json_int_t n = json_integer_value(json_object_get(json_array_get(json_object_get(status, "parking"), 0), "expired"));

	json_decref(status);
	raw_close(r);
	return n;
}

/* Returns the path of a parked sequence's file; the caller frees it. */
static char *file_of(const char *name)
{
	char command[300], path[512] = "";
	FILE *p;

	snprintf(command, sizeof(command), "ls %s/%u/*-%s.parked", folder, (unsigned)getuid(), name);
	p = popen(command, "re");
	ck_assert(p && fgets(path, sizeof(path), p));
	pclose(p);
	path[strcspn(path, "\n")] = 0;
	return strdup(path);
}

static void setup(void)
{
	folder = fx_folder();
}

/* A sequence whose file was removed is not one that never existed: after -ENOENT, a client would make a new one. */
START_TEST(file_is_gone)
{
	struct skv_seq *q;
	char *file, away[520];

	begin(NULL);
	chats_make(2);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	file = file_of("chat-0");
	snprintf(away, sizeof(away), "%s.away", file);
	ck_assert_int_eq(rename(file, away), 0);
	FAILS(skv_seq_attach(world[0].session, "chat-0", &q), EBADMSG, "is gone: restore the file");
	FAILS(skv_seq_new(world[0].session, "chat-0", 0, &q), EEXIST, "which is parked");
	ck_assert_int_eq(rename(away, file), 0); /* like a disk that was not mounted */
	free(file);
	chat_talk(&chats[0], 1);
	chat_check(&chats[0]);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-1"), 0);
	file = file_of("chat-1");
	ck_assert_int_eq(unlink(file), 0);
	free(file);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_DROP_NAME, "chat-1"), 0);
	OK(skv_seq_new(world[0].session, "chat-1", 0, &q));
	end();
}
END_TEST

/* A line of the record: process, call and path. */
struct file_op {
	int pid;
	char what[16], path[256];
};

static unsigned read_ops(const char *record, struct file_op *ret, unsigned most)
{
	FILE *r = fopen(record, "re");
	unsigned n = 0;

	ck_assert_ptr_nonnull(r);
	while (n < most && fscanf(r, "%d %15s %255s", &ret[n].pid, ret[n].what, ret[n].path) == 3)
		n++;
	fclose(r);
	ck_assert_uint_lt(n, most);
	return n;
}

/* Returns whether the process that made call i syncs this folder with its next call. */
static bool is_synced(const struct file_op *all, unsigned n, unsigned i, const char *path)
{
	unsigned next = i + 1;

	while (next < n && all[next].pid != all[i].pid)
		next++;
	return next < n && !strcmp(all[next].what, "fsync") && !strcmp(all[next].path, path);
}

/* Checks that the daemon's own process made no call in folders of users. */
static void expect_none_of_daemon(const struct file_op *all, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		ck_assert_msg(all[i].pid != f.pid || strncmp(all[i].path, folder, strlen(folder)) != 0, "the daemon itself: %s %s", all[i].what, all[i].path);
}

/*
 * A file's folder is synced before the daemon reports that the file is gone. Before a file is written, the folder above
 * the user's folder is synced, even if the user's folder existed: the process that made it may have died before it
 * synced. Workers do this: a serving daemon touches no folder, since the disk may hang.
 */
START_TEST(gone_for_good)
{
	static struct file_op all[1000];
	char record[96], user[96];
	unsigned n, removed = 0, made = 0;

	snprintf(record, sizeof(record), "%s.record", folder);
	snprintf(user, sizeof(user), "%s/%u", folder, (unsigned)getuid());
	ck_assert_int_eq(mkdir(user, 0700), 0);
	fx_text(record, "");
	setenv("SKV_RECORD", record, 1);
	preloaded = "tests/support/.libs/record-files.so";
	begin(NULL);
	chats_make(3);
	fx_text(record, ""); /* only from now on: at its start the daemon reads everything */
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-1"), 0);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_DROP_NAME, "chat-0"), 0);
	n = read_ops(record, all, 1000);
	ck_assert_msg(is_synced(all, n, n - 2, user), "what is dropped is not synchronized when it is told: %s %s", all[n - 1].what, all[n - 1].path);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-1"), 0);
	fix_sleep_ms(1000); /* the removal of the file is asynchronous */
	n = read_ops(record, all, 1000);
	expect_none_of_daemon(all, n);
	for (unsigned i = 0; i < n; i++) {
		const char *end = strrchr(all[i].path, '.');

		if (!strcmp(all[i].what, "mkdirat")) {
			ck_assert_msg(is_synced(all, n, i, folder), "%s is not synchronized", folder);
			made++;
		} else if (!strcmp(all[i].what, "unlinkat") && end && !strcmp(end, ".parked")) {
			ck_assert_msg(is_synced(all, n, i, user), "%s is removed, and its folder not synchronized", all[i].path);
			removed++;
		}
	}
	ck_assert_uint_eq(made, 2);
	ck_assert_uint_eq(removed, 2);
	unlink(record);
	end();
}
END_TEST

static void kill_workers(void)
{
	ck_assert_uint_gt(fix_signal_children(f.pid, "sparsekvd-disk", SIGKILL), 0);
}

/* What becomes of the user's folder before an import fails. */
enum folder_is { AS_IT_WAS, GONE, A_FILE };

/* An import waits for its sender, and then its worker dies. */
static void import_fails(uint32_t uid, enum folder_is is)
{
	struct raw *r = raw_operator(f.socket);
	const struct skv_msg_user m = {.uid = uid};
	char user[96];
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	raw_send(r, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), ends[0]);
	close(ends[0]);
	fix_sleep_ms(300);
	snprintf(user, sizeof(user), "%s/%u", folder, uid);
	ck_assert(is == AS_IT_WAS || rmdir(user) == 0);
	if (is == A_FILE)
		fx_text(user, "");
	kill_workers();
	ck_assert_int_ne(raw_recv_answer(r, 20000), SKV_MSG_SEQ_IMPORT | SKV_REPLY);
	close(ends[1]);
	raw_close(r);
}

/* The search for what a failed import left ends, although the user has no folder: the next import is not refused. */
START_TEST(import_without_folder)
{
	const struct skv_msg_user m = {.uid = 12345};
	struct raw *r;
	int empty = memfd_create("empty", MFD_CLOEXEC);

	begin(NULL);
	import_fails(12345, GONE);
	r = raw_operator(f.socket);
	raw_send(r, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), empty);
	ck_assert_int_ne(raw_recv_answer(r, 20000), SKV_MSG_SEQ_IMPORT | SKV_REPLY);
	ck_assert_msg(!strstr(raw_error_text(r), "another"), "%s", raw_error_text(r));
	raw_close(r);
	close(empty);
	end();
}
END_TEST

/*
 * A worker retries what the disk did not give at the start, and does not forget it while that fails. An import that
 * fails meanwhile removes what it may have left, and no file that could not be read. The daemon also searches for what
 * another user's import may have left. If that search keeps failing, a reload does not wait for it.
 */
START_TEST(looked_at_again)
{
	static struct file_op all[1000];
	char record[96], eio[96];

	snprintf(record, sizeof(record), "%s.record", folder);
	snprintf(eio, sizeof(eio), "%s.eio", folder);
	fx_text(record, "");
	setenv("SKV_RECORD", record, 1);
	setenv("SKV_EIO", eio, 1);
	preloaded = "tests/support/.libs/record-files.so";
	begin(NULL);
	chats_make(1);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	skv_disconnect(client);
	fix_stop(&f);
	fx_text(eio, "");
	begin(NULL);
	fix_expect_log(&f, "(a reload tries again)");
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-0"), EIO);
	fx_text(record, "");
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	fix_expect_log(&f, "are known; 1 files and folders cannot be read");
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-0"), EIO);
	ck_assert_int_eq(unlink(eio), 0);
	import_fails((uint32_t)getuid(), AS_IT_WAS);
	import_fails(12345, A_FILE);
	fix_expect_log(&f, "user 12345: a failed import may have left a file");
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	fix_expect_log(&f, "1 sequences and sealed prefixes are known; 0 files");
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-0"), 0);
	expect_none_of_daemon(all, read_ops(record, all, 1000));
	unlink(record);
	end();
}
END_TEST

/* Returns whether the sequence expires within these seconds. */
static bool grows_old(double seconds)
{
	for (double until = fix_now() + seconds; fix_now() < until; fix_sleep_ms(50))
		if (expired())
			return true;
	return false;
}

/*
 * The system clock is set back and forth, or was wrong while a sequence was parked: a sequence that was parked a moment
 * ago stays. It expires after its time by a clock that cannot be set.
 */
START_TEST(clock_is_set)
{
	static const char year_back[] = "-31536000", year_on[] = "31536000";

	begin("--sequence-ttl=6");
	chats_make(1);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	fx_text(clock_file, year_back);
	ck_assert(!grows_old(1.5));
	fx_text(clock_file, year_on);
	ck_assert(!grows_old(1.5));
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-0"), 0);
	fx_text(clock_file, year_back); /* it is parked while the clock is slow, and the clock is then corrected */
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	fx_text(clock_file, "0");
	ck_assert(!grows_old(1.5));
	ck_assert(grows_old(20));
	end();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-parked-files");

	add_case(s, "files", 120, setup, NULL, file_is_gone, gone_for_good, looked_at_again, import_without_folder, clock_is_set, NULL);
	return run_suite(s);
}
