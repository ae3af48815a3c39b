/* SPDX-License-Identifier: Apache-2.0 */
#include "common/refuse.h"

#include <stdarg.h>
#include <stdio.h>

int skv_refuse(int error, char *err, size_t err_len, const char *format, ...)
{
	va_list ap;

	if (err_len == 0)
		return error;
	va_start(ap, format);
	vsnprintf(err, err_len, format, ap);
	va_end(ap);
	for (char *p = err; *p; p++)
		if (*p < 0x20 || *p > 0x7e)
			*p = '?';
	return error;
}
