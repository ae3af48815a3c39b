/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/sys/log.h"
#include "daemon/sys/sd.h"

#define TRIES 5
#define APART_NS 1000000

/* Checks a listening socket, and makes it blocking. Returns NULL, or a text that says what is wrong with the socket. */
static const char *check_socket(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) <= 0)
		return "something else than a listening UNIX SOCK_SEQPACKET socket; the socket unit must say "
		       "ListenSequentialPacket=";
	/* The socket is made blocking here; skv_ipc_new() sets O_NONBLOCK again. */
	return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? "a socket that cannot be set to block" : NULL;
}

/* Returns whether this is a name that the core gives stored descriptors (SKV_FDSTORE_NAME in core.h). */
static bool is_kept(const char *name)
{
	return strcmp(name, "state") == 0 || (strlen(name) == 5 && strchr("pgsoc", name[0]));
}

/*
 * Closes a descriptor that cannot be used, and makes the service manager forget it; otherwise the manager would pass it
 * to the next daemon again. Sockets of a socket unit are passed again in any case.
 */
static void refuse(const char *name, int fd, const char *why)
{
	skv_log_peer(LOG_WARNING,
	             "the service manager passed descriptor %d, \"%s\", which is closed and no longer stored: it is %s",
	             fd,
	             name, why);
	(void)skv_sd_fdstore_remove(name);
	skv_close_fd(fd);
}

/* Takes a listening socket for clients or operators. *ret_wrong: set to a text if a listening socket cannot be used. */
static void take_socket(struct skv_sd_passed *p, const char *name, int fd, const char **ret_wrong)
{
	int *to = !strcmp(name, "operators") ? &p->operators : &p->clients;
	const char *wrong = *to >= 0 ? "a second socket of one purpose; one may have FileDescriptorName=operators"
	                             : check_socket(fd);

	if (!wrong) {
		*to = fd;
		return;
	}
	if (sd_is_socket(fd, AF_UNSPEC, 0, 1) > 0)
		*ret_wrong = wrong;
	refuse(name, fd, wrong);
}

static int take(struct skv_sd_passed *p, char **names, int n, char *err, size_t err_len)
{
	const char *wrong = NULL;

	p->kept = calloc((size_t)n, sizeof(*p->kept));
	if (!p->kept) {
		snprintf(err, err_len, "socket activation: out of memory");
		return -ENOMEM;
	}
	for (int i = 0; i < n; i++) {
		const int fd = SD_LISTEN_FDS_START + i;

		if (is_kept(names[i])) {
			p->kept[p->n_kept].fd = fd;
			snprintf(p->kept[p->n_kept++].name, SKV_SD_NAME, "%s", names[i]);
		} else {
			take_socket(p, names[i], fd, &wrong);
		}
	}
	if (p->clients >= 0)
		return 0;
	if (wrong)
		snprintf(err, err_len, "socket activation passed %s", wrong);
	else if (p->operators >= 0)
		snprintf(err, err_len,
		         "socket activation passed the operators' socket alone, expected sparsekvd.socket too");
	return wrong || p->operators >= 0 ? -EINVAL : 0;
}

int skv_sd_take_fds(struct skv_sd_passed *ret, char *err, size_t err_len)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	*ret = (struct skv_sd_passed)SKV_SD_PASSED_NULL;
	if (n < 0) {
		snprintf(err, err_len, "the descriptors of socket activation cannot be received: %s", strerror(-n));
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
	free(p->kept);
	p->kept = NULL;
	p->n_kept = 0;
}

bool skv_sd_is_there(void)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

/*
 * Sends a notification to the service manager. If a socket or memory for that is lacking, tries again after a moment.
 */
static int notify(const char *text, int fd)
{
	int r = 0;

	for (int tries = 0; tries < TRIES; tries++) {
		r = sd_pid_notify_with_fds(0, 0, text, &fd, fd >= 0);
		if (!skv_is_shortage(r))
			break;
		nanosleep(&(struct timespec){.tv_nsec = APART_NS}, NULL);
	}
	return r;
}

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
	char text[640];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)notify(text, -1);
}

/*
 * Tells the service manager to keep or to forget a descriptor. A message that was sent counts as done: the manager
 * reads all messages in its socket before it starts the next daemon.
 */
static bool tell(const char *what, const char *name, int fd)
{
	char text[320]; /* enough, since a descriptor's name has at most 255 bytes */
	int r;

	snprintf(text, sizeof(text), "%s=1\nFDNAME=%s%s", what, name, fd >= 0 ? "\nFDPOLL=0" : "");
	r = notify(text, fd);
	if (r < 0)
		skv_log_peer(LOG_ERR, "the service manager cannot be told %s descriptor %s now: %s",
		             fd >= 0 ? "to keep" : "to forget", name, strerror(-r));
	return r >= 0;
}

bool skv_sd_fdstore_add(const char *name, int fd)
{
	return tell("FDSTORE", name, fd);
}

bool skv_sd_fdstore_remove(const char *name)
{
	return tell("FDSTOREREMOVE", name, -1);
}

void skv_sd_ready(const char *status)
{
	say("READY=1\nSTATUS=%s", status);
}

void skv_sd_reloading(void)
{
	say("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(skv_now_ns() / 1000));
}

void skv_sd_stopping(const char *status)
{
	say("STOPPING=1\nSTATUS=%s", status);
}

void skv_sd_status(const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	say("STATUS=%s", text);
}

void skv_sd_watchdog(void)
{
	say("WATCHDOG=1");
}

uint64_t skv_sd_watchdog_interval(void)
{
	uint64_t usec;

	return sd_watchdog_enabled(0, &usec) > 0 ? usec * 1000 / 2 : 0;
}
