/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/record.h - records: the location of a part, which the store has in place of the part if NIXL transfers
 * it (nixl.h).
 *
 * A record is sealed like its part, with the tenant's key and for this part only. The metadata of agents, which NIXL's
 * library parses, is sealed for the agent's name, with a key shared by all hosts of the store. So a client with write
 * access to the store can neither make a host read from a wrong place nor make the library parse foreign data; invalid
 * data counts as absent.
 */
#ifndef SKV_STORE_RECORD_H
#define SKV_STORE_RECORD_H

#include "daemon/store/part.h"

#define SKV_STORE_AGENT 16u /* bytes of an agent's number: random, so that each process with an agent has a new one */
#define SKV_STORE_AGENT_NAME 33u /* bytes of it in hex, including NUL */
#define SKV_STORE_RECORD_VERSION 1u

struct __attribute__((packed)) skv_store_record {
	uint8_t version;
	uint8_t agent[SKV_STORE_AGENT];
	uint64_t at, bytes, device; /* location of the value in the agent's memory */
};
#define SKV_STORE_RECORD_BYTES (sizeof(struct skv_store_record) + SKV_STORE_SEAL_OVERHEAD)

/* Checks size and magic only. */
bool skv_store_is_record(const void *value, size_t n_value);
bool skv_store_record_seal(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                           const struct skv_store_record *, uint8_t value[SKV_STORE_RECORD_BYTES]);
/* False: not a record of this part and version, or of a value of another size than the part's. */
bool skv_store_record_open(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                           const void *value, size_t n_value, struct skv_store_record *ret);

#define SKV_STORE_AGENT_KEY 48u /* bytes of the metadata's key in the store, including NUL */
#define SKV_STORE_MAX_METADATA ((size_t)256 << 10)
void skv_store_agent_name(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_NAME]);
void skv_store_agent_key(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_KEY]);
bool skv_store_agent_seal(const struct skv_store_cipher *, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t n, uint8_t *value);
/* `metadata` has room for n_value bytes. */
bool skv_store_agent_open(const struct skv_store_cipher *, const uint8_t agent[SKV_STORE_AGENT], const void *value, size_t n_value,
                          void *metadata);

#endif
