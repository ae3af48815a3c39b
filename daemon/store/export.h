/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/export.h - PUT with NIXL: puts values into a window of this host's memory, from which other hosts read
 * them, and only their records into the prefix store.
 *
 * The worker process that sends prefixes has the NIXL agent and the window, and writes the values; the daemon keeps
 * that process running (prefix-store-nixl). When the process exits, its values are lost. Records of these values then
 * name an agent that no longer exists; the first host that tries to read such a value deletes its record.
 */
#ifndef SKV_STORE_EXPORT_H
#define SKV_STORE_EXPORT_H

#include "daemon/store/values-priv.h"

struct skv_store_export;

/*
 * Creates the process's NIXL agent if there is none, and stores the agent's metadata in the prefix store. *ret is NULL
 * if the job is without NIXL.
 */
int skv_store_export_begin(struct skv_store_values *, struct skv_store_export **ret);
/* Returns room for the value of this key in the window. NULL: the value itself must be put into the prefix store. */
uint8_t *skv_store_export_room(struct skv_store_export *, size_t bytes, const char *key);
/* Creates the sealed record of a part whose value is in the window. False: OpenSSL failed. */
bool skv_store_export_record(const struct skv_store_export *, struct skv_store_values *, uint32_t block, uint32_t part, const uint8_t *value,
                             size_t bytes, uint8_t record[SKV_STORE_RECORD_BYTES]);
/* Deletes the records of values that the window has evicted from the prefix store. */
int skv_store_export_clean(struct skv_store_export *, struct skv_store_values *);

#endif
