/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/prefix-keys.h - keys of sealed prefixes: chains of HMAC-SHA256.
 *
 *   tenant   = HMAC(secret, "tenant", uid)
 *   origin   = HMAC(tenant, "origin", what K and V depend on besides tokens: model, shape, dtype, rank, policy, how it compresses)
 *   block i  = HMAC(tenant, "block", block i - 1 or the origin, its token ids)
 *   value    = HMAC(tenant, "value"): what encrypts blocks in a store
 *   tag      = HMAC(tenant, "tag", SHA256(keys)): that a file's keys are of this secret and tenant
 *
 * So a block's key says all that is before it, too; and who has not the tenant's, which never leaves the daemon, can make or tell none
 * of its keys. All daemons that share a store have the same secret. Numbers are little-endian. Nothing here allocates memory.
 */
#ifndef SKV_PREFIX_KEYS_H
#define SKV_PREFIX_KEYS_H

#include <sys/types.h>
#include "daemon/core/prefix.h"

#define SKV_PREFIX_KEY 32u /* bytes of each of them */
_Static_assert(SKV_PREFIX_KEY == SKV_PREFIX_ORIGIN, "an origin is one");

void skv_prefix_tenant(const uint8_t secret[SKV_PREFIX_KEY], uid_t uid, uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_origin(const uint8_t tenant[SKV_PREFIX_KEY], const struct skv_model *, const char *policy, const struct skv_made *made,
                       uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_block(const uint8_t tenant[SKV_PREFIX_KEY], const uint8_t before[SKV_PREFIX_KEY], const int32_t ids[SKV_BLOCK_TOKENS],
                      uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_value(const uint8_t tenant[SKV_PREFIX_KEY], uint8_t ret[SKV_PREFIX_KEY]);
void skv_prefix_tag(const uint8_t tenant[SKV_PREFIX_KEY], const struct skv_block_key *keys, uint32_t n, uint8_t ret[SKV_PREFIX_KEY]);
/* Of what hosts that share a store say of themselves there (store/record.h). */
void skv_prefix_agents(const uint8_t secret[SKV_PREFIX_KEY], uint8_t ret[SKV_PREFIX_KEY]);

/* Of a block, for the core. */
static inline void skv_prefix_short(const uint8_t key[SKV_PREFIX_KEY], struct skv_block_key *ret)
{
	for (size_t i = 0; i < sizeof(ret->bytes); i++)
		ret->bytes[i] = key[i];
}

/*
 * The secret of a file: its SHA-256. 0; negative errno with a text: it cannot be read, is shorter than 32 bytes or longer than 4096, or
 * others than its owner and group may read it.
 */
int skv_prefix_secret(const char *file, uint8_t ret[SKV_PREFIX_KEY], char why[256]);

#endif
