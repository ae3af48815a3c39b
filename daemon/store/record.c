/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/record.h"

#include <stdio.h>
#include <string.h>

#define MAGIC "SKVNIXL1"
#define AGENT_MAGIC "SKVAGNT1"

/* Additional data of a record: the identity of its part, and a magic, by which a part cannot be taken for a record. */
struct __attribute__((packed)) about {
	char magic[SKV_STORE_SEAL_MAGIC];
	struct skv_store_identity part;
};

static struct about about(const struct skv_store_cut *c, const uint8_t *name, uint32_t part)
{
	struct about a = {.part = skv_store_part_identify(c, name, part)};

	memcpy(a.magic, MAGIC, sizeof(a.magic));
	return a;
}

bool skv_store_is_record(const void *value, size_t n_value)
{
	return n_value == SKV_STORE_RECORD_BYTES && memcmp(value, MAGIC, SKV_STORE_SEAL_MAGIC) == 0;
}

bool skv_store_record_seal(const struct skv_store_cipher *cipher, const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME],
                           uint32_t part, const struct skv_store_record *r, uint8_t value[SKV_STORE_RECORD_BYTES])
{
	const struct about a = about(c, name, part);

	return skv_store_seal(cipher, MAGIC, (struct skv_store_about){&a, sizeof(a)}, r, sizeof(*r), value);
}

bool skv_store_record_open(const struct skv_store_cipher *cipher, const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME],
                           uint32_t part, const void *value, size_t n_value, struct skv_store_record *ret)
{
	const struct about a = about(c, name, part);

	return skv_store_is_record(value, n_value) &&
	       skv_store_unseal(cipher, MAGIC, (struct skv_store_about){&a, sizeof(a)}, value, n_value, ret) &&
	       ret->version == SKV_STORE_RECORD_VERSION && ret->bytes == skv_store_cut_bytes(c, part) + SKV_STORE_PART_OVERHEAD;
}

void skv_store_agent_name(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_NAME])
{
	for (uint32_t i = 0; i < SKV_STORE_AGENT; i++)
		snprintf(ret + 2 * (size_t)i, 3, "%02x", agent[i]);
}

void skv_store_agent_key(const uint8_t agent[SKV_STORE_AGENT], char ret[SKV_STORE_AGENT_KEY])
{
	char name[SKV_STORE_AGENT_NAME];

	skv_store_agent_name(agent, name);
	snprintf(ret, SKV_STORE_AGENT_KEY, "sparsekv-agent:%s", name);
}

bool skv_store_agent_seal(const struct skv_store_cipher *cipher, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t n,
                          uint8_t *value)
{
	return skv_store_seal(cipher, AGENT_MAGIC, (struct skv_store_about){agent, SKV_STORE_AGENT}, metadata, n, value);
}

bool skv_store_agent_open(const struct skv_store_cipher *cipher, const uint8_t agent[SKV_STORE_AGENT], const void *value, size_t n_value,
                          void *metadata)
{
	return skv_store_unseal(cipher, AGENT_MAGIC, (struct skv_store_about){agent, SKV_STORE_AGENT}, value, n_value, metadata);
}
