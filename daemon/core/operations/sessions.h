/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/sessions.h - sessions. */
#ifndef SKV_CORE_SESSIONS_H
#define SKV_CORE_SESSIONS_H

#include "daemon/core/state/core-priv.h"

void skv_session_end(struct skv_core *, uint32_t session); /* the session must have no sequence */
/* Gives the session the page `fd` (consumed); if `fd` is -1, a new page, since it has only figures. Negative errno. */
int skv_session_adopt(struct skv_core *, uint32_t session, int fd);
void skv_session_leave(struct skv_core *, uint32_t session); /* the page stays with other holders of its descriptors */

#endif
