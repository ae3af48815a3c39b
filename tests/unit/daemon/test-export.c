/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences that are exported and imported through pipes whose other end reads or writes slowly, or not at all: other
 * users do not wait for that, and it ends. The other users are UIDs under which an operator has imported the sequence.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/hung-files.h"
#include "tests/support/raw-engine.h"
#include "tests/support/suite.h"

#define NAME "long"
#define TOKENS 16384u /* far more bytes than a pipe holds */
#define DRIP 4096u
#define OTHER 4711u

static struct fix fix;
static struct raw *raw;
static char *folder;
static struct skv_msg_seq_of own;
static char *file; /* of the sequence */
static size_t file_bytes;
static double alone; /* seconds that an import took while nothing else was under way */

/* ---- requests -------------------------------------------------------------------------------- */

/* Returns the read end of a pipe, which the caller owns; or -1, and raw_error_text() has the reason. */
static int export(struct raw *r, uint32_t uid, uint64_t *ret_bytes)
{
	struct skv_msg_seq_of m = own;

	m.uid = uid;
	raw_send(r, SKV_MSG_SEQ_EXPORT, &m, sizeof(m), -1);
	if (raw_recv_answer(r, 20000) != (SKV_MSG_SEQ_EXPORT | SKV_REPLY))
		return -1;
	*ret_bytes = ((const struct skv_msg_file *)(const void *)(r->packet + sizeof(struct skv_msg_header)))->bytes;
	return fcntl(r->fds[0], F_DUPFD_CLOEXEC, 0);
}

/* The same, retried until the user's last export is complete. */
static int export_next(struct raw *r, uint32_t uid, uint64_t *ret_bytes)
{
	int from = -1;

	for (unsigned i = 0; i < 100 && (from = export(r, uid, ret_bytes)) < 0; i++)
		fix_sleep_ms(100);
	ck_assert_msg(from >= 0, "%s", raw_error_text(r));
	return from;
}

/* Reads to the end. */
static size_t read_all(int from, char *to, size_t most)
{
	size_t n = 0;
	ssize_t got;

	while (n < most && (got = read(from, to + n, most - n)) > 0)
		n += (size_t)got;
	return n;
}

/* Imports from this descriptor and closes it; returns 0 or an errno. */
static int import(struct raw *r, uint32_t uid, int from)
{
	const struct skv_msg_user m = {.uid = uid};
	const struct skv_msg_error *e;

	raw_send(r, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), from);
	close(from);
	if (raw_recv_answer(r, 30000) == (SKV_MSG_SEQ_IMPORT | SKV_REPLY))
		return 0;
	e = (const struct skv_msg_error *)(const void *)(r->packet + sizeof(struct skv_msg_header));
	return e->error;
}

static int file_copy(void)
{
	int fd = memfd_create("parked", MFD_CLOEXEC);

	ck_assert_int_eq(write(fd, file, file_bytes), (ssize_t)file_bytes);
	return fd;
}

/* Exports the other user's sequence and imports it as another user, while other transfers are under way. */
static void others_travel(uint32_t to)
{
	const double begin = fix_now();
	char *copy = malloc(file_bytes);
	uint64_t bytes = 0;
	int from = export_next(raw, OTHER, &bytes);

	ck_assert_uint_eq(bytes, file_bytes);
	ck_assert_uint_eq(read_all(from, copy, bytes), bytes);
	close(from);
	ck_assert_int_eq(import(raw, to, file_copy()), 0);
	free(copy);
	/* shorter than disk-timeout, 2 s, unless the disk itself is slow now */
	ck_assert_double_lt(fix_now() - begin, patience(1.5) + 3 * alone);
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void setup_with(const char *quota)
{
	char parked[96];
	const char *const options[] = {parked, "--disk-timeout=2", "--pool-bytes=64M", "--account-bytes=64M", quota, NULL};
	struct raw_engine e;
	struct skv_msg_seq m;
	uint64_t bytes;
	int from;

	folder = fx_folder();
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	fix_start_process(&fix, options);
	raw_engine_open(&e, fix.socket, 2);
	m = (struct skv_msg_seq){.session = e.session.session, .seq = raw_engine_seq(&e, NAME, TOKENS)};
	raw_ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	ck_assert_int_eq(raw_seq_named(e.raw, SKV_MSG_SEQ_PARK, e.model.name, NAME), 0);
	own.uid = (uint32_t)getuid();
	strcpy(own.model, e.model.name);
	strcpy(own.name, NAME);
	raw_close(e.raw);
	raw = raw_operator(fix.socket);
	from = export_next(raw, own.uid, &bytes);
	file_bytes = (size_t)bytes;
	file = malloc(file_bytes);
	ck_assert_uint_eq(read_all(from, file, file_bytes), file_bytes);
	close(from);
}

static void setup(void)
{
	double begin;

	setup_with(NULL);
	begin = fix_now();
	ck_assert_int_eq(import(raw, OTHER, file_copy()), 0);
	alone = fix_now() - begin;
}

static void teardown(void)
{
	char command[128];

	raw_close(raw);
	fix_stop(&fix);
	free(file);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(a_slow_reader_gets_all)
{
	struct raw *slow = raw_hello(fix.socket);
	char *got = malloc(file_bytes);
	uint64_t bytes = 0;
	int from = export_next(slow, own.uid, &bytes);
	size_t n = 0;

	for (unsigned i = 0; i < 8; i++) {
		n += read_all(from, got + n, DRIP);
		fix_sleep_ms(400); /* disk-timeout has passed after five of these */
		if (i < 2)
			others_travel(OTHER + 1 + i);
	}
	n += read_all(from, got + n, file_bytes - n);
	ck_assert_uint_eq(n, file_bytes);
	ck_assert_mem_eq(got, file, file_bytes);
	close(from);
	free(got);
	raw_close(slow);
}
END_TEST

START_TEST(a_reader_that_does_not_read_is_given_up)
{
	struct raw *silent = raw_hello(fix.socket);
	char *got = malloc(file_bytes);
	uint64_t bytes = 0;
	int from = export_next(silent, own.uid, &bytes), again;

	others_travel(OTHER + 1);
	ck_assert_int_lt(export(silent, own.uid, &bytes), 0);
	ck_assert_ptr_nonnull(strstr(raw_error_text(silent), "another sequence of this user is being exported"));
	again = export_next(silent, own.uid, &bytes);
	ck_assert_uint_lt(read_all(from, got, file_bytes), file_bytes);
	ck_assert_uint_eq(read_all(again, got, file_bytes), file_bytes);
	close(from);
	close(again);
	free(got);
	raw_close(silent);
}
END_TEST

/*
 * The reader sees that the file is short, even if there is another file of this name since. The quota has the bytes
 * back at once.
 */
START_TEST(a_file_that_goes_ends_its_export)
{
	struct raw *slow = raw_hello(fix.socket);
	char *got = malloc(file_bytes);
	uint64_t bytes = 0;
	int from = export_next(slow, own.uid, &bytes);

	fix_sleep_ms(500); /* the pipe is full, and the job that filled it is over: a job that runs may send the rest */
	ck_assert_int_eq(raw_seq_named(slow, SKV_MSG_SEQ_DROP_NAME, own.model, own.name), 0);
	ck_assert_int_eq(import(raw, own.uid, file_copy()), 0);
	ck_assert_uint_lt(read_all(from, got, file_bytes), file_bytes);
	close(from);
	free(got);
	raw_close(slow);
}
END_TEST

/* Sends a signal to the disk worker that was the nth to start, or the last one if n is -1. */
static void signal_worker(int n, int signal)
{
	char path[64];
	int pid, at = 0, found = 0;
	FILE *children;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)fix.pid, (int)fix.pid);
	children = fopen(path, "re");
	ck_assert_ptr_nonnull(children);
	while (fscanf(children, "%d", &pid) == 1 && (n < 0 || at++ <= n))
		found = pid;
	fclose(children);
	ck_assert(found > 0 && kill(found, signal) == 0);
}

/*
 * A sequence is being parked while an import of the same name arrives. Both files have the same name. The parked file is
 * the only copy of its sequence, so a failed import must not remove it.
 */
START_TEST(an_import_of_what_is_being_parked)
{
	struct raw *user = raw_hello(fix.socket);
	const struct skv_msg_user m = {.uid = own.uid};
	int copy = file_copy();

	ck_assert_int_eq(raw_seq_named(user, SKV_MSG_SEQ_RESUME, own.model, own.name), 0);
	fix_sleep_ms(300); /* the file is removed asynchronously */
	signal_worker(0, SIGSTOP); /* the one that writes */
	raw_send_named(user, SKV_MSG_SEQ_PARK, own.model, own.name);
	fix_sleep_ms(200);
	signal_worker(-1, SIGSTOP); /* the one that removes */
	raw_send(raw, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), copy);
	fix_sleep_ms(300);
	signal_worker(0, SIGCONT);
	ck_assert_int_eq(raw_recv_answer(user, 20000), SKV_MSG_SEQ_PARK | SKV_REPLY);
	signal_worker(-1, SIGCONT);
	ck_assert_int_eq(raw_recv_answer(raw, 20000), SKV_MSG_ERROR);
	fix_sleep_ms(300);
	ck_assert_int_eq(raw_seq_named(user, SKV_MSG_SEQ_RESUME, own.model, own.name), 0);
	close(copy);
	raw_close(user);
}
END_TEST

/* Two imports of a user: the second one is refused, and the last close of its file takes for ever. The daemon goes on. */
START_TEST(closing_a_refused_file_holds_up_nobody)
{
	const struct skv_msg_user m = {.uid = OTHER + 1};
	const struct skv_msg_query status = {.what = SKV_QUERY_STATUS};
	struct raw *waits = raw_operator(fix.socket);
	struct hung_fs fs;
	int ends[2], hung, refused, answered;
	char why[SKV_TEXT_MAX] = "";

	if (!hung_fs_start(&fs)) {
		printf("no FUSE, or not root: no files of a hung server\n");
		raw_close(waits);
		return;
	}
	hung = hung_fs_open(&fs);
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	raw_send(waits, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), ends[0]);
	fix_sleep_ms(100);
	raw_send(raw, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), hung);
	refused = raw_recv_answer(raw, 5000);
	if (refused == SKV_MSG_ERROR)
		snprintf(why, sizeof(why), "%s", raw_error_text(raw));
	raw_send(raw, SKV_MSG_QUERY, &status, sizeof(status), -1);
	answered = raw_recv_answer(raw, 5000);
	hung_fs_stop(&fs); /* before a test that fails: this process would hang, too, when it closes the file */
	close(hung);
	ck_assert_msg(strstr(why, "another sequence of this user"), "%d %s", refused, why);
	ck_assert_int_eq(answered, SKV_MSG_QUERY | SKV_REPLY);
	close(ends[0]);
	close(ends[1]);
	raw_close(waits);
}
END_TEST

static void setup_quota(void)
{
	setup_with("--account-parked-bytes=3M"); /* for one file, but not for two */
	ck_assert_uint_lt(file_bytes, 3 << 20);
	ck_assert_uint_gt(2 * file_bytes, 3 << 20);
}

/*
 * The sender of an import sends nothing, or too little. The import ends with an error, and exports continue meanwhile.
 */
START_TEST(a_slow_writer_is_given_up)
{
	const bool drips = _i;
	struct raw *waits = raw_operator(fix.socket);
	const struct skv_msg_user m = {.uid = OTHER + 1};
	double begin = fix_now();
	uint64_t bytes;
	int ends[2], from;

	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	raw_send(waits, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), ends[0]);
	close(ends[0]);
	from = export_next(raw, OTHER, &bytes);
	close(from);
	for (size_t n = 0; drips && write(ends[1], file + n, DRIP) == DRIP; n += DRIP)
		fix_sleep_ms(300);
	ck_assert_int_ne(raw_recv_answer(waits, 20000), SKV_MSG_SEQ_IMPORT | SKV_REPLY);
	ck_assert_msg(strstr(raw_error_text(waits), drips ? "expected 1048576 a second" : "nothing was received"), "%s",
	              raw_error_text(waits));
	ck_assert_double_lt(fix_now() - begin, patience(8));
	close(ends[1]);
	raw_close(waits);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-export");
	TCase *t;

	t = add_case(s, "other ends", 60, setup, teardown, a_slow_reader_gets_all, a_reader_that_does_not_read_is_given_up,
	             an_import_of_what_is_being_parked, closing_a_refused_file_holds_up_nobody, NULL);
	tcase_add_loop_test(t, a_slow_writer_is_given_up, 0, 2);
	add_case(s, "quota", 60, setup_quota, teardown, a_file_that_goes_ends_its_export, NULL);
	return run_suite(s);
}
