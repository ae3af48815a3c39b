/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/state/refuse.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void skv_set_why(struct skv_core *c, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(c->why, sizeof(c->why), format, args);
	va_end(args);
}

const char *skv_core_why(const struct skv_core *c)
{
	return c->why;
}

int skv_core_errno(enum skv_core_error e)
{
	switch (e) {
	case SKV_CORE_OK: return 0;
	case SKV_CORE_E_NOSPC: return ENOSPC;
	case SKV_CORE_E_QUOTA: return EDQUOT;
	case SKV_CORE_E_NOENT: return ENOENT;
	case SKV_CORE_E_EXIST: return EEXIST;
	case SKV_CORE_E_BUSY:
	case SKV_CORE_E_FENCED: return EBUSY;
	case SKV_CORE_E_INVALID: return EINVAL;
	case SKV_CORE_E_CORRUPT: return EBADMSG;
	case SKV_CORE_E_BACKLOG:
	case SKV_CORE_E_LEAVING:
	case SKV_CORE_E_TURNS:
	case SKV_CORE_E_WAIT: return EAGAIN;
	}
	return EINVAL;
}
