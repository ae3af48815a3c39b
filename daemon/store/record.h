/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/record.h - where a part is, in place of the part: what the store has of values that NIXL moves (nixl.h).
 *
 * A record is sealed as its part is, with the tenant's key and for this part alone. The metadata of agents, which NIXL's library parses, is
 * sealed with a key of all hosts that share the store, for the agent of this name. So who can write to the store makes neither a host read
 * where it should not, nor the library parse what no host wrote; what is not right counts as absent.
 */
#ifndef SKV_STORE_RECORD_H
#define SKV_STORE_RECORD_H

#include "daemon/store/part.h"

#define SKV_STORE_AGENT 16u /* bytes of an agent's number: a random one, so each process that has an agent has a new one */
#define SKV_STORE_AGENT_NAME 33u /* in hex, NUL included */
#define SKV_STORE_RECORD_VERSION 1u

struct __attribute__((packed)) skv_store_record {
	uint8_t version;
	uint8_t agent[SKV_STORE_AGENT];
	uint64_t at, bytes, device; /* of the value, in the agent's memory */
};
#define SKV_STORE_RECORD_BYTES (sizeof(struct skv_store_record) + SKV_STORE_SEAL_OVERHEAD)

/* Does it say that it is one? */
bool skv_store_is_record(const void *value, size_t n_value);
bool skv_store_record_seal(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                           const struct skv_store_record *, uint8_t value[SKV_STORE_RECORD_BYTES]);
/* False: it is none of this part, of this version, for a value as long as the part's. */
bool skv_store_record_open(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                           const void *value, size_t n_value, struct skv_store_record *ret);

#define SKV_STORE_AGENT_KEY 48u /* bytes of the metadata's key in the store, NUL included */
#define SKV_STORE_MAX_METADATA ((size_t)256 << 10)
void skv_store_agent_name(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_NAME]);
void skv_store_agent_key(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_KEY]);
bool skv_store_agent_seal(const struct skv_store_cipher *, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t n, uint8_t *value);
/* `metadata` has room for n_value bytes. */
bool skv_store_agent_open(const struct skv_store_cipher *, const uint8_t agent[SKV_STORE_AGENT], const void *value, size_t n_value,
                          void *metadata);

#endif
