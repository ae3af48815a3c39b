/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/state/refuse.h - why a call is refused. */
#ifndef SKV_CORE_REFUSE_H
#define SKV_CORE_REFUSE_H

#include <string.h>
#include "daemon/core/state/core-priv.h"

/* Records why a call is refused; yields the error, in a form in which the compiler sees that it is not 0. */
#define skv_core_refuse(core, error, ...) (skv_set_why(core, __VA_ARGS__), (int)(error))
void skv_set_why(struct skv_core *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The system refused (negative errno r) to provide `what`. */
#define skv_core_refuse_system(core, r, what) \
	skv_core_refuse(core, SKV_CORE_E_NOSPC, "the system gave no %s: %s", what, strerror(-(r)))

#endif
