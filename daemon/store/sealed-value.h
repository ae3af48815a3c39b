/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/sealed-value.h - encrypts and authenticates values of the prefix store.
 *
 * A value consists of eight bytes of magic, a nonce, the ciphertext, and the tag of AES-256-GCM. Nonces are random,
 * which is safe for up to 2^32 values per key. A tag that matches proves that the value was sealed with the same key
 * and the same additional data.
 */
#ifndef SKV_STORE_SEALED_VALUE_H
#define SKV_STORE_SEALED_VALUE_H

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_STORE_SEAL_MAGIC 8u
#define SKV_STORE_SEAL_NONCE 12u
#define SKV_STORE_SEAL_TAG 16u
#define SKV_STORE_SEAL_OVERHEAD (SKV_STORE_SEAL_MAGIC + SKV_STORE_SEAL_NONCE + SKV_STORE_SEAL_TAG)

/* Key and OpenSSL context, both owned by the caller. */
struct skv_store_cipher {
	EVP_CIPHER_CTX *ctx;
	const uint8_t *key; /* [SKV_STORE_KEY] */
};

/* Additional data of AES-GCM: authenticated with the value, but not stored in it. */
struct skv_store_about {
	const void *at;
	size_t n;
};

/*
 * Encrypts n bytes of `text` into `value`, which has room for n + SKV_STORE_SEAL_OVERHEAD bytes. n must fit into an
 * int. False: OpenSSL failed.
 */
bool skv_store_seal(const struct skv_store_cipher *, const char *magic, struct skv_store_about, const void *text, size_t n, uint8_t *value);
/*
 * Verifies and decrypts a value into `text`, which has room for n_value - SKV_STORE_SEAL_OVERHEAD bytes. False: the
 * value is not valid, and `text` has undefined contents.
 */
bool skv_store_unseal(const struct skv_store_cipher *, const char *magic, struct skv_store_about, const void *value, size_t n_value, void *text);

#endif
