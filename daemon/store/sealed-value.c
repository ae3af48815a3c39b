/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/sealed-value.h"

#include <openssl/rand.h>
#include <string.h>

bool skv_store_seal(const struct skv_store_cipher *cipher, const char *magic, struct skv_store_about about, const void *plain, size_t bytes,
                    uint8_t *value)
{
	uint8_t *nonce = value + SKV_STORE_SEAL_MAGIC, *text = nonce + SKV_STORE_SEAL_NONCE;
	EVP_CIPHER_CTX *ctx = cipher->ctx;
	int n;

	memcpy(value, magic, SKV_STORE_SEAL_MAGIC);
	return RAND_bytes(nonce, SKV_STORE_SEAL_NONCE) == 1 && EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, cipher->key, nonce) == 1 &&
	       EVP_EncryptUpdate(ctx, NULL, &n, about.at, (int)about.n) == 1 && EVP_EncryptUpdate(ctx, text, &n, plain, (int)bytes) == 1 &&
	       n == (int)bytes && EVP_EncryptFinal_ex(ctx, text + bytes, &n) == 1 &&
	       EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, SKV_STORE_SEAL_TAG, text + bytes) == 1;
}

bool skv_store_unseal(const struct skv_store_cipher *cipher, const char *magic, struct skv_store_about about, const void *value, size_t n_value,
                      void *plain)
{
	const uint8_t *nonce = (const uint8_t *)value + SKV_STORE_SEAL_MAGIC, *text = nonce + SKV_STORE_SEAL_NONCE;
	const size_t bytes = n_value - SKV_STORE_SEAL_OVERHEAD;
	EVP_CIPHER_CTX *ctx = cipher->ctx;
	uint8_t tag[SKV_STORE_SEAL_TAG];
	int n;

	if (n_value < SKV_STORE_SEAL_OVERHEAD || memcmp(value, magic, SKV_STORE_SEAL_MAGIC) != 0)
		return false;
	memcpy(tag, text + bytes, sizeof(tag));
	return EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, cipher->key, nonce) == 1 &&
	       EVP_DecryptUpdate(ctx, NULL, &n, about.at, (int)about.n) == 1 && EVP_DecryptUpdate(ctx, plain, &n, text, (int)bytes) == 1 &&
	       n == (int)bytes && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, sizeof(tag), tag) == 1 &&
	       EVP_DecryptFinal_ex(ctx, (uint8_t *)plain + bytes, &n) == 1;
}
