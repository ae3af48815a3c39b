/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/export.h - values that others read from this host's memory by NIXL: of PUT.
 *
 * The process that sends prefixes has the agent and the window, and no other does: it is there anyway, it writes the values, and the
 * daemon lets it stay (prefix-store-nixl). When it ends, what it had is lost; records of it name an agent that nobody is any more, and are
 * deleted by the reader who finds that out.
 */
#ifndef SKV_STORE_EXPORT_H
#define SKV_STORE_EXPORT_H

#include "daemon/store/values-priv.h"

struct skv_store_export;

/* The process's agent, made if there is none, and its metadata in the store. *ret: NULL where the job names no library. */
int skv_store_export_begin(struct skv_store_values *, struct skv_store_export **ret);
/* Room for a value of this key in the window; NULL: it has to go to the store itself. */
uint8_t *skv_store_export_room(struct skv_store_export *, size_t bytes, const char *key);
/* The record of a value there. False: OpenSSL cannot. */
bool skv_store_export_record(const struct skv_store_export *, struct skv_store_values *, uint32_t block, uint32_t part, const uint8_t *value,
                             size_t bytes, uint8_t record[SKV_STORE_RECORD_BYTES]);
/* Records of values that had to make room leave the store. */
int skv_store_export_clean(struct skv_store_export *, struct skv_store_values *);

#endif
