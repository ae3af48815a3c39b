/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/store-fixture.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/folder.h"

#define MAX_ARGS 60

static bool is_here(const char *program)
{
	const char *path = getenv("PATH");
	char file[512];

	for (size_t n; path && *path; path += n + (path[n] == ':')) {
		n = strcspn(path, ":");
		snprintf(file, sizeof(file), "%.*s/%s", (int)n, path, program);
		if (access(file, X_OK) == 0)
			return true;
	}
	return false;
}

/* Debian's redis-tools includes the server as another tool: one binary, which acts according to its name. */
static const char *file_of(const char *program)
{
	return strcmp(program, "redis-server") || is_here(program) ? program : "redis-check-rdb";
}

int store_skip(const char *const *programs)
{
	for (; *programs; programs++)
		if (!is_here(file_of(*programs))) {
			printf("skipped: there is no %s here\n", *programs);
			return 77;
		}
	return 0;
}

bool store_has_localhost(void)
{
	struct addrinfo *found;

	if (getaddrinfo("localhost", NULL, NULL, &found) != 0)
		return false;
	freeaddrinfo(found);
	return true;
}

/* ---- a server -------------------------------------------------------------------------------------- */

/* Returns a port outside the kernel's range of ephemeral ports. */
uint16_t store_port(void)
{
	for (;;) {
		const uint16_t port = (uint16_t)(10000 + 2 * ((unsigned)(getpid() * 7919 + rand()) % 11000));
		struct sockaddr_in a = {
			.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r = bind(fd, (struct sockaddr *)&a, sizeof(a));

		close(fd);
		if (r == 0)
			return port;
	}
}

/* Starts a program; its output goes to FOLDER/NAME. */
static pid_t start(const char *folder, const char *name, const char *const *argv)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		int out = open(fx_path(folder, name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

		dup2(out, STDOUT_FILENO);
		dup2(out, STDERR_FILENO);
		close_range(3, ~0u, 0);
		execvp(file_of(argv[0]), (char *const *)argv);
		_exit(126);
	}
	return pid;
}

static void wait_until_it_listens(const struct store_server *s)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int r = -1;

	snprintf(a.sun_path, sizeof(a.sun_path), "%.100s", s->socket);
	for (int i = 0; i < 6000 && r < 0; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		r = connect(fd, (struct sockaddr *)&a, sizeof(a));
		close(fd);
		ck_assert_msg(waitpid(s->pid, NULL, WNOHANG) == 0, "redis-server ended:\n%s",
		              fx_read(fx_path(s->folder, "redis.log"), NULL));
		if (r < 0)
			usleep(10000);
	}
	ck_assert_int_eq(r, 0);
}

void store_restart(struct store_server *s)
{
	char port[8];
	const char *argv[MAX_ARGS] = {"redis-server", "--port",      port,      "--bind", "127.0.0.1", "--unixsocket",
	                              s->socket,      "--dir",       s->folder, "--save", "",          "--appendonly",
	                              "no",           "--daemonize", "no"};
	int n = 15;

	snprintf(port, sizeof(port), "%u", s->port);
	for (const char *const *a = s->args; a && *a; a++) {
		ck_assert_int_lt(n, MAX_ARGS - 1);
		argv[n++] = *a;
	}
	unlink(s->socket);
	s->pid = start(s->folder, "redis.log", argv);
	wait_until_it_listens(s);
}

void store_begin(struct store_server *s, uint16_t port, const char *const *args)
{
	*s = (struct store_server){.folder = fx_folder(), .args = args, .port = port};
	snprintf(s->socket, sizeof(s->socket), "%s/redis.sock", s->folder);
	store_restart(s);
}

void store_kill(struct store_server *s)
{
	kill(s->pid, SIGKILL);
	ck_assert_int_eq(waitpid(s->pid, NULL, 0), s->pid);
}

void store_end(struct store_server *s)
{
	store_kill(s);
	fx_remove(s->folder);
}

struct skv_store *store_open(const char *format, ...)
{
	struct skv_store_config c;
	struct skv_store *s = NULL;
	char text[512], why[SKV_STORE_TEXT] = "";
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	ck_assert_msg(skv_store_config_parse(&c, text, why) == 0, "%s", why);
	ck_assert_msg(skv_store_new(&c, &s, why) == 0, "%s", why);
	return s;
}

char *store_cli(const struct store_server *s, ...)
{
	const char *argv[MAX_ARGS] = {"redis-cli", "-s", s->socket};
	int n = 3, status;
	va_list args;
	pid_t pid;

	va_start(args, s);
	while (n < MAX_ARGS - 1 && (argv[n] = va_arg(args, const char *)))
		n++;
	va_end(args);
	pid = start(s->folder, "cli", argv);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	return fx_read(fx_path(s->folder, "cli"), NULL);
}

void store_fill(void *to, size_t n, uint64_t seed)
{
	unsigned char *p = to;

	for (size_t i = 0; i < n; i += 8) {
		uint64_t x = (seed + i) * 0x9e3779b97f4a7c15u;

		x ^= x >> 29;
		memcpy(p + i, &x, n - i < 8 ? n - i : 8);
	}
}

/* ---- a server that misbehaves ----------------------------------------------------------------------- */

static void accept_all(const char *path, store_talk talk)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_IGN);
	snprintf(a.sun_path, sizeof(a.sun_path), "%.100s", path);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(listener, 100), 0);
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0 && child_fork() == 0) {
			talk(fd);
			_exit(0);
		}
		close(fd);
	}
}

void store_fake_begin(struct store_fake *f, store_talk talk)
{
	*f = (struct store_fake){.folder = fx_folder()};
	snprintf(f->socket, sizeof(f->socket), "%s/fake", f->folder);
	f->pid = child_fork();
	if (f->pid == 0)
		accept_all(f->socket, talk);
	for (int i = 0; i < 1000 && access(f->socket, F_OK) < 0; i++)
		usleep(5000);
	usleep(20000); /* time between its bind() and its listen() */
}

void store_fake_end(struct store_fake *f)
{
	kill(f->pid, SIGKILL);
	ck_assert_int_eq(waitpid(f->pid, NULL, 0), f->pid);
	fx_remove(f->folder);
}

/* ---- measures ---------------------------------------------------------------------------------------- */

double store_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

size_t store_peak_bytes(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (size_t)u.ru_maxrss * 1024;
}
