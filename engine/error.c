/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/error.h"

#include <stdarg.h>
#include <stdio.h>

int eng_fail(struct eng_error *err, int code, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(err->text, sizeof(err->text), format, ap);
	va_end(ap);
	return code;
}
