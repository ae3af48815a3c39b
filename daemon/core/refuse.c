/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/refuse.h"

#include <stdarg.h>
#include <stdio.h>

void skv_set_why(struct skv_core *c, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(c->why, sizeof(c->why), format, args);
	va_end(args);
}
