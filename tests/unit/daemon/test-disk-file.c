/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of parked sequences, as the disk worker writes and reads them: what is resumed is what was parked, damage is
 * found, and under a name there is a complete file or none.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/core/core.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/disk-fixture.h"
#include "tests/support/privilege.h"
#include "tests/support/suite.h"


/* ---- sums ------------------------------------------------------------------------------------ */

START_TEST(sums_are_those_of_rfc_3720)
{
	unsigned char b[32], pdu[48] = {0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02};
	unsigned char *long_one = malloc(20000);

	memset(b, 0, sizeof(b));
	ck_assert_uint_eq(skv_crc32c(0, b, 32), 0x8a9136aau);
	memset(b, 0xff, sizeof(b));
	ck_assert_uint_eq(skv_crc32c(0, b, 32), 0x62a8ab43u);
	for (unsigned char i = 0; i < 32; i++)
		b[i] = i;
	ck_assert_uint_eq(skv_crc32c(0, b, 32), 0x46dd794eu);
	for (unsigned char i = 0; i < 32; i++)
		b[i] = 31 - i;
	ck_assert_uint_eq(skv_crc32c(0, b, 32), 0x113fdb5cu);
	ck_assert_uint_eq(skv_crc32c(0, pdu, 48), 0xd9963a56u);
	/* in parts of any length it is the same */
	rnd_bytes(long_one, 20000);
	for (int round = 0; round < 200; round++) {
		uint32_t n = rnd_below(20001), bits = ~0u;

		for (uint32_t i = 0; i < n && round < 20; i++)
			for (int bit = 0; bit < 8; bit++)
				bits = bits >> 1 ^ ((bits ^ long_one[i] >> bit) & 1 ? 0x82f63b78u : 0);
		if (round < 20)
			ck_assert_uint_eq(skv_crc32c(0, long_one, n), ~bits);
		uint32_t k = rnd_below(n + 1);

		ck_assert_uint_eq(skv_crc32c(skv_crc32c(0, long_one, k), long_one + k, n - k), skv_crc32c(0, long_one, n));
	}
	free(long_one);
}
END_TEST

/* ---- there and back -------------------------------------------------------------------------- */

static void there_and_back(struct parked_case *c)
{
	struct stat st;

	DISK_EXPECT(disk_park(c), 0);
	ck_assert_uint_eq(disk_count_files(), 1);
	ck_assert_int_eq(fstatat(disk.folder, c->job.file, &st, 0), 0);
	ck_assert_uint_eq(st.st_mode, S_IFREG | 0600);
	ck_assert_uint_eq(disk.answer.bytes, (uint64_t)st.st_size);
	disk_expect_resumes(c);
	ck_assert_uint_eq(disk.answer.bytes, (uint64_t)st.st_size - SKV_PARKED_ALIGN);
	ck_assert_int_eq(unlinkat(disk.folder, c->job.file, 0), 0);
	parked_case_free(c);
}

START_TEST(what_was_parked_comes_back)
{
	struct parked_case c;

	for (int i = 0; i < (slowed() ? 10 : 60); i++) {
		parked_case_random(&c);
		there_and_back(&c);
	}
}
END_TEST

/*
 * A page larger than a chunk; pages that are no multiple of a block, as many as fit into a chunk, one more and one
 * less; no pages.
 */
START_TEST(all_sizes_come_back)
{
	struct skv_wire_model wide = parked_model(1, 64, 64, 256, SKV_F32), odd = parked_model(1, 2, 2, 32, SKV_FP8),
	                      small = parked_model(2, 1, 1, 16, SKV_FP8);
	struct parked_case c;

	parked_case_make(&c, &wide, 100, 90, 70);
	there_and_back(&c);
	for (uint32_t pages = 495; pages <= 497; pages++) { /* a chunk has 496 of 2112 bytes */
		parked_case_make(&c, &odd, 10000, pages * SKV_PAGE_TOKENS, 0);
		ck_assert_uint_eq(c.job.page_bytes, 2112);
		for (uint32_t i = 0; i < pages; i++)
			c.entries[i] = skv_pte_make(SKV_PTE_PRIVATE, c.ids[i]);
		c.job.n_pages = pages;
		there_and_back(&c);
	}
	for (uint32_t len = 0; len <= 3000; len += 3000) {
		parked_case_make(&c, &small, 3000, len, 0);
		ck_assert_uint_eq(c.job.n_pages, 0);
		there_and_back(&c);
	}
	parked_case_make(&c, &small, 200000, 199999, 100); /* more ids and entries than fit into a piece or window */
	there_and_back(&c);
}
END_TEST

/*
 * From now on workers may pin memory for a ring, but not for buffers: other processes of the user may have used up the
 * limit.
 */
static void limit_pinned_memory(void)
{
	struct parked_case c;
	struct rlimit r;
	int error;

	parked_case_random(&c);
	ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &r), 0);
	r.rlim_cur = 0;
	do {
		r.rlim_cur += 1 << 20;
		ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &r), 0);
		disk_worker_start();
		error = disk_park(&c);
		ck_assert_msg(error == 0 || error == -ENOMEM, "%s", disk.answer.why);
		disk_worker_stop();
	} while (error);
	ck_assert_int_eq(unlinkat(disk.folder, c.job.file, 0), 0);
	parked_case_free(&c);
	r.rlim_cur += 2 << 20;
	(void)setrlimit(RLIMIT_MEMLOCK, &r);
}

/* Without pinned memory, and on a file system in memory. */
START_TEST(no_pinned_memory_and_no_disk_will_do)
{
	const struct disk_fixture was = disk;

	disk_worker_stop();
	if (unshare(CLONE_NEWUSER) == 0) /* the capability to exceed the limit belongs to the initial namespace */
		limit_pinned_memory();
	else
		printf("no user namespaces here: with pinned memory\n");
	setenv("TMPDIR", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", 1);
	disk_begin();
	what_was_parked_comes_back_fn(0);
	disk_remove_folders();
	disk.root_dir = was.root_dir;
	disk.dir = was.dir;
	disk.root = was.root;
	disk.folder = was.folder;
}
END_TEST

/* Models and sequences may have any name; different names give different files. */
START_TEST(files_have_names_of_their_own)
{
	char a[SKV_PARKED_FILE], b[SKV_PARKED_FILE], long_name[SKV_NAME_MAX];

	memset(long_name, '~', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	skv_parked_file("a/b", 0, 1, "..", a);
	ck_assert_uint_eq(strspn(a, "0123456789abcdef"), 16);
	ck_assert_str_eq(a + 16, "-...parked");
	skv_parked_file("a/b", 0, 2, "..", b);
	ck_assert_str_ne(a, b);
	skv_parked_file("a/b", 1, 2, "..", a);
	ck_assert_str_ne(a, b);
	skv_parked_file("a_b", 1, 2, "..", b);
	ck_assert_str_ne(a, b);
	skv_parked_file(long_name, UINT32_MAX - 1, UINT32_MAX, long_name, a);
	ck_assert_uint_eq(strlen(a), 17 + SKV_NAME_MAX - 1 + strlen(".parked"));
}
END_TEST

/* ---- refused jobs ------------------------------------------------------------------------------ */

/* The job fails with this error and text, and leaves no file. */
static void expect_park_refused(const struct parked_case *c, const struct skv_disk_job *job, int error, const char *says)
{
	struct parked_case changed = *c;

	changed.job = *job;
	DISK_EXPECT(disk_park(&changed), error);
	ck_assert_msg(strstr(disk.answer.why, says), "%s", disk.answer.why);
	ck_assert_uint_eq(disk_count_files(), 0);
}

static void expect_resume_refused(const struct parked_case *was, const struct skv_disk_job *job, int error, const char *says)
{
	struct parked_case *to = parked_target(was);

	to->job = *job;
	to->job.kind = SKV_DISK_RESUME;
	DISK_EXPECT(disk_resume(to), error);
	ck_assert_msg(strstr(disk.answer.why, says), "%s", disk.answer.why);
	parked_case_free(to);
	free(to);
}

/*
 * From now on this user, which may open all files as before, can have this process and one that it starts, but no
 * further thread.
 */
static void limit_processes(void)
{
	const int beyond_limits[] = {CAP_SYS_RESOURCE, CAP_SYS_ADMIN};
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

	ck_assert_int_eq(setrlimit(RLIMIT_NPROC, &(struct rlimit){2, 2}), 0);
	ck_assert_int_eq(setresuid(1000000u + (uid_t)getpid(), 0, 0), 0);
	ck_assert_int_eq(syscall(SYS_capget, &header, caps), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(prctl(PR_CAPBSET_DROP, beyond_limits[i], 0, 0, 0), 0); /* for the next program */
		caps[CAP_TO_INDEX(beyond_limits[i])].effective &= ~CAP_TO_MASK(beyond_limits[i]);
	}
	ck_assert_int_eq(syscall(SYS_capset, &header, caps), 0);
}

/* The file stays, and a worker that can have a thread reads it. */
START_TEST(no_thread_is_said)
{
	struct parked_case c;
	pid_t child;

	if (!can_change_user() || !has_capability(CAP_SETPCAP) || slowed()) {
		printf("no right to become another user, or a sanitizer, which takes threads of its own: not run\n");
		return;
	}
	parked_case_random(&c);
	DISK_EXPECT(disk_park(&c), 0);
	disk_worker_stop();
	child = child_fork();
	if (child == 0) {
		limit_processes();
		disk_worker_start();
		expect_resume_refused(&c, &c.job, -EAGAIN, "no thread");
		disk_worker_stop();
		_exit(0);
	}
	child_wait(child);
	disk_worker_start();
	disk_expect_resumes(&c);
	parked_case_free(&c);
}
END_TEST

START_TEST(jobs_that_do_not_fit_are_refused)
{
	struct skv_wire_model m = parked_model(2, 2, 1, 32, SKV_BF16);
	struct parked_case c;
	int fds[600];

	for (int i = 0; i < 600; i++)
		fds[i] = disk.root;
	disk_post(&(struct skv_disk_job){.kind = 77, .n_fds = 600}, fds);
	disk_wait();
	DISK_EXPECT(disk.answer.error, -EINVAL);
	parked_case_make(&c, &m, 500, 400, 60);
#define PARK(field, value, error, says) \
	do { \
		struct skv_disk_job job = c.job; \
		job.field = value; \
		expect_park_refused(&c, &job, error, says); \
	} while (0)
#define RESUME(field, value, error, says) \
	do { \
		struct skv_disk_job job = c.job; \
		job.field = value; \
		expect_resume_refused(&c, &job, error, says); \
	} while (0)
	PARK(commit, c.job.commit + (UINT64_C(1) << 32), -EBUSY, "is being written to");
	PARK(max_tokens, 480, -EINVAL, "another shape");
	PARK(n_entries, c.job.n_entries - 1, -EINVAL, "page table entries");
	PARK(n_pages, c.job.n_pages - 1, -EINVAL, "pages, its job says");
	PARK(page_bytes, 4096, -EINVAL, "another size");
	PARK(max_pages, 5, -EINVAL, "there are 5");
	PARK(max_bytes, 20000, -EDQUOT, "expected at most 20000");
	PARK(model.head_dim, 17, -EINVAL, "head_dim");
	DISK_EXPECT(disk_park(&c), 0);
	RESUME(max_tokens, 480, -EBADMSG, "may have 500 tokens, expected 480");
	RESUME(n_pages, c.job.n_pages + 1, -EBADMSG, "pages of");
	RESUME(model.n_heads, 3, -EBADMSG, "another shape or rank");
	RESUME(model.rank, 5, -EBADMSG, "another shape or rank");
	RESUME(model.name[0], 'x', -EBADMSG, "org/made-up_7B");
	RESUME(name[0], 'x', -EBADMSG, "the file is of sequence 'chat-{17}~'");
	RESUME(file[3], 'x', -ENOENT, "cannot be opened");
	RESUME(max_pages, 1, -EINVAL, "there are 1");
	parked_case_free(&c);
}
END_TEST

static void *commit_later(void *arg)
{
	const struct parked_case *c = arg;
	uint64_t commit = c->job.commit + 1;

	usleep(rnd_below(30000));
	ck_assert_int_eq(pwrite(c->seq, &commit, sizeof(commit), offsetof(struct skv_seqmem, commit)), sizeof(commit));
	return NULL;
}

/* A step commits while the sequence is parked: the copied memory may then be of two commits. */
START_TEST(commits_while_it_is_parked_are_seen)
{
	struct skv_wire_model m = parked_model(4, 8, 8, 128, SKV_BF16);
	struct parked_case c;
	int seen = 0;

	parked_case_make(&c, &m, 2000, 1900, 60);
	for (int i = 0; seen < 3; i++) {
		pthread_t t;

		ck_assert_int_lt(i, 300);
		ck_assert_int_eq(pwrite(c.seq, &c.job.commit, 8, offsetof(struct skv_seqmem, commit)), 8);
		ck_assert_int_eq(pthread_create(&t, NULL, commit_later, &c), 0);
		disk_park(&c);
		pthread_join(t, NULL);
		ck_assert(disk.answer.error == 0 || disk.answer.error == -EBUSY);
		seen += disk.answer.error && disk.answer.bytes; /* it had begun */
		ck_assert_uint_eq(disk_count_files(), disk.answer.error == 0);
		if (disk.answer.error == 0)
			ck_assert_int_eq(unlinkat(disk.folder, c.job.file, 0), 0);
	}
	parked_case_free(&c);
}
END_TEST

/* ---- full disks -------------------------------------------------------------------------------- */

START_TEST(a_full_disk_has_no_part_of_a_file)
{
	struct skv_wire_model m = parked_model(2, 8, 8, 128, SKV_BF16);
	const struct rlimit most = {1 << 20, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
	struct parked_case c;

	parked_case_make(&c, &m, 2000, 1000, 90);
	disk_worker_stop();
	signal(SIGXFSZ, SIG_DFL);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
	disk_worker_start();
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &any), 0);
	expect_park_refused(&c, &c.job, -EFBIG, "disk space for");
	disk_worker_stop();
	if (has_capability(CAP_SYS_ADMIN) && unshare(CLONE_NEWNS) == 0 &&
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", disk.dir, "tmpfs", 0, "size=4m") == 0) {
		disk_close_folders();
		disk_open_folders();
		disk_worker_start();
		expect_park_refused(&c, &c.job, -ENOSPC, "disk space for");
		do {
			parked_case_free(&c);
			parked_case_random(&c);
		} while (c.job.n_pages * c.job.page_bytes > 3 << 20);
		there_and_back(&c); /* there is room for this one, so nothing of the other has stayed */
		disk_close_folders();
		umount2(disk.dir, MNT_DETACH);
		disk_open_folders();
		return;
	}
	printf("no tmpfs can be mounted here\n");
	parked_case_free(&c);
	disk_worker_start();
}
END_TEST

/* ---- workers that die ------------------------------------------------------------------------ */

/* The file is one of the two sequences of this name, complete. */
static bool expect_one_of(const struct parked_case *a, const struct parked_case *b)
{
	struct skv_parked_header h;
	int fd = openat(disk.folder, a->job.file, O_RDONLY | O_CLOEXEC);
	bool first;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, &h, sizeof(h), 0), sizeof(h));
	close(fd);
	first = h.commit == a->job.commit;
	disk_expect_resumes(first ? a : b);
	return first;
}

START_TEST(killed_workers_leave_the_old_file_or_the_new_one)
{
	struct skv_wire_model m = parked_model(2, 4, 4, 64, SKV_BF16);
	struct parked_case old, new;
	double begin = fix_now(), seconds;

	parked_case_make(&old, &m, 1000, 900, 60);
	parked_case_make(&new, &m, 1000, 1000, 60);
	DISK_EXPECT(disk_park(&old), 0);
	begin = fix_now();
	DISK_EXPECT(disk_park(&old), 0);
	seconds = fix_now() - begin;
	for (int i = 0; i < (slowed() ? 10 : 25); i++) {
		char left[32];

		disk_park_post(&new);
		usleep((useconds_t)(rnd_unit() * 1.5e6 * seconds));
		snprintf(left, sizeof(left), ".new-%d", disk.pid);
		disk_worker_kill();
		(void)unlinkat(disk.folder, left, 0); /* killed between its first name and the last one */
		ck_assert_uint_eq(disk_count_files(), 1);
		disk_worker_start();
		if (!expect_one_of(&old, &new))
			DISK_EXPECT(disk_park(&old), 0);
	}
	parked_case_free(&old);
	parked_case_free(&new);
}
END_TEST

/* ---- imports ----------------------------------------------------------------------------------- */

struct feed {
	const char *data;
	size_t bytes;
	int to;
	bool slow; /* it waits in the middle */
};

static void *feed(void *arg)
{
	const struct feed *f = arg;

	signal(SIGPIPE, SIG_IGN);
	for (size_t at = 0; at < f->bytes;) {
		size_t n = 1 + rnd_below(rnd_below(2) ? 100000 : 5000);
		ssize_t wrote;

		if (f->slow && at < f->bytes / 2 && at + n >= f->bytes / 2)
			usleep(2500000);
		wrote = write(f->to, f->data + at, n < f->bytes - at ? n : f->bytes - at);
		if (wrote < 0)
			break;
		at += (size_t)wrote;
	}
	close(f->to);
	return NULL;
}

static int import_pipe(const char *data, size_t bytes, bool slow)
{
	struct feed f = {.data = data, .bytes = bytes, .slow = slow};
	pthread_t t;
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	f.to = ends[1];
	ck_assert_int_eq(pthread_create(&t, NULL, feed, &f), 0);
	disk_import(ends[0], UINT64_MAX);
	close(ends[0]);
	pthread_join(t, NULL);
	return disk.answer.error;
}

/* Returns the file of a parked sequence, and removes it from the folder. */
static char *parked_bytes(const struct parked_case *c, size_t *ret_bytes)
{
	char *data;

	DISK_EXPECT(disk_park(c), 0);
	data = fx_read(fx_path(disk.dir, c->job.file), ret_bytes);
	ck_assert_int_eq(unlinkat(disk.folder, c->job.file, 0), 0);
	return data;
}

static int import_file(const char *data, size_t bytes, uint64_t max_bytes)
{
	int fd;

	fx_write(fx_path(disk.dir, "from"), data, bytes);
	fd = openat(disk.folder, "from", O_RDONLY | O_CLOEXEC);
	unlinkat(disk.folder, "from", 0);
	lseek(fd, rnd_below(2) ? 10 : 0, SEEK_SET); /* the offset does not matter */
	disk_import(fd, max_bytes);
	close(fd);
	return disk.answer.error;
}

START_TEST(imports_are_what_was_parked)
{
	for (int i = 0; i < (slowed() ? 4 : 20); i++) {
		struct parked_case c;
		struct skv_parked_header *h;
		size_t bytes, again;
		char *data, *imported;

		parked_case_random(&c);
		data = parked_bytes(&c, &bytes);
		h = (void *)data;
		h->uid = 77; /* another user, on another machine */
		skv_parked_seal(h);
		DISK_EXPECT(i % 2 ? import_file(data, bytes, bytes) : import_pipe(data, bytes, false), 0);
		ck_assert_str_eq(disk.answer.file, c.job.file);
		imported = fx_read(fx_path(disk.dir, disk.answer.file), &again);
		h->uid = PARKED_UID;
		/* the time of the import */
		ck_assert_uint_gt(((struct skv_parked_header *)(void *)imported)->parked_ns, h->parked_ns);
		h->parked_ns = ((struct skv_parked_header *)(void *)imported)->parked_ns;
		skv_parked_seal(h);
		ck_assert_uint_eq(again, bytes);
		ck_assert_mem_eq(data, imported, bytes);
		disk_expect_resumes(&c);
		DISK_EXPECT(import_file(data, bytes, bytes), -EEXIST);
		ck_assert_int_eq(unlinkat(disk.folder, c.job.file, 0), 0);
		DISK_EXPECT(import_file(data, bytes, bytes - 1), -EDQUOT);
		DISK_EXPECT(import_file(data, bytes + 1, bytes), -EBADMSG); /* fx_read() appended a NUL */
		ck_assert_msg(strstr(disk.answer.why, "bytes, its header says"), "%s", disk.answer.why);
		again = rnd_below((uint32_t)bytes);
		DISK_EXPECT(import_pipe(data, again, false), -EBADMSG);
		ck_assert_msg(strstr(disk.answer.why, "the file ends after"), "%s", disk.answer.why);
		ck_assert_uint_eq(disk_count_files(), 0);
		free(data);
		free(imported);
		parked_case_free(&c);
	}
}
END_TEST

/* While a pipe sends nothing, the worker reports that it is alive, and has the lock. */
static bool is_locked(void)
{
	int fd = open(disk.root_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool locked = flock(fd, LOCK_EX | LOCK_NB) < 0;

	close(fd);
	return locked;
}

START_TEST(workers_that_wait_say_so)
{
	const struct skv_disk_job job = {.kind = SKV_DISK_IMPORT, .n_fds = 3, .max_bytes = UINT64_MAX, .patience_ms = 10000};
	struct parked_case c;
	size_t bytes;
	char *data;
	int ends[2], fds[3] = {disk.root, disk.root};

	parked_case_random(&c);
	data = parked_bytes(&c, &bytes);
	ck_assert(!is_locked());
	DISK_EXPECT(import_pipe(data, bytes, true), 0);
	ck_assert_uint_ge(disk.more, 1);
	ck_assert_uint_le(disk.more, 4);
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	fds[2] = ends[0];
	disk_post(&job, fds);
	ck_assert_int_eq(recv(disk.socket, &disk.answer, sizeof(disk.answer), 0), sizeof(disk.answer));
	ck_assert_uint_eq(disk.answer.more, 1);
	ck_assert(is_locked());
	disk_worker_kill();
	ck_assert(!is_locked());
	/* and once its socket is closed it ends by itself */
	disk_worker_start();
	disk_post(&job, fds);
	shutdown(disk.socket, SHUT_RDWR);
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)disk.pidfd, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
	disk_worker_kill();
	disk_worker_start();
	close(ends[0]);
	close(ends[1]);
	free(data);
	parked_case_free(&c);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("disk-file");

	add_case(s, "there and back", 60, disk_begin, disk_end, sums_are_those_of_rfc_3720, what_was_parked_comes_back, all_sizes_come_back,
	         no_pinned_memory_and_no_disk_will_do, files_have_names_of_their_own, NULL);
	add_case(s, "failures", 60, disk_begin, disk_end, jobs_that_do_not_fit_are_refused, no_thread_is_said, commits_while_it_is_parked_are_seen,
	         a_full_disk_has_no_part_of_a_file, killed_workers_leave_the_old_file_or_the_new_one, NULL);
	add_case(s, "imports", 60, disk_begin, disk_end, imports_are_what_was_parked, workers_that_wait_say_so, NULL);
	return run_suite(s);
}
