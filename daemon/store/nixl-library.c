/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/nixl-library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/store/nixl.h"

#define CHECK_MS 30000 /* maximum time to load the library, which may be on a slow disk */

static const struct {
	const char *symbol;
	size_t at;
} calls[] = {
#define X(name, ...) {"nixl_capi_" #name, offsetof(struct skv_nixl_library, name)},
	SKV_NIXL_CALLS(X)
#undef X
};

int skv_nixl_library_load(const char *file, struct skv_nixl_library *ret, char why[SKV_STORE_TEXT])
{
	struct skv_nixl_library l = {.dl = dlopen(file, RTLD_NOW | RTLD_LOCAL)};
	void *symbol;

	if (!l.dl)
		return skv_store_refuse(why, -EINVAL, "%s", dlerror()); /* dlerror()'s text begins with the file name */
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		symbol = dlsym(l.dl, calls[i].symbol);
		if (!symbol) {
			dlclose(l.dl);
			return skv_store_refuse(why, -EINVAL, "%.128s: it has no %s, expected libnixl_capi.so of NIXL 1.x", file, calls[i].symbol);
		}
		memcpy((char *)&l + calls[i].at, &symbol, sizeof(symbol));
	}
	l.mem_free = free;
	symbol = dlsym(l.dl, "nixl_capi_mem_free");
	if (symbol)
		memcpy(&l.mem_free, &symbol, sizeof(symbol));
	*ret = l;
	return 0;
}

/* Loads the library and writes the error text, or "", to the pipe. */
static void check_in_child(const char *file, int to)
{
	struct skv_nixl_library l;
	char why[SKV_STORE_TEXT] = "";

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)skv_nixl_library_load(file, &l, why);
	_exit(write(to, why, strlen(why) + 1) < 0); /* _exit() does not run the library's destructors */
}

int skv_nixl_check(const char *file, char why[SKV_STORE_TEXT])
{
	struct pollfd p = {.events = POLLIN};
	int pipe_fds[2];
	ssize_t n = -1;
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return skv_store_refuse(why, -errno, "%.128s: %s", file, strerror(errno));
	pid = fork();
	if (pid == 0)
		check_in_child(file, pipe_fds[1]);
	skv_close_fd(pipe_fds[1]);
	p.fd = pipe_fds[0];
	if (pid > 0 && poll(&p, 1, CHECK_MS) == 1)
		n = read(p.fd, why, SKV_STORE_TEXT);
	skv_close_fd(p.fd);
	if (pid > 0) {
		if (n <= 0)
			kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	if (n <= 0)
		return skv_store_refuse(why, -EINVAL, "%.128s: a process that loads it crashes or does not end", file);
	why[n - 1] = '\0';
	return *why ? -EINVAL : 0;
}
