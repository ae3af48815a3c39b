/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/fence.h - may this process still use what it has of the daemon? See fence.c. */
#ifndef SKV_CLIENT_FENCE_H
#define SKV_CLIENT_FENCE_H

#include <stdbool.h>
#include <stdint.h>

struct skv_client;
struct skv_seq;
struct skv_session;

/* Before the first client of the process. */
void fence_watch_forks(void);
unsigned fence_forks(void);

/* Is this a child of the process that the client is of? */
bool fence_forked(const struct skv_client *c);

/*
 * Lock the session for a call of the engine's. -EPERM in a child of fork(2): nothing is locked there, as the lock may be
 * that of a thread which is not there, nor is anything read but what a session has from its beginning.
 */
int fence_enter(struct skv_session *s);

/* As far as the daemon has said, or the one before: is the client connected? */
bool fence_stands(const struct skv_client *c);

/* 0: the client is the daemon's; -ECONNRESET: not any more; -EPERM in a child of fork(2). No system call when it is 0. */
int fence_check(struct skv_client *c);

/* The same, and the sequences are held by it: for who is about to commit. */
int fence_check_held(struct skv_client *c, struct skv_seq *const *seqs, uint32_t n);

/* Nothing of the client is mapped any more, but its connection ended before: tell the daemon, if there is one. */
void fence_tell_end(const struct skv_client *c);

#endif
