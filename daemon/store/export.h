/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/export.h - PUT with NIXL: values in a window of this host's memory, which other hosts read.
 *
 * Only the process that sends prefixes has the agent and the window: it writes the values, and the daemon keeps it
 * alive (prefix-store-nixl). Its values are lost when it exits. Records of them then name an agent that no longer
 * exists, and are deleted by the first reader that notices.
 */
#ifndef SKV_STORE_EXPORT_H
#define SKV_STORE_EXPORT_H

#include "daemon/store/values-priv.h"

struct skv_store_export;

/*
 * Creates the process's agent if there is none, and publishes its metadata in the store. *ret is NULL if the job names
 * no library.
 */
int skv_store_export_begin(struct skv_store_values *, struct skv_store_export **ret);
/* Returns room for a value of this key in the window; NULL: the value must go to the store itself. */
uint8_t *skv_store_export_room(struct skv_store_export *, size_t bytes, const char *key);
/* Creates the record of a value in the window. False: OpenSSL failed. */
bool skv_store_export_record(const struct skv_store_export *, struct skv_store_values *, uint32_t block, uint32_t part, const uint8_t *value,
                             size_t bytes, uint8_t record[SKV_STORE_RECORD_BYTES]);
/* Deletes records of values evicted from the window from the store. */
int skv_store_export_clean(struct skv_store_export *, struct skv_store_values *);

#endif
