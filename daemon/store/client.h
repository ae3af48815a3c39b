/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/client.h - a prefix store in Redis or Valkey: values by key, for one thread of a worker process.
 *
 * A store that is down, slow or full costs a bounded wait and nothing else. Each call has a deadline and returns by
 * then, whatever servers do or send; a server that failed is not tried again for a while (conn.h), and meanwhile calls
 * that need it fail at once with -EHOSTDOWN. Nothing is logged, no signal is raised or handled; memory is bounded: a
 * value of a reply, a command, and a few bytes for each key of the call.
 *
 * A call is for many keys, and its commands are pipelined. What became of a key is in status[i]: 1, 0, or negative
 * errno, as each call says; statuses are written in any case. A call returns 0 if no status is negative, else the error
 * that came first, of which skv_store_error() has the text. Keys and values are any bytes; keys are different ones.
 *
 *   -EHOSTDOWN   the server has failed lately, or says that it is not ready, or no node of the cluster has the key
 *   -ETIMEDOUT   no answer before the deadline: a value may have been stored
 *   -ENOSPC      the store is full, and evicts nothing
 *   -EACCES      password, permissions or certificate
 *   -EMSGSIZE    of a key or value of the caller's that is too long; nothing is sent of it
 *   -EPROTO      what came is no reply that was asked for: also a value of more than SKV_STORE_MAX_VALUE bytes
 *   -ELOOP       nodes of the cluster send the key to each other
 *   -EREMOTEIO   what else the server says is wrong; other errors are those of sockets, and -ENOMEM
 */
#ifndef SKV_STORE_CLIENT_H
#define SKV_STORE_CLIENT_H

#include <stddef.h>
#include "daemon/store/config.h"

#define SKV_STORE_MAX_VALUE ((size_t)8 << 20)
#define SKV_STORE_MAX_KEY ((size_t)4096)

struct skv_store;

struct skv_store_bytes {
	const void *at; /* NULL is fine where n is 0 */
	size_t n;
};

/* Nothing is connected yet; the configuration is copied. -EINVAL with a text: a file of it cannot be used; -ENOMEM. */
int skv_store_new(const struct skv_store_config *, struct skv_store **ret, char why[SKV_STORE_TEXT]);
struct skv_store *skv_store_free(struct skv_store *); /* NULL is fine; returns NULL */
/* Of the last call, one line; "": nothing went wrong. */
const char *skv_store_error(const struct skv_store *);

/* A value of keys[i], valid until it returns; NULL: there is none. In no order, and not for keys with an error. */
typedef void (*skv_store_value_fn)(void *ctx, uint32_t i, const void *value, size_t bytes);

/* timeout_ms: 0, the configuration's. Status 1: fn was given a value; 0: there is none. */
int skv_store_get(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                  skv_store_value_fn fn, void *ctx, int *status);
/*
 * For so many milliseconds (0: for ever). only_new: a key that is there stays as it is. Status 1: it was stored; 0: it
 * was there.
 */
int skv_store_set(struct skv_store *, const struct skv_store_bytes *keys, const struct skv_store_bytes *values,
                  uint32_t n, uint64_t ttl_ms, bool only_new, uint32_t timeout_ms, int *status);
/* Status 1: it is (was) there; 0: it is (was) not. */
int skv_store_exists(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                     int *status);
int skv_store_del(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms, int *status);
/* It was used, says TOUCH: a store that evicts what was not used for long keeps it. */
int skv_store_touch(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                    int *status);

#endif
