/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/fence.h - checks that this process may still use the pages that the daemon gave it. See fence.c. */
#ifndef SKV_CLIENT_CONN_FENCE_H
#define SKV_CLIENT_CONN_FENCE_H

#include <stdbool.h>
#include <stdint.h>

struct skv_client;
struct skv_seq;
struct skv_session;

/* Begin to count forks of the process; called before the process opens its first client. */
void fence_watch_forks(void);
unsigned fence_forks(void);

/* Is this process a child of the process that opened the client? */
bool fence_forked(const struct skv_client *c);

/*
 * Lock the session for a call of the engine. Returns -EPERM in a child of fork(2), with nothing locked: a thread that
 * does not exist in the child may hold the lock. The child then reads only what a session has from its beginning.
 */
int fence_enter(struct skv_session *s);

/* Is the client connected, as the control page of the present daemon, or of the previous one, says? */
bool fence_stands(const struct skv_client *c);

/*
 * Check that the connection stands. Returns 0 (without a system call), -ECONNRESET if the connection has ended, or
 * -EPERM in a child of fork(2).
 */
int fence_check(struct skv_client *c);

/* fence_check() before a commit: this client must also be the holder of the sequences. */
int fence_check_held(struct skv_client *c, struct skv_seq *const *seqs, uint32_t n);

/* Tell the daemon, if there is one, that nothing of the client is mapped any more. The connection ended before. */
void fence_tell_end(const struct skv_client *c);

#endif
