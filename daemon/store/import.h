/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/store/import.h - GET with NIXL: reads values from other hosts' memory, by their records. */
#ifndef SKV_STORE_IMPORT_H
#define SKV_STORE_IMPORT_H

#include "daemon/store/values-priv.h"

/* Records found by a call. */
struct skv_store_import {
	uint32_t n;
	struct skv_store_wanted {
		uint32_t i; /* index in the call's keys */
		struct skv_store_record record;
		void *to, *read; /* private to import.c */
	} wanted[SKV_STORE_BATCH_KEYS];
};

/* Receives the value of key i; NULL: its host does not have it. Not called if that could not be determined. */
typedef void (*skv_store_import_fn)(void *ctx, uint32_t i, const void *value, size_t bytes);

/*
 * Reads all records, within a part of the job's remaining time, so that there is time to delete records without a
 * value. Negative errno: this host cannot read with NIXL. An agent that does not answer is considered dead, and its
 * metadata is deleted.
 */
int skv_store_import_read(struct skv_store_values *, struct skv_store_import *, skv_store_import_fn, void *ctx);

#endif
