/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/state/refuse.h - records the text that says why a call into the core is refused (skv_core_why()). */
#ifndef SKV_CORE_REFUSE_H
#define SKV_CORE_REFUSE_H

#include <string.h>
#include "daemon/core/state/core-priv.h"

/*
 * Records why a call is refused, and has the value `error`. skv_core_refuse() is a macro so that the compiler sees that
 * its value is not 0.
 */
#define skv_core_refuse(core, error, ...) (skv_set_why(core, __VA_ARGS__), (int)(error))
void skv_set_why(struct skv_core *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* skv_core_refuse() with E_NOSPC: the system did not provide `what`; r is the negative errno. */
#define skv_core_refuse_system(core, r, what) \
	skv_core_refuse(core, SKV_CORE_E_NOSPC, "the system gave no %s: %s", what, strerror(-(r)))

#endif
