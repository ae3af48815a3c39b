/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/error.c - the text of each thread's last error. */
#include "libclient/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <sparsekv/client.h>

#include "common/wire.h"

static __thread char last_error[SKV_TEXT_MAX + 128];

int error_set(int error, const char *fmt, ...)
{
	char text[sizeof(last_error)]; /* a copy, because an argument may be the last error itself */
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	memcpy(last_error, text, sizeof(text));
	return error;
}

const char *skv_last_error(void)
{
	return last_error;
}
