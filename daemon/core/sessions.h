/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sessions.h - sessions. */
#ifndef SKV_CORE_SESSIONS_H
#define SKV_CORE_SESSIONS_H

#include "daemon/core/core-priv.h"

void skv_session_end(struct skv_core *, uint32_t session); /* which has no sequence */
/* Its page is that of `fd` (consumed), or, if that is none, a new one, since it has figures alone. Negative errno. */
int skv_session_adopt(struct skv_core *, uint32_t session, int fd);
void skv_session_leave(struct skv_core *, uint32_t session); /* the page stays with who has it */

#endif
