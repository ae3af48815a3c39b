/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/multi-key.h - runs one call of the prefix store's client for many keys: sends a command for each key to
 * the key's server and matches replies to keys, within one deadline.
 *
 * Until a key has a status, it is in one list of its node: either in `unsent` or in `in_flight`. If a node fails, all
 * keys in its lists get the error as their status, and keys of other nodes continue. A server buffers replies that are
 * not received yet. So a GET has only as many commands in flight as values fit into SKV_STORE_IN_FLIGHT bytes,
 * estimated by the size of recent values.
 */
#ifndef SKV_STORE_MULTI_KEY_H
#define SKV_STORE_MULTI_KEY_H

#include "daemon/store/client.h"
#include "daemon/store/cluster.h"

#define SKV_STORE_IN_FLIGHT ((size_t)32 << 20)
#define SKV_STORE_FIRST_VALUE ((size_t)1 << 20) /* assumed size of a value before any was received */

enum skv_store_op { SKV_STORE_GET, SKV_STORE_SET, SKV_STORE_EXISTS, SKV_STORE_DEL, SKV_STORE_TOUCH };

struct skv_store_call {
	enum skv_store_op op;
	const struct skv_store_bytes *keys, *values; /* [n]; `values` for SET only */
	uint32_t n;
	uint64_t ttl_ms;
	bool only_new;
	skv_store_value_fn fn; /* for GET: receives the values */
	void *ctx;
	int *status; /* [n] */
};

/* State of a client that outlives its calls. */
struct skv_store_line {
	struct skv_store_cluster *cluster;
	char *piece;        /* [SKV_STORE_PIECE] */
	size_t value_bytes; /* estimated size of a value in bytes, from recent ones */
	char why[SKV_STORE_TEXT];
};

/* Runs the call. Return value and statuses of keys are as client.h describes. */
int skv_store_call_run(struct skv_store_line *, const struct skv_store_call *, uint32_t timeout_ms);

#endif
