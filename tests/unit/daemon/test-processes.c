/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every lasting process of a daemon - the keeper, the daemon, its disk workers and the probe - has data of all users:
 * no other process of its user may inspect it, and it dumps no core. Its files and sockets have the intended modes,
 * whatever the umask.
 *
 * As root the test runs the daemon as another user, since root may inspect any process.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/privilege.h"
#include "tests/support/suite.h"

#define USER 990u
#define PROCESSES_MOST 16u

static char dir[64], own[80], socket_path[96], program[96]; /* `own`: folder of the test's files */
static uid_t user; /* 0: the test's own user */
static pid_t keeper;

/* ---- a keeper ---------------------------------------------------------------------------------- */

static void copy(const char *built, const char *name)
{
	size_t n;
	char *bytes = fx_read(fix_built(built), &n);
	const char *to = fx_path(own, name);

	fx_write(to, bytes, n);
	ck_assert_int_eq(chmod(to, 0755), 0);
	free(bytes);
}

static void make_folder(const char *path, mode_t mode)
{
	ck_assert(mkdir(path, 0700) == 0 || mode == 0755);
	ck_assert_int_eq(chmod(path, mode), 0);
	if (user)
		ck_assert_int_eq(chown(path, user, user), 0);
}

static void become_keeper(void)
{
	char at[128], parked[128], policies[128];

	snprintf(at, sizeof(at), "--socket=%s", socket_path);
	snprintf(parked, sizeof(parked), "--parked-path=%s/parked", dir);
	snprintf(policies, sizeof(policies), "--policy-path=%s", own);
	unsetenv("SPARSEKV_DEBUG");
	setenv("LSAN_OPTIONS", "detect_leaks=0", 1); /* it would inspect its own process */
	umask(0);
	if (user && (setgid(user) < 0 || setuid(user) < 0))
		_exit(126);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	execl(program, program, "--keeper", "--config=/dev/null", at, parked, policies, "--pool-bytes=64M", "--segment-bytes=1M", "--cuda=off",
	      "--probe-timeout=30", NULL);
	_exit(127);
}

static void setup(void)
{
	struct fix f = {0};

	user = can_change_user() ? USER : 0;
	strcpy(dir, "/tmp/skv-processes.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	make_folder(dir, 0755);
	make_folder(fx_path(dir, "parked"), 0700);
	snprintf(own, sizeof(own), "%s/own", dir);
	make_folder(own, 0755);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
	snprintf(program, sizeof(program), "%s/sparsekvd", own);
	copy("daemon/sparsekvd", "sparsekvd");
	copy("daemon/sparsekv-probe", "sparsekv-probe");
	copy("daemon/sparsekv-worker", "sparsekv-worker");
	copy("policies/.libs/full.so", "full.so");
	keeper = fork();
	ck_assert_int_ge(keeper, 0);
	if (keeper == 0)
		become_keeper();
	snprintf(f.socket, sizeof(f.socket), "%s", socket_path);
	f.pid = keeper;
	fix_wait(&f);
}

static int remove_it(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	(void)st, (void)flag, (void)at;
	return remove(path);
}

static void teardown(void)
{
	int status;

	ck_assert_int_eq(kill(keeper, SIGTERM), 0);
	ck_assert_int_eq(waitpid(keeper, &status, 0), keeper);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(nftw(dir, remove_it, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- its processes ----------------------------------------------------------------------------- */

struct process {
	pid_t pid, parent;
	char name[32];
};

/* Returns false if the process no longer exists. */
static bool read_process(pid_t pid, struct process *ret)
{
	char path[64], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	*ret = (struct process){.pid = pid};
	while (f && fgets(line, sizeof(line), f)) {
		(void)sscanf(line, "Name: %31s", ret->name);
		(void)sscanf(line, "PPid: %d", &ret->parent);
	}
	return f && fclose(f) == 0;
}

static bool is_in(const struct process *all, unsigned n, pid_t pid)
{
	while (n > 0 && all[n - 1].pid != pid)
		n--;
	return n > 0;
}

/* Lists the keeper and all its descendants. */
static unsigned list(struct process all[PROCESSES_MOST])
{
	unsigned n = 0, before;

	ck_assert(read_process(keeper, &all[n++]));
	do {
		DIR *d = opendir("/proc");

		before = n;
		for (struct dirent *e; (e = readdir(d)) && n < PROCESSES_MOST;) {
			const pid_t pid = atoi(e->d_name);

			if (pid > 0 && !is_in(all, n, pid) && read_process(pid, &all[n]) && is_in(all, n, all[n].parent))
				n++;
		}
		closedir(d);
	} while (n > before);
	return n;
}

static bool has_name(const struct process *all, unsigned n, const char *name)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(all[i].name, name))
			return true;
	return false;
}

/* Runs as a process of the same user. */
static void look_into(void *process)
{
	static const char *const files[] = {"mem", "maps", "environ", "fd"};
	const struct process *p = process;
	char path[64];

	for (unsigned i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", (int)p->pid, files[i]);
		ck_assert_msg(open(path, O_RDONLY) < 0, "%s, process %d: its user can open %s", p->name, (int)p->pid, path);
	}
}

static void check_limit(const struct process *p)
{
	char path[64], line[256];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/limits", (int)p->pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		char soft[32], hard[32];

		if (sscanf(line, "Max core file size %31s %31s", soft, hard) != 2)
			continue;
		found = true;
		ck_assert_msg(!strcmp(soft, "0") && !strcmp(hard, "0"), "%s: %s", p->name, line);
	}
	fclose(f);
	ck_assert(found);
}

/* Loads a policy that hangs: its probe keeps running. */
static struct raw *load_hanging(void)
{
	struct raw *op = raw_operator(socket_path);
	struct skv_msg_name m = {.name = "bad-hang.so"};
	size_t n;
	char *bytes = fx_read(fix_built("tests/support/plugins/.libs/bad-hang.so"), &n);
	const int fd = skv_memfd_new_sealed("policy", bytes, n);

	raw_send(op, SKV_MSG_POLICY_LOAD, &m, sizeof(m), fd);
	close(fd);
	free(bytes);
	return op;
}

START_TEST(nobody_looks_into_them)
{
	static const char *const expected[] = {"sparsekvd", "sparsekvd-disk", "sparsekv-probe"};
	const double end = fix_now() + 20;
	struct process all[PROCESSES_MOST];
	struct raw *r, *op;
	unsigned n, i = 0;

	raw_leave_sequence(socket_path, "first");
	r = raw_hello(socket_path);
	ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, "m", "first"), 0);
	op = load_hanging();
	while (i < 3 && fix_now() < end) {
		n = list(all);
		i += has_name(all, n, expected[i]);
	}
	ck_assert_msg(i == 3, "there is no %s", expected[i]);
	usleep(100000); /* the last one may have just started */
	for (i = 0; i < n; i++) {
		check_limit(&all[i]);
		if (user || getuid() != 0) /* root may open /proc files of any process */
			fix_in_child(user, look_into, &all[i]);
	}
	raw_close(op);
	raw_close(r);
}
END_TEST

/* ---- its files --------------------------------------------------------------------------------- */

static unsigned n_files;

static int check_mode(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	const char *name = path + at->base;
	const mode_t mode = st->st_mode & 07777;
	mode_t expected = flag == FTW_D ? 0700 : 0600;

	if (!strcmp(path, dir) || !strncmp(path, own, strlen(own)))
		return 0;
	if (!strcmp(name, "socket"))
		expected = 0666;
	ck_assert_msg(mode == expected, "%s has mode %04o, expected %04o", path, (unsigned)mode, (unsigned)expected);
	n_files++;
	return 0;
}

START_TEST(files_are_its_users)
{
	struct raw *r;

	raw_leave_sequence(socket_path, "first");
	r = raw_hello(socket_path);
	ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_PARK, "m", "first"), 0);
	raw_close(r);
	ck_assert_int_eq(nftw(dir, check_mode, 16, FTW_PHYS), 0);
	ck_assert_uint_eq(n_files, 8); /* three sockets, two locks; the folder, the user's folder, the sequence */
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-processes");

	add_case(s, "processes", 60, setup, teardown, nobody_looks_into_them, files_are_its_users, NULL);
	return run_suite(s);
}
