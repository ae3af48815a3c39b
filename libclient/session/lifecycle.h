/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/lifecycle.h - frees a session. */
#ifndef SKV_CLIENT_SESSION_LIFECYCLE_H
#define SKV_CLIENT_SESSION_LIFECYCLE_H

struct skv_session;

/* Free this process's data of a session and its sequences, without telling the daemon. */
void session_free(struct skv_session *s);

#endif
