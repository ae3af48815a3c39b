/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/part.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

/* What a part is: authenticated with it. */
struct __attribute__((packed)) identity {
	uint8_t name[SKV_STORE_NAME];
	uint32_t part, n_parts;
	uint64_t bytes, page_bytes;
	uint32_t n_layers;
};

bool skv_store_cut_init(struct skv_store_cut *c, uint32_t n_layers, uint64_t page_bytes)
{
	if (page_bytes > SKV_STORE_MAX_VALUE - SKV_STORE_PART_OVERHEAD)
		return false;
	*c = (struct skv_store_cut){.n_layers = n_layers, .n_pages = n_layers * SKV_STORE_BLOCK_PAGES, .page_bytes = page_bytes};
	c->part_pages = page_bytes > SKV_STORE_PART_BYTES ? 1 : (uint32_t)(SKV_STORE_PART_BYTES / page_bytes);
	if (c->part_pages > c->n_pages)
		c->part_pages = c->n_pages;
	c->n_parts = (c->n_pages + c->part_pages - 1) / c->part_pages;
	return true;
}

uint32_t skv_store_cut_pages(const struct skv_store_cut *c, uint32_t part)
{
	const uint32_t left = c->n_pages - part * c->part_pages;

	return left < c->part_pages ? left : c->part_pages;
}

void skv_store_part_key(const uint8_t name[SKV_STORE_NAME], uint32_t part, char ret[SKV_STORE_PART_KEY])
{
	char hex[2 * SKV_STORE_NAME + 1];

	for (uint32_t i = 0; i < SKV_STORE_NAME; i++)
		snprintf(hex + 2 * (size_t)i, 3, "%02x", name[i]);
	snprintf(ret, SKV_STORE_PART_KEY, "sparsekv:%s:%u", hex, part);
}

static struct identity identify(const struct skv_store_cut *c, const uint8_t *name, uint32_t part)
{
	struct identity id = {.part = part, .n_parts = c->n_parts, .bytes = skv_store_cut_bytes(c, part), .page_bytes = c->page_bytes,
	                      .n_layers = c->n_layers};

	memcpy(id.name, name, sizeof(id.name));
	return id;
}

/* A value is smaller than what an int has room for. */
bool skv_store_part_seal(const struct skv_store_cipher *cipher, const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME],
                         uint32_t part, const void *pages, uint8_t *value)
{
	const struct identity id = identify(c, name, part);
	const int bytes = (int)skv_store_cut_bytes(c, part);
	uint8_t *nonce = value + SKV_STORE_PART_MAGIC_BYTES, *text = nonce + SKV_STORE_PART_NONCE;
	EVP_CIPHER_CTX *ctx = cipher->ctx;
	int n;

	memcpy(value, SKV_STORE_PART_MAGIC, SKV_STORE_PART_MAGIC_BYTES);
	return RAND_bytes(nonce, SKV_STORE_PART_NONCE) == 1 && EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, cipher->key, nonce) == 1 &&
	       EVP_EncryptUpdate(ctx, NULL, &n, (const uint8_t *)&id, sizeof(id)) == 1 && EVP_EncryptUpdate(ctx, text, &n, pages, bytes) == 1 &&
	       n == bytes && EVP_EncryptFinal_ex(ctx, text + bytes, &n) == 1 &&
	       EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, SKV_STORE_PART_TAG, text + bytes) == 1;
}

bool skv_store_part_open(const struct skv_store_cipher *cipher, const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME],
                         uint32_t part, const void *value, size_t n_value, void *pages)
{
	const struct identity id = identify(c, name, part);
	const int bytes = (int)skv_store_cut_bytes(c, part);
	const uint8_t *nonce = (const uint8_t *)value + SKV_STORE_PART_MAGIC_BYTES, *text = nonce + SKV_STORE_PART_NONCE;
	EVP_CIPHER_CTX *ctx = cipher->ctx;
	uint8_t tag[SKV_STORE_PART_TAG];
	int n;

	if (n_value != (size_t)bytes + SKV_STORE_PART_OVERHEAD || memcmp(value, SKV_STORE_PART_MAGIC, SKV_STORE_PART_MAGIC_BYTES) != 0)
		return false;
	memcpy(tag, text + bytes, sizeof(tag));
	return EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, cipher->key, nonce) == 1 &&
	       EVP_DecryptUpdate(ctx, NULL, &n, (const uint8_t *)&id, sizeof(id)) == 1 && EVP_DecryptUpdate(ctx, pages, &n, text, bytes) == 1 &&
	       n == bytes && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, sizeof(tag), tag) == 1 &&
	       EVP_DecryptFinal_ex(ctx, (uint8_t *)pages + bytes, &n) == 1;
}
