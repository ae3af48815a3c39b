/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sessions.h - sessions. */
#ifndef SKV_CORE_SESSIONS_H
#define SKV_CORE_SESSIONS_H

#include "daemon/core/core-priv.h"

void skv_session_end(struct skv_core *, uint32_t session); /* which has no sequence */

#endif
