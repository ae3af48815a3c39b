/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/error-text.h"

#include <stdarg.h>
#include <stdio.h>

int skv_store_refuse(char why[SKV_STORE_TEXT], int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, SKV_STORE_TEXT, format, args);
	va_end(args);
	for (char *p = why; *p; p++)
		if (*p < 0x20 || *p > 0x7e)
			*p = '?';
	return error;
}
