/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/prefix/prefix-keys.h - keys of sealed prefixes: chains of HMAC-SHA256.
 *
 *   tenant   = HMAC(secret, "tenant", uid)
 *   origin   = HMAC(tenant, "origin", what K and V depend on besides tokens: model, shape, dtype, rank, policy,
 *            compression)
 *   block i  = HMAC(tenant, "block", block i - 1 or the origin, its token ids)
 *   value    = HMAC(tenant, "value"): the key that encrypts blocks in the prefix store
 *   tag      = HMAC(tenant, "tag", SHA256(keys)): proves that a file's block keys were made with this secret and tenant
 *
 * So the key of a block depends on its own tokens and on all tokens before. Without the tenant's key, which never
 * leaves the daemon, no key of a block can be made or recognized. All daemons that share a store have the same secret.
 * Numbers are little-endian. The functions of this file allocate no memory.
 */
#ifndef SKV_PREFIX_KEYS_H
#define SKV_PREFIX_KEYS_H

#include <sys/types.h>
#include "daemon/core/operations/prefix.h"

#define SKV_PREFIX_KEY 32u /* bytes of each of the keys above, and of the secret */
_Static_assert(SKV_PREFIX_KEY == SKV_PREFIX_ORIGIN, "an origin is one");

void skv_prefix_tenant(const uint8_t secret[SKV_PREFIX_KEY], uid_t uid, uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_origin(const uint8_t tenant[SKV_PREFIX_KEY], const struct skv_model *, const char *policy,
                       const struct skv_made *made, uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_block(const uint8_t tenant[SKV_PREFIX_KEY], const uint8_t before[SKV_PREFIX_KEY],
                      const int32_t ids[SKV_BLOCK_TOKENS], uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_value(const uint8_t tenant[SKV_PREFIX_KEY], uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_tag(const uint8_t tenant[SKV_PREFIX_KEY], const struct skv_block_key *keys, uint32_t n,
                    uint8_t ret[SKV_PREFIX_KEY]);
/*
 * Computes the key that seals the metadata of NIXL agents in the prefix store (store/record.h): HMAC(secret, "agents").
 */
void skv_prefix_agents(const uint8_t secret[SKV_PREFIX_KEY], uint8_t ret[SKV_PREFIX_KEY]);

/* Returns the first bytes of a block's key, by which the core identifies the block. */
static inline void skv_prefix_short(const uint8_t key[SKV_PREFIX_KEY], struct skv_block_key *ret)
{
	for (size_t i = 0; i < sizeof(ret->bytes); i++)
		ret->bytes[i] = key[i];
}

/*
 * Reads the secret from a file: it is the SHA-256 of the file's contents. Returns 0, or a negative errno with a text if
 * the file cannot be read, is shorter than 32 or longer than 4096 bytes, or is accessible to others than its owner and
 * group.
 */
int skv_prefix_secret(const char *file, uint8_t ret[SKV_PREFIX_KEY], char why[256]);

#endif
