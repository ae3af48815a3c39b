/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed prefixes on disk use what sequences leave of the user's quotas and of the disk; the least recently used are
 * removed first. If prefixes use more memory than they may, some are parked.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/prefix-disk.h"
#include "tests/support/privilege.h"

/* The quota has room for two prefixes: the least recently used is removed. */
START_TEST(least_recently_used)
{
	pd.options[0] = "--account-parked-bytes=5M";
	pd_begin();
	for (uint64_t seed = 1; seed <= 2; seed++) {
		pd_seal(seed, PREFIX_SEALED);
		pd_squeeze();
	}
	ck_assert_uint_eq(pd_prefix_files(), 2);
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	pd_squeeze();
	pd_seal(3, PREFIX_SEALED);
	pd_squeeze();
	pd_wait_files(2);
	ck_assert_int_eq(pd_of_prefixes("evicted"), 1);
	ck_assert_uint_eq(pd_attend(2), 0);
	ck_assert_uint_eq(pd_attend(1), PREFIX_SEALED);
	ck_assert_uint_eq(pd_attend(3), PREFIX_SEALED);
	pd_end();
}
END_TEST

/*
 * Sequences use the quota: their bytes, or (_i) their number. A prefix is removed for a sequence, and one that does not
 * fit besides is dropped.
 */
START_TEST(sequences_first)
{
	const int n = _i ? 6 : 2;
	char name[16];

	pd.options[0] = _i ? "--account-sequences=6" : "--account-parked-bytes=6M";
	pd_begin();
	for (uint64_t seed = 1; seed <= 2; seed++) {
		pd_seal(seed, PREFIX_SEALED);
		pd_squeeze();
	}
	ck_assert_uint_eq(pd_prefix_files(), 2);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "chat-%d", i);
		pd_leave(name, _i ? 20 : 700);
		ck_assert_int_eq(pd_park(name), 0);
		pd_wait_files(i + 2 < n ? 2 : i + 2 == n ? 1 : 0);
		if (i + 2 == n)
			ck_assert_uint_eq(pd_attend(2), PREFIX_SEALED);
	}
	ck_assert_int_eq(pd_figure("parking", "sequences"), n);
	pd_seal(3, PREFIX_SEALED);
	pd_squeeze();
	ck_assert_uint_eq(pd_prefix_files(), 0);
	ck_assert_uint_eq(pd_attend(3), 0);
	ck_assert_int_eq(pd_of_prefixes("evicted"), 2);
	ck_assert_int_eq(pd_figure("parking", "failed"), 0);
	ck_assert_int_eq(pd_figure("parking", "sequences"), n);
	pd_end();
}
END_TEST

/* An import that is refused, as a sequence of this name is in memory, needs no room: no prefix is removed for it. */
START_TEST(a_refused_import)
{
	const struct skv_msg_user m = {.uid = (uint32_t)getuid()};
	char path[300];
	struct skv_seq *q;
	struct raw *r;
	int fd;

	pd.options[0] = "--account-parked-bytes=5M"; /* room for two prefixes, or for one and the sequence */
	pd_begin();
	pd_leave("chat", 700);
	ck_assert_int_eq(pd_park("chat"), 0);
	ck_assert_uint_eq(pd_files("chat.parked", path, sizeof(path)), 1);
	fd = open(path, O_RDONLY | O_CLOEXEC); /* the file goes when the sequence is attached */
	ck_assert_int_ge(fd, 0);
	OK(skv_seq_attach(pd.w.session, "chat", &q));
	for (uint64_t seed = 1; seed <= 2; seed++) {
		pd_seal(seed, PREFIX_SEALED);
		pd_squeeze();
	}
	ck_assert_uint_eq(pd_prefix_files(), 2);
	r = raw_operator(pd.f.socket);
	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_IMPORT, &m, sizeof(m), fd), EEXIST);
	ck_assert_msg(strstr(raw_error_text(r), "in memory already"), "%s", raw_error_text(r));
	ck_assert_int_eq(pd_of_prefixes("evicted"), 0);
	pd_wait_files(2);
	raw_close(r);
	close(fd);
	pd_end();
}
END_TEST

/* Mounted only for the daemon. */
static void small_disk(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", pd.folder, "tmpfs", 0, "size=6M,mode=0700") < 0)
		_exit(126);
}

/*
 * The disk is full: its prefixes are removed for a sequence, and for a prefix; what still does not fit stays in memory.
 */
START_TEST(full_disk)
{
	if (!can_mount("a full disk"))
		return;
	fix_before_exec = small_disk;
	pd_begin();
	for (uint64_t seed = 1; seed <= 3; seed++) {
		pd_seal(seed, PREFIX_SEALED);
		pd_squeeze();
	}
	ck_assert_int_eq(pd_of_prefixes("parked"), 2);
	ck_assert_int_eq(pd_of_prefixes("evicted"), 1);
	pd_leave("first", 700);
	ck_assert_int_eq(pd_park("first"), 0);
	ck_assert_int_eq(pd_of_prefixes("parked"), 1);
	pd_leave("second", 700);
	ck_assert_int_eq(pd_park("second"), 0);
	ck_assert_int_eq(pd_of_prefixes("parked"), 0);
	pd_leave("third", 700);
	ck_assert_int_eq(pd_park("third"), ENOSPC);
	ck_assert_int_eq(pd_figure("parking", "sequences"), 2);
	ck_assert_int_eq(pd_figure("parking", "jobs"), 0);
	pd_end();
}
END_TEST

/* Prefixes use up the user's quota of sequences and are parked one by one; all can be read back. */
START_TEST(beyond_the_quota)
{
	pd.options[0] = "--account-sequences=16";
	pd_begin();
	for (uint64_t seed = 1; seed <= 14; seed++) {
		pd_seal(seed, 256);
		fix_sleep_ms(100);
	}
	for (int i = 0; i < 500 && pd_in_memory() > 12; i++)
		fix_sleep_ms(10);
	ck_assert_uint_le(pd_in_memory(), 12);
	for (uint64_t seed = 1; seed <= 14; seed++)
		ck_assert_uint_eq(pd_attend(seed), 256);
	ck_assert_int_gt(pd_of_prefixes("restored"), 1);
	pd_end();
}
END_TEST

#define MUTE 7 /* prefixes that are to be sent to a store that never replies */

/* A socket that accepts connections and never replies. */
static int mute_store(const char *path)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX}; /* zeroed, so that the path ends with a NUL */
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(at.sun_path, path, sizeof(at.sun_path) - 1);
	ck_assert_int_eq(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(listen(fd, 16), 0);
	return fd;
}

/* The store does not reply during the wait for each sent prefix: prefixes are evicted from memory all the same. */
START_TEST(mute)
{
	char secret[160], store[160], secret_file[96], store_path[96];
	double begin;
	int fd;

	pd.folder = fx_folder();
	snprintf(secret_file, sizeof(secret_file), "%s.secret", pd.folder);
	snprintf(store_path, sizeof(store_path), "%s.store", pd.folder);
	fx_write(secret_file, "0123456789abcdef0123456789abcdef", 32);
	ck_assert_int_eq(chmod(secret_file, 0600), 0);
	fd = mute_store(store_path);
	snprintf(secret, sizeof(secret), "--prefix-secret-file=%s", secret_file);
	snprintf(store, sizeof(store), "--prefix-store=unix://%s", store_path);
	pd.options[0] = secret;
	pd.options[1] = store;
	pd_begin();
	for (uint64_t seed = 1; seed <= MUTE; seed++)
		pd_seal(seed, 256);
	ck_assert_int_eq(pd_of_prefixes("sending"), MUTE);
	begin = fix_now();
	pd_squeeze();
	/* it takes a second to find out that a prefix is in the way */
	ck_assert_double_lt(fix_now() - begin, patience(MUTE - 1.5));
	ck_assert_uint_eq(pd_prefix_files(), MUTE);
	close(fd);
	unlink(store_path);
	unlink(secret_file);
	pd_end();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-prefix-room");
	TCase *t = add_case(s, "room", 60, NULL, NULL, least_recently_used, a_refused_import, full_disk, beyond_the_quota, mute, NULL);

	tcase_add_loop_test(t, sequences_first, 0, 2);
	return run_suite(s);
}
