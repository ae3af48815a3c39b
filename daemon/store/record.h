/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/record.h - records of NIXL: if hosts read a part from each other (nixl.h), the prefix store has in place
 * of the part a record that says in which agent's memory it is.
 *
 * A record is sealed with the tenant's key and bound to its part, like the part itself. The metadata of an agent, which
 * NIXL's library parses, is sealed with a key shared by all hosts of the store and bound to the agent's number. So a
 * client with write access to the store, but without the keys, can neither make a host read from a wrong place nor make
 * the library parse foreign data. Invalid data counts as absent.
 */
#ifndef SKV_STORE_RECORD_H
#define SKV_STORE_RECORD_H

#include "daemon/store/block-part.h"

#define SKV_STORE_AGENT 16u /* bytes of an agent's number, which is random, so that no two agents have the same one */
#define SKV_STORE_AGENT_NAME 33u /* bytes of an agent's number in hexadecimal, including NUL */
#define SKV_STORE_RECORD_VERSION 1u

struct __attribute__((packed)) skv_store_record {
	uint8_t version;
	uint8_t agent[SKV_STORE_AGENT];
	uint64_t at, bytes, device; /* location of the value in the agent's memory */
};
#define SKV_STORE_RECORD_BYTES (sizeof(struct skv_store_record) + SKV_STORE_SEAL_OVERHEAD)

/* Returns whether a value of the store is a record, by its size and magic only. */
bool skv_store_is_record(const void *value, size_t n_value);
bool skv_store_record_seal(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                           const struct skv_store_record *, uint8_t value[SKV_STORE_RECORD_BYTES]);
/*
 * Verifies and decrypts a record. False: it is not a record of this part and version, or names a value of another size.
 */
bool skv_store_record_open(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                           const void *value, size_t n_value, struct skv_store_record *ret);

#define SKV_STORE_AGENT_KEY 48u /* bytes of the key of an agent's metadata in the store, including NUL */
#define SKV_STORE_MAX_METADATA ((size_t)256 << 10)
void skv_store_agent_name(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_NAME]);
void skv_store_agent_key(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_KEY]);
bool skv_store_agent_seal(const struct skv_store_cipher *, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t n, uint8_t *value);
/* Verifies and decrypts an agent's metadata. `metadata` has room for n_value bytes. False: the value is not valid. */
bool skv_store_agent_open(const struct skv_store_cipher *, const uint8_t agent[SKV_STORE_AGENT], const void *value, size_t n_value,
                          void *metadata);

#endif
