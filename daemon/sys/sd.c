/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include "common/fd.h"
#include "daemon/sys/clock.h"
#include "daemon/sys/sd.h"

int skv_sd_listen_fd(int *ret_fd, char *err, size_t err_len)
{
	int n = sd_listen_fds(1), flags;

	if (n == 0)
		return 0;
	if (n != 1) {
		snprintf(err, err_len, "socket activation passed %d descriptors, expected one socket", n);
		return -EINVAL;
	}
	if (sd_is_socket(SD_LISTEN_FDS_START, AF_UNIX, SOCK_SEQPACKET, 1) <= 0) {
		snprintf(err, err_len,
		         "socket activation passed something else than a listening UNIX SOCK_SEQPACKET "
		         "socket; the socket unit must say ListenSequentialPacket=");
		return -EINVAL;
	}
	/* The ring waits by itself; with O_NONBLOCK it would give EAGAIN instead. */
	flags = fcntl(SD_LISTEN_FDS_START, F_GETFL);
	if (flags < 0 || fcntl(SD_LISTEN_FDS_START, F_SETFL, flags & ~O_NONBLOCK) < 0) {
		snprintf(err, err_len, "the socket that was passed cannot be set to block");
		return -EINVAL;
	}
	*ret_fd = SD_LISTEN_FDS_START;
	return 1;
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
