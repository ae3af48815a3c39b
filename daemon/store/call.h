/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/call.h - one call for many keys: commands to their servers, replies in their order, one deadline.
 *
 * A key is in one list of one node at a time: unsent, or in flight. It leaves them with a status. A node that fails
 * gives all of its keys its error, and those of other nodes go on. Replies that are due are bounded, for the server's
 * sake, which buffers them: as many values as have SKV_STORE_IN_FLIGHT bytes, as large as values have been lately.
 */
#ifndef SKV_STORE_CALL_H
#define SKV_STORE_CALL_H

#include "daemon/store/client.h"
#include "daemon/store/cluster.h"

#define SKV_STORE_IN_FLIGHT ((size_t)32 << 20)
#define SKV_STORE_FIRST_VALUE ((size_t)1 << 20) /* bytes of a value when none has been seen */

enum skv_store_op { SKV_STORE_GET, SKV_STORE_SET, SKV_STORE_EXISTS, SKV_STORE_DEL, SKV_STORE_TOUCH };

struct skv_store_call {
	enum skv_store_op op;
	const struct skv_store_bytes *keys, *values; /* [n]; values of SET */
	uint32_t n;
	uint64_t ttl_ms;
	bool only_new;
	skv_store_value_fn fn; /* of GET */
	void *ctx;
	int *status; /* [n] */
};

/* What calls have in common. */
struct skv_store_line {
	struct skv_store_cluster *cluster;
	char *piece;        /* [SKV_STORE_PIECE] */
	size_t value_bytes; /* about, of values that came lately */
	char why[SKV_STORE_TEXT];
};

/* As client.h says. */
int skv_store_call_run(struct skv_store_line *, const struct skv_store_call *, uint32_t timeout_ms);

#endif
