/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/call.h - runs one call for many keys: sends commands to their servers and matches replies, within one
 * deadline.
 *
 * At any time a key is in one list of one node, unsent or in flight, and leaves it with a status. If a node fails, all
 * of its keys get its error, and keys of other nodes continue. Outstanding replies are bounded, because the server
 * buffers them: to as many values as fit into SKV_STORE_IN_FLIGHT bytes, estimated by the size of recent values.
 */
#ifndef SKV_STORE_CALL_H
#define SKV_STORE_CALL_H

#include "daemon/store/client.h"
#include "daemon/store/cluster.h"

#define SKV_STORE_IN_FLIGHT ((size_t)32 << 20)
#define SKV_STORE_FIRST_VALUE ((size_t)1 << 20) /* assumed size of a value before any was received */

enum skv_store_op { SKV_STORE_GET, SKV_STORE_SET, SKV_STORE_EXISTS, SKV_STORE_DEL, SKV_STORE_TOUCH };

struct skv_store_call {
	enum skv_store_op op;
	const struct skv_store_bytes *keys, *values; /* [n]; values of SET */
	uint32_t n;
	uint64_t ttl_ms;
	bool only_new;
	skv_store_value_fn fn; /* for GET */
	void *ctx;
	int *status; /* [n] */
};

/* State shared by calls. */
struct skv_store_line {
	struct skv_store_cluster *cluster;
	char *piece;        /* [SKV_STORE_PIECE] */
	size_t value_bytes; /* estimated size of a value, from recent ones */
	char why[SKV_STORE_TEXT];
};

/* Runs the call, see client.h for results. */
int skv_store_call_run(struct skv_store_line *, const struct skv_store_call *, uint32_t timeout_ms);

#endif
