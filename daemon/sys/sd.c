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

static int sort_sockets(char **names, int n, int *ret_clients, int *ret_operators, char *err, size_t err_len)
{
	int clients = -1, operators = -1;

	for (int i = 0; i < n; i++) {
		int *to = names && !strcmp(names[i], "operators") ? &operators : &clients;
		const char *wrong = *to >= 0 ? "two sockets of one purpose: one may have FileDescriptorName=operators"
		                             : check_socket(SD_LISTEN_FDS_START + i);

		if (wrong) {
			snprintf(err, err_len, "socket activation passed %s", wrong);
			return -EINVAL;
		}
		*to = SD_LISTEN_FDS_START + i;
	}
	if (clients < 0) {
		snprintf(err, err_len, "socket activation passed the operators' socket alone, expected sparsekvd.socket too");
		return -EINVAL;
	}
	*ret_clients = clients;
	*ret_operators = operators;
	return 1;
}

int skv_sd_listen_fds(int *ret_clients, int *ret_operators, char *err, size_t err_len)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	if (n < 0) {
		snprintf(err, err_len, "socket activation: %s", strerror(-n));
		return -EINVAL;
	}
	if (n > 0)
		r = sort_sockets(names, n, ret_clients, ret_operators, err, err_len);
	for (int i = 0; names && i < n; i++)
		free(names[i]);
	free(names);
	return r;
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
