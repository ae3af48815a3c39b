/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/prefix/prefix-keys.h"

/*
 * The daemon must survive a lack of memory. SHA256_Init(), SHA256_Update() and SHA256_Final() allocate none. HMAC() and
 * SHA256() of OpenSSL 3.0 do, the first time hundreds of times, and dereference NULL if an allocation fails.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"

#define LEAST_SECRET 32
#define MOST_SECRET 4096

/* The input of a hash, concatenated by add(). */
struct text {
	uint8_t bytes[4096];
	size_t n;
};

static void add(struct text *t, const void *from, size_t n)
{
	memcpy(t->bytes + t->n, from, n);
	t->n += n;
}

static void begin_padded(SHA256_CTX *hash, const uint8_t key[SKV_PREFIX_KEY], uint8_t with)
{
	uint8_t pad[SHA256_CBLOCK];

	memset(pad, with, sizeof(pad));
	for (size_t i = 0; i < SKV_PREFIX_KEY; i++)
		pad[i] ^= key[i];
	SHA256_Init(hash);
	SHA256_Update(hash, pad, sizeof(pad));
	OPENSSL_cleanse(pad, sizeof(pad));
}

/* HMAC-SHA256 as in RFC 2104. */
static void hmac(const uint8_t key[SKV_PREFIX_KEY], const struct text *t, uint8_t ret[SKV_PREFIX_KEY])
{
	SHA256_CTX hash;

	begin_padded(&hash, key, 0x36);
	SHA256_Update(&hash, t->bytes, t->n);
	SHA256_Final(ret, &hash);
	begin_padded(&hash, key, 0x5c);
	SHA256_Update(&hash, ret, SHA256_DIGEST_LENGTH);
	SHA256_Final(ret, &hash); /* also cleanses `hash` */
}

void skv_prefix_tenant(const uint8_t secret[SKV_PREFIX_KEY], uid_t uid, uint8_t ret[SKV_PREFIX_KEY])
{
	const uint32_t id = (uint32_t)uid;
	struct text t = {.n = 0};

	add(&t, "tenant", 7);
	add(&t, &id, sizeof(id));
	hmac(secret, &t, ret);
}

_Static_assert(sizeof(((struct text *)0)->bytes) >= SKV_MAX_LAYERS * sizeof(struct skv_form) + SKV_SPEC_MAX + 256, "room for an origin");

void skv_prefix_origin(const uint8_t tenant[SKV_PREFIX_KEY], const struct skv_model *m, const char *policy, const struct skv_made *made,
                       uint8_t ret[SKV_PREFIX_KEY])
{
	const uint32_t shape[] = {m->n_layers, m->n_heads, m->n_kv_heads, m->head_dim, m->kv_dtype, m->rank, m->n_ranks};
	struct text t = {.n = 0};

	add(&t, "origin", 7);
	add(&t, shape, sizeof(shape));
	add(&t, m->name, strnlen(m->name, sizeof(m->name)));
	add(&t, "", 1);
	add(&t, policy, strnlen(policy, SKV_SPEC_MAX));
	add(&t, "", 1);
	add(&t, &made->codec, sizeof(made->codec));
	add(&t, &made->rope, sizeof(made->rope));
	add(&t, made->form, m->n_layers * sizeof(*made->form));
	hmac(tenant, &t, ret);
}

void skv_prefix_block(const uint8_t tenant[SKV_PREFIX_KEY], const uint8_t before[SKV_PREFIX_KEY], const int32_t ids[SKV_BLOCK_TOKENS],
                      uint8_t ret[SKV_PREFIX_KEY])
{
	struct text t = {.n = 0};

	add(&t, "block", 6);
	add(&t, before, SKV_PREFIX_KEY);
	add(&t, ids, SKV_BLOCK_TOKENS * sizeof(*ids));
	hmac(tenant, &t, ret);
}

void skv_prefix_value(const uint8_t tenant[SKV_PREFIX_KEY], uint8_t ret[SKV_PREFIX_KEY])
{
	struct text t = {.n = 0};

	add(&t, "value", 6);
	hmac(tenant, &t, ret);
}

static void sha256(const uint8_t *bytes, size_t n, uint8_t ret[SKV_PREFIX_KEY])
{
	SHA256_CTX hash;

	SHA256_Init(&hash);
	SHA256_Update(&hash, bytes, n);
	SHA256_Final(ret, &hash);
}

void skv_prefix_tag(const uint8_t tenant[SKV_PREFIX_KEY], const struct skv_block_key *keys, uint32_t n, uint8_t ret[SKV_PREFIX_KEY])
{
	uint8_t sum[SKV_PREFIX_KEY];
	struct text t = {.n = 0};

	sha256((const uint8_t *)keys, n * sizeof(*keys), sum);
	add(&t, "tag", 3);
	add(&t, sum, sizeof(sum));
	hmac(tenant, &t, ret);
}

void skv_prefix_agents(const uint8_t secret[SKV_PREFIX_KEY], uint8_t ret[SKV_PREFIX_KEY])
{
	struct text t = {.n = 0};

	add(&t, "agents", 7);
	hmac(secret, &t, ret);
}

static int refuse(int error, char why[256], const char *file, const char *what)
{
	snprintf(why, 256, "%.120s: %s", file, what);
	return error;
}

int skv_prefix_secret(const char *file, uint8_t ret[SKV_PREFIX_KEY], char why[256])
{
	const char *what;
	SKV_FD_CLEANUP int fd = skv_open_secret(file, &what);
	uint8_t bytes[MOST_SECRET + 1];
	ssize_t n;
	int r = 0;

	if (fd < 0)
		return refuse(fd, why, file, what);
	n = read(fd, bytes, sizeof(bytes));
	if (n < 0)
		r = refuse(-errno, why, file, strerror(errno));
	else if (n < LEAST_SECRET || n > MOST_SECRET)
		r = refuse(-EINVAL, why, file, "expected 32 to 4096 random bytes");
	else
		sha256(bytes, (size_t)n, ret);
	OPENSSL_cleanse(bytes, sizeof(bytes));
	return r;
}
