/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/fence.h - may this process still use what the daemon gave it? See fence.c. */
#ifndef SKV_CLIENT_CONN_FENCE_H
#define SKV_CLIENT_CONN_FENCE_H

#include <stdbool.h>
#include <stdint.h>

struct skv_client;
struct skv_seq;
struct skv_session;

/* Count forks from now on; called before the first client of the process. */
void fence_watch_forks(void);
unsigned fence_forks(void);

/* Is this process a child of the one that opened the client? */
bool fence_forked(const struct skv_client *c);

/*
 * Lock the session for a call of the engine. -EPERM in a child of fork(2): then nothing is locked, because the lock may
 * be held by a thread that the child does not have, and only what a session has from its beginning is read.
 */
int fence_enter(struct skv_session *s);

/* Is the client connected, as far as the daemon, or the previous one, has said? */
bool fence_stands(const struct skv_client *c);

/*
 * 0: the connection stands; -ECONNRESET: it ended; -EPERM in a child of fork(2). Makes no system call if it returns 0.
 */
int fence_check(struct skv_client *c);

/* The same before a commit: this client must also hold the sequences. */
int fence_check_held(struct skv_client *c, struct skv_seq *const *seqs, uint32_t n);

/* The connection ended before, and nothing of the client is mapped any more: tell the daemon, if there is one. */
void fence_tell_end(const struct skv_client *c);

#endif
