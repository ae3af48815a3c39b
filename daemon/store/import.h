/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/store/import.h - values that are in other hosts' memory, by their records: of GET. */
#ifndef SKV_STORE_IMPORT_H
#define SKV_STORE_IMPORT_H

#include "daemon/store/values-priv.h"

/* Records of a call. */
struct skv_store_import {
	uint32_t n;
	struct skv_store_wanted {
		uint32_t i; /* of the call's keys */
		struct skv_store_record record;
		void *to, *read; /* import.c's own */
	} wanted[SKV_STORE_BATCH_KEYS];
};

/* What was read for key i; NULL: its host has not got it. Not called for what nobody could find out about. */
typedef void (*skv_store_import_fn)(void *ctx, uint32_t i, const void *value, size_t bytes);

/*
 * All are tried, for a part of the time that the job has left, so that there is time to delete what was in vain. Negative errno: this host
 * cannot read by NIXL. An agent that does not answer is taken for dead, and its metadata deleted.
 */
int skv_store_import_read(struct skv_store_values *, struct skv_store_import *, skv_store_import_fn, void *ctx);

#endif
