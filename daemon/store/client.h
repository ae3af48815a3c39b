/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/client.h - client of a prefix store in Redis or Valkey: stores and reads values by key. One thread of a
 * worker process uses it.
 *
 * A store that is down, slow or full costs no more than a bounded wait: each call has a deadline and returns by then,
 * whatever servers do or send. A server that failed is not retried for a while (conn.h); calls that need that server
 * meanwhile fail at once with -EHOSTDOWN. The client does not log, and neither raises nor handles signals. The client's
 * memory is bounded: a value of a reply, a command, and a few bytes for each key of the call.
 *
 * A call takes many keys and pipelines their commands. The call sets status[i] for each keys[i]: 1, 0 or a negative
 * errno, as documented for each call. A call returns 0 if no status is negative, otherwise the first error, whose text
 * skv_store_error() returns. Keys and values are arbitrary bytes; the keys of a call must be distinct.
 *
 *   -EHOSTDOWN   the server failed recently or reports that it is not ready, or no node of the cluster has the key
 *   -ETIMEDOUT   no reply before the deadline: a value may have been stored
 *   -ENOSPC      the store is full and does not evict
 *   -EACCES      password, permissions or certificate
 *   -EMSGSIZE    the key or value is too long; it was not sent
 *   -EPROTO      unexpected reply, including a value of more than SKV_STORE_MAX_VALUE bytes
 *   -ELOOP       nodes of the cluster redirect the key to each other
 *   -EREMOTEIO   any other error of the server; other errors are those of sockets, and -ENOMEM
 */
#ifndef SKV_STORE_CLIENT_H
#define SKV_STORE_CLIENT_H

#include <stddef.h>
#include "daemon/store/config.h"

#define SKV_STORE_MAX_VALUE ((size_t)8 << 20)
#define SKV_STORE_MAX_KEY ((size_t)4096)

struct skv_store;

struct skv_store_bytes {
	const void *at; /* may be NULL if n is 0 */
	size_t n;
};

/*
 * Creates a client without connecting; copies the configuration. -EINVAL with a text: a configured file is unusable;
 * -ENOMEM.
 */
int skv_store_new(const struct skv_store_config *, struct skv_store **ret, char why[SKV_STORE_TEXT]);
struct skv_store *skv_store_free(struct skv_store *); /* NULL is allowed; returns NULL */
/* Returns the error text of the last call, one line; "": it had no error. */
const char *skv_store_error(const struct skv_store *);

/*
 * Receives the value of keys[i], which is valid until the function returns; NULL: the store has none. The client calls
 * it for the keys of a call in any order, but not for keys with an error.
 */
typedef void (*skv_store_value_fn)(void *ctx, uint32_t i, const void *value, size_t bytes);

/*
 * Reads values, which fn receives. Status 1: fn received a value; 0: the store has no value of the key. timeout_ms,
 * also of the functions below, is for the whole call; 0: as configured.
 */
int skv_store_get(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                  skv_store_value_fn fn, void *ctx, int *status);
/*
 * Stores values, which expire after ttl_ms milliseconds (0: never). only_new: existing keys remain unchanged. Status 1:
 * the value was stored; 0: the key existed.
 */
int skv_store_set(struct skv_store *, const struct skv_store_bytes *keys, const struct skv_store_bytes *values,
                  uint32_t n, uint64_t ttl_ms, bool only_new, uint32_t timeout_ms, int *status);
/* Asks which keys exist. Status 1: the key exists; 0: it does not. */
int skv_store_exists(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                     int *status);
/* Deletes keys. Status 1: the key was deleted; 0: it did not exist. */
int skv_store_del(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms, int *status);
/*
 * Marks keys as used (TOUCH), so that a store with LRU eviction keeps them. Status 1: the key exists; 0: it does not.
 */
int skv_store_touch(struct skv_store *, const struct skv_store_bytes *keys, uint32_t n, uint32_t timeout_ms,
                    int *status);

#endif
