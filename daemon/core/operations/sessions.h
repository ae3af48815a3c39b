/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/sessions.h - sessions: ended, and their session pages after a restart. */
#ifndef SKV_CORE_SESSIONS_H
#define SKV_CORE_SESSIONS_H

#include "daemon/core/state/core-priv.h"

void skv_session_end(struct skv_core *, uint32_t session); /* the session must hold no sequence */
/*
 * After a restart: maps the session page `fd` (consumed) for the session. If `fd` is -1, makes a new page: the old one
 * contained only the client's figures, so its loss does no harm. Negative errno.
 */
int skv_session_adopt(struct skv_core *, uint32_t session, int fd);
/* Unmaps and closes the session page, which lives on with other holders of its descriptors. */
void skv_session_leave(struct skv_core *, uint32_t session);

#endif
