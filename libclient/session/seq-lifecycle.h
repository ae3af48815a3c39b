/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/seq-lifecycle.h - frees a sequence. */
#ifndef SKV_CLIENT_SESSION_SEQ_LIFECYCLE_H
#define SKV_CLIENT_SESSION_SEQ_LIFECYCLE_H

struct skv_seq;

/* Free this process's data of the sequence, without telling the daemon. */
void seq_free(struct skv_seq *q);

#endif
