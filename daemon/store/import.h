/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/store/import.h - GET with NIXL: reads values from the memory of the hosts that their records name. */
#ifndef SKV_STORE_IMPORT_H
#define SKV_STORE_IMPORT_H

#include "daemon/store/values-priv.h"

/* The records among the values that a call to the prefix store has read. */
struct skv_store_import {
	uint32_t n;
	struct skv_store_wanted {
		uint32_t i; /* index in the call's keys */
		struct skv_store_record record;
		void *to, *read; /* private to import.c */
	} wanted[SKV_STORE_BATCH_KEYS];
};

/* Receives the value of the call's key i; NULL: the host that the record names does not have it. */
typedef void (*skv_store_import_fn)(void *ctx, uint32_t i, const void *value, size_t bytes);

/*
 * Reads the values of all records and passes them to fn. If it remains unknown whether a record's host has the value,
 * fn is not called. Takes at most half of the job's remaining time, so that there is time to delete records without a
 * value. An agent that does not answer is considered dead, and its metadata is deleted from the store. Negative errno:
 * this host cannot read with NIXL, or the store failed.
 */
int skv_store_import_read(struct skv_store_values *, struct skv_store_import *, skv_store_import_fn, void *ctx);

#endif
