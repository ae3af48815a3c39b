/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a process: deaths of clients, starting, reloading, the service manager, stopping. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/suite.h"

/* valgrind makes everything slow; the limit is for the daemon as built. */
#define RECLAIM_SECONDS patience(0.1)

static struct fix fix;

static void setup(void)
{
	fix_start_process(&fix, NULL);
}

static void teardown(void)
{
	fix_stop(&fix);
}

/* ---- deaths ---- */

/* In a child: holds pages and two sequences, reports that, and waits to be killed. */
static void hold(int ready, bool leave_a_child)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);

	raw_seq_new(r, session, "named");
	raw_seq_new(r, session, "");
	raw_lease(r, session, 10000);
	if (leave_a_child && child_fork() == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		ck_assert_int_eq(write(ready, &(pid_t){getpid()}, sizeof(pid_t)), sizeof(pid_t));
		for (;;)
			pause(); /* with the socket open */
	}
	ck_assert_int_eq(write(ready, &(pid_t){0}, sizeof(pid_t)), sizeof(pid_t));
	for (;;)
		pause();
}

static pid_t start_holder(bool leave_a_child, pid_t *ret_grandchild)
{
	pid_t pid, word;
	int ready[2];

	ck_assert_int_eq(pipe(ready), 0);
	pid = child_fork();
	if (pid == 0) {
		hold(ready[1], leave_a_child);
	}
	close(ready[1]); /* so that the end of a failed child is noticed */
	for (int i = 0; i < 1 + leave_a_child; i++) {
		ck_assert_int_eq(read(ready[0], &word, sizeof(word)), sizeof(word));
		if (word)
			*ret_grandchild = word;
	}
	close(ready[0]);
	return pid;
}

/* Returns the seconds from `begin` until no page of pool 0 is leased any more. */
static double until_pages_are_back(struct raw *r, double begin)
{
	double now;

	do {
		now = fix_now();
		ck_assert_double_lt(now - begin, 10);
	} while (raw_pool_figure(r, "lease") != 0);
	return now - begin;
}

static void kill_and_reap(pid_t pid)
{
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

START_TEST(a_death_returns_the_pages_at_once)
{
	struct raw *r = raw_hello(fix.socket);
	double worst = 0;

	raw_open(r, "m", "full", NULL); /* keeps the pool in the list */
	for (int i = 0; i < 20; i++) {
		pid_t pid = start_holder(false, NULL);
		struct skv_msg_seq_of drop = {
			.uid = (uint32_t)getuid(), .model = "m", .name = "named"};
		double begin, took;

		ck_assert_uint_eq(raw_pool_figure(r, "lease"), 10000);
		begin = fix_now();
		kill(pid, SIGKILL);
		took = until_pages_are_back(r, begin);
		waitpid(pid, NULL, 0);
		worst = took > worst ? took : worst;
		/* the named sequence stays, the other one does not */
		json_decref(raw_ask_json(r, SKV_MSG_SEQ_DROP_NAME, &drop, sizeof(drop), -1));
	}
	printf("40 MiB of pages back after SIGKILL: %.2f ms at most\n", worst * 1e3);
	ck_assert_double_lt(worst, RECLAIM_SECONDS);
	raw_close(r);
}
END_TEST

START_TEST(a_death_counts_though_a_child_keeps_the_socket)
{
	struct raw *r = raw_hello(fix.socket);
	pid_t grandchild = 0, pid;
	double begin, took;

	raw_open(r, "m", "full", NULL);
	pid = start_holder(true, &grandchild);
	begin = fix_now();
	kill(pid, SIGKILL);
	took = until_pages_are_back(r, begin);
	waitpid(pid, NULL, 0);
	printf("the same with the socket still open in a child: %.2f ms\n", took * 1e3);
	ck_assert_double_lt(took, RECLAIM_SECONDS);
	ck_assert_int_eq(kill(grandchild, 0), 0);
	kill(grandchild, SIGKILL);
	raw_close(r);
}
END_TEST

START_TEST(another_process_goes_on_with_a_named_sequence)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	struct skv_msg_seq_name m = {.session = session, .name = "named"};
	pid_t pid = start_holder(false, NULL);

	ck_assert_int_eq(raw_refused(r, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), -1), EBUSY);
	kill_and_reap(pid);
	until_pages_are_back(r, fix_now());
	raw_ask(r, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), -1);
	ck_assert_uint_eq(r->n_fds, 1);
	raw_close(r);
}
END_TEST

/* ---- descriptors ---- */

START_TEST(every_descriptor_closes_on_exec)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);
	unsigned looked = 0;

	raw_seq_new(r, session, "x");
	raw_lease(r, session, 1000);
	for (int fd = 3; fd < 256; fd++) {
		char path[64], line[128];
		unsigned flags = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)fix.pid, fd);
		f = fopen(path, "re");
		if (!f)
			continue;
		while (fgets(line, sizeof(line), f))
			sscanf(line, "flags: %o", &flags);
		fclose(f);
		looked++;
		ck_assert_msg(flags & O_CLOEXEC, "descriptor %d of the daemon stays open over exec", fd);
	}
	ck_assert_uint_gt(looked, 10);
	raw_close(r);
}
END_TEST

START_TEST(clients_leave_no_descriptors_behind)
{
	struct raw *r = raw_hello(fix.socket);
	unsigned before;

	raw_open(r, "m", "full", NULL);
	before = fix_settled_fds(fix.pid);
	for (int i = 0; i < 50; i++) {
		struct raw *c = raw_hello(fix.socket);
		uint32_t session = raw_open(c, "m", "full", NULL);

		for (int k = 0; k < 5; k++)
			raw_seq_new(c, session, "");
		raw_lease(c, session, 100);
		raw_close(c);
	}
	raw_lease(r, raw_open(r, "m", "full", NULL), 1);
	fix_expect_fds(fix.pid, before + 1); /* the control page of another session */
	raw_close(r);
}
END_TEST

/* Sends a request that may be refused; returns the type of the reply, 0 if the daemon hung up. */
static int attempt(struct raw *r, uint16_t type, const void *body, size_t bytes, int fd)
{
	raw_send(r, type, body, bytes, fd);
	return raw_recv_answer(r, 10000);
}

/* Uses everything that takes descriptors, as far as possible. */
/* Returns the client's id, if it got one: the daemon may hang up on it before it closes its session. */
static uint32_t use_descriptors(void)
{
	struct skv_msg_hello hello = {.version_min = 1, .version_max = 1, .program = "greedy"};
	struct skv_msg_open open_ = {.model = raw_model("greedy"), .spec = "full"};
	struct skv_msg_seq_name seq = {0};
	struct skv_msg_lease_get lease = {.least = 1, .most = 600};
	struct skv_msg_name load = {.name = "full.so"};
	char operators[128];
	struct raw *r = NULL;
	uint32_t client = 0;
	int file = open(fix_built("policies/.libs/full.so"), O_RDONLY | O_CLOEXEC), type = 0;
	int sealed = skv_memfd_copy_sealed("policy", file, SKV_PLUGIN_BYTES_MAX);

	if (skv_operators_socket(fix.socket, operators, sizeof(operators)))
		r = raw_connect(operators);
	ck_assert_ptr_nonnull(r);
	ck_assert_int_ge(sealed, 0);
	if (attempt(r, SKV_MSG_HELLO, &hello, sizeof(hello), -1) == (SKV_MSG_HELLO | SKV_REPLY)) {
		client = ((const struct skv_msg_hello_ok *)(const void *)(r->packet + sizeof(struct skv_msg_header)))->client;
		type = attempt(r, SKV_MSG_OPEN, &open_, sizeof(open_), -1);
	}
	if (type == (SKV_MSG_OPEN | SKV_REPLY)) {
		uint32_t session;

		memcpy(&session, r->packet + sizeof(struct skv_msg_header), sizeof(session));
		seq.session = lease.session = session;
		for (int i = 0; i < 4 && type > 0; i++)
			type = attempt(r, SKV_MSG_SEQ_NEW, &seq, sizeof(seq), -1);
		if (type > 0)
			type = attempt(r, SKV_MSG_LEASE_GET, &lease, sizeof(lease), -1);
	}
	if (type > 0)
		attempt(r, SKV_MSG_POLICY_LOAD, &load, sizeof(load), sealed);
	close(file);
	close(sealed);
	raw_close(r);
	return client;
}

/* With 0, 1, 2 … descriptors left: each call that needs one fails once, and nothing is lost. */
START_TEST(running_out_of_descriptors_loses_nothing)
{
	struct rlimit was, less;
	struct raw *r = raw_hello(fix.socket);
	uint32_t client = 0;
	unsigned before;

	raw_open(r, "m", "full", NULL);
	use_descriptors(); /* opens what stays open: a segment, and the file that it loads */
	before = fix_settled_fds(fix.pid);
	ck_assert_int_eq(prlimit(fix.pid, RLIMIT_NOFILE, NULL, &was), 0);
	for (unsigned left = 0; left < 24; left++) {
		less = was;
		less.rlim_cur = before + left;
		ck_assert_int_eq(prlimit(fix.pid, RLIMIT_NOFILE, &less, NULL), 0);
		if (left >= 2) /* with fewer, connections are not accepted */
			client = use_descriptors();
		json_decref(raw_query(r, SKV_QUERY_STATUS));
		ck_assert_int_eq(prlimit(fix.pid, RLIMIT_NOFILE, &was, NULL), 0);
		raw_client_end(fix.socket, client);
		fix_settled_fds(fix.pid);
	}
	use_descriptors();
	fix_expect_fds(fix.pid, before);
	raw_close(r);
}
END_TEST

/* ---- starting ---- */

/* Runs the daemon with these arguments until it ends; returns its exit status and its output. */
static int run_daemon(const char *const *argv, void (*before_exec)(void), char *said, size_t len)
{
	size_t n = 0;
	ssize_t r;
	int out[2], status;
	pid_t pid;

	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		if (before_exec)
			before_exec();
		execv(fix_built("daemon/sparsekvd"), (char **)argv);
		_exit(127);
	}
	close(out[1]);
	while (n < len - 1 && (r = read(out[0], said + n, len - 1 - n)) > 0)
		n += (size_t)r;
	said[n] = 0;
	close(out[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void without_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		_exit(126);
}

START_TEST(a_kernel_without_io_uring_is_named)
{
	const char *argv[] = {"sparsekvd", "--config=/dev/null", "--socket=/tmp/sparsekv-none", NULL};
	char said[1024];

	ck_assert_int_eq(run_daemon(argv, without_io_uring, said, sizeof(said)), EXIT_FAILURE);
	ck_assert_msg(strstr(said, "refuses io_uring") && strstr(said, "kernel.io_uring_disabled"), "%s",
	              said);
}
END_TEST

START_TEST(one_daemon_a_socket)
{
	char option[128], said[1024];
	const char *argv[] = {"sparsekvd", "--config=/dev/null", option, NULL};

	snprintf(option, sizeof(option), "--socket=%s", fix.socket);
	ck_assert_int_eq(run_daemon(argv, NULL, said, sizeof(said)), EXIT_FAILURE);
	ck_assert_ptr_nonnull(strstr(said, "another daemon listens there"));
	raw_close(raw_hello(fix.socket)); /* the first daemon is not affected */

	/* the files that a killed daemon left behind are replaced */
	kill_and_reap(fix.pid);
	ck_assert_int_eq(access(fix.socket, F_OK), 0);
	fix.pid = fork();
	if (fix.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execv(fix_built("daemon/sparsekvd"), (char **)argv);
		_exit(127);
	}
	fix_wait(&fix);
}
END_TEST

START_TEST(wrong_command_lines_say_what_was_expected)
{
	static const struct {
		const char *argv[4], *expected;
		int status;
	} cases[] = {
		{{"sparsekvd", "--bogus=1"}, "unknown option \"--bogus=1\"", EXIT_FAILURE},
		{{"sparsekvd", "stray"}, "unknown option \"stray\"", EXIT_FAILURE},
		{{"sparsekvd", "--max-clients"}, "--max-clients needs a value", EXIT_FAILURE},
		{{"sparsekvd", "--config=/dev/null", "--max-clients=x"},
	         "--max-clients: got \"x\", expected a whole number",
	         EXIT_FAILURE},
		{{"sparsekvd", "--config=/nonexistent"}, "/nonexistent: No such file", EXIT_FAILURE},
		{{"sparsekvd", "--config=/dev/null", "--socket=/nonexistent/x"},
	         "/nonexistent/x: cannot be listened on",
	         EXIT_FAILURE},
		{{"sparsekvd", "--check-config", "--config=/dev/null"}, "", EXIT_SUCCESS},
		{{"sparsekvd", "--check-config", "--pool-bytes=3"}, "--pool-bytes: got \"3\"", EXIT_FAILURE},
		{{"sparsekvd", "--help"}, "--segment-bytes=64M", EXIT_SUCCESS},
		{{"sparsekvd", "--help-config"}, "#segment-bytes = 64M", EXIT_SUCCESS},
		{{"sparsekvd", "--version"}, "sparsekvd ", EXIT_SUCCESS},
	};
	char said[32768];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ck_assert_int_eq(run_daemon(cases[i].argv, NULL, said, sizeof(said)), cases[i].status);
		ck_assert_msg(strstr(said, cases[i].expected), "%s: %s", cases[i].argv[1], said);
	}
}
END_TEST

/* ---- the service manager: its side of the sockets ---- */

struct manager {
	char path[96];
	int fd;
};

static void manager_open(struct manager *m, const char *dir)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(m->path, sizeof(m->path), "%s/notify", dir);
	strcpy(addr.sun_path, m->path);
	m->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(m->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
}

/* Waits for a notification with this line, skipping others; its text is left in `text`. */
static void manager_expect(struct manager *m, const char *line, char text[2048])
{
	double end = fix_now() + 10;

	do {
		struct pollfd p = {.fd = m->fd, .events = POLLIN};
		ssize_t n;

		ck_assert_msg(poll(&p, 1, 10000) == 1 && fix_now() < end, "no notification with %s", line);
		n = recv(m->fd, text, 2047, 0);
		ck_assert_int_gt(n, 0);
		text[n] = 0;
	} while (!strstr(text, line));
}

static pid_t start_activated(struct manager *m, const char *config, int listen_fd)
{
	char option[128], policies[512], pid_text[16];
	const char *argv[] = {"sparsekvd", option, policies, NULL};
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(option, sizeof(option), "--config=%s", config);
	snprintf(policies, sizeof(policies), "--policy-path=%s", fix_built("policies/.libs"));
	snprintf(pid_text, sizeof(pid_text), "%d", (int)getpid());
	setenv("LISTEN_PID", pid_text, 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("NOTIFY_SOCKET", m->path, 1);
	setenv("WATCHDOG_USEC", "200000", 1);
	unsetenv("WATCHDOG_PID");
	dup2(listen_fd, 3); /* dup2() clears close-on-exec, unless the number was 3 already */
	fcntl(3, F_SETFD, 0);
	execv(fix_built("daemon/sparsekvd"), (char **)argv);
	_exit(127);
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
}

static int listen_on(const char *path, int type)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(addr.sun_path, path);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(fd, 5), 0);
	return fd;
}

static uint64_t limit_of(const char *socket, const char *name)
{
	struct raw *r = raw_hello(socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	uint64_t x = (uint64_t)json_integer_value(json_object_get(json_object_get(status, "limits"), name));

	json_decref(status);
	raw_close(r);
	return x;
}

START_TEST(the_service_managers_protocol_is_kept)
{
	char config[96], path[96], text[2048];
	struct manager m;
	int fd, status;
	pid_t pid;

	snprintf(config, sizeof(config), "%s/config", fix.dir);
	snprintf(path, sizeof(path), "%s/activated", fix.dir);
	write_file(config, "account-clients = 11\n");
	manager_open(&m, fix.dir);
	fd = listen_on(path, SOCK_SEQPACKET);
	pid = start_activated(&m, config, fd);
	close(fd);

	manager_expect(&m, "READY=1", text);
	ck_assert_ptr_nonnull(strstr(text, "STATUS=0 clients, 0 sequences"));
	ck_assert_uint_eq(limit_of(path, "account_clients"), 11);
	manager_expect(&m, "WATCHDOG=1", text);
	manager_expect(&m, "WATCHDOG=1", text);

	write_file(config, "account-clients = 12\nmax-clients = 5\n");
	kill(pid, SIGHUP);
	manager_expect(&m, "RELOADING=1", text);
	ck_assert_ptr_nonnull(strstr(text, "MONOTONIC_USEC="));
	manager_expect(&m, "READY=1", text);
	ck_assert_uint_eq(limit_of(path, "account_clients"), 12);
	ck_assert_uint_eq(limit_of(path, "max_clients"), 1024); /* fixed at start */

	write_file(config, "account-clients = 13\nbroken\n");
	kill(pid, SIGHUP);
	manager_expect(&m, "RELOADING=1", text);
	manager_expect(&m, "READY=1", text);
	manager_expect(&m, "STATUS=Reload failed, the old configuration stays in force", text);
	ck_assert_ptr_nonnull(strstr(text, "config:2: got \"broken\", expected"));
	ck_assert_uint_eq(limit_of(path, "account_clients"), 12);

	kill(pid, SIGTERM);
	manager_expect(&m, "STOPPING=1", text);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(access(path, F_OK), 0); /* the manager's socket stays */
	close(m.fd);
}
END_TEST

START_TEST(a_socket_of_another_kind_is_refused)
{
	char path[96];
	struct manager m;
	int fd, status;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/stream", fix.dir);
	manager_open(&m, fix.dir);
	fd = listen_on(path, SOCK_STREAM);
	pid = start_activated(&m, "/dev/null", fd);
	close(fd);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(WEXITSTATUS(status), EXIT_FAILURE);
	close(m.fd);
}
END_TEST

/* ---- */

START_TEST(the_wire_can_be_watched)
{
	setenv("SPARSEKV_DEBUG", "wire", 1);
	fix_stop(&fix);
	fix_start_process(&fix, NULL);
	unsetenv("SPARSEKV_DEBUG");
	raw_close(raw_hello(fix.socket));
	fix_expect_log(&fix, "-> HELLO #1 96 bytes version_min=1 version_max=1 features=0 program=\"raw\"");
	fix_expect_log(&fix, "<- HELLO reply #1 104 bytes 1 fd version=1");
}
END_TEST

START_TEST(a_stop_takes_everything_back)
{
	struct raw *r = raw_hello(fix.socket);
	uint32_t session = raw_open(r, "m", "full", NULL);

	raw_seq_new(r, session, "named");
	raw_lease(r, session, 100);
	fix_stop(&fix); /* checks the exit status: the state balanced */
	raw_expect_end(r);
	raw_close(r);
	fix_start_process(&fix, NULL);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-server-life");

	add_case(s, "life", 60, setup, teardown, a_death_returns_the_pages_at_once,
	         a_death_counts_though_a_child_keeps_the_socket,
	         another_process_goes_on_with_a_named_sequence, every_descriptor_closes_on_exec,
	         clients_leave_no_descriptors_behind, running_out_of_descriptors_loses_nothing,
	         a_kernel_without_io_uring_is_named, one_daemon_a_socket,
	         wrong_command_lines_say_what_was_expected, the_service_managers_protocol_is_kept,
	         a_socket_of_another_kind_is_refused, the_wire_can_be_watched, a_stop_takes_everything_back,
	         NULL);
	return run_suite(s);
}
