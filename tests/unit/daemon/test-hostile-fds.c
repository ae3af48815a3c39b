/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors as an attack: closing them takes as long as their owner likes. A client sends them before and after
 * HELLO, on as many connections as it may have; another user's leases must not take longer.
 *
 * With HOSTILE_FDS=1000 (make check-hostile) there are so many of each kind, and the time limits are those for an idle
 * machine. As root the attacker is another user, and there are files of a FUSE server.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/hung-files.h"
#include "tests/support/privilege.h"
#include "tests/support/suite.h"

#define HOSTILE_UID 54321u
#define AT_ONCE 16u           /* descriptors in a message */
#define BIG_BYTES (64u << 20) /* memory that is freed when it is closed */
#define OPERATIONS 4000u      /* minimum for the honest client */

enum kind { HUNG_FILE, HUNG_SOCKET, BIG_MEMORY, KINDS };
static const char *const kind_names[KINDS] = {"files of a hung FUSE server", "sockets that linger", "large memory"};

static struct fix fix;
static struct hung_fs fs;
static bool have_fs;

static unsigned how_many(enum kind kind)
{
	const char *asked = getenv("HOSTILE_FDS");
	unsigned n = asked ? (unsigned)atoi(asked) : 64;

	return kind == BIG_MEMORY ? n / 16 : n; /* memory is limited */
}

static double limit_ms(void)
{
	return getenv("HOSTILE_FDS") && !slowed() ? 5 : 250;
}

static void setup(void)
{
	have_fs = hung_fs_start(&fs);
	if (!have_fs)
		printf("no FUSE, or not root: no files of a hung server\n");
	fix_start_process(&fix, NULL);
}

/* Simulates a kernel that cannot refuse descriptors: the daemon has to check for itself. */
static void old_kernel(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);

	if (!filter ||
	    seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOPROTOOPT), SCMP_SYS(setsockopt), 1, SCMP_A2_32(SCMP_CMP_EQ, 83, 0)) ||
	    seccomp_load(filter))
		_exit(126);
}

static void setup_old(void)
{
	fix_before_exec = old_kernel;
	setup();
}

/* ---- the attacker ---- */

static int hostile_fd(enum kind kind)
{
	int fd;
	char *map;

	if (kind == HUNG_FILE)
		return hung_fs_open(&fs);
	if (kind == HUNG_SOCKET)
		return hung_socket();
	fd = memfd_create("big", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, BIG_BYTES), 0);
	map = mmap(NULL, BIG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	ck_assert_ptr_ne(map, MAP_FAILED);
	munmap(map, BIG_BYTES);
	return fd;
}

static int dial(bool greet)
{
	struct {
		struct skv_msg_header h;
		struct skv_msg_hello m;
	} hello = {{.length = sizeof(hello), .type = SKV_MSG_HELLO, .serial = 1},
	           {.version_min = 1, .version_max = 1, .program = "hostile"}};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char answer[256];

	strcpy(addr.sun_path, fix.socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	if (greet)
		(void)!(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) > 0 && recv(fd, answer, sizeof(answer), 0) > 0);
	return fd;
}

/* Sends a valid request with descriptors. Returns the errno, or 0. */
static int send_fds(int to, const int *fds, unsigned n)
{
	struct {
		struct skv_msg_header h;
		struct skv_msg_query q;
	} packet = {{.length = sizeof(packet), .type = SKV_MSG_QUERY, .serial = 2}, {.what = SKV_QUERY_STATUS}};
	union {
		char space[CMSG_SPACE(AT_ONCE * sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {&packet, sizeof(packet)};
	struct msghdr msg = {.msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = &control,
	                     .msg_controllen = CMSG_SPACE(n * sizeof(int))};

	packet.h.n_fds = (uint16_t)n;
	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_RIGHTS;
	control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(&control.align), fds, n * sizeof(int));
	return sendmsg(to, &msg, MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* What was sent. The attack is killed as soon as the test has seen enough. */
struct attack {
	enum kind kind;
	bool greet;
	unsigned sent, refused; /* descriptors that the daemon's socket accepted; that the kernel refused to send */
};

/* If the daemon has closed its copies first, this is the last close, which then hangs here. */
static void *close_all(void *fds)
{
	for (const int *fd = fds; *fd >= 0; fd++)
		close(*fd);
	free(fds);
	return NULL;
}

static void close_aside(const int *fds, unsigned n)
{
	int *mine = malloc((n + 1) * sizeof(*mine));
	pthread_t thread;

	memcpy(mine, fds, n * sizeof(*mine));
	mine[n] = -1;
	ck_assert_int_eq(pthread_create(&thread, NULL, close_all, mine), 0);
	pthread_detach(thread);
}

static void attack(struct attack *a)
{
	unsigned n = how_many(a->kind), per = a->kind == BIG_MEMORY ? 2 : AT_ONCE;
	int fds[AT_ONCE];

	for (unsigned done = 0; done < n; done += per) {
		int to = dial(a->greet), error;

		for (unsigned i = 0; i < per; i++)
			fds[i] = hostile_fd(a->kind);
		error = send_fds(to, fds, per);
		a->sent += error ? 0 : per;
		a->refused += error == EPERM ? per : 0;
		/* so that the daemon's copy is the last one; but a FUSE file asks its server at each close */
		if (!error && a->kind != HUNG_FILE)
			close_aside(fds, per);
		if (done % (4 * per)) /* some hang up at once, before their message is received */
			close(to);
	}
}

static pid_t start_attack(struct attack *a)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		struct rlimit most = {1 << 16, 1 << 16};

		(void)setrlimit(RLIMIT_NOFILE, &most);
		if (can_change_user() && (setgid(HOSTILE_UID) < 0 || setuid(HOSTILE_UID) < 0))
			_exit(2);
		attack(a);
		raise(SIGSTOP); /* all that it has stays open */
		_exit(0);
	}
	return pid;
}

/* ---- the other user ---- */

static int ascending(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

/*
 * Leases and returns pages until the attackers are done and so many operations have run. Returns the times in ms,
 * sorted; the caller frees them.
 */
static double *live_through(pid_t *attackers, unsigned n_attackers, unsigned *ret_n)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "good", "full", NULL);
	struct skv_msg_lease_get get = {.session = session, .least = 16, .most = 16};
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run run;
	} put = {{.session = session, .n_runs = 1}, {0, 0}};
	double *times = NULL;
	unsigned n = 0, stopped = 0;

	while (n < OPERATIONS || stopped < n_attackers) {
		double begin = fix_now();
		int status;

		put.run = *(const struct skv_wire_run *)((const struct skv_msg_runs *)raw_ask(r, SKV_MSG_LEASE_GET, &get,
		                                                                              sizeof(get), -1) + 1);
		raw_ask(r, SKV_MSG_LEASE_PUT, &put, sizeof(put), -1);
		if (n % 4096 == 0) {
			times = realloc(times, (n + 4096) * sizeof(*times));
			ck_assert_ptr_nonnull(times);
		}
		times[n++] = (fix_now() - begin) * 1e3;
		for (unsigned i = 0; i < n_attackers; i++)
			stopped += attackers[i] && waitpid(attackers[i], &status, WNOHANG | WUNTRACED) == attackers[i];
	}
	raw_close(r);
	qsort(times, n, sizeof(*times), ascending);
	*ret_n = n;
	return times;
}

START_TEST(closing_them_holds_up_nobody)
{
	enum kind kind = (enum kind)(_i / 2);
	struct attack *a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned before = fix_settled_fds(fix.pid), n;
	double *times;
	pid_t pid;

	*a = (struct attack){.kind = kind, .greet = _i % 2};
	if (kind == HUNG_FILE && !have_fs)
		return;
	pid = start_attack(a);
	times = live_through(&pid, 1, &n);
	printf("%u %s %s HELLO, %u refused by the kernel: a lease and its return took %.2f ms at the median, %.2f at "
	       "p99.9, %.2f at most (%u)\n",
	       a->sent, kind_names[kind], a->greet ? "after" : "before", a->refused, times[n / 2], times[n - 1 - n / 1000],
	       times[n - 1], n);
	ck_assert_uint_gt(a->sent + a->refused, 0);
	ck_assert_double_lt(times[n - 1 - n / 1000], limit_ms());
	free(times);
	/* a process with a FUSE file ends only after its server */
	if (have_fs)
		hung_fs_stop(&fs);
	have_fs = false;
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	fix_expect_fds(fix.pid, before);
	munmap(a, sizeof(*a));
}
END_TEST

static void teardown(void)
{
	if (have_fs)
		hung_fs_stop(&fs);
	fix_stop(&fix);
}

int main(void)
{
	Suite *s = begin_suite("test-hostile-fds");

	tcase_add_loop_test(add_case(s, "this kernel", 120, setup, teardown, NULL), closing_them_holds_up_nobody, 0,
	                    2 * KINDS);
	tcase_add_loop_test(add_case(s, "a kernel that carries all", 120, setup_old, teardown, NULL),
	                    closing_them_holds_up_nobody, 0, 2 * KINDS);
	return run_suite(s);
}
