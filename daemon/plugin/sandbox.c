/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/plugin/sandbox.c - confines the process that probes a plugin; see sandbox.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <link.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/plugin/sandbox.h"

static void lack(char *lacks, size_t len, const char *what, int error)
{
	size_t n = strlen(lacks);

	snprintf(lacks + n, len - n, "%s%s (%s)", n ? ", " : "", what, strerror(error));
}

/* ---- limits and capabilities ---- */

static int limit(int what, rlim_t to)
{
	struct rlimit r = {.rlim_cur = to, .rlim_max = to};

	return setrlimit(what, &r) < 0 ? -errno : 0;
}

static int drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_capset, &header, none) < 0)
		return -errno;
	return 0;
}

/* ---- Landlock, whose system calls have no functions in C libraries ---- */

struct landlock_ruleset {
	uint64_t fs, net, scoped;
};
struct landlock_beneath {
	uint64_t allowed;
	int32_t fd;
} __attribute__((packed));
enum { LANDLOCK_VERSION = 1, LANDLOCK_BENEATH = 1 };
enum { LANDLOCK_EXECUTE = 1u << 0, LANDLOCK_READ_FILE = 1u << 2, LANDLOCK_READ_DIR = 1u << 3 };

/*
 * Sets *ret to all rights that this version of Landlock can restrict. Returns the bytes of struct landlock_ruleset that
 * the version has.
 */
static size_t everything(int version, struct landlock_ruleset *ret)
{
	static const unsigned fs_rights[] = {0, 13, 14, 15, 15, 16};

	ret->fs = (UINT64_C(1) << fs_rights[version < 5 ? version : 5]) - 1;
	ret->net = version >= 4 ? 3 : 0;    /* bits for bind and connect of TCP sockets */
	ret->scoped = version >= 6 ? 3 : 0; /* bits for abstract sockets and signals */
	return version >= 6 ? sizeof(*ret) : version >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
}

static void allow_beneath(int ruleset, const char *path, bool folder)
{
	struct landlock_beneath rule = {.allowed = LANDLOCK_READ_FILE | LANDLOCK_EXECUTE};
	SKV_FD_CLEANUP int fd = open(path, O_PATH | O_CLOEXEC);

	if (fd < 0)
		return;
	if (folder)
		rule.allowed |= LANDLOCK_READ_DIR;
	rule.fd = fd;
	(void)syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_BENEATH, &rule, 0);
}

/*
 * Allows reading the folder of a library that this program has loaded, since libraries of the plugin may be there, too.
 */
static int allow_folder_of(struct dl_phdr_info *info, size_t size, void *ruleset)
{
	const char *slash = strrchr(info->dlpi_name, '/');
	char folder[1024];

	(void)size;
	if (slash && slash > info->dlpi_name &&
	    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - info->dlpi_name), info->dlpi_name) <
	            (int)sizeof(folder))
		allow_beneath(*(int *)ruleset, folder, true);
	return 0;
}

static void allow_library_path(int ruleset)
{
	const char *path = getenv("LD_LIBRARY_PATH");
	char folder[1024];

	while (path && *path) {
		size_t len = strcspn(path, ":");

		if (len && len < sizeof(folder)) {
			snprintf(folder, sizeof(folder), "%.*s", (int)len, path);
			allow_beneath(ruleset, folder, true);
		}
		path += len + (path[len] == ':');
	}
}

static int enter_landlock(void)
{
	struct landlock_ruleset all;
	int version = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION);
	SKV_FD_CLEANUP int ruleset = -1;

	if (version <= 0)
		return version < 0 ? -errno : -ENOSYS;
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &all, everything(version, &all), 0);
	if (ruleset < 0)
		return -errno;
	dl_iterate_phdr(allow_folder_of, &ruleset);
	allow_library_path(ruleset);
	allow_beneath(ruleset, "/etc/ld.so.cache", false);
	return syscall(SYS_landlock_restrict_self, ruleset, 0) < 0 ? -errno : 0;
}

/* ---- seccomp ---- */

/* System calls that are allowed with any arguments, because they affect only this process and its files. */
static const int calls[] = {
	SCMP_SYS(read), SCMP_SYS(pread64), SCMP_SYS(readv), SCMP_SYS(write), SCMP_SYS(pwrite64), SCMP_SYS(writev),
	SCMP_SYS(lseek), SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(readlink),
	SCMP_SYS(readlinkat), SCMP_SYS(access), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mprotect),
	SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(futex), SCMP_SYS(rt_sigaction),
	SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(clock_gettime),
	SCMP_SYS(clock_nanosleep), SCMP_SYS(nanosleep), SCMP_SYS(restart_syscall), SCMP_SYS(gettimeofday),
	SCMP_SYS(getrandom), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(gettid), SCMP_SYS(getuid),
	SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(uname), SCMP_SYS(sysinfo),
	SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(getcpu), SCMP_SYS(set_robust_list),
	SCMP_SYS(rseq), SCMP_SYS(exit), SCMP_SYS(exit_group),
};

/*
 * Allows four system calls with certain arguments only: to open files for reading, query limits, send a signal to the
 * process itself, and query a terminal.
 */
static int allow_some(scmp_filter_ctx filter)
{
	const unsigned writing = O_ACCMODE | O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);
	int r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1, SCMP_A2_32(SCMP_CMP_MASKED_EQ, writing, 0));

	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 2, SCMP_A0_32(SCMP_CMP_EQ, 0, 0),
		                     SCMP_A2_64(SCMP_CMP_EQ, 0, 0));
	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
		                     SCMP_A0_32(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1_32(SCMP_CMP_EQ, TCGETS, 0));
	return r;
}

static int enter_seccomp(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int r = filter ? allow_some(filter) : -ENOMEM;

	for (size_t i = 0; r == 0 && i < sizeof(calls) / sizeof(calls[0]); i++)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, calls[i], 0);
	if (r == 0)
		r = seccomp_load(filter);
	if (filter)
		seccomp_release(filter);
	return r;
}

int skv_sandbox_enter(unsigned cpu_seconds, size_t file_bytes, char *lacks, size_t len)
{
	int r = limit(RLIMIT_CPU, cpu_seconds);

	*lacks = 0;
	if (r == 0)
		r = limit(RLIMIT_CORE, 0);
	if (r == 0)
		r = limit(RLIMIT_FSIZE, file_bytes);
	if (r == 0)
		r = limit(RLIMIT_NOFILE, 64);
	if (r == 0)
		r = limit(RLIMIT_NPROC, 0);
#ifndef SKV_SANITIZER /* not under AddressSanitizer, which reserves terabytes of addresses */
	if (r == 0)
		r = limit(RLIMIT_AS, (rlim_t)1 << 30);
#endif
	if (r == 0)
		r = drop_capabilities();
	if (r < 0)
		return r;
	r = enter_landlock();
	if (r < 0)
		lack(lacks, len, "Landlock", -r);
	r = enter_seccomp(); /* seccomp comes last, because it forbids the system calls that the steps above use */
	if (r < 0)
		lack(lacks, len, "seccomp", -r);
	return 0;
}
