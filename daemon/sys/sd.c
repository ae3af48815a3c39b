/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include "common/fd.h"
#include "daemon/sys/clock.h"
#include "daemon/sys/log.h"
#include "daemon/sys/sd.h"

/* NULL, or what is wrong with the socket. */
static const char *check_socket(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) <= 0)
		return "something else than a listening UNIX SOCK_SEQPACKET socket; the socket unit must say "
		       "ListenSequentialPacket=";
	/* The ring waits by itself; with O_NONBLOCK it would give EAGAIN instead. */
	return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? "a socket that cannot be set to block" : NULL;
}

/* Names of what is kept, or their beginnings: those that the core gives (core.h). */
static bool is_kept(const char *name)
{
	static const char *const ours[] = {"state", "pool-", "segment-", "seq-", "session-", "client-"};

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (strncmp(name, ours[i], strlen(ours[i])) == 0)
			return true;
	return false;
}

static int take_socket(struct skv_sd_passed *p, const char *name, int fd, char *err, size_t err_len)
{
	int *to = !strcmp(name, "operators") ? &p->operators : &p->clients;
	const char *wrong = *to >= 0 ? "two sockets of one purpose: one may have FileDescriptorName=operators" : check_socket(fd);

	if (wrong) {
		snprintf(err, err_len, "socket activation passed %s", wrong);
		return -EINVAL;
	}
	*to = fd;
	return 0;
}

/* Names that are taken become NULL. */
static int take(struct skv_sd_passed *p, char **names, int n, char *err, size_t err_len)
{
	int r = 0;

	p->kept = calloc((size_t)n, sizeof(*p->kept));
	if (!p->kept) {
		snprintf(err, err_len, "socket activation: out of memory");
		return -ENOMEM;
	}
	for (int i = 0; i < n && r == 0; i++) {
		const int fd = SD_LISTEN_FDS_START + i;

		if (names && is_kept(names[i])) {
			p->kept[p->n_kept++] = (struct skv_sd_kept){.name = names[i], .fd = fd};
			names[i] = NULL;
		} else {
			r = take_socket(p, names ? names[i] : "", fd, err, err_len);
		}
	}
	if (r == 0 && p->clients < 0 && p->operators >= 0) {
		snprintf(err, err_len, "socket activation passed the operators' socket alone, expected sparsekvd.socket too");
		r = -EINVAL;
	}
	return r;
}

int skv_sd_take_fds(struct skv_sd_passed *ret, char *err, size_t err_len)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	*ret = (struct skv_sd_passed)SKV_SD_PASSED_NULL;
	if (n < 0) {
		snprintf(err, err_len, "socket activation: %s", strerror(-n));
		return -EINVAL;
	}
	if (n > 0)
		r = take(ret, names, n, err, err_len);
	for (int i = 0; names && i < n; i++)
		free(names[i]);
	free(names);
	return r;
}

void skv_sd_passed_free(struct skv_sd_passed *p)
{
	for (size_t i = 0; i < p->n_kept; i++)
		free(p->kept[i].name);
	free(p->kept);
	p->kept = NULL;
	p->n_kept = 0;
}

bool skv_sd_is_there(void)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

/* What is told is as good as done: it lies in the manager's socket, which it reads before it starts another one of us. */
static void tell(const char *what, const char *name, int fd)
{
	char text[128];
	int r;

	snprintf(text, sizeof(text), "%s=1\nFDNAME=%s%s", what, name, fd >= 0 ? "\nFDPOLL=0" : "");
	r = sd_pid_notify_with_fds(0, 0, text, &fd, fd >= 0);
	if (r < 0)
		skv_log(LOG_ERR, "the service manager cannot be told to keep %s: %s", name, strerror(-r));
}

void skv_sd_fdstore_add(const char *name, int fd)
{
	tell("FDSTORE", name, fd);
}

void skv_sd_fdstore_remove(const char *name)
{
	tell("FDSTOREREMOVE", name, -1);
}

void skv_sd_ready(const char *status)
{
	sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void skv_sd_reloading(void)
{
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(skv_now_ns() / 1000));
}

void skv_sd_stopping(const char *status)
{
	sd_notifyf(0, "STOPPING=1\nSTATUS=%s", status);
}

void skv_sd_status(const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	sd_notifyf(0, "STATUS=%s", text);
}

void skv_sd_watchdog(void)
{
	sd_notify(0, "WATCHDOG=1");
}

uint64_t skv_sd_watchdog_interval(void)
{
	uint64_t usec;

	return sd_watchdog_enabled(0, &usec) > 0 ? usec * 1000 / 2 : 0;
}
