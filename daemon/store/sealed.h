/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/sealed.h - what lies in the store: encrypted and authenticated bytes.
 *
 * Eight bytes that say what it is, a nonce, the ciphertext, and the tag of AES-256-GCM. Nonces are random, which is good for 2^32 of a key.
 * What has the right tag was sealed with the key, for just what is given as additional data.
 */
#ifndef SKV_STORE_SEALED_H
#define SKV_STORE_SEALED_H

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_STORE_SEAL_MAGIC 8u
#define SKV_STORE_SEAL_NONCE 12u
#define SKV_STORE_SEAL_TAG 16u
#define SKV_STORE_SEAL_OVERHEAD (SKV_STORE_SEAL_MAGIC + SKV_STORE_SEAL_NONCE + SKV_STORE_SEAL_TAG)

/* What seals and opens: a key and a context for it, both the caller's. */
struct skv_store_cipher {
	EVP_CIPHER_CTX *ctx;
	const uint8_t *key; /* [SKV_STORE_KEY] */
};

/* Additional data. */
struct skv_store_about {
	const void *at;
	size_t n;
};

/* n fits into an int; `value` has room for SKV_STORE_SEAL_OVERHEAD more. False: OpenSSL cannot. */
bool skv_store_seal(const struct skv_store_cipher *, const char *magic, struct skv_store_about, const void *text, size_t n, uint8_t *value);
/* The text has n_value - SKV_STORE_SEAL_OVERHEAD bytes. False: it is not what was sealed, whatever is in `text` now. */
bool skv_store_unseal(const struct skv_store_cipher *, const char *magic, struct skv_store_about, const void *value, size_t n_value, void *text);

#endif
